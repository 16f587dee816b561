"""Settings of costs, accounts, tasks, learners, tournaments and pods: errors for values out of range name the setting."""

import math

import numpy as np
import pytest
from made_errors import refused

from finpod.envs.actions import TradingConfig
from finpod.envs.locomotion.environment import make_locomotion
from finpod.rl.apg import APGConfig
from finpod.rl.ppo import PPOConfig
from finpod.tournament.setup import Plan, Stop
from finpod.trading.ledger import Costs
from finpod.trading.simulate import Terms
from finpod.workers.executor import Pods

NAN, INF = math.nan, math.inf


def worlds(**settings):
    return make_locomotion(**{"name": "hopper", "num_envs": 2, **settings})


def pods(**settings):
    return Pods(ray=True, **settings)


WRONG = {
    Costs: {"fee_bps": [-1, 10_000, True, None], "slippage_bps": [NAN], "per_share": [INF], "impact": [-0.1, "1"]},
    Terms: {"cash": [NAN, 0], "delisting_return": [-2], "max_weight": [0.0, 1.5, True, 1e-320],
            "max_turnover": [-1.0, NAN, INF, "much", 10**400]},
    TradingConfig: {"num_envs": [0, 2.5], "hold": [None], "horizon": [0], "start_groups": [-2, 3], "action": ["tlit"],
                    "reward": ["sharpe"], "tilt": [30], "reward_scale": [0], "anchor": ["equal-weigth", "extra:"]},
    PPOConfig: {"learning_rate": [0.0], "clip_coef": [-0.1], "gamma": [1.01, NAN], "gae_lambda": [-0.1],
                "num_minibatches": [0], "num_steps": [0], "target_kl": [NAN], "vf_coef": [NAN], "ent_coef": ["a"],
                "weight_decay": [-1.0], "anneal_lr": ["no"], "center_days": [None]},
    APGConfig: {"objective": ["sharpe"], "network": ["cnn"], "num_steps": [0], "learning_rate": [NAN],
                "penalty": [-1.0], "smooth": [NAN], "weight_decay": [-0.1]},
    Plan: {"mode": ["turns"], "alike": [1.1], "restart_rate": [-0.1, NAN], "retries": [-1], "checkpoint_steps": [0],
           "keep": [65], "agents": [0], "seed": [-1]},
    Stop: {"trials": [0, 1.5], "steps": [-1], "seconds": [0, INF, "5"]},
    pods: {"count": [0, "many"], "cpus": [0.0, NAN], "gpus": [-1.0, 1.5], "timeout": [INF]},
    worlds: {"variant": ["full"], "num_envs": [0, 2.5], "threads": [-1, 0], "max_failures": [-1, None], "seed": [-1]},
}  # fmt: skip
CASES = [(kind, name, value) for kind, wrong in WRONG.items() for name, values in wrong.items() for value in values]


@pytest.mark.parametrize(("kind", "name", "value"), CASES)
def test_a_setting_out_of_range_is_refused_by_name(kind, name, value):
    if kind is worlds:
        pytest.importorskip("mujoco")
    raised = refused("", kind, about={Stop: "stop.", pods: "pods."}.get(kind, "") + name, **{name: value})
    assert str(value)[:20] in str(raised)


def test_costs_that_eat_the_whole_trade_are_refused():
    refused("cost 100% of each trade", Costs, fee_bps=6000, slippage_bps=4000)


@pytest.mark.parametrize("number", [np.int64(10), np.float32(10), np.arange(0, 20, 10)[1]])
def test_costs_may_be_numbers_of_numpy(number):
    costs = Costs(fee_bps=number, impact=number)
    assert costs == Costs(fee_bps=10, impact=10)
    assert type(costs.fee_bps) is float
