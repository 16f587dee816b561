"""Training on Ray: a slice is the same wherever it runs, and only the driver reads data (B31)."""

import hashlib
import os
import socket
from pathlib import Path

import pytest
from made_agents import train_slice

from finpod.envs.market_env import TradingConfig
from finpod.market.data import MarketData
from finpod.market.snapshots import load_snapshot, save_snapshot
from finpod.rl.ppo import PPOConfig
from finpod.synthetic import simulate_market
from finpod.tasks import StockTask
from finpod.tournament.leaderboard import Settings
from finpod.tournament.setup import TournamentSetup

QUIET = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}


def offline():
    """Let this process connect to itself only."""
    connect = socket.socket.connect

    def local(self, address):
        if isinstance(address, tuple) and not str(address[0]).startswith("127."):
            raise OSError(f"no network: {address}")
        return connect(self, address)

    socket.socket.connect = local  # type: ignore[method-assign]


def trained(market: MarketData, seed: int) -> str:
    """Hash of the weights after one small slice."""
    task = StockTask(
        market=market,
        trading=TradingConfig(num_envs=8, start_groups=4),
        fill=None,
        features=["return_5"],
        train=(10, 80),
        validation=(81, 99),
    )
    settings = Settings(agent_id="a", seed=seed, config=PPOConfig(num_steps=2))
    setup = TournamentSetup(task=task, num_envs=8, config=settings.config)
    checkpoint = train_slice(setup, settings, None, 16, 16)
    return hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in checkpoint.weights.values())).hexdigest()


@pytest.fixture
def ray(monkeypatch):
    for name, value in QUIET.items():
        monkeypatch.setenv(name, value)
    found = pytest.importorskip("ray")
    here = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}}
    found.init(
        "local",
        num_cpus=8,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 * 2**20,
        runtime_env=here,
    )
    yield found
    found.shutdown()


@pytest.mark.filterwarnings("ignore")  # ray's own, about its settings and its open files
@pytest.mark.parametrize("actors", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_b31_actors_train_on_stored_data_without_a_network(ray, tmp_path, actors):
    save_snapshot(simulate_market(names=3, days=100), tmp_path / "stored")
    market = load_snapshot(tmp_path / "stored")

    @ray.remote(num_cpus=1)
    class Pod:
        def train(self, market: MarketData, seed: int) -> tuple[str, int]:
            import test_ray

            test_ray.offline()
            with pytest.raises(OSError, match="no network"):
                socket.create_connection(("192.0.2.1", 80), timeout=1)
            return test_ray.trained(market, seed), os.getpid()

    shared = ray.put(market)
    pods = [Pod.remote() for _ in range(actors)]
    answers = ray.get([pod.train.remote(shared, seed) for seed, pod in enumerate(pods)], timeout=240)
    assert len({pid for _, pid in answers} - {os.getpid()}) == actors
    assert [weights for weights, _ in answers] == [trained(market, seed) for seed in range(actors)]
    assert len({weights for weights, _ in answers}) == actors
