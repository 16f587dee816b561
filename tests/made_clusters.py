"""Ray clusters of several nodes on this machine, whose processes can be ended one by one."""

import gc
import os
import time
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from made_tournaments import QUIET

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
        """Processes that work on any node."""
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
    before = {name: os.environ.get(name) for name in [*QUIET, "PYTHONPATH", "RAY_ADDRESS"]}
    os.environ.update({**QUIET, "PYTHONPATH": str(Path(__file__).parent)})  # Ray reads it when it is imported
    os.environ.pop("RAY_ADDRESS", None)
    pytest.importorskip("ray")
    with warnings.catch_warnings():
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
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.update({name: value})
    nobody_left(nodes.seen)


def nobody_left(seen):
    """Wait until none of them runs. Agents of Ray try for a minute to tell a cluster that is gone of their node's end."""
    end = time.monotonic() + 120
    while names := left(seen):
        assert time.monotonic() < end, names
        time.sleep(0.1)


def left(seen):
    """Names of those that run."""
    names = []
    for one in seen.values():
        with suppress(psutil.NoSuchProcess):
            if one.is_running() and one.status() != psutil.STATUS_ZOMBIE:
                names.append(one.name())
    return names
