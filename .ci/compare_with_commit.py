"""Compare features and a seeded training of this tree with those of an earlier commit. Run by hand, in the repository:

    python .ci/compare_with_commit.py 4182994

Checks the commit out into a temporary git worktree, computes the same things with both trees, and prints for each of three
parts whether it is equal to the last bit: the built-in features of a simulated market; the board, which is settings, scores
and returns of all trials; the weights, with optimiser and accounts, of the agents. Such figures depend on the processor and
on the build of torch, so they cannot be golden files. The exit code is 0 if all parts are equal, and else 1.
"""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
LEFT_OUT = {"versions", "place"}


def compute() -> None:
    """Print the hash of each part, with the finpod that this process imports. The training has two seeds on one thread."""
    import torch

    import finpod

    market, features = finpod.simulate_market(names=8, days=700, signal=0.1, seed=0), []

    class Collector(finpod.Strategy):
        every = 10

        def decide(self, view):
            return features.extend(view.features(names) for names in (None, "published"))

    finpod.backtest(Collector(), market, start=market.dates[300])
    days = [str(day)[:10] for day in market.dates]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "agents"
        finpod.train(
            "stocks", market=market, train=(days[260], days[520]), validation=(days[521], days[600]), out=out, agents=3,
            rounds=2, keep=2, steps=4 * 64 * 16, seed=3, seeds=2, num_envs=64, start_groups=8, device="cpu",
        )  # fmt: skip
        lines = [json.loads(line.partition(" ")[2]) for log in sorted(out.glob("*.jsonl")) for line in log.open()]
        board = [line for line in lines if line["kind"] in ("draw", "submit", "failed")]
        weights = [torch.load(path, weights_only=True) for path in sorted(out.glob("*.pt"))]
    for name, part in {"features": features, "board": board, "weights": weights}.items():
        digest = hashlib.sha256()
        for leaf in leaves(part):
            digest.update(leaf.tobytes() if hasattr(leaf, "tobytes") else repr(leaf).encode())
        print(name, digest.hexdigest())


def leaves(value):
    """The leaves of nested dictionaries and lists, with the names on the way; tensors as arrays."""
    if isinstance(value, dict):
        for key in sorted(value.keys() - LEFT_OUT, key=str):
            yield key
            yield from leaves(value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        yield value.numpy() if hasattr(value, "numpy") else value


def printed(tree: Path) -> list[str]:
    """The lines that `compute` prints in a process that imports finpod from a tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__]
    return subprocess.run(
        command, env=environment, cwd=tree, check=True, stdout=subprocess.PIPE, text=True
    ).stdout.splitlines()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        compute()
        sys.exit()
    with tempfile.TemporaryDirectory() as folder:
        git = ["git", "-C", str(HERE), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", folder, sys.argv[1]], check=True)
        try:
            old, new = printed(Path(folder)), printed(HERE)
        finally:
            subprocess.run([*git, "remove", "--force", folder], check=True)
    for before, after in zip(old, new, strict=True):
        print(f"{after.split()[0]}: {'equal' if before == after else 'differs'}")
    sys.exit(old != new)
