"""`finpod backtest | report | audit | compare | export`: output and files."""

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_commands import SIMULATED, run
from made_results import make_result

import finpod
from finpod.backtesting import comparison
from finpod.backtesting.comparison import compare
from finpod.backtesting.result_io import load_result
from finpod.cli import options

START, END = "2010-06-01", "2010-12-31"
LINE = f"backtest equal-weight --market sim --start {START} --end {END}"
SAVED, PAGE = Path("backtests/equal-weight"), Path("reports/equal-weight.html")


pytestmark = pytest.mark.usefixtures("work")


def test_a_backtest_writes_a_run_and_its_page():
    ended = run(LINE)
    assert "backtest of equal-weight (10%)\n" in ended.err
    assert ended.out.splitlines()[-2:] == [str(SAVED), str(PAGE)]
    files = ["SHA256SUMS", "fan.parquet", "result.json", "returns.csv", "run.json", "trades.csv", "weights.parquet"]
    assert sorted(path.name for path in SAVED.iterdir()) == files
    facts = json.loads((SAVED / "run.json").read_text())
    assert facts["command"] == f"finpod {LINE}"
    assert set(facts["versions"]) >= {"python", "finpod", "torch", "numpy", "pandas"}
    assert facts["started"] <= facts["finished"]


def test_options_reach_the_backtest():
    more = "--fee-bps 3 --slippage-bps 2 --impact 1 --fill close --cash 5000 --whole-shares --risk-free 0.02 --opened 2"
    ended = run(LINE, "--no-report --json", more)
    content = json.loads(ended.out)
    assert ended.out == (SAVED / "result.json").read_text()
    assert content["costs"] == {"fee_bps": 3.0, "slippage_bps": 2.0, "per_share": 0.0, "impact": 1.0}
    assert [content[name] for name in ("fill", "cash", "whole_shares", "risk_free", "opened")] == [
        "close", 5000, True, 0.02, 2
    ]  # fmt: skip
    assert not PAGE.exists()


def test_a30_table_json_and_python_show_the_same_figures():
    line = LINE.replace("equal-weight", "momentum") + " --no-report"
    table, content = run(line).out, json.loads(run(line, "--overwrite --json").out)
    result = finpod.backtest("momentum", SIMULATED, start=START, end=END, examine=True)
    assert table.startswith(str(result))
    assert content == json.loads(result.to_json())
    assert content["metrics"] == {k: None if np.isnan(value) else value for k, value in vars(result.metrics).items()}
    own, other = content["metrics"]["total_return"], content["benchmark_metrics"]["total_return"]
    assert content["relative"]["excess"] == own - other
    row = next(line for line in table.splitlines() if line.startswith("Total return"))
    assert row.split()[2:4] == [f"{own:.2%}", f"{other:.2%}"]


def test_a_report_is_written_again_on_request():
    assert run(LINE).code == 0
    assert all(part in run(LINE).error for part in (str(SAVED), "--overwrite"))
    first = PAGE.read_bytes()
    assert str(PAGE) in run(f"report {SAVED}").error
    assert run(f"report {SAVED}/ --overwrite").out == f"{PAGE}\n"
    assert PAGE.read_bytes() == first


NOISY = """
import finpod
print("loading")
class Noisy(finpod.Strategy):
    def __init__(self):
        print("made")
    def decide(self, view):
        print("deciding")
        return {"S1": 0.5}
"""


def test_a_strategy_that_prints_does_not_spoil_the_json_and_one_that_exits_is_an_error():
    Path("noisy.py").write_text(NOISY)
    for line in ("backtest noisy.py --no-report --json", "audit noisy.py --days 2 --json"):
        ended = run(line, "--market sim")
        assert (ended.code, isinstance(json.loads(ended.out), dict)) == (0, True)
        assert all(word in ended.err for word in ("loading", "made"))
    Path("leaves.py").write_text(NOISY.replace('print("deciding")', "raise SystemExit(0)"))
    for command in ("backtest", "audit"):
        assert "SystemExit: 0" in run(f"{command} leaves.py --market sim").error


@pytest.mark.journey
def test_agents_with_own_features_are_judged_on_the_command_line():
    Path("own.py").write_text(
        "import numpy as np\n\ndef reversal(market):\n    table = np.full(market.shape, np.nan)\n"
        "    table[1:] = -(market.close[1:] / market.close[:-1] - 1)\n    return table\n"
    )
    (reversal,) = options.features(".", Path("own.py"))
    size = {"agents": 1, "rounds": 1, "keep": 1, "steps": 512, "device": "cpu"}
    windows = {"train": ("2010-02-01", "2010-06-30"), "validation": ("2010-07-01", "2010-09-30")}
    finpod.train(market=SIMULATED, out="strategies/own", features=["return_5", reversal], **windows, **size)
    line = "backtest strategies/own --market sim --no-report --start"
    assert all(part in run(line, "2010-10-01").error for part in ("reversal", "--features-from"))
    assert all(part in run(line, "2010-09-30 --features-from own.py").error for part in ("2010-09-30", "--allow-in"))
    assert run(line, "2010-10-01 --features-from own.py").code == 0
    assert run("audit strategies/own --market sim --days 2 --features-from own.py").code == 0


@pytest.fixture
def saved(work, monkeypatch):
    """The runs one, two and three, of which the first two have the same strategy."""
    monkeypatch.setattr(comparison, "RESAMPLES", 200)
    for seed, (name, strategy) in enumerate([("one", "first"), ("two", "first"), ("three", "other")]):
        make_result(days=60, names=3, seed=seed, strategy=strategy).save(work / "backtests" / name)
    return work / "backtests"


def test_compare_prints_the_table_and_writes_the_page(saved):
    ended = run("compare backtests/one two three")
    expected = compare([load_result(saved / name) for name in ("one", "two", "three")], names=["one", "two", "three"])
    assert ended == (0, f"{expected}\n\nreports/compare.html\n", "")
    assert list(expected.runs) == ["one", "two", "other"]
    ended = run("compare one three --json --name pair")
    assert ended.out == compare([load_result(saved / name) for name in ("one", "three")]).to_json()
    assert (ended.err, "<h1>pair</h1>" in Path("reports/pair.html").read_text()) == ("reports/pair.html\n", True)
    assert "reports/pair.html" in run("compare one two --name pair").error
    assert run("compare one two --no-report --json --name other").err == ""
    shutil.copytree(saved / "two", "elsewhere/one")
    stored = json.loads(run("compare one elsewhere/one --json --no-report").out)
    assert list(stored["runs"]) == ["backtests/one", "elsewhere/one"]
    make_result(days=60, periods_per_year=252 * 6, strategy="fast").save(saved / "fast")
    assert "fast has several returns per session" in run("compare one fast --name x").error


def test_export_writes_what_its_lines_read(saved, monkeypatch):
    told = json.loads(run("export one --out out/x --json").out)
    assert set(told["files"]) == {path.name for path in Path("out/x").iterdir()} - {"export.json"}
    ended = run("export one --format parquet")
    assert (ended.code, ended.err, len(ended.out.splitlines())) == (0, "", 5)
    monkeypatch.chdir(saved / "one-export")
    for line in ended.out.splitlines():
        file, reading = line.split(maxsplit=1)
        assert str(eval(reading, {"pd": pd}).index.tz) == "UTC"
        assert (saved.parent / file).is_file()
