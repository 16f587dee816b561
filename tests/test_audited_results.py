"""Warnings of a result that looks ahead, and of one that could not be audited."""

import json

import numpy as np
import pytest
from made_commands import run
from made_markets import random_market
from made_strategies import Holds, does

import finpod
from finpod.backtesting.sentences import luck_sentence, verdict_lines, warning_sentence
from finpod.backtesting.text import audit_line as said_of
from finpod.backtesting.text import evidence_lines
from finpod.records import Audit, Severity
from finpod.rules import Momentum
from finpod.strategy import Strategy, top_k

AHEAD = ", but the strategy looks ahead: this is no evidence of skill"
UNAUDITED = ", and the strategy was not audited"


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


def texts_of(result, folder):
    """The lines on skill and audit of the result, and of the same saved and loaded."""
    result.save(folder / "run")
    for one in (result, finpod.load_result(folder / "run")):
        assert verdict_lines(one)
        yield one, verdict_lines(one), evidence_lines(one)[-1]


def test_a_strategy_that_cannot_be_pickled_is_not_called_sound(market, tmp_path):
    result = finpod.backtest(Holds(row for row in range(3)), market)
    assert (result.warnings[0].code, result.warnings[0].data["reason"]) == ("not_audited", "failed")
    for one, verdicts, line in texts_of(result, tmp_path):
        assert (one.audit.passed, json.loads(one.to_json())["audit"]["passed"]) == (None, None)
        assert "cannot be pickled" in one.audit.note
        assert "NOT AUDITED" in line
        assert all(said.endswith(UNAUDITED) for said in verdicts)


def test_a_strategy_that_waits_and_then_looks_ahead_is_red(market):
    result = finpod.backtest(Waits(market), market)
    severities = [warning.data["severity"] for warning in result.warnings if warning.code == "look_ahead"]
    assert severities == [Severity.LOOKS_AHEAD, Severity.CAN_LOOK_AHEAD]  # it holds the market, too
    assert (result.audit.passed, result.warnings[0].data["where"]) == (False, "decisions")
    assert all(said.endswith(AHEAD) for said in [*verdict_lines(result), luck_sentence(result)])
    assert evidence_lines(result)[-1].endswith(": LOOKS AHEAD")
    assert ": LOOKS AHEAD" in str(result)


def test_a_strategy_that_only_holds_a_market_can_look_ahead(market, tmp_path):
    result = finpod.backtest(Holds(market), market)
    for one, verdicts, line in texts_of(result, tmp_path):
        assert (one.audit.passed, one.audit.only_held) == (False, True)
        assert "'what' contains a market [200, 8]" in warning_sentence(one.warnings[0])
        assert not any(said.endswith(UNAUDITED) or said.endswith(AHEAD) for said in verdicts)
        assert line.endswith(": CAN LOOK AHEAD")


def test_the_audit_says_how_many_of_the_decisions_it_looked_at(market, tmp_path):
    result = finpod.backtest(Momentum(20, 3), market)
    last = result.audit.days[-1]
    assert result.audit.decisions == 10  # one every 21 sessions
    compared = 1 + market.row_of(last) // 21
    for one, verdicts, line in texts_of(result, tmp_path):
        assert line == f"Look-ahead audit of {compared} decisions up to {last}: nothing found"
        assert not any(warning.code in {"look_ahead", "not_audited"} for warning in one.warnings)
        assert not any("audit" in said for said in verdicts)
    before = Audit(True, days=("2024-01-02", "2024-01-09"), decisions=10)
    assert said_of(before) == "Look-ahead audit of 2024-01-02 and 2024-01-09: nothing found"


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (does(lambda view: None), "no_decision"),
        (does(lambda view: np.random.dirichlet(np.ones(8))), "not_repeatable"),
        (np.full((200, 8), 1 / 8), "ready_weights"),
    ],
)
def test_without_an_outcome_the_result_is_not_audited(market, strategy, reason):
    result = finpod.backtest(strategy, market)
    assert result.audit.passed is None
    assert result.audit.reason == result.warnings[0].data["reason"] == reason
    assert not any(warning.code == "look_ahead" for warning in result.warnings)
    assert all(said.endswith(UNAUDITED) for said in verdict_lines(result))


def test_the_command_says_what_it_could_not_tell(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import finpod, random\nclass Mine(finpod.Strategy):\n    every = 21\n    def decide(self, view):\n"
        "        return {view.tickers[0]: random.random()}\n"
    )
    told = run(f"audit {file} --days 2 --start 2020-01-02 --end 2020-12-31")
    assert (told.code, "NOT REPEATABLE" in told.out) == (2, True)
