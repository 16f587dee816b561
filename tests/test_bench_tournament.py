"""`finpod bench tournament`: what it counts and what it says; never how fast this machine is."""

import math
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from finpod import InputError
from finpod.bench import pods, tournaments
from finpod.bench.pods import Instant, Nap, Noted, Sleepers, Unforced, busy_share, nap, nodes_that_fit
from finpod.cli import main
from finpod.rl.ppo import PPOConfig
from finpod.storage import Store
from finpod.tournament.leaderboard import Settings
from finpod.tournament.pod import Slice, Trained
from finpod.workers.executor import Completed, Failed, InlineExecutor, Placement


def ran(started, ended):
    return Placement("here", 1, started, ended)


def piece(seed=1, until=64):
    return Slice(Settings(agent_id="a", seed=seed, config=PPOConfig()), None, False, until, 64, True)


def finite(lines):
    """The numbers among the lines, none of them NaN or infinite."""
    numbers = {name: line for name, line in lines.items() if isinstance(line, float)}
    assert all(math.isfinite(number) for number in numbers.values()), numbers
    return numbers


# --- what is counted ---------------------------------------------------------------------------------------------------


def test_busy_time_counts_from_when_all_were_busy_until_the_last_draw():
    places = [ran(0, 4), ran(1, 5), ran(4, 6)]
    assert busy_share(places, 2, 5.0) == 1.0
    assert busy_share(places, 2, 6.0) == (3 + 4 + 2) / (2 * 5)
    gap = [ran(0, 4), ran(1, 3), ran(4, 6), ran(3.5, 6)]
    assert busy_share(gap, 2, 6.0) == (3 + 2 + 2 + 2.5) / (2 * 5)
    assert busy_share(gap[::-1], 2, 6.0) == busy_share(gap, 2, 6.0)


def test_one_that_ends_as_another_begins_is_not_two():
    assert math.isnan(busy_share([ran(0, 2), ran(2, 4)], 2, 4.0))
    assert busy_share([ran(0, 2), ran(2, 4)], 1, 4.0) == 1.0


def test_pods_that_were_never_all_busy_have_no_share():
    assert math.isnan(busy_share([ran(0, 2)], 2, 5.0))
    assert math.isnan(busy_share([], 1, 5.0))
    assert math.isnan(busy_share([ran(0, 4), ran(3, 4)], 2, 2.0)), "the last draw came before"


def test_nodes_are_left_out_where_memory_is_short():
    each = pods.NODE + 10 * pods.WORKER
    assert nodes_that_fit(10, 10, math.inf) == 10
    assert nodes_that_fit(10, 10, pods.SPARE + 3.5 * each) == 3
    assert nodes_that_fit(10, 10, 0.0) == 1
    assert pods.free_memory() > 0


# --- pods that sleep ---------------------------------------------------------------------------------------------------


def test_what_runs_in_a_worker_loads_neither_torch_nor_ray():
    code = "import sys, finpod.bench.pods as pods; print(pods.nap(None, pods.Nap(0.0)), 'ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]
    assert nap(None, Nap(0.0)), "this process has loaded torch, and it says so"


def test_importing_it_costs_nothing():
    code = "import sys, finpod.bench.tournaments; sys.exit(bool({'torch', 'ray'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


class Kept:
    """An engine that keeps what it is given and gives back what it is told to."""

    name, ends = "kept", ()

    def __init__(self):
        self.given = {}

    def capacity(self):
        return 3

    def start(self, key, piece):
        self.given[key] = piece

    def wait(self, timeout):
        return list(self.ends)

    def describe(self):
        return "kept here"

    def close(self):
        self.given = None


def test_slices_go_out_as_naps_and_come_back_as_agents():
    inner = Kept()
    engine = Sleepers(inner, 2.0)
    assert (engine.name, engine.capacity(), engine.describe()) == ("kept", 3, "kept here")
    for key in "abc":
        engine.start(key, piece(until=96))
    assert inner.given == dict.fromkeys("abc", Nap(2.0))
    inner.ends = [Completed("a", False, ran(5, 7)), Failed("b", "gone", fatal=False)]
    done, lost = engine.wait(0.0)
    assert (lost, engine.places, engine.torch) == (inner.ends[1], [ran(5, 7)], False)
    trained = done.result
    assert isinstance(trained, Trained)
    assert (trained.steps, len(trained.checkpoint), len(trained.returns)) == (96, pods.AGENT, pods.RETURNS)
    assert trained.metrics["total_return"] == pytest.approx(np.prod(1 + trained.returns) - 1)
    assert trained.metrics["days"] == pods.RETURNS
    inner.ends = [Completed("c", True, ran(5, 8))]
    engine.wait(0.0)
    assert engine.torch, "a worker with torch is told"
    engine.close()
    assert inner.given is None


def test_naps_are_spread_and_an_agent_always_sleeps_as_long():
    naps = []
    for _ in range(2):
        inner = Kept()
        engine = Sleepers(inner, 2.0, spread=True)
        for seed in range(200):
            engine.start(str(seed), piece(seed=seed))
        naps.append([nap.seconds for nap in inner.given.values()])
    assert naps[0] == naps[1]
    assert 1.0 <= min(naps[0]) < 1.2 < 2.8 < max(naps[0]) <= 3.0
    assert np.mean(naps[0]) == pytest.approx(2.0, abs=0.1)


