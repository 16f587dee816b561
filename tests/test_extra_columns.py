"""The audit of extra columns: a table loaded with the market passes, the same table read by the strategy does not."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_commands import run
from made_strategies import Holds, does

import finpod
from finpod.lookahead.extra_columns import early_columns
from finpod.market.extra_tables import with_extra
from finpod.records import Severity
from finpod.strategy import Strategy, top_k

NAN = float("nan")
SIMULATED = finpod.simulate_market(names=8, days=400, signal=0.1, seed=4)


def dated(values, shift=0):
    """A frame by the dates of the simulated market; with a shift of -1 each row is dated a session early."""
    return pd.DataFrame(values, SIMULATED.dates, SIMULATED.tickers).shift(shift)


RETURNS = np.vstack([np.full(8, NAN), SIMULATED.close[1:] / SIMULATED.close[:-1] - 1])
NOISE = np.random.default_rng(5).normal(size=RETURNS.shape)
FORECAST = pd.DataFrame(SIMULATED.close).pct_change(5, fill_method=None).to_numpy()  # the signal itself


def scored(table):
    rows = table if isinstance(table, pd.Series) else table.stack()
    return with_extra(SIMULATED, rows.to_frame("score"), calendar=None)


class ByScore(Strategy):
    """Holds the three tickers with the highest score that it reads through the view, or as a feature."""

    every = 5

    def __init__(self, how="extra"):
        self.how = how

    def decide(self, view):
        score = view.extra("score", 3)[-1] if self.how == "extra" else view.features(["extra:score"])[:, 0]
        return top_k(score, 3, among=view.tradable)


@pytest.mark.parametrize("how", ["extra", "feature"])
def test_g21_the_audit_passes_a_strategy_that_reads_through_the_door(how):
    market = scored(dated(FORECAST))
    verdict = finpod.audit(ByScore(how), market, days=6)
    assert verdict.passed, str(verdict)
    assert finpod.backtest(ByScore(how), market).audit.passed


def test_g21_a_strategy_that_reads_the_same_table_outside_the_door_can_look_ahead():
    verdict = finpod.audit(Holds(dated(NOISE)), scored(dated(NOISE)), days=3)
    assert (verdict.passed, verdict.severity) == (False, Severity.CAN_LOOK_AHEAD)


def test_g21_a_strategy_that_peeks_past_the_door_looks_ahead():
    peeks = does(lambda view: top_k(view._market.extra["score"][min(view._row + 1, 59)], 3))
    assert finpod.audit(peeks, scored(dated(NOISE)).rows(0, 60), days=3).severity is Severity.LOOKS_AHEAD


def test_g21_a_table_of_the_next_days_returns_can_look_ahead_check_its_dates():
    market = scored(dated(RETURNS, -1))
    for verdict in (finpod.audit("momentum", market, days=3), finpod.backtest(ByScore(), market).audit):
        (finding,) = verdict.findings  # whatever the strategy
        assert (finding.kind, finding.subject, finding.severity) == ("extra", "score", Severity.CAN_LOOK_AHEAD)
        assert finding.size == pytest.approx(1.0)


SPREAD = RETURNS - RETURNS.mean(axis=1, keepdims=True)
SPREAD /= np.nanstd(SPREAD)
WEEKLY = np.where((np.arange(len(RETURNS)) % 5 == 0)[:, None], np.roll(SPREAD, -1, axis=0), NAN)
MEAN = RETURNS[1:].mean(axis=1)
LEAKS = {
    "dated a day early, with noise": dated(SPREAD + NOISE, -1),
    "the wrong way round": dated(-SPREAD, -1),
    "new once a week": dated(WEEKLY),
    "the market's next return": pd.Series(np.append(MEAN, NAN), SIMULATED.dates),
    "the benchmark's next return": pd.Series(SIMULATED.benchmark_close, SIMULATED.dates).pct_change().shift(-1),
}
HONEST = {
    "noise": dated(NOISE),
    "a rank correlation of 0.05": dated(0.05 * SPREAD + NOISE, -1),
    "the signal of the market": dated(FORECAST),
    "today's return": dated(RETURNS),
    "a level, such as the VIX": pd.Series(20 + np.cumsum(NOISE[:, 0]), SIMULATED.dates),
}


@pytest.mark.parametrize("name", [*LEAKS, *HONEST])
def test_columns_that_know_the_next_returns_are_found(name):
    found = early_columns(scored({**LEAKS, **HONEST}[name]), 0, 399)
    assert [abs(finding.size) > finding.data["most"] >= 0.3 for finding in found] == [True] * (name in LEAKS)


def test_g21_the_sentiment_example_runs_as_its_readme_says(apart):
    (strategies := apart / "strategies").mkdir()
    for name in ("README.md", "sentiment.py", "sentiment.csv"):
        shutil.copy(Path(__file__).parents[1] / "strategies" / name, strategies)
    readme = (strategies / "README.md").read_text().splitlines()
    audit, backtest = [line.split()[1:] for line in readme if line.startswith("finpod ") and "sentiment.py" in line]
    audited, tested = run(*audit), run(*backtest, "--quick --no-report")
    assert (audited.code, tested.code) == (0, 0)
    assert "strategy Sentiment: no look-ahead found" in audited.out
    shown_rows = [line for line in readme if line.startswith("2021-12-31,")]
    assert shown_rows == (strategies / "sentiment.csv").read_text().splitlines()[1:9]
