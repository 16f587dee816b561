"""`finpod data fetch | import | check | show`."""

import json
from pathlib import Path

import pandas as pd
import pytest
from made_bars import frame
from made_commands import run

import finpod
from finpod import load_market

pytestmark = pytest.mark.usefixtures("apart")


@pytest.fixture
def faulty():
    """bars.csv: 21 sessions of two names and a benchmark, with a holiday, a zero price and a missing session."""
    bars = frame(tickers=("AAA", "BBB", "IDX"), days=pd.bdate_range("2024-01-02", "2024-01-31"))
    bars.loc[3, "open"] = 0.0
    bars[~((bars["ticker"] == "BBB") & (bars["date"] == "2024-01-10"))].to_csv("bars.csv", index=False)


def test_fetch_keeps_a_snapshot(monkeypatch):
    asked, market = {}, finpod.simulate_market(names=3, days=30)

    def fetch(universe, start, end, **terms):
        asked.update(terms, universe=universe, start=start, end=end)
        return market

    monkeypatch.setattr(finpod, "fetch_market", fetch)
    line = "data fetch --universe AAPL,MSFT --start 2020-01-02 --end 2020-02-03 --benchmark SPY --name two"
    assert run(line, "--deadline 60").out.endswith("data/two\n")
    assert callable(asked.pop("report"))
    assert asked == {
        "universe": ["AAPL", "MSFT"], "start": "2020-01-02", "end": "2020-02-03", "benchmark": "SPY", "calendar": "auto",
        "allow_missing": False, "partial": Path("data/.two.partial"), "deadline": 60.0,
    }  # fmt: skip
    assert load_market("data/two").content_hash == market.content_hash


def test_a_fetch_without_a_calendar_is_refused():
    told = "--calendar none is only for files; give the exchange of the tickers, such as XNYS"
    assert run("data fetch --universe AAPL --calendar none").error.endswith(told)


def test_only_a_snapshot_is_replaced():
    Path("data/mine").mkdir(parents=True)
    Path("data/mine/result.json").write_text("precious")
    line = "data fetch --universe AAPL --name mine --overwrite"
    assert all(part in run(line).error for part in ("data/mine", "'result.json'"))
    assert Path("data/mine/result.json").read_text() == "precious"


def test_import_check_and_show(faulty):
    facts = json.loads(run("data import bars.csv --benchmark IDX --json").out)
    assert (facts["sessions"], facts["assets"], facts["path"]) == (21, 2, "data/bars")
    assert facts["repairs"] == {"rows dropped, not a session": 3, "bars masked, a price was impossible": 1}
    assert facts["suspicions"] == {"sessions without a bar": 2}
    assert "data/bars" in run("data import bars.csv --benchmark IDX").error
    assert "\nanomalies" in run("data import bars.csv --benchmark IDX --name again").out
    assert "--calendar none" in run("data import bars.csv --benchmark IDX --calendar FOO --name new").error
    assert "'sample'" in run("data import bars.csv --benchmark IDX --name sample").error
    checked = run("data check bars").out
    assert all(told in checked for told in (facts["hash"], "    AAA 2024-01-03 open 0 -> masked\n", "\nanomalies"))
    assert run("data show bars").out.splitlines()[-1].split() == ["BBB", "2024-01-02", "2024-01-31", "20", "21"]
    assert [row["ticker"] for row in json.loads(run("data show bars --json").out)["rows"]] == ["AAA", "BBB"]


def test_check_for_machines_lists_every_place(faulty):
    facts = json.loads(run("data check bars.csv --benchmark IDX --json").out)
    assert (facts["repairs"][1]["places"][0]["became"], facts["suspicions"][1]["date"]) == ("masked", "2024-01-10")
    every = json.loads(run("data check bars.csv --benchmark IDX --calendar none --json").out)
    assert (every["sessions"], every["calendar"]) == (22, "the dates of the file")


def test_a_file_of_one_name_takes_the_options_its_messages_name():
    Path("prices.csv").write_text("Date;Close\n03/04/2024;1,234\n05/06/2024;2,345\n")
    for options, told in (
        ("", "--decimal"),
        ("--decimal ,", "--day-first or --month-first"),
        ("--decimal , --day-first", "benchmark QQQ"),
    ):
        assert told in run("data import prices.csv", options).error
    line = "data import prices.csv --decimal , --day-first --benchmark none --ticker AAA --periods-per-year 365 --json"
    assert json.loads(run(line).out)["benchmark"] == "none"
    market = load_market("data/prices")
    assert (market.tickers, market.periods_per_year) == (("AAA",), 365)
    assert (market.close[:, 0].tolist(), f"{market.dates[0]!s:.10}") == ([1.234, 2.345], "2024-04-03")


def test_g04_the_column_of_tickers_can_be_named_on_the_command_line():
    bars = frame(days=pd.bdate_range("2024-01-02", periods=30)).rename(columns={"ticker": "firm"})
    bars.to_csv("bars.csv", index=False)
    assert all(part in run("data import bars.csv").error for part in ("firm", "--ticker-column", "--ticker"))
    assert json.loads(run("data import bars.csv --ticker-column firm --json").out)["assets"] == 2
    line = "equal-weight --market bars.csv --ticker-column firm"
    assert run(f"backtest {line} --quick --no-report --name one --json").code == 0
    assert "ticker_column" not in run("data check bars.csv --ticker-column nowhere").error
    assert run(f"audit {line} --days 2 --json").code == 0
