"""Warnings of a result that looks ahead, and of one that could not be audited."""

import numpy as np
import pytest
from made_commands import run
from made_markets import random_market
from made_strategies import Holds, does

import finpod
from finpod.backtesting.sentences import audit_outcome, doubt, verdict_lines
from finpod.records import Severity
from finpod.rules import Momentum
from finpod.strategy import Strategy, top_k

LOOKS, CAN = Severity.LOOKS_AHEAD, Severity.CAN_LOOK_AHEAD


@pytest.fixture(autouse=True)
def fewer_resamples(monkeypatch):
    monkeypatch.setattr("finpod.evidence.skill.RESAMPLES", 200)


@pytest.fixture(scope="module")
def market():
    return random_market(days=200, names=8)


class Waits(Strategy):
    """Knows the next week, after 40 steps; holds the market."""

    every = 5

    def __init__(self, market):
        self.market = market

    def decide(self, view):
        if view.step < 40:
            return None
        later = view._market.close[min(view._row + 5, len(view._market.dates) - 1)]
        return top_k(later / view.closes(1)[0], 1)


@pytest.mark.parametrize(
    ("strategy", "passed", "told"),
    [
        (lambda market: Momentum(20, 3), True, []),
        (Waits, False, [LOOKS, CAN]),
        (Holds, False, [CAN]),
        (lambda market: Holds(row for row in range(3)), None, ["failed"]),  # cannot be pickled
        (lambda market: does(lambda view: None), None, ["no_decision"]),
        (lambda market: does(lambda view: np.random.dirichlet(np.ones(8))), None, ["not_repeatable"]),
        (lambda market: np.full((200, 8), 1 / 8), None, ["ready_weights"]),
    ],
)
def test_the_outcome_of_the_audit_is_in_warnings_verdicts_and_text(market, tmp_path, strategy, passed, told):
    result = finpod.backtest(strategy(market), market)
    result.save(tmp_path / "run")
    for one in (result, finpod.load_result(tmp_path / "run")):
        assert one.audit.passed is passed
        warnings = [one.data for one in one.warnings if one.code in ("look_ahead", "not_audited")]
        assert [data.get("severity", data.get("reason")) for data in warnings] == told
        assert (doubt(one.audit) == "") == (passed is True)
        assert all(line.endswith(doubt(one.audit)) for line in verdict_lines(one))
        assert audit_outcome(one.audit) in str(one)


def test_the_audit_counts_the_decisions_that_it_compared(market):
    audit = finpod.backtest(Momentum(20, 3), market).audit
    assert (audit.decisions, audit.compared) == (10, 1 + market.row_of(audit.days[-1]) // 21)  # one every 21 sessions
    assert f"{audit.compared} decisions" in audit_outcome(audit)


def test_the_command_says_what_it_could_not_tell(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import finpod, random\nclass Mine(finpod.Strategy):\n    every = 21\n    def decide(self, view):\n"
        "        return {view.tickers[0]: random.random()}\n"
    )
    told = run(f"audit {file} --days 2 --start 2020-01-02 --end 2020-12-31")
    assert (told.code, "NOT REPEATABLE" in told.out) == (2, True)
