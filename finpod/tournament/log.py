"""`TrialLog`: the log of a tournament, from which the leaderboard is rebuilt; functions that find logs and runs."""

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from finpod.errors import CheckpointError
from finpod.files import UNFINISHED, to_json_line
from finpod.storage import Store
from finpod.tournament.leaderboard import Leaderboard

NAME = "log.jsonl"
AGENT_FILE, INSIDE_FILE = "agents/{}.pt", "checkpoints/{}.pt"
"""File with the last checkpoint of a finished trial, and of an unfinished trial; {} is the number of the trial."""


class TrialLog:
    """The log of one tournament. A new object reads the file; `append` adds records.

    Each line is one record: a checksum, and JSON with the number of the record. Numbers without gaps show that no line
    is missing. An incomplete last line is ignored: it is being written, or its writer was killed.
    """

    def __init__(self, store: Store, name: str = NAME, run: int = 0) -> None:
        """Read a log, if it exists. `run` is the seed of its tournament.

        Raises CheckpointError, which names the file, if the log is damaged before its last line, or has another format.
        """
        self.store, self.name = store, name
        self.where = f"{store.where}/{name}"
        """Path or URL of the file."""
        self.header: Mapping[str, Any] = {}
        """Plan, settings, task and versions in the last 'begin' record; empty if there is no such record."""
        self.origin: Mapping[str, Any] = {}
        """Entry 'run' of the last 'begin' record, with settings of the training process; see `Recorded`."""
        self.board = Leaderboard(run)
        """All trials of the log."""
        self.end = ""
        """Reason in the last 'end' record: a stop rule or 'all trials done'. Empty if there is no such record."""
        self.notes: list[str] = []
        """A sentence for each setting that changed when the tournament was resumed or forked."""
        self.count = 0
        """Number of records."""
        try:
            content = store.read(name)
        except FileNotFoundError:
            content = b""
        records, sound = _parsed(content, self.where)
        self.torn = sound < len(content)
        """True if the last line is incomplete; `append` overwrites it."""
        self._sound = content[:sound] if self.torn else b""
        try:
            for record in records:
                self._take(record)
                self.count += 1
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            line = f"line {self.count + 1} of {self.where}"
            raise CheckpointError(f"{line} is of another finpod version ({error!r}); train again") from error

    def _take(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "begin":
            header = record["header"]
            if not str(header["format"]).startswith("finpod tournament "):
                raise ValueError(header["format"])
            self.notes += [
                f"after {len(self.board.trials)} trials, {name} was changed from {old!r} to {new!r}"
                for name, old, new in (differences(self.header, header) if self.header else ())
            ]
            self.header, self.origin = header, record.get("run", {})
        elif record["kind"] == "end":
            self.end = record["reason"]
        else:
            self.board.take(record)

    def append(self, kind: str, **values: Any) -> None:
        """Write a record to the log, then update the attributes. Raises InputError if the record cannot be written."""
        record = {"n": self.count, "kind": kind, **values}
        text = to_json_line(record)
        if self.torn:  # remove the last line; at a URL, each line is a file of its own
            parts = [] if self.store.folder is not None else self.store.names(f"{self.name}.parts")
            self.store.remove(parts[-1]) if parts else self.store.write(self.name, self._sound)
            self.torn = False
        self.store.append(self.name, f"{zlib.crc32(text.encode()):08x} {text}\n".encode())
        self._take(record)
        self.count += 1


def _parsed(content: bytes, where: str) -> tuple[list[dict[str, Any]], int]:
    """Return (records, number of their bytes) in the `content` of a log. An incomplete last line is left out."""
    records: list[dict[str, Any]] = []
    sound, lines = 0, content.splitlines(keepends=True)
    for i, line in enumerate(lines):
        try:
            checksum, text = line.decode().split(" ", 1)
            record = json.loads(text)
            if not line.endswith(b"\n") or int(checksum, 16) != zlib.crc32(text[:-1].encode()) or record["n"] != i:
                raise ValueError
        except (ValueError, KeyError, TypeError) as error:
            if i == len(lines) - 1:
                break
            raise CheckpointError(
                f"line {i + 1} of {where} is damaged; only a damaged last line can be ignored; restore a copy"
            ) from error
        records.append(record)
        sound += len(line)
    return records, sound


def differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Return (name, old value, new value) of each entry that differs, sorted by name. Nested names contain dots."""
    changes: list[tuple[str, Any, Any]] = []
    for name in sorted({*old, *new}):
        before, after = old.get(name), new.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            changes += differences(before, after, f"{prefix}{name}.")
        elif before != after:
            changes.append((f"{prefix}{name}", before, after))
    return changes


def begun_logs(place: Store) -> dict[str, int]:
    """Return the logs of an unfinished run as a dict, name of log -> seed, sorted by seed."""
    texts = [folder.removeprefix("seed-") for folder in place.folders("seed-")]
    logs = {f"seed-{seed}/{NAME}": seed for seed in sorted(int(text) for text in texts if text.isdecimal())}
    return {name: seed for name, seed in logs.items() if exists(place, name)}


def unfinished(out: Path) -> Path:
    """Return the folder of the unfinished run whose output is the folder `out`."""
    return out.parent / f"{out.name or out.resolve().name}{UNFINISHED}"


def places_of(run: str | Path, storage: str | None = None) -> list[Store]:
    """Return the places where a run may be: only `storage` if it is given, or only `run` if `run` is a URL. Otherwise,
    the places are the folders `run` and `run`.unfinished. For a bare name, the same folders in strategies/ follow."""
    if storage or "://" in str(run):
        return [Store(storage or run)]
    path = Path(run)
    folders = [path, *([Path("strategies") / path] if path.name == str(run) else [])]
    pairs = ([folder] if folder.name.endswith(UNFINISHED) else [folder, unfinished(folder)] for folder in folders)
    return [Store(place) for pair in pairs for place in pair if not place.is_file()]


def exists(place: Store, name: str) -> bool:
    """Return True if the file `name` exists, as a whole or in the parts that `Store.append` writes."""
    return name in place.names(name.rpartition("/")[0]) or bool(place.names(f"{name}.parts"))


def fetch(store: Store, name: str) -> bytes:
    """Return the content of a checkpoint file. Raises CheckpointError if it is missing."""
    try:
        return store.read(name)
    except FileNotFoundError as error:
        raise CheckpointError(f"{store.where}/{name} is missing; restore it, or train again") from error
