"""`Checkpoints`: the files of the agents of a tournament; what cannot be written stays in memory until it can."""

from __future__ import annotations

import time
from contextlib import suppress

from finpod.errors import CheckpointError, InputError
from finpod.rl.checkpoint import Checkpoint
from finpod.storage import Store
from finpod.tournament.pod import without_env

PAUSES = (0.2, 1.0)
"""Seconds before a file that could not be read is tried again."""


class Checkpoints:
    """Snapshots in a store: one an agent at the end of a trial, and one at its last checkpoint inside a trial."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.held: dict[str, bytes] = {}
        """What could not be written, by name."""
        self.unwritten: set[str] = set()
        """Names of what an earlier driver held in memory when it ended: it is gone."""

    def keep(self, name: str, content: bytes) -> str:
        """Write a file, and what is held; why that failed, if it did."""
        self.held[name] = content
        return self.flush()

    def flush(self) -> str:
        """Write what is held, the newest first; why that failed, if it did."""
        try:
            for name in reversed(list(self.held)):
                self.store.write(name, self.held[name])
                del self.held[name]
        except InputError as error:
            return f"{len(self.held)} checkpoint{'s' if len(self.held) > 1 else ''} in memory only: {error}"
        return ""

    def none_left(self) -> bool:
        """Whether there is no agent at all, in memory or in the store, or none can be listed."""
        try:
            return not self.held and not self.store.names("agents")
        except InputError:
            return True

    def fetch(self, name: str) -> bytes:
        """The content of a file. Raises CheckpointError if it is missing, or cannot be read after a few tries."""
        try:
            return self.held[name] if name in self.held else self._read(name)
        except FileNotFoundError as error:
            gone = "was in memory only when its driver ended; train again"
            told = gone if name in self.unwritten else "is missing; resume from a copy, or train again"
            raise CheckpointError(f"{self.store.where}/{name} {told}") from error
        except InputError as error:
            raise CheckpointError(str(error)) from error

    def _read(self, name: str) -> bytes:
        """Read from the store; one far away may fail once and answer the next time."""
        for pause in PAUSES:
            try:
                return self.store.read(name)
            except InputError:
                time.sleep(pause)
        return self.store.read(name)

    def checkpoint(self, trial: int) -> Checkpoint:
        """Return the agent of a trial as a board keeps it, without environments. Raises CheckpointError if it cannot be read."""
        name = agent_file(trial)
        return without_env(Checkpoint.from_bytes(self.fetch(name), f"{self.store.where}/{name}"))

    def remove(self, name: str) -> None:
        """Remove a file that nobody needs; one that cannot be removed stays."""
        self.held.pop(name, None)
        with suppress(InputError):
            self.store.remove(name)


def agent_file(trial: int) -> str:
    """The file of an agent at the end of a trial, with its environments."""
    return f"agents/{trial}.pt"


def inside_file(trial: int) -> str:
    """The file of an agent inside a trial."""
    return f"checkpoints/{trial}.pt"
