"""The gymnasium environments of stocks, and `make_env`."""

import warnings

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import vector as wrappers
from made_errors import refused
from made_markets import make_market

from finpod import Costs, make_env, simulate_market
from finpod.envs.actions import CHOICES, TradingConfig
from finpod.envs.gym import REACH, DenseTradingEnv

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def market():
    return simulate_market(names=4, days=120, seed=1)


def age(market):
    """A feature that identifies its row and name."""
    return np.arange(market.shape[0])[:, None] + np.arange(market.shape[1]) / 10


def test_c13_episode_statistics_begin_anew_with_each_episode():
    """Prices rise by one a session and the account holds one share: each step is worth 1."""
    close = np.arange(1.0, 12)
    rising = make_market(close, open=np.r_[close[0], close[:-1]])
    env = make_env("stocks", market=rising, features=age, num_envs=2, hold=1, horizon=3, random_start=False, cash=1.0,
                   reward="value", costs=Costs(fee_bps=0), numpy=True)  # fmt: skip
    env = wrappers.RecordEpisodeStatistics(env)
    for steps in (10, 3):  # the second time in the middle of an episode
        env.reset()
        rewards = [env.step(np.zeros((2, 1)))[1].tolist() for _ in range(steps)]
        assert rewards == [[1, 1]] * steps
    assert (list(env.return_queue), list(env.length_queue)) == ([3] * 8, [3] * 8)


@pytest.mark.parametrize("action", CHOICES["action"])
def test_g20_the_numpy_face_keeps_to_its_spaces_and_is_the_environment_on_tensors(market, action):
    settings = {"num_envs": 4, "start_groups": 2, "hold": 1, "horizon": 3, "seed": 5, "action": action}
    env, tensors = (make_env("stocks", market=market, **settings, numpy=numpy) for numpy in (True, False))
    assert isinstance(env, VectorEnv)
    assert (env.num_envs, env.metadata["autoreset_mode"]) == (4, AutoresetMode.SAME_STEP)
    assert env.single_action_space.is_bounded()
    obs, info = env.reset(seed=3, options={})
    tensors.reset(seed=3)
    env.action_space.seed(1)
    assert info == {}
    for number in range(1, 8):
        assert (type(obs), obs.dtype) == (np.ndarray, np.float32)
        assert obs[0] in env.single_observation_space
        chosen = env.action_space.sample()
        obs, *others, info = env.step(chosen)
        seen, *expected, tensor_info = tensors.step(chosen * (1 if action == "shares" else REACH))
        for dense, parts in ((obs, seen), (info["final_obs"], tensor_info["final_obs"])):
            assert dense in env.observation_space
            assert {name: value.numpy() for name, value in parts.items()} in tensors.observation_space
            features = tensors.panel.features[parts["row"]].flatten(1)
            np.testing.assert_array_equal(dense, np.concatenate([features, parts["state"]], axis=1))
        for value, tensor, dtype in zip(others, expected, (np.float64, np.bool_, np.bool_), strict=True):
            assert (type(value), value.shape, value.dtype) == (np.ndarray, (4,), dtype)
            np.testing.assert_array_equal(value, tensor)
        np.testing.assert_array_equal(info["_final_obs"], [number % 3 == 0] * 4)
        np.testing.assert_array_equal(info["_final_info"], info["_final_obs"])
        assert info["final_info"] == {}


def test_g20_other_wrappers_of_gymnasium_work_across_ends_of_episodes(market):
    env = wrappers.DictInfoToList(make_env("stocks", market=market, num_envs=3, hold=1, horizon=2, numpy=True))
    env = wrappers.ClipAction(wrappers.RescaleAction(env, np.float32(-0.5), np.float32(0.5)))
    env = wrappers.NormalizeReward(wrappers.ClipReward(env, -0.01, 0.01))
    env.reset(seed=4)
    for _ in range(5):
        obs, reward, *_ = env.step(env.action_space.sample())
        assert np.isfinite(obs).all()
        assert np.isfinite(reward).all()
        assert obs.shape == env.observation_space.shape


@pytest.mark.parametrize("action", CHOICES["action"])
def test_the_dense_environment_passes_gymnasiums_check(market, action, fill):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(DenseTradingEnv(market, fill=fill, config=TradingConfig(action=action)), skip_render_check=True)


def test_a_dense_observation_is_the_row_name_by_name_and_the_account(market):
    config = TradingConfig(hold=1, horizon=4, random_start=False)
    env = DenseTradingEnv(market, features=[age, "return_5"], config=config)
    obs, info = env.reset()
    assert (obs.shape, obs.dtype, info) == ((4 * 2 + 5,), np.float32, {})
    features = env.many.panel.features.flatten(1)
    np.testing.assert_array_equal(obs, [*features[0], 0, 0, 0, 0, 1])
    for number in range(1, 5):
        obs, reward, terminated, truncated, info = env.step(np.zeros(4, np.float32))
        np.testing.assert_array_equal(obs[:8], features[number])
        assert obs[8:].sum() == pytest.approx(1)
        assert (type(reward), terminated, truncated) == (float, False, number == 4)
    np.testing.assert_array_equal(env.reset()[0][:8], features[0])


def test_make_env_passes_everything_on(market):
    window = {"start": "2010-02-01", "end": "2010-05-03", "fill": "close", "features": ["return_5", age]}
    settings = {"costs": Costs(fee_bps=3), "hold": 3, "tilt": 2.0, "start_groups": 4, "num_envs": 8}
    env, same = (make_env("stocks", market=market, seed=2, **window, **settings) for _ in range(2))
    assert env.config == TradingConfig(**settings)
    assert (env.env.execution.fill, env.panel.names) == ("close", ("return_5", "age"))
    assert (env.env.first, env.env.last) == market.window(window["start"], window["end"])
    assert torch.equal(env.env.observe().row, same.env.observe().row)


@pytest.mark.parametrize(("task", "settings", "told"), [
    ("stock", {}, "'stock'; did you mean stocks"), ("stocks", {"market": None}, "market="),
    ("stocks", {"market": "sample"}, "market is 'sample'"), ("stocks", {"hodl": 5}, "'hodl'; did you mean hold"),
    ("stocks", {"action": "shares", "max_weight": 0.5}, "max_weight"),
])  # fmt: skip
def test_what_make_env_refuses(market, task, settings, told):
    refused(told, make_env, task, **{"market": market, **settings})
