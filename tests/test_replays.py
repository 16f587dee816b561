"""The same decisions at other costs and with more money: replayed to the last bit, ranked, and dearer with size."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from made_markets import make_market, random_market

from finpod import load_market
from finpod.envs.market_env import MarketEnv, TradingConfig, target_weights
from finpod.errors import InputError
from finpod.evidence.replays import capacity, cost_sweep, ranks, replay
from finpod.trading.execution import Account, build_execution
from finpod.trading.ledger import Costs, value
from finpod.trading.simulate import Terms, Window, simulate

NAN = float("nan")


def window_of(market, fill=None, first=0, last=None) -> Window:
    last = len(market.dates) - 1 if last is None else last
    return Window(market=market, execution=build_execution(market, fill), first=first, last=last)


def busy_market(days=60, names=6, seed=0):
    return random_market(days, names, seed=seed, volume=np.random.default_rng(seed).lognormal(9, 1, (days, names)))


def moody(window: Window, seed: int = 0):
    """Decisions that heed the account, are left out on some days and keep some cash."""
    draws = np.random.default_rng(seed).dirichlet(np.ones(len(window.market.tickers) + 1), len(window.market.dates))

    def decide(step, row, seen):
        if step % 3 == 1:
            return None
        held = seen.shares * window.execution.mark[row] / value(seen.cash, seen.shares, window.execution.mark[row])
        return 0.5 * held.clamp(max=0.5) + 0.5 * torch.from_numpy(draws[row, 1:])

    return decide


def decided(window: Window, terms: Terms, seed: int = 0):
    return simulate(window.execution, window.first, window.last, moody(window, seed), terms)


def flat_market(days=12, dollars=5e7):
    """One name at 100 of which `dollars` are dealt in a day; its volatility in the first session counts as 3%."""
    return make_market([100.0] * days, open=[100.0] * days, volume=np.full((days, 1), dollars / 100))


def bought_once(window: Window, weight: float) -> torch.Tensor:
    targets = torch.full((window.last - window.first, len(window.market.tickers)), NAN, dtype=torch.float64)
    targets[0] = weight
    return targets


def churning(window: Window) -> torch.Tensor:
    """All in and all out again, day by day."""
    steps = torch.arange(window.last - window.first, dtype=torch.float64)
    return ((steps % 2 == 0) / len(window.market.tickers)).unsqueeze(1).expand(-1, len(window.market.tickers))


# --- replay ------------------------------------------------------------------------------------------------------------


def test_a_path_keeps_what_was_decided():
    window = window_of(busy_market(), "close")
    path, wanted = decided(window, Terms()), moody(window)
    assert path.targets.shape == path.traded.shape
    assert path.targets.isnan().all(-1).tolist() == [True] + [step % 3 == 1 for step in range(58)]
    opening = Account(torch.tensor(1e6, dtype=torch.float64), torch.zeros(6, dtype=torch.float64))
    assert torch.equal(path.targets[1], wanted(0, 0, opening))


@pytest.mark.parametrize(
    "terms",
    [
        Terms(),
        Terms(cash=5_000, whole_shares=True, costs=Costs(fee_bps=3, slippage_bps=4, per_share=0.02)),
        Terms(cash=1e7, delisting_return=-0.5, costs=Costs(fee_bps=0, impact=1.0)),
    ],
    ids=["plain", "whole", "impact"],
)
@pytest.mark.parametrize("first", [0, 4])
@pytest.mark.parametrize("fill", ["open", "close"])
def test_the_same_decisions_on_the_same_terms_are_the_same_path(fill, first, terms):
    window = window_of(busy_market(), fill, first, 55)
    alone = [decided(window, terms, seed) for seed in range(3)]
    again = replay({f"{seed}": path.targets for seed, path in enumerate(alone)}, window, terms)
    for seed, path in enumerate(alone):
        for own, other in zip(path, again, strict=True):
            assert torch.equal(own.nan_to_num(nan=-1), other[:, seed].nan_to_num(nan=-1))


def test_who_decided_nothing_trades_nothing_beside_one_who_did():
    window = window_of(busy_market())
    path = replay({"busy": churning(window), "idle": bought_once(window, NAN)}, window, Terms())
    assert (path.equity[:, 1] == 1_000_000).all()
    assert path.cost[:, 1].sum() == 0
    assert path.cost[:, 0].sum() > 0


def test_targets_must_fit_the_window():
    window = window_of(busy_market())
    with pytest.raises(InputError, match=r"weights of late have shape \(58, 6\); they must be \[n, N\] = \(59, 6\)"):
        replay({"busy": churning(window), "late": churning(window)[1:]}, window, Terms())
    with pytest.raises(InputError, match="no decisions to replay"):
        cost_sweep({}, window, Terms())


# --- costs -------------------------------------------------------------------------------------------------------------


def test_the_sweep_charges_each_fee_beside_the_other_costs():
    """Half of the cash bought once in a flat market: fee and slippage of that half are the whole loss."""
    window = window_of(flat_market())
    swept = cost_sweep({"one": bought_once(window, 0.5)}, window, Terms(costs=Costs(fee_bps=99, slippage_bps=2)))
    assert list(swept) == [0, 5, 10, 20, 50, 99]
    lost = [swept[fee]["one"]["total_return"] for fee in swept]
    assert lost == pytest.approx([-0.5 * bps / 10_000 for bps in (2, 7, 12, 22, 52, 101)], rel=1e-9)
    assert set(swept[5]["one"]) == {"total_return", "cagr", "sharpe", "rank"}
    assert list(cost_sweep({"one": bought_once(window, 0.5)}, window, Terms(), fees=(2.5,))) == [2.5]


def test_the_sweep_is_what_a_run_at_that_fee_gives():
    window = window_of(busy_market(seed=3))
    targets = {name: decided(window, Terms(), seed).targets for seed, name in enumerate("abc")}
    swept = cost_sweep(targets, window, Terms(cash=1e5), risk_free=0.03)
    for fee in (0, 50):
        alone = cost_sweep({"b": targets["b"]}, window, Terms(cash=1e5), fees=[fee], risk_free=0.03)
        together = swept[fee]["b"]
        assert alone[fee]["b"] == pytest.approx(together | {"rank": 1}, rel=1e-12)
    free = cost_sweep(targets, window, Terms(cash=1e5))
    assert free[0]["a"]["total_return"] == swept[0]["a"]["total_return"]
    assert free[0]["a"]["sharpe"] > swept[0]["a"]["sharpe"]


def test_a_fee_turns_the_ranks_around():
    """Out of a rising name on every day it falls: the better for it until each way out and in costs a percent."""
    steps = np.where(np.arange(40) % 2, 0.01, -0.005)
    window = window_of(make_market(100 * np.cumprod(1 + steps)), "close", 1)
    timing = torch.tensor(steps[2:, None] > 0, dtype=torch.float64)
    swept = cost_sweep({"timing": timing, "holding": bought_once(window, 1.0)}, window, Terms(), fees=(0, 100))
    assert [swept[fee][name]["rank"] for fee in swept for name in ("timing", "holding")] == [1, 2, 2, 1]
    assert swept[0]["timing"]["sharpe"] > swept[0]["holding"]["sharpe"]


def test_ranks_share_a_place_and_put_the_undefined_last():
    assert ranks(np.array([NAN, 1.0, 2.0, 2.0, NAN, -3.0])).tolist() == [5, 3, 1, 1, 5, 4]
    assert ranks(np.array([NAN])).tolist() == [1]
    window = window_of(flat_market())
    swept = cost_sweep({"one": bought_once(window, 0.5), "none": bought_once(window, NAN)}, window, Terms(), fees=[10])
    assert np.isnan(swept[10]["none"]["sharpe"])
    assert [swept[10][name]["rank"] for name in ("one", "none")] == [1, 2]


# --- capacity ----------------------------------------------------------------------------------------------------------


def test_capacity_is_worked_by_hand():
    """Half a million is a hundredth of the day's volume: 3% sqrt(1/100) = 30 bps of it; a hundred times that, ten times."""
    window = window_of(flat_market())
    found = capacity({"one": bought_once(window, 0.5)}, window, Terms(costs=Costs(fee_bps=0)))
    assert list(found) == [1e6, 1e7, 1e8, 1e9]
    lost = [0.5 * 0.03 * 0.1 * 10 ** (k / 2) for k in range(4)]
    assert [found[size]["one"]["total_return"] for size in found] == pytest.approx([-x for x in lost], rel=1e-9)
    assert [found[size]["one"]["costs"] for size in found] == pytest.approx([x * 252 / 11 for x in lost], rel=1e-9)


