"""Markets of a few rows: every command works on them or ends with an error of one line."""

import pandas as pd
import pytest
from made_bars import frame
from made_commands import run


@pytest.fixture(autouse=True)
def folder(apart):
    """A folder with `thirty.csv` and files of fewer rows."""
    sessions = pd.bdate_range("2024-01-02", periods=31).drop("2024-01-15")
    for name, rows in (("one", 1), ("two", 2), ("thirty", 30)):
        frame(tickers=("AAA", "BBB", "CCC", "QQQ"), days=sessions[:rows]).to_csv(f"{name}.csv", index=False)


def test_thirty_rows_are_reported_and_audited():
    for strategy in ("inverse-volatility", "benchmark-hold"):
        ended = run(f"backtest {strategy} --market thirty.csv")
        assert ended.code == 0, ended.err
        assert "left out" not in ended.err
    assert run("audit momentum --market thirty.csv").code == 0


def test_two_rows_are_the_fewest_of_a_backtest():
    assert run("backtest equal-weight --market two.csv").code == 0
    assert "2024-01-02" in run("backtest equal-weight --market one.csv --name one").error
    assert "2024-01-02" in run("audit equal-weight --market one.csv").error


def test_training_on_thirty_rows_works_or_says_what_is_short():
    train, size = "train stocks --market thirty.csv", "--agents 1 --rounds 1 --steps 100 --device cpu"
    windows = "--train 2024-01-02:2024-01-26 --validation 2024-01-29:2024-02-06"
    trained = run(f"{train} {windows} --out strategies/first {size}")
    assert trained.code == 0, trained.err
    assert "dropped" in trained.err  # features that need more rows than there are
    tested = run("backtest strategies/first --market thirty.csv --start 2024-02-07 --quick --no-report")
    assert tested.code == 0, tested.err
    for validation, value in (("2024-01-29:2024-02-01", "3 bars"), ("2024-03-01:2024-04-01", "2024-03-01")):
        line = f"{train} --train 2024-01-02:2024-01-26 --validation {validation} --out strategies/x {size}"
        assert value in run(line).error
    walk = "walkforward stocks --market thirty.csv --start 2024-02-05 --validation 5 --test 5 --out strategies/wf"
    assert "--rebalance-every 5" in run(f"{walk} --train 10 {size}").error
    assert "2024-02-05" in run(f"{walk} --train 4y {size}").error
