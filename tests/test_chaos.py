"""Tournaments on clusters whose processes and nodes die at random, simulated on this machine.

Only processes that these tests have started are ended, by their numbers.
"""

import gc
import os
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from unittest.mock import patch

import numpy as np
import psutil
import pytest
from made_tournaments import QUIET, UPDATE, Light, Made, check_log, lines, nap, plan_of, play, process, records_of

from finpod.storage import Store
from finpod.workers.executor import Pods
from finpod.workers.ray_executor import RayExecutor

HEALTH = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
    "kill_worker_timeout_milliseconds": 500,
}
"""A node that is gone is missed within seconds; one that is only slow, on a busy machine, is not."""


def family(parents):
    """Running processes with these numbers and their descendants."""
    found = {}
    for pid in parents:
        try:
            one = psutil.Process(pid)
            found |= {other.pid: other for other in [one, *one.children(recursive=True)]}
        except psutil.NoSuchProcess:
            continue
    return found


class Nodes:
    """A cluster of one head without CPUs and nodes that come and go."""

    def __init__(self, cluster, others):
        self.cluster, self.others = cluster, others
        self.seen = {}
        """Every process of it that was ever seen."""
        self.raylets = {}
        """Process number of each node's own process."""

    def look(self):
        """Note all processes; the children of those that die are nobody's afterwards."""
        self.seen |= {pid: one for pid, one in family([os.getpid()]).items() if one not in self.others}

    def add(self, cpus):
        node = self.cluster.add_node(num_cpus=cpus, object_store_memory=80 * 2**20)
        self.raylets[node] = node.all_processes["raylet"][0].process.pid
        return node

    def kill(self, node):
        """End a node as a lost machine ends: at once, and all of it."""
        self.look()
        for one in family([self.raylets.pop(node)]).values():
            one.kill()
        self.cluster.remove_node(node, allow_graceful=False)

    def workers(self):
        found = []
        for one in family(list(self.raylets.values())).values():
            with suppress(psutil.Error):
                if one.cmdline()[:1] and one.cmdline()[0].startswith("ray::finpod-pod"):
                    found.append(one)
        return found


@contextmanager
def cluster_of(*cpus):
    """A cluster with nodes of so many CPUs; all its processes are gone afterwards."""
    others = list(family([os.getpid()]).values())  # this process and what other tests have started in it
    environment = {**QUIET, "PYTHONPATH": str(Path(__file__).parent)}  # Ray reads it when it is imported
    with patch.dict(os.environ, environment), warnings.catch_warnings():
        os.environ.pop("RAY_ADDRESS", None)
        pytest.importorskip("ray")
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": HEALTH, "object_store_memory": 80 * 2**20}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        nodes = Nodes(cluster, others)
        try:
            for count in cpus:
                nodes.add(count)
            yield nodes
        finally:
            nodes.look()
            cluster.shutdown()
            gc.collect()
    nobody_left(nodes.seen)


def nobody_left(seen):
    """Wait until none of them runs. Agents of Ray try for a minute to tell a cluster that is gone of their node's end."""
    end = time.monotonic() + 120
    while names := left(seen):
        assert time.monotonic() < end, names
        time.sleep(0.1)


def left(seen):
    names = []
    for one in seen.values():
        with suppress(psutil.NoSuchProcess):
            if one.is_running() and one.status() != psutil.STATUS_ZOMBIE:
                names.append(one.name())
    return names


@pytest.fixture(scope="module")
def nodes():
    with cluster_of(2, 2) as found:
        yield found


@contextmanager
def engine_on(nodes, seconds, **changes):
    """Naps on that cluster."""
    engine = RayExecutor(nap, None, Pods(ray=True, address=nodes.cluster.address, **changes))
    try:
        yield Light(engine, seconds)
    finally:
        engine.close()
        gc.collect()


def losses(store):
    return [record for record in records_of(store) if record["kind"] == "lost"]


