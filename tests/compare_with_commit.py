"""Compare features and a seeded training of this tree with those of an earlier commit. Run by hand, in the repository:

    python tests/compare_with_commit.py 4182994

Checks the commit out into a temporary git worktree, computes the same things with both trees, one after the other on this
machine, and prints for each of three parts whether it is equal to the last bit:

- features: every built-in feature of a simulated market;
- board: the settings, scores and validation returns of all trials, from the logs;
- weights: everything in the files of the agents: parameters, optimiser, accounts, task.

Figures of a training depend on the processor and on the build of torch, so they cannot be kept as golden files. Versions, the
clock and process numbers are left out. The exit code is 0 if all parts are equal, 1 if one differs, 2 for a failure.
"""

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
LEFT_OUT = {"versions", "place"}
PARTS = ("features", "board", "weights")
FEATURES = (None, "published")
"""Sets of features: the default one and the published indicators."""
SHOWN = 5
"""Differences that are printed of each part."""


def compute(file: Path) -> None:
    """Write the three parts, each as path -> value, with the finpod that this process imports.

    The training has two seeds of three agents over two rounds, on the CPU with one thread.
    """
    import torch

    import finpod

    market = finpod.simulate_market(names=8, days=700, signal=0.1, seed=0)

    class Collector(finpod.Strategy):
        every = 10

        def decide(self, view):
            return features.append([view.features(names) for names in FEATURES])

    features = []
    finpod.backtest(Collector(), market, start=market.dates[300])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "agents"
        days = [str(day)[:10] for day in market.dates]
        finpod.train(
            "stocks", market=market, train=(days[260], days[520]), validation=(days[521], days[600]), out=out, agents=3,
            rounds=2, keep=2, steps=4 * 64 * 16, seed=3, seeds=2, num_envs=64, start_groups=8, device="cpu",
        )  # fmt: skip
        logs = {path.name: records(path) for path in sorted(out.glob("*.jsonl"))}
        members = {path.name: torch.load(path, weights_only=True) for path in sorted(out.glob("*.pt"))}
    parts = {"features": features, "board": logs, "weights": members}
    file.write_bytes(pickle.dumps({name: dict(flat(parts[name])) for name in PARTS}))


def records(path):
    """The trials of a log: what was drawn, and what came of it."""
    lines = [json.loads(line.partition(" ")[2]) for line in path.read_text().splitlines()]
    return [line for line in lines if line["kind"] in ("draw", "submit", "failed")]


def flat(value, path=""):
    """Pairs of path and value for every leaf of nested dictionaries and lists."""
    if isinstance(value, dict):
        for key in sorted(value.keys() - LEFT_OUT, key=str):
            yield from flat(value[key], f"{path}/{key}")
    elif isinstance(value, list | tuple) and not all(isinstance(item, float) for item in value):
        for place, item in enumerate(value):
            yield from flat(item, f"{path}/{place}")
    else:
        yield path, value.numpy() if hasattr(value, "numpy") else value


def differences(old, new):
    """One line for each path whose values differ or that only one side has."""
    import numpy as np

    for path in sorted(old.keys() | new.keys()):
        before, after = (np.asarray(side.get(path, "nothing")) for side in (old, new))
        numbers = all(side.dtype.kind in "fiub" for side in (before, after))
        if not np.array_equal(before, after, equal_nan=numbers):
            yield f"{path} was {before!r:.60} and is {after!r:.60}"


def in_tree(tree: Path, file: Path) -> dict:
    """What `compute` gives in a process that imports finpod from a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--compute", str(file)]
    if subprocess.run(command, env=environment, cwd=tree, check=False).returncode:
        raise SystemExit(2)
    return pickle.loads(file.read_bytes())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", nargs="?", default="4182994", help="commit to compare with (default: %(default)s)")
    parser.add_argument("--compute", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compute:
        compute(options.compute)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), options.commit], check=True)
        try:
            old, new = (in_tree(path, Path(folder) / f"{path.name}.pickle") for path in (tree, HERE))
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    equal = True
    for part in PARTS:
        lines = list(differences(old[part], new[part]))
        print(f"{part}: {'equal' if not lines else f'{len(lines)} of {len(new[part])} values differ'}")
        for line in lines[:SHOWN]:
            print(f"  {line}")
        equal = equal and not lines
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
