"""The gymnasium environments, `make_env` and the choice of a device."""

import math
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers.vector import (
    ClipAction,
    ClipReward,
    DictInfoToList,
    NormalizeReward,
    RecordEpisodeStatistics,
    RescaleAction,
    TransformReward,
)

from finpod import Costs, InputError, MarketData, make_env, simulate_market
from finpod.devices import pick_device
from finpod.envs.gym import REACH, DenseTradingEnv, TradingEnv
from finpod.envs.market_env import MarketEnv, TradingConfig
from finpod.trading.execution import build_execution


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def market() -> MarketData:
    return simulate_market(names=4, days=120, seed=1)


def age(market: MarketData) -> np.ndarray:
    """A feature that identifies its row and name."""
    return np.arange(market.shape[0])[:, None] + np.arange(market.shape[1]) / 10


def test_it_is_a_gymnasium_vector_environment_on_tensors(market):
    env = make_env("stocks", market=market, num_envs=6, start_groups=3, hold=2)
    assert isinstance(env, VectorEnv)
    assert env.num_envs == 6
    assert env.metadata["autoreset_mode"] == AutoresetMode.SAME_STEP
    obs, info = env.reset(seed=3)
    assert info == {}
    assert env.panel.features[obs["row"]].shape == (6, 4, len(env.panel.names))
    obs, reward, terminated, truncated, _ = env.step(env.action_space.sample())
    for value, dtype in (
        (obs["row"], torch.int64),
        (reward, torch.float32),
        (terminated, torch.bool),
        (truncated, torch.bool),
    ):
        assert (value.shape, value.dtype) == ((6,), dtype)
    arrays = {name: value.numpy() for name, value in obs.items()}
    assert arrays in env.observation_space
    assert {name: np.asarray(value[0]) for name, value in arrays.items()} in env.single_observation_space
    assert env.action_space.shape == (6, *env.single_action_space.shape) == (6, 4)


def test_it_steps_as_the_market_environment_does(market):
    config = TradingConfig(num_envs=4, start_groups=2, hold=1, horizon=3)
    env = TradingEnv(market, start="2010-02-01", end="2010-04-01", config=config, seed=5)
    bare = MarketEnv(build_execution(market), *market.window("2010-02-01", "2010-04-01"), config, seed=5)
    env.reset(seed=1)
    bare.reset(seed=1)
    first, last = market.window("2010-02-01", "2010-04-01")
    generator = torch.Generator().manual_seed(0)
    for _ in range(7):
        action = torch.randn(4, 4, generator=generator)
        obs, reward, terminated, truncated, info = env.step(action)
        step = bare.step(action)
        assert torch.equal(obs["row"], step.obs.row)
        assert torch.equal(obs["state"], step.obs.state)
        assert torch.equal(reward, step.reward)
        assert torch.equal(truncated, step.truncated)
        assert torch.equal(info["final_obs"]["row"], step.final_obs.row)
        assert torch.equal(info["final_obs"]["state"], step.final_obs.state)
        assert torch.equal(info["_final_obs"], terminated | truncated)
        assert first <= obs["row"].min() <= info["final_obs"]["row"].max() <= last


def test_c13_episode_statistics_begin_anew_with_each_episode():
    """Prices rise by one a session and the account holds one share: each step is worth 1."""
    env = make_env("stocks", market=rising_market(), **{**ONE_A_STEP, "numpy": False})
    env.reset()
    for number in range(1, 10):
        _, reward, _, truncated, info = env.step(torch.zeros(2, 1))
        over = number % 3 == 0
        assert reward.tolist() == [1, 1]
        assert truncated.tolist() == info["_episode"].tolist() == [over, over]
        assert info["episode"]["r"].tolist() == [3.0 * over] * 2
        assert info["episode"]["l"].tolist() == [3 * over] * 2
    env.step(torch.zeros(2, 1))
    env.reset()
    for _ in range(3):
        info = env.step(torch.zeros(2, 1))[-1]
    assert info["episode"]["l"].tolist() == [3, 3]


