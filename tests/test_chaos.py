"""Tournaments on clusters whose processes and nodes die at random, simulated on this machine.

Only processes that these tests have started are ended, by their numbers.
"""

import gc
import signal
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import psutil
import pytest
from made_clusters import cluster_of, family, left, nobody_left
from made_tournaments import (
    UPDATE,
    Light,
    Made,
    check_log,
    driver_of,
    hash_of,
    lines,
    nap,
    plan_of,
    play,
    process,
    records_of,
)

from finpod.storage import Store
from finpod.tournament.log import TrialLog
from finpod.tournament.setup import Stop
from finpod.tournament.verify import verify_log
from finpod.workers.executor import Pods
from finpod.workers.ray_executor import RayExecutor


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


def at(count, act):
    """A watch that acts once so many trials have ended."""
    waiting = [act]

    def watch(status):
        if waiting and len(status.board.log) >= count:
            waiting.pop()()

    return watch


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


def torment(nodes, stop, random, pause, most, progress, killed):
    """End processes and nodes, each once something has come to its end since the last; one node at least is left."""
    done = progress()
    while not stop.wait(pause * random.uniform(0.5, 1.5)) and len(killed) < most:
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


def survive(nodes, store, plan, *, seconds, pause, cpus, seed, most=10**9, watch=None):
    """Play on a cluster that is tormented from the first trial that has ended; the board, and what was killed.

    Nodes that went are replaced by others of `cpus` CPUs, in this thread: Ray starts none from another.
    """
    stop, killed, wanted = threading.Event(), [], len(nodes.raylets)
    random = np.random.default_rng(seed)
    with engine_on(nodes, seconds) as engine:
        arguments = (nodes, stop, random, pause, most, lambda: len(engine.places), killed)
        tormentor = threading.Thread(target=torment, args=arguments, daemon=True)
        begin = at(1, tormentor.start)

        def look(status):
            begin(status)
            if len(nodes.raylets) < wanted:
                nodes.add(cpus)
            if watch is not None:
                watch(status)

        try:
            board = play(store, plan, engine, watch=look)
        finally:
            stop.set()
            if tormentor.ident is not None:
                tormentor.join(120)
    while len(nodes.raylets) < wanted:
        nodes.add(cpus)
    return board, killed


@pytest.mark.parametrize("mode", ["rounds", pytest.param("async", marks=pytest.mark.slow)])
def test_d05_a_run_survives_the_death_of_processes_and_nodes(nodes, tmp_path, mode):
    store = Store(tmp_path / "chaos")
    plan = plan_of(mode=mode, agents=5, rounds=2, steps=4 * UPDATE, checkpoint_steps=UPDATE, retries=50)
    board, killed = survive(nodes, store, plan, seconds=0.3, pause=0.6, cpus=2, seed=1, most=4)
    assert len(board.log) == 10
    assert all(entry.state == "ended" for entry in board.log)
    check_log(store, board)
    assert len(killed) >= 2
    assert losses(store)
    if mode == "rounds":
        assert lines(board) == lines(play(Store(tmp_path / "quiet"), plan, Made()))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["rounds", "async"])
def test_d05_thirty_pods_on_four_nodes_survive_two_minutes_of_deaths(tmp_path, mode):
    store = Store(tmp_path / "chaos")
    plan = plan_of(mode=mode, agents=30, rounds=1000, steps=2000 * UPDATE, checkpoint_steps=UPDATE, retries=200,
                   keep=5)  # fmt: skip
    began = time.monotonic()

    class Enough(Exception):
        """Two minutes are over."""

    def watch(status):
        if time.monotonic() - began > 120:
            raise Enough

    with cluster_of(8, 8, 7, 7) as nodes:
        with pytest.raises(Enough):
            survive(nodes, store, plan, seconds=0.5, pause=1.0, cpus=7, seed=2, watch=watch)
        whole = replace(plan, stop=Stop(trials=len(TrialLog(store).board.log) + 30))
        board, killed = survive(nodes, store, whole, seconds=0.5, pause=1.0, cpus=7, seed=3)
    check_log(store, board, whole=mode == "async")
    assert all(entry.state == "ended" for entry in board.log)
    assert len(losses(store)) > 10
    assert killed
    if mode == "rounds":
        assert lines(board) == lines(play(Store(tmp_path / "quiet"), whole, Made()))


@pytest.mark.slow
def test_a_process_that_is_stopped_is_missed_and_its_piece_done_elsewhere(nodes, tmp_path, monkeypatch):
    from finpod.workers import ray_executor

    monkeypatch.setattr(ray_executor, "GRACE", 10.0)
    store, plan = Store(tmp_path), plan_of(mode="async", agents=6, rounds=2)
    stopped = []

    def stop():
        busy = nodes.workers()
        nodes.look()
        stopped.append(busy[0])
        busy[0].send_signal(signal.SIGSTOP)

    with engine_on(nodes, 2.0, timeout=8.0) as engine:
        board = play(store, plan, engine, watch=at(1, stop))
    assert stopped
    assert len(board.log) == 12
    assert all(entry.state == "ended" for entry in board.log)
    assert [record["reason"] for record in losses(store)] == ["no result after 8 s"]
    check_log(store, board)


