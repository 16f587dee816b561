"""`finpod data import | check | show`."""

import json

import numpy as np
import pandas as pd
import pytest
from made_bars import frame

from finpod import load_market
from finpod.cli import main


@pytest.fixture
def work(tmp_path, monkeypatch):
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys):
    """Run a command line: (exit code, stdout, stderr)."""

    def call(line):
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        text = capsys.readouterr()
        return ended.value.code, text.out, text.err

    return call


def with_faults(path):
    """Twenty-one sessions of two names and a benchmark, with a holiday, a zero price and a missing session."""
    days = pd.bdate_range("2024-01-02", "2024-01-31")
    bars = frame(tickers=("AAA", "BBB", "IDX"), days=days)
    bars.loc[3, "open"] = 0.0
    bars = bars[~((bars["ticker"] == "BBB") & (bars["date"] == "2024-01-10"))]
    bars.to_csv(path, index=False)


@pytest.mark.parametrize("command", ["data import bars.csv --benchmark IDX", "data fetch AAPL"])
def test_only_a_snapshot_is_replaced_and_that_is_known_before_the_work(work, run, monkeypatch, command):
    for reader in ("load_market", "fetch_market"):
        monkeypatch.setattr(f"finpod.{reader}", lambda *a, **k: pytest.fail("read before the output was checked"))
    (work / "data" / "mine").mkdir(parents=True)
    (work / "data" / "mine" / "result.json").write_text("precious")
    code, out, err = run(f"{command} --name mine --overwrite")
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert "data/mine is not a snapshot (it holds 'result.json')" in err
    assert (work / "data" / "mine" / "result.json").read_text() == "precious"


def test_import_check_and_show(work, run):
    with_faults(work / "bars.csv")
    code, out, _ = run("data import bars.csv --benchmark IDX --json")
    facts = json.loads(out)
    assert (code, facts["sessions"], facts["names"], facts["path"]) == (0, 21, 2, "data/bars")
    assert facts["repairs"] == {"rows dropped, not a session": 3, "bars masked, a price was not positive": 1}
    assert facts["suspicions"] == {"sessions without a bar": 2}
    code, out, err = run("data import bars.csv --benchmark IDX")
    assert (code, out) == (2, "")
    assert "data/bars exists already" in err
    assert len(err.splitlines()) == 1
    assert run("data import bars.csv --benchmark IDX --name other")[1].endswith("data/other\n")
    code, checked, _ = run("data check bars")
    assert facts["hash"] in checked
    for told in (
        "coverage",
        "\nrepairs:\n  rows dropped, not a session: 3\n    AAA 2024-01-15 bar a bar -> dropped\n",
        "    AAA 2024-01-03 open 0 -> masked\n",
        "\nsuspicions, left alone:\n  sessions without a bar: 2\n    AAA 2024-01-03 no bar on a session\n",
    ):
        assert told in checked
    shown = run("data show bars --tickers BBB")[1]
    assert shown.splitlines()[-1].split() == ["BBB", "2024-01-02", "2024-01-31", "20", "21"]
    assert "AAA" not in shown
    rows = json.loads(run("data show bars --json")[1])["rows"]
    assert [row["ticker"] for row in rows] == ["AAA", "BBB"]


def test_check_for_machines_lists_every_place(work, run):
    with_faults(work / "bars.csv")
    facts = json.loads(run("data check bars.csv --benchmark IDX --json")[1])
    assert facts["repairs"][1] == {
        "kind": "bars masked, a price was not positive",
        "count": 1,
        "places": [{"ticker": "AAA", "date": "2024-01-03", "column": "open", "was": 0.0, "became": "masked"}],
    }
    assert facts["suspicions"][1] == {
        "kind": "sessions without a bar",
        "ticker": "BBB",
        "date": "2024-01-10",
        "sentence": "no bar on a session",
    }
    every = json.loads(run("data check bars.csv --benchmark IDX --calendar none --json")[1])
    assert every["sessions"] == 22
    assert every["calendar"] == "the dates of the file"


def test_check_lists_all_places_only_when_asked(work, run):
    frame(tickers=("AAA", "IDX"), days=pd.bdate_range("2024-01-02", periods=8))[::-1].to_csv(work / "bars.csv")
    short, long = (run(f"data check bars.csv --benchmark IDX{more}")[1] for more in ("", " --all"))
    assert "rows put in order of date: 14\n" in short
    assert "  and 9 more\n" in short
    assert " more\n" not in long