def test_the_impact_of_the_terms_goes_before_that_of_the_table():
    window = window_of(flat_market())
    for own, given, worth in ((0.0, 2.0, 2.0), (0.5, 2.0, 0.5)):
        found = capacity(
            {"one": bought_once(window, 0.5)},
            window,
            Terms(costs=Costs(fee_bps=0, impact=own)),
            sizes=[1e6, 2.5e6, 2e4, 50],
            impact=given,
        )
        assert found[1e6]["one"]["total_return"] == pytest.approx(-0.0015 * worth, rel=1e-9)
        assert list(found) == [1e6, 2.5e6, 2e4, 50]


@pytest.mark.parametrize("fill", ["open", "close"])
def test_more_money_earns_less_on_it(fill):
    window = window_of(busy_market(names=8, seed=5), fill, 1)
    targets = {"churn": churning(window), "calm": bought_once(window, 1 / 8), "moody": decided(window, Terms()).targets}
    found = capacity(targets, window, Terms(costs=Costs(fee_bps=1)), sizes=(1e4, 1e5, 1e6))
    for name in targets:
        earned, paid = ([at[name][key] for at in found.values()] for key in ("total_return", "costs"))
        assert earned == sorted(earned, reverse=True)
        assert paid == sorted(paid)
        assert paid[0] < paid[-1]
    assert found[1e6]["churn"]["costs"] > found[1e6]["calm"]["costs"]
    assert all(sorted(at[name]["rank"] for name in targets) == [1, 2, 3] for at in found.values())


