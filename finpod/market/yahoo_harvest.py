"""Asking for many names with patience: batches, growing waits, a deadline, and a folder from which to resume."""

import hashlib
import io
import json
import random
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from finpod.errors import InputError
from finpod.files import Progress, to_json, write_bytes, write_text

REQUEST = "request.json"
_BARS = re.compile(r"bars_(?P<name>[^_]+)_(?P<digest>[0-9a-f]{16})\.parquet")

_FILES = (REQUEST, f".{REQUEST}.*", "bars_*.parquet", ".bars_*")
"""Patterns of what the folder of an unfinished fetch may hold; with a dot in front, what a killed process left."""


class Failure(StrEnum):
    """Why there are no bars for a name."""

    UNKNOWN = "unknown symbol"
    EMPTY = "no data in the range"
    LIMITED = "rate limited"
    UNREACHED = "no answer"

    @property
    def passes(self) -> bool:
        """Whether asking again later may help: nothing has been said about the name itself."""
        return self in (Failure.LIMITED, Failure.UNREACHED)


class Reason(NamedTuple):
    """A failure and what was seen of it."""

    kind: Failure
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class Answer(NamedTuple):
    """What came of asking for some names; each of them is in one of the two."""

    bars: Mapping[str, pd.DataFrame]
    failed: Mapping[str, Reason]


