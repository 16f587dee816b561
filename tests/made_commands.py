"""Run command lines in this process or in a child process."""

import io
import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import finpod
from finpod.cli import main

SIMULATED = finpod.simulate_market(names=4, days=300, signal=0.1, seed=1)
"""The snapshot data/sim of the fixture `work`."""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(finpod.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


class Ended(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def error(self):
        """The one line of an error, after nothing but progress; the exit code is 2 and nothing is on stdout."""
        assert (self.code, self.out) == (2, ""), self
        last = self.err.splitlines()[-1]
        assert last.startswith("error: ")
        assert "Traceback" not in self.err
        return last.removeprefix("error: ")


def run(*pieces):
    """Run a command line, given in pieces."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    before = signal.getsignal(signal.SIGTERM)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main(shlex.split(" ".join(pieces)))
    except SystemExit as ended:
        code = ended.code
    finally:
        signal.signal(signal.SIGTERM, before)
    return Ended(code, out.getvalue(), err.getvalue())


@contextmanager
def started(*pieces, **options):
    """The same in a process of its own, killed at the end of the block."""
    words = [sys.executable, "-m", "finpod", *shlex.split(" ".join(pieces))]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": ENVIRONMENT}
    with subprocess.Popen(words, **pipes | options) as child:
        try:
            yield child
        finally:
            child.kill()
