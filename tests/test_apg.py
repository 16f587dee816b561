"""The exact gradient of the ledger and the environment, and the learner that uses it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from made_agents import tiny_train
from made_errors import refused
from made_markets import random_market

from finpod import simulate_market
from finpod.envs.market_env import MarketEnv, TradingConfig
from finpod.envs.step import Returns
from finpod.rl.apg import ADAM, APG, MOST_KEPT, PENALTIES, APGConfig, ScorerPolicy, ScorerSpec, objective_of
from finpod.rl.ppo import PPOConfig
from finpod.rl.task import Table
from finpod.tasks import make_stock_task, trading_of
from finpod.tournament.leaderboard import Settings
from finpod.tournament.pod import Pod
from finpod.tournament.setup import TournamentSetup
from finpod.trading.execution import build_execution
from finpod.trading.ledger import Costs, settle
from finpod.trading.simulate import simulate

COSTS = Costs(fee_bps=20, slippage_bps=5, per_share=0.01)
SMALL = APGConfig(num_steps=4)
LONG = random_market(120, 5, gaps=0)


@pytest.fixture(scope="module")
def market():
    """Members and factors change, bars are missing, and the last name leaves in row 15."""
    return random_market(30, 5)


def env_of(market, *, fill="open", num_envs=1, **settings):
    plain = {"hold": 1, "horizon": None, "random_start": False, "costs": COSTS, "delisting_return": -0.3, "cash": 1.0}
    trading = TradingConfig(num_envs=num_envs, **{**plain, **settings})
    return MarketEnv(build_execution(market, fill), 8, 29, trading)


def objectives_of(env, actions, smooth):
    """[E] float64: a sum over steps of log returns and of turnover, each step with a weight of its own."""
    env.reset()
    total = torch.zeros(env.num_envs, dtype=torch.float64)
    for step, action in enumerate(actions):
        _, taken = env.step(action, grad=True, smooth=smooth)
        total = total + (1 + 0.3 * step) * taken.net.log1p() - 0.1 * step * taken.turnover
    return total


@pytest.mark.parametrize(("fill", "action", "smooth"), [("open", "tilt", 1e-3), ("close", "softmax", 0.0)])
def test_the_gradient_is_that_of_central_differences(market, fill, action, smooth):
    """Ten steps; accounts are independent, so each of them is moved in one coordinate, up or down."""
    generator, size = torch.Generator().manual_seed(3), 1e-6
    env = env_of(market, fill=fill, action=action)
    assert env.execution.delisted[9:19].any()
    assert not env.execution.member[8:18].all()
    assert not env.execution.has_bar[8:18].all()
    actions = torch.randn(10, 1, env.num_actions, generator=generator, dtype=torch.float64).requires_grad_()
    (exact,) = torch.autograd.grad(objectives_of(env, actions, smooth), actions)
    count = actions.numel()
    moves = torch.eye(count, dtype=torch.float64).view(count, *actions.shape[::2]).movedim(0, 1) * size
    moved = torch.cat([actions + moves, actions - moves], 1).detach().requires_grad_()
    many = env_of(market, fill=fill, action=action, num_envs=2 * count, start_groups=1)
    up, down = objectives_of(many, moved, smooth).detach().unflatten(0, (2, count))
    torch.testing.assert_close(exact.flatten(), (up - down) / (2 * size), rtol=1e-6, atol=1e-6)
    assert exact.abs().max() > 1e-2


def test_the_gradient_passes_through_what_the_policy_sees(market):
    """The share that is kept acts through the account of the steps before; states are float32, so differences are coarse."""
    env, policy = env_of(market, costs=Costs(fee_bps=50)), ScorerPolicy(ScorerSpec(features=1))
    table = Table(torch.linspace(-1, 1, 5)[:, None].expand(30, 5, 1), env.execution.among)
    learner = APG(policy, table, 1, APGConfig(num_steps=10, smooth=0), torch.Generator())
    policy.out.weight.data.fill_(1.0)

    def earned(bias):
        policy.day.bias.data[0] = bias
        env.reset()
        return learner.collect(env).net.log1p().sum()

    (exact,) = torch.autograd.grad(earned(0.0), policy.day.bias)
    assert abs(exact[0]) > 1e-4
    difference = (earned(0.02) - earned(-0.02)).item() / 0.04
    assert exact[0].item() == pytest.approx(difference, rel=0.01)


@pytest.mark.parametrize("action", ["tilt", "softmax"])
def test_a_step_with_gradient_has_every_bit_of_one_without(market, action):
    settings = {"action": action, "num_envs": 6, "start_groups": 3, "hold": 2, "horizon": 3, "random_start": True}
    plain, exact = env_of(market, **settings), env_of(market, **settings)
    generator = torch.Generator().manual_seed(0)
    for _ in range(8):
        act = torch.randn(6, plain.num_actions, generator=generator)
        step = plain.step(act)
        same, taken = exact.step(act.requires_grad_(), grad=True)
        pairs = [(step.obs, same.obs), (step.final_obs, same.final_obs), (step[1:4], same[1:4])]
        assert all(torch.equal(*both) for parts in pairs for both in zip(*parts, strict=True))
        assert all(torch.equal(*pair) for pair in zip(plain.account, exact.account, strict=True))
        torch.testing.assert_close(taken.net.detach().log1p().float(), step.reward, rtol=0, atol=1e-7)
        assert taken.net.requires_grad
        assert not taken.baseline.requires_grad
    assert exact.equity.requires_grad
    exact.detach()
    assert not any(part.requires_grad for part in (exact.equity, *exact.account, *exact.seen))


def test_the_baseline_is_equal_weight_at_the_same_cadence(market, fill):
    env = env_of(market, fill=fill, hold=3, num_envs=2, horizon=4, random_start=True)
    among = env.execution.member & env.execution.has_bar
    for phase in range(3):

        def decide(step, row, _account, phase=phase):
            return among[row] / among[row].sum().double() if step >= phase and (step - phase) % 3 == 0 else None

        equity = simulate(env.execution, env.first, env.last, decide, env.config).equity
        assert torch.equal(env.baseline[phase::3], (equity[phase + 3 :] / equity[phase:-3] - 1)[::3])
    assert env.execution.delisted[env.first : env.last].any()
    for _ in range(3):
        days = env.observe().row + env.execution.lag - env.first
        assert torch.equal(env.step(torch.zeros(2, 5), grad=True)[1].baseline, env.baseline[days])


def test_the_smooth_cost_is_close_below_the_exact_one_and_has_no_kink():
    price, cash, shares = torch.full((2,), 10.0).double(), torch.tensor(500.0).double(), torch.full((2,), 25.0).double()
    yes, costs = torch.ones(2, dtype=torch.bool), Costs(fee_bps=100)

    def paid(size, smooth):
        return settle(cash, shares, size * torch.eye(2).double()[0], price, yes, yes, costs, smooth=smooth).cost

    for size in (-5.0, -0.01, 0.0, 0.01, 5.0):
        order = torch.tensor(size).double().requires_grad_()
        near = paid(order, 1e-3)  # a thousandth of the account is 1
        assert 0 <= (paid(order, 0.0) - near).item() <= 0.01 + 1e-12
        (slope,) = torch.autograd.grad(near, order)
        assert float(slope) == pytest.approx(0.1 * 10 * size / math.sqrt(100 * size**2 + 1), abs=1e-9)


def test_a_day_on_which_nothing_may_be_held_leaves_the_gradient_finite(market):
    member = market.member.copy()
    member[10:12] = False
    env = env_of(replace(market, member=member))
    actions = torch.randn(6, 1, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    (gradient,) = torch.autograd.grad(objectives_of(env, actions, 1e-4).sum(), actions)
    assert gradient.isfinite().all()
    assert (gradient[2:4] == 0).all()


REFUSED = [({"action": "shares"}, "action 'shares'"), ({"whole_shares": True}, "whole_shares"), ({}, "PPOConfig")]


@pytest.mark.parametrize(("settings", "what"), REFUSED)
def test_what_has_no_gradient_and_the_settings_of_another_learner_are_refused_by_name(market, settings, what, tmp_path):
    if settings:
        env = env_of(market, **settings)
        assert not env.differentiable
        refused(what, env.step, torch.zeros(1, 5), grad=True)
    config = SMALL if settings else PPOConfig()
    refused(what, tiny_train, LONG, tmp_path / "x", learner="apg", config=config, **settings)
    assert not list(tmp_path.iterdir())


def test_objectives_are_what_they_say():
    """Two steps of two accounts; the active log returns are ln 1.1, ln 0.8 and 0, ln 1.1."""
    tables = [[[0.21, 0.1], [-0.2, 0.21]], [[0.1, 0.1], [0.0, 0.1]], [[1.0, 0.5], [0.3, 0.2]]]
    play = Returns(*torch.tensor(tables, dtype=torch.float64))
    up, down = math.log(1.1), math.log(0.8)
    mean = (2 * up + down) / 4
    spread = (2 * (up - mean) ** 2 + (down - mean) ** 2 + mean**2) / 4
    expected = {
        "log": (math.log(1.21) * 2 + math.log(0.8) + math.log(1.1)) / 4,
        "active": mean - 1.5 * spread,
        "mean-variance": 0.08 - 1.5 * (0.13**2 + 0.02**2 + 0.28**2 + 0.13**2) / 4,
        "cvar": mean + 3 / 2 * (up + down),
        "drawdown": mean - 3 / 2 * (-down / 2),
        "turnover": mean - 3 * 0.5,
    }
    assert expected.keys() == PENALTIES.keys()
    for name, value in expected.items():
        assert float(objective_of(name, play, 3.0)) == pytest.approx(value, abs=1e-12), name


def test_a_gradient_that_is_not_finite_moves_nothing(market):
    env, policy = env_of(market), ScorerPolicy(ScorerSpec(features=1))
    learner = APG(policy, Table(torch.zeros(30, 5, 1), env.execution.among), 1, SMALL, torch.Generator())
    play = learner.collect(env)
    assert learner.update(play._replace(net=play.net * math.inf))["moving"] == 0
    assert not policy.out.weight.any()


@pytest.mark.parametrize("network", ADAM)
def test_an_untrained_scorer_goes_half_the_way_to_equal_weight_and_scores_follow_the_names(network):
    generator = torch.Generator().manual_seed(0)
    policy = ScorerPolicy(ScorerSpec(features=3, network=network, hidden=4), generator)
    among, values = torch.tensor([[True, True, True, False, False]]), torch.randn(1, 5, 3, generator=generator)
    code = policy.encode(values, among)
    empty, even = torch.tensor([[[0.0, 0, 0, 0, 0, 1]]]), torch.tensor([[[1 / 3, 1 / 3, 1 / 3, 0, 0, 0]]])
    for state in (empty, even):
        assert policy(code, state)[0].abs().max() < 1e-6
    assert code.inertia.item() == pytest.approx(MOST_KEPT / 2)
    policy.day.bias.data.fill_(1e9)
    assert policy.encode(values, among).inertia.item() == pytest.approx(MOST_KEPT)
    torch.nn.init.normal_(policy.out.weight, generator=generator)
    order, score = torch.tensor([1, 2, 0, 4, 3]), policy.encode(values, among).score
    assert score.abs().max() > 0.1
    assert score[among].sum().abs() < 1e-5
    torch.testing.assert_close(policy.encode(values[:, order], among).score[among], score[:, order][among])


def test_it_learns_a_planted_signal():
    """Yearly excess over equal weight on the days after the training days, and its standard error."""
    market = simulate_market(names=20, days=1200, signal=0.15, seed=3)
    trading = trading_of(num_envs=128, start_groups=None, hold=5)
    windows = (market.dates[[10, 800]], market.dates[[801, -1]])
    task = make_stock_task(market, *windows, trading, features=("return_5", "volatility_21"))
    setup = TournamentSetup(task=task, num_envs=128, config=APGConfig(), learner="apg")
    pod = Pod(setup, Settings(agent_id="a", seed=0, config=setup.config, learner="apg"))
    steps = 25 * 128 * setup.config.num_steps
    list(pod.train(steps, steps))
    trained, untrained = (np.log1p(pod.task.score(p).returns) for p in (pod.policy, ScorerPolicy(pod.policy.spec)))
    over = trained - untrained
    yearly, error = 252 * over.mean(), 252 * over.std() / math.sqrt(len(over))
    assert yearly > max(0.03, 3 * error)