def test_c18_a_bad_action_is_refused_before_anything_is_traded(market):
    env = make_env("stocks", market=market, num_envs=3, action="softmax")
    env.reset(seed=0)
    before = env.market_env.state_dict()
    for bad, column, name in ((math.nan, 1, "S2"), (math.inf, 4, "cash")):
        action = torch.zeros(3, 5)
        action[2, column] = bad
        with pytest.raises(InputError, match=f"action of environment 2 is {bad} for {name}"):
            env.step(action)
    assert all(np.array_equal(before[name], value) for name, value in env.market_env.state_dict().items())
    with pytest.raises(InputError, match=r"shape \(3, 4\)"):
        env.step(torch.zeros(3, 4))
    reward = env.step(np.full((3, 5), 1e9))[1]
    assert reward.isfinite().all()


# --- accounts on arrays ------------------------------------------------------------------------------------------------


def rising_market(days=11):
    """One asset whose price rises by one a session: an account that holds one share earns 1 a step."""
    close = np.arange(1.0, days + 1)[:, None]
    return MarketData(
        dates=np.datetime64("2020-01-01") + np.arange(days),
        tickers=("A",),
        close=close,
        open=np.vstack([close[:1], close[:-1]]),
        benchmark_close=close[:, 0],
    )


HALVES = np.float32(-0.5), np.float32(0.5)
ONE_A_STEP = {
    "features": age, "num_envs": 2, "hold": 1, "horizon": 3, "random_start": False, "cash": 1.0, "reward": "value",
    "costs": Costs(fee_bps=0), "numpy": True,
}  # fmt: skip


@pytest.mark.parametrize("action", ["tilt", "softmax", "shares"])
def test_g20_the_numpy_face_keeps_to_its_spaces(market, action):
    env = make_env("stocks", market=market, num_envs=4, hold=1, horizon=3, action=action, numpy=True)
    assert isinstance(env, VectorEnv)
    assert (env.num_envs, env.metadata["autoreset_mode"]) == (4, AutoresetMode.SAME_STEP)
    assert env.observation_space == batch_space(env.single_observation_space, 4)
    assert env.action_space == batch_space(env.single_action_space, 4)
    assert env.single_action_space.is_bounded()
    obs, info = env.reset(seed=3, options={})
    assert info == {}
    env.action_space.seed(1)
    for number in range(1, 8):
        assert (type(obs), obs.dtype) == (np.ndarray, np.float32)
        assert obs in env.observation_space
        assert obs[0] in env.single_observation_space
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        for value, dtype in ((reward, np.float64), (terminated, np.bool_), (truncated, np.bool_)):
            assert (type(value), value.shape, value.dtype) == (np.ndarray, (4,), dtype)
        np.testing.assert_array_equal(truncated, number % 3 == 0)
        np.testing.assert_array_equal(info["_final_obs"], terminated | truncated)
        np.testing.assert_array_equal(info["_final_info"], info["_final_obs"])
        assert info["final_obs"] in env.observation_space
        assert (info["final_info"], "episode" in info) == ({}, False)


def test_g20_the_numpy_face_is_the_environment_on_tensors(market):
    settings = {"market": market, "num_envs": 4, "start_groups": 2, "hold": 1, "horizon": 3, "seed": 5}
    tensors, arrays = make_env("stocks", **settings), make_env("stocks", **settings, numpy=True)
    tensors.reset(seed=1)
    arrays.reset(seed=1)
    generator = np.random.default_rng(0)
    for _ in range(7):
        action = generator.uniform(-1, 1, (4, 4)).astype(np.float32)
        seen, reward, terminated, truncated, info = tensors.step(REACH * action)
        obs, *others, array_info = arrays.step(action)
        for dense, parts in ((obs, seen), (array_info["final_obs"], info["final_obs"])):
            features = tensors.panel.features[parts["row"]].flatten(1)
            np.testing.assert_array_equal(dense, np.concatenate([features, parts["state"]], axis=1))
        for array, tensor in zip(others, (reward, terminated, truncated), strict=True):
            np.testing.assert_array_equal(array, tensor)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: ClipReward(env, -0.01, 0.01),
        lambda env: TransformReward(env, lambda reward: 2 * reward),
        lambda env: DictInfoToList(RecordEpisodeStatistics(env)),
        lambda env: NormalizeReward(ClipAction(RescaleAction(RecordEpisodeStatistics(env), *HALVES))),
    ],
)
def test_g20_other_wrappers_of_gymnasium_work_across_ends_of_episodes(market, wrap):
    env = wrap(make_env("stocks", market=market, num_envs=3, hold=1, horizon=2, numpy=True))
    obs, _ = env.reset(seed=4)
    for _ in range(5):
        obs, reward, *_ = env.step(env.action_space.sample())
        assert np.isfinite(np.asarray(obs)).all()
        assert np.isfinite(np.asarray(reward)).all()
        assert np.asarray(obs).shape == env.observation_space.shape
    env.close()