@pytest.mark.journey
def test_nodes_that_join_are_used_and_those_that_leave_cost_what_ran_there(nodes, tmp_path):
    store, plan = Store(tmp_path), plan_of(mode="async", agents=20, rounds=3, retries=9)
    joined = []

    def there():
        """Pieces that ran on the node that joined."""
        return [place for place in engine.places if place.node == joined[0][0].node_id[:8]]

    def watch(status):
        if not joined and len(status.board.log) >= 4:
            joined.append((nodes.add(3), time.time()))
            engine.seconds = 3.0  # the others leave it work, however slowly it starts
        elif joined and joined[0][0] in nodes.raylets and len(there()) >= 3 and time.time() - there()[2].ended > 1:
            nodes.kill(joined[0][0])
            engine.seconds = 0.0

    with engine_on(nodes, 0.2) as engine:
        board = play(store, plan, engine, watch=watch)
    check_log(store, board)
    assert len(board.log) == 60
    assert all(entry.state == "ended" for entry in board.log)
    assert 3 <= len(there()) <= 8
    assert min(place.started for place in there()) - joined[0][1] < 60
    lost = losses(store)
    assert 1 <= len(lost) <= 4  # what ran there, a slice for each of its CPUs, and perhaps one that was on its way
    assert {record["attempt"] for record in lost} == {1}


def torment(nodes, stop, random, progress, killed):
    """End processes and nodes, each once something has come to its end since the last; one node at least is left."""
    done = progress()
    while not stop.wait(random.uniform(0.3, 0.9)) and len(killed) < 4:
        if progress() == done:  # a busy machine starts processes more slowly than they can be ended
            continue
        done = progress()
        nodes.look()
        if random.random() < 0.75:
            if workers := nodes.workers():
                victim = workers[int(random.integers(len(workers)))]
                nodes.seen[victim.pid] = victim
                with suppress(psutil.NoSuchProcess):
                    victim.kill()
                    killed.append("process")
        elif len(there := list(nodes.raylets)) > 1:
            nodes.kill(there[int(random.integers(len(there)))])
            killed.append("node")


@pytest.mark.journey
@pytest.mark.parametrize("mode", ["rounds", pytest.param("async", marks=pytest.mark.slow)])
def test_d05_a_run_survives_the_death_of_processes_and_nodes(nodes, tmp_path, mode):
    """Nodes that went are replaced, in this thread: Ray starts none from another."""
    store, wanted = Store(tmp_path / "chaos"), len(nodes.raylets)
    plan = plan_of(mode=mode, agents=5, rounds=2, steps=4 * UPDATE, checkpoint_steps=UPDATE, retries=50)
    stop, killed = threading.Event(), []
    with engine_on(nodes, 0.3) as engine:
        arguments = (nodes, stop, np.random.default_rng(1), lambda: len(engine.places), killed)
        tormentor = threading.Thread(target=torment, args=arguments, daemon=True)

        def watch(status):
            if status.board.log and tormentor.ident is None:
                tormentor.start()
            if len(nodes.raylets) < wanted:
                nodes.add(2)

        try:
            board = play(store, plan, engine, watch=watch)
        finally:
            stop.set()
            if tormentor.ident is not None:
                tormentor.join(120)
    while len(nodes.raylets) < wanted:
        nodes.add(2)
    assert len(board.log) == 10
    assert all(entry.state == "ended" for entry in board.log)
    check_log(store, board)
    assert len(killed) >= 2
    assert losses(store)
    if mode == "rounds":
        assert lines(board) == lines(play(Store(tmp_path / "quiet"), plan, Made()))


DRIVER = """
import sys
from pathlib import Path
from made_tournaments import UPDATE, Light, nap, plan_of, play
from finpod.storage import Store
from finpod.workers.executor import Pods
from finpod.workers.ray_executor import RayExecutor

engine = Light(RayExecutor(nap, None, Pods(ray=True, count=2)), 0.3)
plan = plan_of(mode=sys.argv[2], checkpoint_steps=UPDATE, retries=99)
play(Store(Path(sys.argv[1])), plan, engine, watch=lambda status: print(len(status.board.log), flush=True))
"""


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rounds", "async"])
def test_d06_a_driver_on_ray_that_is_killed_leaves_no_process_and_is_gone_on_with(tmp_path, mode):
    pytest.importorskip("ray")
    store = Store(tmp_path / "run")
    with process(DRIVER, store.where, mode, RAY_ADDRESS="") as child:
        for line in child.stdout:
            if line.strip() == "3":
                break
        seen = family([child.pid])
        assert len(seen) > 6
        child.kill()
        child.wait(120)
        nobody_left(seen)
    records = records_of(store)
    known = {f"{one['trial']}/{one['steps']}/0" for one in records if one["kind"] in ("submit", "checkpoint")}
    assert len(known) >= 3
    plan, engine = plan_of(mode=mode, checkpoint_steps=UPDATE, retries=99), Made()
    board = play(store, plan, engine)
    assert not known & set(engine.started)
    check_log(store, board)
    if mode == "rounds":
        assert lines(board) == lines(play(Store(tmp_path / "quiet"), plan, Made()))