def test_an_instant_engine_has_ended_all_it_began():
    engine = Instant(2)
    for key in "ab":
        engine.start(key, Nap(0.0))
    ended = engine.wait(5.0)
    assert [one.key for one in ended] == ["a", "b"]
    assert engine.wait(5.0) == []
    assert (engine.capacity(), engine.describe(), engine.close()) == (2, "no pods", None)


def test_a_log_that_is_not_forced_to_the_disk_is_the_same_log(tmp_path):
    for store in (Unforced(tmp_path / "a"), Store(tmp_path / "b")):
        store.append("log", b"one\n")
        store.append("log", b"two\n")
    assert (tmp_path / "a/log").read_bytes() == (tmp_path / "b/log").read_bytes() == b"one\ntwo\n"


# --- the lines ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(tournaments, "NAMES", 3)
    monkeypatch.setattr(tournaments, "DAYS", 200)
    monkeypatch.setattr(tournaments, "ENVS", 8)


def test_the_lines_of_driver_and_log():
    lines = tournaments.driver_lines(60)
    numbers = finite(lines)
    assert set(numbers) == {
        "tournament driver submissions/s",
        "tournament driver MiB per 1,000 trials",
        "tournament resume seconds",
    }
    assert numbers["tournament driver submissions/s"] > 0
    assert lines["tournament driver batch"] == "10 trials after 60, log forced to the disk"
    assert lines["tournament resume batch"].startswith("60 entries of 250 returns, 0 MiB; ")


def test_the_lines_of_ray_against_this_process(small, monkeypatch):
    opened = []

    def here(work, shared, **asked):
        opened.append(asked)
        return InlineExecutor(work, asked["restore"](shared))

    monkeypatch.setattr("finpod.workers.ray_executor.RayExecutor", here)
    lines = tournaments.overhead_lines(1e-9)
    assert set(finite(lines)) == {
        "tournament first pod on Ray seconds",
        "tournament Ray overhead",
        "tournament Ray overhead in CPU time",
    }
    assert lines["tournament first pod on Ray seconds"] > 0
    assert lines["tournament Ray overhead"] > -1
    assert lines["tournament Ray overhead batch"].startswith("a slice of 1 updates, 128 steps each, in ")
    assert [asked["pods"] for asked in opened] == [1]


def test_a_slice_tells_its_own_time(small):
    engine = Noted(InlineExecutor(tournaments.slice_with_cpu, tournaments._setup()))
    took = tournaments._one_agent(engine, 128, 1)
    place = engine.places[0]
    assert took.whole == pytest.approx(took.beside + (place.ended - place.started))
    assert 0 < took.beside < took.whole
    assert took.cpu > 0


def test_an_agent_that_fails_is_no_measurement(small):
    def fail(setup, piece):
        raise ValueError("no luck")

    with pytest.raises(InputError, match="failed: ValueError: no luck"):
        tournaments._one_agent(Noted(InlineExecutor(fail, None)), 128, 1)


@pytest.mark.filterwarnings("ignore")  # ray's own, about its settings and its open files
def test_the_lines_of_pods_that_sleep_on_simulated_nodes(monkeypatch):
    pytest.importorskip("ray")
    lines = tournaments.cluster_lines(1, 2, slices=4, nap_seconds=0.2)
    numbers = finite(lines)
    assert set(numbers) == {"tournament busy share", "tournament submissions/s", "tournament pods worth of 2"}
    assert 0 < numbers["tournament busy share"] <= 1
    assert numbers["tournament submissions/s"] > 0
    assert numbers["tournament pods worth of 2"] > 0
    assert lines["tournament busy batch"].startswith("2 pods on 1 simulated nodes, started in ")
    assert "8 slices of 0.1 to 0.3 s, no torch in the workers" in lines["tournament busy batch"]


def test_a_process_that_has_a_ray_is_left_alone(monkeypatch):
    ray = SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setattr("finpod.workers.ray_executor._ray", lambda: ray)
    with pytest.raises(InputError, match="connected to Ray already"), tournaments.simulated_nodes(1, 1):
        pass


def test_without_ray_the_rest_is_measured(monkeypatch):
    def no_ray(seconds):
        raise InputError("Ray is not installed here")

    doings = []
    monkeypatch.setattr(tournaments, "overhead_lines", no_ray)
    lines = tournaments.run(entries=20, progress=lambda doing, share: doings.append((doing, share)))
    assert lines["tournament on Ray"] == "n/a: Ray is not installed here"
    assert lines["tournament resume seconds"] > 0
    assert "cores" in lines["hardware"]
    assert "torch" in lines["versions"]
    assert lines["load"].endswith(" at the end")
    assert [share for _, share in doings] == sorted(share for _, share in doings)


@pytest.mark.parametrize("sizes", [{"seconds": 0}, {"nodes": 0}, {"cpus": 0}, {"entries": 1}, {"seconds": math.nan}])
def test_sizes_that_cannot_be_measured(sizes):
    with pytest.raises(InputError, match="a measurement needs"):
        tournaments.run(**sizes)


def test_the_command_prints_its_lines_alone(monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(tournaments, "run", lambda **sizes: asked.append(sizes.get("seconds")) or {"busy": 0.5})
    for line, printed in (("", "busy  0.5"), ("--seconds 30 --json", '{\n "busy": 0.5\n}')):
        with pytest.raises(SystemExit) as ended:
            main(f"bench tournament {line}".split())
        assert ended.value.code == 0
        assert capsys.readouterr().out.strip() == printed
    assert asked == [None, 30.0]
