"""Markets of a few rows: every command works on them or ends with an error of one line."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from finpod.cli import main
from finpod.rules import RULES


def bars(rows):
    """Random bars of three names and the benchmark on the first sessions of 2024."""
    random = np.random.default_rng(0)
    sessions = pd.bdate_range("2024-01-02", periods=rows + 1).drop("2024-01-15", errors="ignore")[:rows]
    tables = []
    for ticker in ("AAA", "BBB", "CCC", "QQQ"):
        close = 100 * np.cumprod(1 + random.normal(0, 0.01, rows))
        prices = {"open": close * 0.999, "high": close * 1.01, "low": close * 0.99, "close": close, "volume": 1000.0}
        tables.append(pd.DataFrame({"date": sessions, "ticker": ticker, **prices}))
    return pd.concat(tables)


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command line in a folder with `thirty.csv` and files of fewer rows."""
    monkeypatch.chdir(tmp_path)
    for name, rows in (("one", 1), ("two", 2), ("thirty", 30)):
        bars(rows).to_csv(f"{name}.csv", index=False)

    def call(line):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        printed = capsys.readouterr()
        return SimpleNamespace(code=ended.value.code, out=printed.out, err=printed.err)

    return call


def refused(ended, message):
    errors = [line for line in ended.err.splitlines() if line.startswith("error: ")]
    assert (ended.code, len(errors)) == (2, 1), ended.err
    assert message in errors[0]


@pytest.mark.parametrize("strategy", RULES)
def test_thirty_rows_are_backtested(run, strategy):
    ended = run(f"backtest {strategy} --market thirty.csv --quick")
    assert ended.code == 0, ended.err
    assert "Total return" in ended.out
    assert "left out" not in ended.err
    assert run(f"report {strategy}").code == 0


def test_thirty_rows_are_examined_and_audited(run):
    ended = run("backtest inverse-volatility --market thirty.csv")
    assert ended.code == 0, ended.err
    assert "Sharpe of simple rules" in ended.out
    audited = run("audit momentum --market thirty.csv")
    assert audited.code == 0, audited.err
    assert "no look-ahead found on" in audited.out


def test_two_rows_are_the_fewest_of_a_backtest(run):
    assert run("backtest equal-weight --market two.csv").code == 0
    refused(run("backtest equal-weight --market one.csv --name one"), "one session and no return")
    refused(run("audit equal-weight --market one.csv"), "no session follows 2024-01-02")


def test_training_on_thirty_rows_works_or_says_what_is_short(run):
    train, size = "train stocks --market thirty.csv", "--agents 1 --rounds 1 --steps 100 --device cpu"
    windows = "--train 2024-01-02:2024-01-26 --validation 2024-01-29:2024-02-06"
    trained = run(f"{train} {windows} --out strategies/first {size}")
    assert trained.code == 0, trained.err
    assert "dropped" in trained.err  # what needs more rows than there are
    tested = run("backtest strategies/first --market thirty.csv --start 2024-02-07")
    assert tested.code == 0, tested.err
    short = "--train 2024-01-02:2024-01-26 --validation 2024-01-29:2024-02-01"
    refused(
        run(f"{train} {short} --out strategies/x {size}"), "the validation window has 3 sessions to trade, fewer than"
    )
    none = "--train 2024-01-02:2024-01-26 --validation 2024-03-01:2024-04-01"
    refused(run(f"{train} {none} --out strategies/x {size}"), "outside the data")
    walk = "walkforward stocks --market thirty.csv --start 2024-02-05 --validation 5 --test 5 --out strategies/wf"
    refused(run(f"{walk} --train 10 {size}"), "sessions to trade, fewer than --rebalance-every 5;")
    refused(run(f"{walk} --train 4y {size}"), "2024-02-05")
