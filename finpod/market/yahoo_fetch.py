"""Requests for many tickers: batches, growing waits, a deadline, and a folder from which to resume."""

import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import random
from time import monotonic, sleep
from typing import Any, NamedTuple

import pandas as pd

from finpod.errors import InputError
from finpod.files import Progress, to_json, write_bytes, write_text

BATCH, ATTEMPTS = 25, 6
"""Tickers in one request; and requests for a ticker without an answer, or batches in a row without any bar, before giving up."""
REQUEST = "request.json"
_OURS = re.compile(r"\.?(request\.json|bars_).*")
"""Names of what the folder of an unfinished fetch may hold; with a dot in front, what a killed process left."""


class Missing(NamedTuple):
    """Reason why a ticker has no bars."""

    kind: str
    """Kind of the reason: unknown symbol, no data in the range, rate limited, or no answer."""
    detail: str
    """Text of the answer that gives the reason."""
    passes: bool = False
    """True if a later request may succeed: the answer says nothing about the ticker."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


Bars = Mapping[str, pd.DataFrame]
Ask = Callable[[Sequence[str]], tuple[Bars, Mapping[str, Missing]]]
"""Function that requests some tickers once. It returns their bars, and the reasons why the others failed."""


class PartialFetch:
    """Downloaded bars, in memory and in a folder (if any) from which the same request can resume.

    The folder holds `request.json` and one `bars_TICKER.parquet` a ticker, each written whole or not at all. The content of
    another request is discarded when new bars come. Raises InputError for a folder that holds anything else.
    """

    def __init__(self, folder: Path | None, request: Mapping[str, Any]) -> None:
        self.bars: dict[str, pd.DataFrame] = {}
        self._folder, self._request = folder, to_json(request)
        self._is_ours = folder is not None and self._resume(folder)
        self.resumed = frozenset(self.bars)
        """Tickers whose bars an earlier run stored."""

    def add(self, bars: Bars) -> None:
        """Store the bars of one request."""
        self.bars |= bars
        if self._folder is None or not bars:
            return
        if not self._is_ours:
            discard(self._folder)
            write_text(self._folder / REQUEST, self._request)
            self._is_ours = True
        for ticker, table in bars.items():
            write_bytes(self._folder / f"bars_{ticker}.parquet", table.to_parquet(None))

    def _resume(self, folder: Path) -> bool:
        """Load what an earlier run of the same request stored; return True if there was one."""
        if folder.is_file() or not all(_OURS.fullmatch(path.name) for path in folder.glob("*")):
            raise InputError(f"{folder} is not the folder of an unfinished fetch; choose another, or move it away")
        request = folder / REQUEST
        if not request.is_file() or request.read_text() != self._request:
            return False
        for path in sorted(folder.glob("bars_*.parquet")):
            with suppress(OSError, ValueError):  # damaged, or removed by another process that ended the same fetch
                self.bars[path.stem.removeprefix("bars_")] = pd.read_parquet(path)
        return True


def discard(folder: Path) -> None:
    """Remove the folder of an unfinished fetch, including files of a killed process. Other files stay."""
    for path in folder.glob("*"):
        if _OURS.fullmatch(path.name):
            path.unlink(missing_ok=True)
    with suppress(OSError):  # not there, or not empty
        folder.rmdir()


def gather(
    tickers: Sequence[str], ask: Ask, fetch: PartialFetch, *, wait: float, ends: float, report: Progress
) -> dict[str, Missing]:
    """Request all tickers that are not stored yet; return why the others have no bars.

    Tickers that are rate limited or not answered go to the end of the queue, after a wait of `wait` seconds, which doubles
    from batch to batch, plus up to a half at random, so that clients do not retry at the same moment. `ends` is on the clock
    of `time.monotonic`.
    """
    queue = deque(ticker for ticker in tickers if ticker not in fetch.bars)
    failed: dict[str, Missing] = {}
    tries: Counter[str] = Counter()
    streak = barren = 0
    while queue:
        batch = [queue.popleft() for _ in range(min(BATCH, len(queue)))]
        bars, missing = ask(batch)
        fetch.add(bars)
        tries.update(batch)
        failed |= missing
        again = [ticker for ticker in batch if ticker in missing and missing[ticker].passes]
        queue.extend(ticker for ticker in again if tries[ticker] < ATTEMPTS)
        done = sum(ticker in fetch.bars for ticker in tickers)
        report(f"{done} of {len(tickers)} tickers from Yahoo", done / len(tickers))
        streak, barren = (streak + 1, 0 if bars else barren + 1) if again else (0, 0)
        pause = wait * 2.0 ** (streak - 1) * (1 + random() / 2) if again and queue else 0.0
        if queue and (barren == ATTEMPTS or monotonic() + pause >= ends):
            why = f"after {barren} requests in vain" if barren == ATTEMPTS else "before the deadline"
            failed = dict.fromkeys(queue, Missing("no answer", f"not asked {why}", passes=True)) | failed
            break
        if pause:
            report(f"Yahoo did not answer for {len(again)} tickers; asking again in {pause:.0f} s", done / len(tickers))
            sleep(pause)
    return {ticker: reason for ticker, reason in failed.items() if ticker not in fetch.bars}
