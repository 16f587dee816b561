"""Selection of the agents of an ensemble, and the mean of their decisions."""

import math

import numpy as np
import pytest
import torch
from made_agents import STEPS_AN_UPDATE, make_setup, settings, tiny_train, train_slice
from made_markets import make_market, random_market

import finpod
from finpod import ensemble as module
from finpod.ensemble import RECENT, Ensemble, load_ensemble, shares
from finpod.errors import FinpodError
from finpod.strategy import MarketView
from finpod.tournament.leaderboard import Leaderboard, Trial, correlation
from finpod.tournament.setup import Plan
from finpod.trading.ledger import Costs

NAN = float("nan")


# --- who is kept


def board_of(*lines):
    """A board of (agent, score, returns); None for the returns of an agent that was lost."""
    board = Leaderboard()
    for trial, (agent, score, returns) in enumerate(lines):
        board.draw([Trial(number=trial, level=1, agent_settings={"agent_id": agent})])
        ended = {"kind": "submit", "score": score, "metrics": {}, "returns": returns, "steps": 64}
        failed = {"kind": "failed", "reason": "made up"}
        board.take({"trial": trial, **(failed if returns is None else ended)})
    return board


def agents(entries):
    return [entry.agent for entry in entries]


@pytest.fixture
def bets():
    """Returns of equal weight [250], and of three agents that differ from it each in its own way."""
    random = np.random.default_rng(0)
    base = random.normal(0, 0.01, 250)
    return base, [base + random.normal(0, 0.005, 250) for _ in range(3)]


def test_an_agent_that_is_the_same_bet_waits_until_nobody_else_is_left(bets):
    base, (one, two, three) = bets
    twin = base + 1.3 * (one - base) + 1e-4  # the same bet, only larger
    board = board_of(("one", 4.0, one), ("twin", 3.0, twin), ("two", 2.0, two), ("three", 1.0, three))
    assert agents(board.best(2, base)) == ["one", "two"]
    assert agents(board.best(3, base)) == ["one", "two", "three"]
    assert agents(board.best(4, base)) == ["one", "twin", "two", "three"]  # ranked again, whoever came in last
    assert agents(board.best(2, base, 1.0)) == agents(board.best(2)) == ["one", "twin"]


def test_alike_is_measured_above_equal_weight(bets):
    """All agents of a market move with it; what they do beside it is their own."""
    base, (one, two, _) = bets
    assert correlation(one, two) > 0.7
    assert abs(correlation(one - base, two - base)) < 0.2
    board = board_of(("one", 2.0, one), ("two", 1.0, two))
    assert agents(board.best(2, base, 0.3)) == ["one", "two"]


def test_d10_undefined_and_lost_agents_are_never_kept(bets):
    base, (one, two, _) = bets
    board = board_of(("lost", 9.0, None), ("undefined", NAN, two), ("one", 1.0, one))
    assert agents(board.best(3, base)) == ["one"]
    with pytest.raises(FinpodError, match="no agent has a validation score"):
        board_of(("lost", 9.0, None), ("undefined", NAN, two)).best(3, base)


# --- how they decide together


@pytest.fixture(scope="module")
def members():
    """Two agents, of whom only the identity counts."""
    setup = make_setup(random_market(130, 2, gaps=0, seed=3), hold=5)
    return [train_slice(setup, settings(seed), None, STEPS_AN_UPDATE, STEPS_AN_UPDATE) for seed in (1, 2)]


def two_names(days=300, turn=130):
    """A market in which A rises until the turn and B after it."""
    random = np.random.default_rng(1)
    drift = np.where((np.arange(days) < turn)[:, None], [0.004, -0.002], [-0.002, 0.004])
    close = 100 * np.cumprod(1 + drift + random.normal(0, 0.004, (days, 2)), axis=0)
    return make_market(close, open=close * 1.001)