Ask = Callable[[Sequence[str]], Answer]


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How patiently to ask. Raises InputError for numbers that cannot be used."""

    batch: int = 25
    """Names in one request to the client."""
    attempts: int = 6
    """How often a name is asked for in all, while it is rate limited or not answered for; and how many batches in a row
    may bring nothing before the job is given up."""
    wait: float = 5.0
    """Seconds to wait after a batch with such names; doubles while they go on, plus up to a half at random."""
    deadline: float = 1800.0
    """Seconds for the whole job."""
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = field(default_factory=lambda: random.Random().random)
    """A number in [0, 1), so that several clients do not come back at the same moment."""

    def __post_init__(self) -> None:
        for name, least in (("batch", 1), ("attempts", 1), ("wait", 0), ("deadline", 0)):
            if not getattr(self, name) >= least:
                raise InputError(f"{name} is {getattr(self, name)}; give at least {least}", argument=name)

    def pause(self, streak: int) -> float:
        """Seconds to wait after the `streak`-th batch in a row that was not answered in full; always growing."""
        return self.wait * 2.0 ** (streak - 1) * (1 + self.random() / 2)


class Harvest:
    """The bars that have come in, in memory and, if there is a folder, on disk for the next run of the same request.

    The folder holds `request.json` and one `bars_NAME_HASH.parquet` a name, each written whole, its name the hash of its
    content. Files that are damaged are not used; a folder of another request starts anew. Raises InputError for a folder
    that holds something else.
    """

    def __init__(self, folder: Path | None, request: Mapping[str, Any]) -> None:
        self.bars: dict[str, pd.DataFrame] = {}
        self.limited: set[str] = set()
        self._folder, self._request = folder, json.loads(to_json(request))
        self._written = folder is None or self._resume(folder)
        self.resumed = frozenset(self.bars)

    def add(self, answer: Answer) -> None:
        """Keep what came in, and which names were rate limited."""
        limited = {name for name, reason in answer.failed.items() if reason.kind is Failure.LIMITED}
        new, self.limited = not limited <= self.limited, self.limited | limited
        self.bars |= answer.bars
        if self._folder is None or not (answer.bars or limited):
            return
        if not self._written:
            discard(self._folder)  # what another request left there
        if new or not self._written:
            self._written = True
            write_text(self._folder / REQUEST, to_json({"request": self._request, "limited": sorted(self.limited)}))
        for name, bars in answer.bars.items():
            buffer = io.BytesIO()
            bars.to_parquet(buffer)
            write_bytes(self._folder / f"bars_{name}_{_digest(buffer.getvalue())}.parquet", buffer.getvalue())

    def facts(self, names: Sequence[str], failed: Mapping[str, Reason]) -> dict[str, Any]:
        """How many of the names were asked for, came in, and were there from an earlier run; and which were limited."""
        return {
            "asked": len(names),
            "fetched": len(names) - len(failed),
            "resumed": len(self.resumed & set(names)),
            "limited": sorted(self.limited & set(names)),
        }

    def _resume(self, folder: Path) -> bool:
        """Take over what an earlier run of the same request kept; whether there was one."""
        if folder.exists() and not (folder.is_dir() and all(map(_is_ours, folder.iterdir()))):
            raise InputError(f"{folder} is not the folder of an unfinished fetch; choose another, or move it away")
        kept = _read_request(folder)
        if kept.get("request") != self._request:
            return False
        self.limited = set(kept["limited"])
        for path in sorted(folder.glob("bars_*.parquet")):
            if found := _BARS.fullmatch(path.name):
                with suppress(FileNotFoundError):  # another process has ended the same fetch
                    content = path.read_bytes()
                    if _digest(content) == found["digest"]:
                        self.bars[found["name"]] = pd.read_parquet(io.BytesIO(content))
        return True


def discard(folder: Path) -> None:
    """Remove the folder of an unfinished fetch, whatever a killed process left in it; other files stay."""
    for pattern in _FILES:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    with suppress(OSError):  # not there, or not empty
        folder.rmdir()


def gather(
    names: Iterable[str],
    ask: Ask,
    harvest: Harvest,
    patience: Patience,
    *,
    ends: float,
    report: Progress = lambda doing, share: None,
) -> dict[str, Reason]:
    """Ask for all names that are not in the harvest yet; the reasons of those that did not come in.

    Names that are rate limited or not answered for go to the end of the queue, after a wait that grows while that goes
    on. `ends` is on the clock of `time.monotonic`.
    """
    wanted = list(names)
    queue = deque(name for name in wanted if name not in harvest.bars)
    failed: dict[str, Reason] = {}
    tries: Counter[str] = Counter()
    streak = barren = 0
    while queue:
        chunk = [queue.popleft() for _ in range(min(patience.batch, len(queue)))]
        answer = ask(chunk)
        harvest.add(answer)
        tries.update(chunk)
        failed |= answer.failed
        again = [n for n in chunk if n in answer.failed and answer.failed[n].kind.passes]
        queue.extend(name for name in again if tries[name] < patience.attempts)
        done = sum(name in harvest.bars for name in wanted)
        share = done / len(wanted)
        report(f"{done} of {len(wanted)} names from Yahoo", share)
        streak, barren = (streak + 1, 0 if answer.bars else barren + 1) if again else (0, 0)
        pause = patience.pause(streak) if again and queue else 0.0
        if queue and (barren == patience.attempts or time.monotonic() + pause >= ends):
            late = f"not asked before the deadline of {patience.deadline:g} s"
            given_up = barren == patience.attempts
            vain = Reason(Failure.UNREACHED, f"not asked after {barren} requests in vain" if given_up else late)
            return {**dict.fromkeys(queue, vain), **_without(failed, harvest.bars)}
        if pause:
            report(f"Yahoo did not answer for {len(again)} names; asking again in {pause:.0f} s", share)
            patience.sleep(pause)
    return _without(failed, harvest.bars)


def _without(failed: Mapping[str, Reason], bars: Mapping[str, Any]) -> dict[str, Reason]:
    return {name: reason for name, reason in failed.items() if name not in bars}


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _is_ours(path: Path) -> bool:
    return any(path.match(pattern) for pattern in _FILES)


def _read_request(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / REQUEST).read_text())
    except (OSError, ValueError):  # not there, or damaged: the fetch starts anew
        return {}
    return content if isinstance(content, dict) and isinstance(content.get("limited"), list) else {}