# --- one account on arrays ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["tilt", "softmax", "shares"])
@pytest.mark.parametrize("fill", ["open", "close"])
def test_the_dense_environment_passes_gymnasiums_check(market, action, fill):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(DenseTradingEnv(market, fill=fill, config=TradingConfig(action=action)), skip_render_check=True)


def test_a_dense_observation_is_the_row_name_by_name_and_the_account(market):
    env = DenseTradingEnv(
        market, features=[age, "return_5"], config=TradingConfig(hold=1, horizon=4, random_start=False)
    )
    obs, info = env.reset()
    assert (obs.shape, obs.dtype, info) == ((4 * 2 + 5,), np.float32, {})
    row = env.many.panel.features[0]
    np.testing.assert_array_equal(obs, [*row[0], *row[1], *row[2], *row[3], 0, 0, 0, 0, 1])
    for number in range(1, 5):
        obs, reward, terminated, truncated, info = env.step(np.zeros(4, np.float32))
        np.testing.assert_array_equal(obs[:8], env.many.panel.features[number].flatten())
        assert obs[8:].sum() == pytest.approx(1)
        assert (type(reward), terminated, truncated) == (float, False, number == 4)
    obs, _ = env.reset()
    np.testing.assert_array_equal(obs[:8], env.many.panel.features[0].flatten())


# --- by name -----------------------------------------------------------------------------------------------------------


def test_make_env_passes_everything_on(market):
    window = {"start": "2010-02-01", "end": "2010-05-03", "fill": "close", "features": ["return_5", age]}
    settings = {"costs": Costs(fee_bps=3), "hold": 3, "tilt": 2.0, "start_groups": 4, "num_envs": 8}
    env, same = (make_env("stocks", market=market, seed=2, **window, **settings) for _ in range(2))
    assert env.config == TradingConfig(**settings)
    assert (env.execution.fill, env.panel.names) == ("close", ("return_5", "age"))
    assert [f"{market.dates[row]!s:.10}" for row in (env.market_env.first, env.market_env.last)] == [
        "2010-02-01",
        "2010-05-03",
    ]
    assert torch.equal(env.market_env.observe().row, same.market_env.observe().row)


@pytest.mark.parametrize(
    ("task", "settings", "told"),
    [
        ("stock", {}, "unknown task 'stock'; did you mean stocks"),
        ("zzz", {}, "choose from stocks"),
        ("stocks", {"market": None}, "pass market="),
        ("stocks", {"hodl": 5}, "no setting 'hodl'; did you mean hold"),
        ("stocks", {"zzz": 5}, "choose from costs, cash"),
        ("stocks", {"device": "gpu"}, "unknown device 'gpu'"),
        ("stocks", {"hold": 0}, "hold is 0"),
        ("stocks", {"fill": "noon"}, "fill is 'noon'"),
        ("stocks", {"start": "2030-01-01"}, "outside the data"),
        ("stocks", {"features": "zzz"}, "unknown feature"),
    ],
)
def test_what_make_env_refuses(market, task, settings, told):
    with pytest.raises(InputError, match=told):
        make_env(task, **{"market": market, **settings})


def test_the_market_environment_needs_no_gymnasium():
    code = "import sys; sys.modules['gymnasium'] = None; import finpod.envs.market_env, finpod.tasks, finpod.devices"
    subprocess.run([sys.executable, "-c", code], check=True)
    code = "import sys, finpod.devices; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_d14_a_device_that_is_not_there_is_an_error(monkeypatch):
    def gpus(count):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    gpus(0)
    assert pick_device("auto") == pick_device("cpu") == torch.device("cpu")
    with pytest.raises(InputError, match="device is 'cuda'"):
        pick_device("cuda")
    gpus(1)
    assert pick_device("auto") == pick_device("cuda") == torch.device("cuda")
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(InputError, match="device is 'cuda:1'"):
        pick_device("cuda:1")
    for name in ("gpu", "cuda:x", ""):
        with pytest.raises(InputError, match="choose auto, cpu or cuda"):
            pick_device(name)
