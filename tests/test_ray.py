"""Training on Ray: the same wherever the pods run, only the driver reads data (B31), and a Ray that finpod starts itself."""

import hashlib
import json
import os
import socket
from pathlib import Path

import numpy as np
import pytest
from made_agents import STEPS_AN_UPDATE, make_setup, settings, tiny_train, train_slice
from made_markets import random_market
from made_tournaments import hash_of, leaving, lines, process, ray_of, records_of

from finpod.tournament.setup import Plan, from_shared
from finpod.tournament.verify import verify_log
from finpod.trading.ledger import Costs
from finpod.workers.executor import Pods


@pytest.fixture(scope="module")
def ray():
    """Ray with eight CPUs, whose workers find the modules of the tests."""
    with ray_of(
        8, runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parent), "OMP_NUM_THREADS": "1"}}
    ) as found:
        yield found


# --- one agent a process


def offline():
    """Let this process connect to itself only."""
    connect = socket.socket.connect

    def local(self, address):
        if isinstance(address, tuple) and not str(address[0]).startswith("127."):
            raise OSError(f"no network: {address}")
        return connect(self, address)

    socket.socket.connect = local  # type: ignore[method-assign]


def trained(market, seed):
    """Hash of the weights after one small slice."""
    checkpoint = train_slice(make_setup(market), settings(seed), None, STEPS_AN_UPDATE, STEPS_AN_UPDATE)
    return hashlib.sha256(b"".join(weight.numpy().tobytes() for weight in checkpoint.weights.values())).hexdigest()


@pytest.mark.parametrize("actors", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_b31_actors_train_on_the_data_of_the_driver_without_a_network(ray, market, actors):

    @ray.remote(num_cpus=1)
    class Pod:
        def train(self, market, seed):
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


# --- tournaments


def test_d13_what_pods_read_of_a_task_are_the_shared_arrays_themselves():
    """Also with market impact, which the driver has computed before."""
    market, costs = random_market(110, 4, seed=1, volume=np.full((110, 4), 1e6)), Costs(impact=1.0)
    setup = make_setup(market, costs=costs)
    setup.task.execution.impact_for(costs)
    shared = setup.to_shared()
    task = from_shared(shared, device="cpu").task
    for part in ("panel", "execution"):
        arrays = {key: value for key, value in shared["task"][part].items() if isinstance(value, np.ndarray)}
        assert len(arrays) >= 2
        for key, value in arrays.items():
            assert getattr(vars(task)[part], key).data_ptr() == value.__array_interface__["data"][0]


def train(market, out, plan, pods=None, **changes):
    """Four agents in two rounds of two updates; the hash of the ensemble."""
    tiny_train(market, out, agents=4, seed=2, plan=plan, pods=pods, **changes)
    return hash_of(out)


@pytest.fixture(scope="module")
def here(market, tmp_path_factory):
    """The folder of an ensemble trained in this process."""
    out = tmp_path_factory.mktemp("here") / "tiny"
    train(market, out, Plan())
    return out


@pytest.mark.usefixtures("ray")
@pytest.mark.parametrize(
    "pods", [(None, Pods(ray=True, count=2)), (Pods(ray=True, count=2), None)], ids=["here", "ray"]
)
def test_d06_a_run_that_began_here_is_gone_on_with_on_ray_and_the_other_way_round(market, here, tmp_path, pods):
    plan, out = Plan(checkpoint_steps=STEPS_AN_UPDATE), tmp_path / "tiny"
    with pytest.raises(KeyboardInterrupt):
        train(market, out, plan, pods[0], watch=leaving(3))
    assert train(market, out, plan, pods[1], resume=True) == hash_of(here)
    assert lines(verify_log(out / "log-2.jsonl")) == lines(verify_log(here / "log-2.jsonl"))
    places = [record["place"]["pid"] for record in records_of(out / "log-2.jsonl") if record["kind"] == "submit"]
    assert 0 < places.count(os.getpid()) < len(places)


# --- a Ray of its own


OWN = """
import json, os, sys
from pathlib import Path
import psutil
from finpod.errors import InputError
from finpod.workers.executor import Pods
from finpod.workers.ray_executor import RayExecutor
from made_tournaments import Piece, noted, wait_until

folder, me = Path(sys.argv[1]), psutil.Process()
try:
    engine = RayExecutor(noted, str(folder), Pods(ray=True, **json.loads(sys.argv[2])))
except InputError as error:
    print(json.dumps({"error": str(error), "left": [one.name() for one in me.children(recursive=True)]}))
    sys.exit()
engine.start("fine", Piece(1, 2, 0.0))
(ended,) = wait_until(lambda: engine.wait(0.1))
engine.start("killed", Piece(2, 2, 600.0))
wait_until((folder / "2").exists)
children = me.children(recursive=True)
os.kill(int((folder / "2").read_text()), 9)
(lost,) = wait_until(lambda: engine.wait(0.1))
addresses = set()
for one in children:
    try:
        addresses |= {kind.laddr.ip for kind in one.net_connections() if kind.status == "LISTEN"}
    except psutil.Error:  # it has ended in the meantime
        continue
engine.start("cancelled", Piece(3, 2, 600.0))
wait_until((folder / "3").exists)
children += me.children(recursive=True)
engine.close()
wait_until(lambda: not any(one.is_running() for one in children))
print(json.dumps({"result": ended.result, "lost": lost.reason, "addresses": sorted(addresses), "children": len(children)}))
"""


def printed(code, *arguments):
    """What a process that starts Ray itself prints as JSON; it prints nothing else."""
    pytest.importorskip("ray")
    with process(code, *arguments, RAY_ADDRESS="") as child:
        found, noise = child.communicate(timeout=120)
    assert (child.returncode, noise) == (0, "")
    return json.loads(found)


@pytest.mark.journey
def test_a_ray_of_its_own_is_silent_listens_here_alone_and_leaves_no_process(tmp_path):
    found = printed(OWN, tmp_path, json.dumps({"timeout": 600}))
    assert found["result"] == [1, 2]
    assert found["lost"].startswith("WorkerCrashedError")
    assert set(found["addresses"]) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
    assert found["children"] > 5  # all of which it has seen end


def test_a_start_that_fails_is_told_soon_and_leaves_no_process(tmp_path):
    found = printed(OWN, tmp_path, json.dumps({"address": "nonsense:port"}))
    assert found["error"].startswith("cannot reach Ray at nonsense:port: ValueError")
    assert found["left"] == []


PINNED = """
import json, os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from finpod.workers.executor import Pods
from finpod.workers.ray_executor import RayExecutor
from made_tournaments import Piece, nap

engine = RayExecutor(nap, None, Pods(ray=True, timeout=60))
engine.start("a", Piece(1, 2, 0.5))
engine.start("b", Piece(2, 2, 0.5))
ended = []
while len(ended) < 2:
    ended += engine.wait(0.1)
places = sorted((one.place.started, one.place.ended) for one in ended)
print(json.dumps({"slots": engine.slots(), "places": places}))
engine.close()
"""


@pytest.mark.journey
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system has no CPU affinity")
def test_g17_pods_on_ray_are_as_many_as_the_cores_that_the_process_may_use():
    found = printed(PINNED)
    assert found["slots"] == 1
    (_, first_ended), (second_started, _) = found["places"]
    assert second_started >= first_ended