def test_the_sample_has_nothing_to_repair(work, run):
    code, out, _ = run("data check")
    assert code == 0
    assert "\nrepairs: none\n" in out
    assert out.endswith("\nsuspicions, left alone: none\n")


def test_import_of_one_name_takes_its_options(work, run):
    (work / "prices.csv").write_text("Date;Close\n03/04/2024;1,234\n05/06/2024;2,345\n")
    for line, told in (
        ("data import prices.csv", "may be a thousand"),
        ("data import prices.csv --decimal ,", "--day-first or --month-first"),
        ("data import prices.csv --decimal , --day-first", "no rows for the benchmark QQQ"),
        ("data import prices.csv --decimal , --day-first --benchmark none --calendar MARS", "unknown calendar 'MARS'"),
        ("data import prices.csv --decimal ; --day-first", "decimal is ';'"),
    ):
        code, _, err = run(line)
        assert code == 2, line
        assert told in err
        assert len(err.splitlines()) == 1
    line = "data import prices.csv --decimal , --day-first --benchmark none --ticker AAA --json"
    code, out, _ = run(line)
    assert code == 0
    assert json.loads(out)["benchmark"] == "none"
    market = load_market("data/prices")
    assert market.tickers == ("AAA",)
    np.testing.assert_array_equal(market.close[:, 0], [1.234, 2.345])
    np.testing.assert_array_equal(market.dates, np.array(["2024-04-03", "2024-06-05"], dtype="datetime64[ns]"))
    assert "benchmark       none" in run("data check prices --benchmark none")[1]


def test_g04_the_column_of_tickers_can_be_named_on_the_command_line(work, run):
    bars = frame(days=pd.bdate_range("2024-01-02", periods=30)).rename(columns={"ticker": "firm"})
    bars.to_csv(work / "bars.csv", index=False)
    code, _, err = run("data import bars.csv")
    assert code == 2
    assert "a column firm of unknown meaning" in err
    assert "name the one that holds the tickers with --ticker-column, or give --ticker if" in err
    code, out, _ = run("data import bars.csv --ticker-column firm --json")
    assert (code, json.loads(out)["names"]) == (0, 2)
    line = "equal-weight --market bars.csv --ticker-column firm"
    assert run(f"backtest {line} --quick --no-report --name one --json")[0] == 0
    assert run("data check bars.csv --ticker-column FIRM --json")[0] == 0
    assert "ticker_column" not in run("data check bars.csv --ticker-column nowhere")[2]
    assert run(f"audit {line} --days 2 --json")[0] == 0


def test_import_keeps_the_periods_that_are_given(work, run):
    frame(days=pd.bdate_range("2024-01-02", periods=30)).to_csv(work / "bars.csv", index=False)
    assert run("data import bars.csv --periods-per-year 365")[0] == 0
    assert load_market("data/bars").periods_per_year == 365


def test_import_of_a_folder(work, run):
    (work / "folder").mkdir()
    for name in ("AAA", "QQQ"):
        frame(tickers=(name,)).drop(columns="ticker").to_csv(work / "folder" / f"{name}.csv", index=False)
    code, out, _ = run("data import folder --json")
    assert code == 0
    assert (json.loads(out)["names"], json.loads(out)["path"]) == (1, "data/folder")


def test_check_takes_the_options_its_messages_name(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = ["Date,Close", *(f"0{day}/03/2024,{10 + day}" for day in (4, 5, 6, 7, 8))]
    (tmp_path / "AAA.csv").write_text("\n".join(rows) + "\n")
    line = "data check AAA.csv --benchmark none"
    assert "--day-first or --month-first" in run(line)[2]
    assert run(f"{line} --month-first --calendar none")[0] == 0
    assert run(f"{line} --day-first --calendar none --ticker BBB")[0] == 0


def test_the_benchmark_may_be_left_out_of_a_backtest(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    days = ["2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05", "2024-01-08"]
    rows = ["date,ticker,close", *(f"{day},AAA,{10 + i}" for i, day in enumerate(days))]
    (tmp_path / "bars.csv").write_text("\n".join(rows) + "\n")
    ended = run("backtest buy-and-hold --market bars.csv --benchmark none")
    assert ended[0] == 0, ended[2]
    assert "there is no benchmark" in ended[1]
