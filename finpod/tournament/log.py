"""`TrialLog` and `Checkpoints`: what a tournament keeps in its store.

What the log holds has happened, and replays to the same board.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from finpod.errors import CheckpointError, InputError
from finpod.files import to_json_line
from finpod.storage import Store
from finpod.tournament.leaderboard import Leaderboard

NAME = "log.jsonl"
PAUSES = (0.2, 1.0)
"""Seconds before a checkpoint that could not be read is tried again."""


class TrialLog:
    """The log of one tournament: read whole when it is opened, then added to.

    One record a line: a checksum of the rest, its number, and JSON. A number that is missing is a line that is missing. A
    last line that is cut short is not read: it is being written, or was when its writer died. Reading changes nothing.
    """

    def __init__(self, store: Store, name: str = NAME, run: int = 0) -> None:
        """Read the log of a store, if there is one; `run` is the seed of its tournament.

        Raises CheckpointError, naming the file, for a log that is damaged before its last line, or foreign.
        """
        self.store, self.name = store, name
        self.where = f"{store.where}/{name}"
        """Path or URL of the file."""
        self.header: Mapping[str, Any] = {}
        """Plan, settings, task and versions, as the last scheduler had them; empty before there is one."""
        self.origin: Mapping[str, Any] = {}
        """The entry `run` beside it: how the run was called, see `RunEntry`."""
        self.board = Leaderboard(run)
        """Its trials. Whoever appends a record must take it in."""
        self.end = ""
        """The rule that ended it; empty while it is unfinished."""
        self.notes: list[str] = []
        """Settings that changed from one scheduler to the next, in words."""
        self.count = 0
        """Records."""
        try:
            content = store.read(name)
        except FileNotFoundError:
            content = b""
        records, sound = _parsed(content, self.where)
        self.torn = sound < len(content)
        """Whether a last line that is cut short stands behind the records; `append` writes over it."""
        self._sound = content[:sound] if self.torn else b""
        try:
            for record in records:
                self._take(record)
                self.count += 1
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            line = f"line {self.count + 1} of {self.where}"
            raise CheckpointError(f"{line} is not of this version of finpod: {error!r}; train again") from error

    def _take(self, record: Mapping[str, Any]) -> None:
        """Take in one more record."""
        if record["kind"] == "begin":
            header = record["header"]
            if not str(header["format"]).startswith("finpod tournament "):
                raise ValueError(header["format"])
            self.notes += [
                f"after {len(self.board.trials)} trials were drawn, {name} became {new!r} (it was {old!r})"
                for name, old, new in (differences(self.header, header) if self.header else ())
            ]
            self.header, self.origin = header, record.get("run", {})
        elif record["kind"] == "end":
            self.end = record["reason"]
        else:
            self.board.take(record)

    def append(self, kind: str, **values: Any) -> dict[str, Any]:
        """Add a record and return it; it is on the disk by then. Raises InputError if it cannot be written."""
        record = {"n": self.count, "kind": kind, **values}
        text = to_json_line(record)
        if self.torn:
            self._cut()
        self.store.append(self.name, f"{zlib.crc32(text.encode()):08x} {text}\n".encode())
        self.count += 1
        return record

    def _cut(self) -> None:
        """Take the last line off; at a URL it is the last part."""
        parts = [] if self.store.folder is not None else self.store.names(f"{self.name}.parts")
        self.store.remove(parts[-1]) if parts else self.store.write(self.name, self._sound)
        self.torn = False


def _parsed(content: bytes, where: str) -> tuple[list[dict[str, Any]], int]:
    """The records of a log, and how many of its bytes are sound: all, or all but a last line that is cut short."""
    records: list[dict[str, Any]] = []
    sound = 0
    lines = content.splitlines(keepends=True)
    for i, line in enumerate(lines):
        record = _record(line, i)
        if record is not None:
            records.append(record)
            sound += len(line)
        elif i < len(lines) - 1:
            raise CheckpointError(
                f"line {i + 1} of {where} is damaged, and there are lines after it; restore the file from a copy"
            )
    return records, sound


def _record(line: bytes, number: int) -> dict[str, Any] | None:
    """The record of a line, or None if it is damaged."""
    with suppress(ValueError, KeyError, TypeError):
        checksum, text = line.decode().split(" ", 1)
        record = json.loads(text)
        whole = line.endswith(b"\n") and int(checksum, 16) == zlib.crc32(text.rstrip("\n").encode())
        return record if whole and record["n"] == number else None
    return None


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Return (name, old value, new value) of each entry that differs, by name; names of parts have dots."""
    changes: list[tuple[str, Any, Any]] = []
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changes += differences(before, after, f"{prefix}{name}.")
        elif before != after:
            changes.append((f"{prefix}{name}", before, after))
    return changes


def begun_logs(place: Store) -> dict[str, int]:
    """Return name -> seed of each log of the unfinished run in a place, by seed."""
    seeds = {f"{folder}/{NAME}": folder.removeprefix("seed-") for folder in place.folders("seed-")}
    begun = [name for name, seed in seeds.items() if seed.isdecimal() and exists(place, name)]
    return {name: int(seeds[name]) for name in sorted(begun, key=lambda name: int(seeds[name]))}


def exists(place: Store, name: str) -> bool:
    """Whether there is a file that has been appended to."""
    return name in place.names(name.rpartition("/")[0]) or bool(place.names(f"{name}.parts"))


class Checkpoints:
    """The files of the agents: one a trial at its end, and one inside it; what cannot be written stays in memory."""

    def __init__(self, store: Store, say: Callable[[str], None]) -> None:
        self.store, self._say = store, say
        self.held: dict[str, bytes] = {}
        """What could not be written, by name."""
        self.unwritten: set[str] = set()
        """Names of what an earlier scheduler held in memory when it ended: it is gone."""

    def keep(self, name: str, content: bytes) -> bool:
        """Write a file, and what is held; whether it is written."""
        self.held[name] = content
        self.flush()
        return name not in self.held

    def flush(self) -> None:
        """Write what is held, the newest first; `say` is told why that failed."""
        try:
            for name in reversed(list(self.held)):
                self.store.write(name, self.held[name])
                del self.held[name]
        except InputError as error:
            self._say(f"{len(self.held)} checkpoint{'s' if len(self.held) > 1 else ''} in memory only: {error}")

    def fetch(self, name: str) -> bytes:
        """The content of a file. Raises CheckpointError if it is missing, or cannot be read after a few tries."""
        for pause in (*PAUSES, None):  # a store far away may fail once and answer the next time
            try:
                return self.held[name] if name in self.held else self.store.read(name)
            except FileNotFoundError as error:
                lost = "was in memory only when its driver ended; train again"
                reason = lost if name in self.unwritten else "is missing; resume from a copy, or train again"
                raise CheckpointError(f"{self.store.where}/{name} {reason}") from error
            except InputError as error:
                if pause is None:
                    raise CheckpointError(str(error)) from error
                time.sleep(pause)
        raise AssertionError

    def none_left(self) -> bool:
        """Whether there is no agent at all, in memory or in the store, or none can be listed."""
        try:
            return not self.held and not self.store.names("agents")
        except InputError:
            return True

    def remove(self, name: str) -> None:
        """Remove a file that nobody needs; one that cannot be removed stays."""
        self.held.pop(name, None)
        with suppress(InputError):
            self.store.remove(name)


def agent_file(number: int) -> str:
    """The file of an agent at the end of a trial, with its environments."""
    return f"agents/{number}.pt"


def inside_file(number: int) -> str:
    """The file of an agent inside a trial."""
    return f"checkpoints/{number}.pt"