@pytest.fixture
def of_names(members, monkeypatch):
    """An ensemble whose members hold A alone and B alone."""

    def make(choice, scores=(), every=5):
        made = Ensemble(members, name="two", trials=2, provenance={}, choice=choice, scores=scores)
        made.every = every
        order = [policy.names.weight for policy in made._policies]

        def hold(policy, *inputs):
            return torch.eye(2, dtype=torch.float64)[int(torch.equal(policy.names.weight, order[1]))]

        monkeypatch.setattr(module, "greedy_weights", hold)
        return made

    return make


FIRST = 30


def decisions(ensemble, market, count):
    """Step -> weights, each `every` sessions from row `FIRST` on."""
    return {
        step: np.asarray(ensemble.decide(MarketView(market, FIRST + step, step=step, held=np.zeros(2), cash=1.0)))
        for step in range(0, count, ensemble.every)
    }


@pytest.mark.parametrize("every", [1, 5, 21])
def test_recent_follows_the_member_with_the_better_sharpe_ratio_63_sessions_at_a_time(of_names, every):
    market = two_names()
    found = decisions(of_names("recent", every=every), market, 260)
    daily = market.close[1:] / market.close[:-1] - 1  # row t: the return into session t + 1
    span = math.ceil(RECENT / every) * every
    leaders = []
    for step, weights in found.items():
        if step < span:
            np.testing.assert_array_equal(weights, [0.5, 0.5])  # nobody has a past yet
            continue
        last = FIRST + step - step % span  # the session of the last choice
        past = daily[last - RECENT : last]
        leader = int(np.argmax(past.mean(0) / past.std(0, ddof=1)))
        leaders.append(leader)
        np.testing.assert_array_equal(weights, np.eye(2)[leader])
    assert leaders[0] == 0
    assert leaders[-1] == 1  # and it has changed sides


def test_recent_earns_what_the_better_member_earns(of_names, members):
    market = two_names()
    ensemble = of_names("recent")
    ensemble.trained_until = None
    result = finpod.backtest(ensemble, market, start=market.dates[FIRST], costs=Costs(fee_bps=0))
    held = result.weights.to_numpy()
    assert held[70:100, 0].min() > 0.99  # A, which had risen for 65 sessions
    assert held[-20:, 1].min() > 0.99


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ((3.0, 1.0), (0.75, 0.25)),
        ((2.0, -1.0), (1.0, 0.0)),
        ((-2.0, -1.0), (0.5, 0.5)),
        ((0.0, 0.0), (0.5, 0.5)),
        ((NAN, 1.0), (0.0, 1.0)),
        ((), (0.5, 0.5)),
    ],
)
def test_by_score_members_weigh_by_how_far_theirs_lies_above_zero(of_names, scores, expected):
    market = two_names(60)
    np.testing.assert_allclose(shares(scores or (0.0, 0.0)), expected)
    found = decisions(of_names("score", scores), market, 10)
    np.testing.assert_allclose(found[0], expected)
    np.testing.assert_allclose(decisions(of_names("mean", scores), market, 10)[0], [0.5, 0.5])


@pytest.mark.parametrize("choice", ["score", "recent"])
def test_a_choice_comes_back_from_its_folder_and_passes_the_audit(choice, tmp_path):
    market = random_market(200, 5, gaps=0.03, seed=8)
    trained = tiny_train(market, tmp_path / "tiny", plan=Plan(choice=choice), agents=3, keep=2, seed=3)
    loaded = load_ensemble(tmp_path / "tiny")
    assert (loaded.choice, loaded.scores) == (choice, trained.scores)
    assert loaded.trials == 6
    if choice == "recent":  # the one that remembers
        found = finpod.audit(loaded, market, days=4, start=market.dates[101])
        assert found.passed, str(found)
    days = range(101, 181, loaded.every)
    views = [MarketView(market, row, step=row - 101, held=np.zeros(5), cash=1.0) for row in days]
    first, again = ([np.asarray(one.decide(view)) for view in views] for one in (trained, loaded))
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(np.round(first, 9), axis=0)) > 10