# --- the driver, and everything at once


DRIVER = """
import sys
from pathlib import Path
from made_tournaments import UPDATE, Light, nap, plan_of, play
from finpod.storage import Store
from finpod.workers.executor import Pods
from finpod.workers.ray_executor import RayExecutor

engine = Light(RayExecutor(nap, None, Pods(ray=True, count=2)), float(sys.argv[2]))
plan = plan_of(mode=sys.argv[3], checkpoint_steps=UPDATE, retries=99)
play(Store(Path(sys.argv[1])), plan, engine, watch=lambda status: print(len(status.board.log), flush=True))
engine.close()
print("over", flush=True)
"""


def died(tmp_path, mode, kill, after=3, patient=False):
    """The log of a driver with a Ray of its own after `kill` was given its process, how it ended and what it told.

    Nothing that it had started is left, in a minute even of Ray's agents.
    """
    store = Store(tmp_path / "run")
    with process(DRIVER, store.where, 0.3, mode, RAY_ADDRESS="") as child:
        for line in child.stdout:
            if line.strip() == str(after):
                break
        seen = family([child.pid])
        assert len(seen) > 6
        kill(psutil.Process(child.pid), seen)
        child.wait(120)
        nobody_left(seen, agents=patient)
        for one in left(seen).values():
            one.kill()
        told = child.stderr.read()
    assert len(TrialLog(store).board.log) >= after
    return store, child.returncode, told


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "patient"), [("rounds", False), ("async", True)])
def test_d06_a_driver_on_ray_that_is_killed_leaves_no_process_and_is_gone_on_with(tmp_path, mode, patient):
    pytest.importorskip("ray")
    store, code, _ = died(tmp_path, mode, lambda driver, seen: driver.kill(), patient=patient)
    assert code == -signal.SIGKILL
    known = {f"{one['trial']}/{one['steps']}/0" for one in records_of(store) if one["kind"] in ("submit", "checkpoint")}
    plan, engine = plan_of(mode=mode, checkpoint_steps=UPDATE, retries=99), Made()
    board = driver_of(store, plan, engine).run()
    assert not known & set(engine.started)
    check_log(store, board)
    if mode == "rounds":
        assert lines(board) == lines(play(Store(tmp_path / "quiet"), plan, Made()))


@pytest.mark.slow
def test_a_whole_cluster_that_dies_ends_the_driver_and_the_run_is_gone_on_with(tmp_path):
    pytest.importorskip("ray")

    def kill(driver, seen):
        for one in seen.values():
            if one.pid != driver.pid:
                one.kill()

    store, code, told = died(tmp_path, "rounds", kill)
    assert code not in (0, -signal.SIGKILL)
    assert "the Ray cluster has not answered for 45 s" in told or "GCS" in told
    plan = plan_of(checkpoint_steps=UPDATE, retries=99)
    board = play(store, plan, Made())
    check_log(store, board)
    assert lines(board) == lines(play(Store(tmp_path / "quiet"), plan, Made()))


TRAINER = """
import sys
from made_agents import STEPS_AN_UPDATE, tiny_train
from made_markets import random_market
from finpod.tournament.setup import Plan
from finpod.workers.executor import Pods

if __name__ == "__main__":
    tiny_train(random_market(130, 6, gaps=0.02, seed=5), sys.argv[1], agents=4, rounds=3, seed=2,
               plan=Plan(checkpoint_steps=STEPS_AN_UPDATE), pods=Pods(ray=True, count=int(sys.argv[2])),
               resume=len(sys.argv) > 3, watch=lambda status: print(len(status.board.log), flush=True))
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 4])
def test_d06_real_agents_on_ray_end_the_same_after_the_driver_was_killed_twice(tmp_path, count):
    pytest.importorskip("ray")
    from made_agents import tiny_train
    from made_markets import random_market

    whole, out = tmp_path / "whole" / "tiny", tmp_path / "tiny"
    tiny_train(random_market(130, 6, gaps=0.02, seed=5), whole, agents=4, rounds=3, seed=2)
    for after, arguments in ((2, []), (6, ["again"]), (99, ["again"])):
        with process(TRAINER, out, count, *arguments, RAY_ADDRESS="") as child:
            for line in child.stdout:
                if int(line) >= after:
                    break
            else:
                assert child.wait(60) == 0, child.stderr.read()
    assert hash_of(out) == hash_of(whole)
    assert lines(verify_log(out / "log-2.jsonl")) == lines(verify_log(whole / "log-2.jsonl"))
