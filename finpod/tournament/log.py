"""`TrialLog`: the append-only log of a tournament; what it holds has happened, and replays to the same board."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from finpod.errors import CheckpointError
from finpod.files import to_json_line
from finpod.storage import Store

NAME = "log.jsonl"


class TrialLog:
    """One record a line: a checksum of the rest, its number, and JSON. A number that is missing is a line that is missing."""

    def __init__(self, store: Store, say: Callable[[str], None] = lambda text: None) -> None:
        """Open the log of a store and read what is there.

        A last line that was cut short by a crash is dropped, and `say` told so. Raises CheckpointError, naming the line,
        for damage anywhere before it.
        """
        self.store = store
        self.records: list[dict[str, Any]] = []
        self.count = 0
        self.last_failure = ""
        """Why the last agent that failed did so."""
        try:
            content = store.read(NAME)
        except FileNotFoundError:
            return
        self.records, sound = parse_log(content, f"{store.where}/{NAME}")
        self.count = len(self.records)
        if sound < len(content):
            say(f"the last line of {store.where}/{NAME} was cut short by a crash and is dropped")
            self._cut(content[:sound])

    def append(self, kind: str, **values: Any) -> None:
        """Add a record; it is on the disk when this returns. Raises InputError if it cannot be written.

        It is not kept in memory: a log may grow for weeks.
        """
        text = to_json_line({"n": self.count, "kind": kind, **values})
        self.store.append(NAME, f"{zlib.crc32(text.encode()):08x} {text}\n".encode())
        self.count += 1
        if kind == "failed":
            self.last_failure = str(values["reason"])

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The records of a kind that were there when the log was opened, in order."""
        return [record for record in self.records if record["kind"] == kind]

    def _cut(self, content: bytes) -> None:
        if self.store.folder is not None:
            self.store.write(NAME, content)
        else:  # the damaged line is the last part
            parts = self.store.names(f"{NAME}.parts")
            self.store.remove(parts[-1]) if parts else self.store.write(NAME, content)


def parse_log(content: bytes, where: str) -> tuple[list[dict[str, Any]], int]:
    """The records of a log, and how many of its bytes are sound: all, or all but a last line that was cut short.

    Raises CheckpointError, naming the line, for damage anywhere before it.
    """
    records: list[dict[str, Any]] = []
    sound = 0
    lines = content.splitlines(keepends=True)
    for i, line in enumerate(lines):
        record = _parsed(line, i)
        if record is not None:
            records.append(record)
            sound += len(line)
        elif i < len(lines) - 1:
            raise CheckpointError(
                f"line {i + 1} of {where} is damaged, and there are lines after it; restore the file from a copy"
            )
    return records, sound


def _parsed(line: bytes, number: int) -> dict[str, Any] | None:
    """The record of a line, or None if it is damaged."""
    with suppress(ValueError, KeyError, TypeError):
        checksum, text = line.decode().split(" ", 1)
        record = json.loads(text)
        if (
            line.endswith(b"\n")
            and int(checksum, 16) == zlib.crc32(text.rstrip("\n").encode())
            and record["n"] == number
        ):
            return record
    return None