def test_without_volumes_there_is_no_capacity():
    window = window_of(random_market())
    targets = {"churn": churning(window)}
    assert capacity(targets, window, Terms()) == {}
    with pytest.raises(InputError, match="impact is 1, and these data have no volumes"):
        cost_sweep(targets, window, Terms(costs=Costs(impact=1.0)))


# --- the environment charges the same -------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("fill", ["open", "close"])
def test_environment_and_simulation_charge_the_same_impact_to_the_last_bit(fill, groups):
    market = busy_market(seed=7)
    execution, costs = build_execution(market, fill), Costs(impact=1.0)
    config = TradingConfig(num_envs=4, start_groups=groups, hold=2, horizon=None, costs=costs, cash=1e5)
    env = MarketEnv(execution, 0, 59, config, seed=1)
    env._days = env._days.clamp(max=30)
    env.load_state_dict(env.state_dict())
    start = (env.observe().row + execution.lag).tolist()
    actions = torch.randn(4, 10, 6, generator=torch.Generator().manual_seed(0))
    equity = []
    for step in range(10):
        env.step(actions[:, step])
        equity.append(env.equity.flatten())
    for e, first in enumerate(start):

        def decide(step, row, _seen, e=e):
            return None if step % 2 else target_weights(actions[e, step // 2], env.among(torch.tensor(row)), "tilt")

        terms = Terms(costs=costs, cash=1e5)
        path = simulate(execution, first, first + 20, decide, terms)
        assert torch.equal(torch.stack(equity)[:, e], path.equity[2::2])
        free = simulate(execution, first, first + 20, decide, replace(terms, costs=Costs()))
        assert path.cost.sum() > 2 * free.cost.sum()


def test_an_environment_with_impact_and_without_volumes_is_refused_at_once():
    with pytest.raises(InputError, match="no volumes"):
        MarketEnv(build_execution(random_market()), 0, 20, TradingConfig(num_envs=2, costs=Costs(impact=0.5)))


@pytest.mark.shared
def test_capacity_on_real_prices(shared):
    market = load_market(shared / "data" / "nasdaq100_daily.parquet", members=shared / "data" / "nasdaq100_members.csv")
    window = window_of(market, "open", *market.window("2020-05-26", "2020-12-31"))
    among = window.execution.member & window.execution.has_bar
    weights = (among / among.sum(-1, keepdim=True))[window.first : window.last].double()
    kept = bought_once(window, NAN)
    kept[0] = weights[0]
    targets = {
        "equal weight": weights,
        "buy and hold": kept,
        "all or nothing": weights * (torch.arange(len(weights)) % 2)[:, None],
    }
    found = capacity(targets, window, Terms())
    bps = [found[1e9][name]["costs"] * 1e4 for name in targets]
    assert 50 < bps[0] < 500
    assert bps[1] < bps[0] < bps[2]
    assert found[1e9]["all or nothing"]["rank"] == 3
    execution = window.execution
    assert execution.impact[window.first :][among[window.first :]].isfinite().all()
    member = execution.impact[window.first][among[window.first]]
    assert 1e-7 < member.median() < 3e-6  # 2 to 3% a day on some hundreds of millions
