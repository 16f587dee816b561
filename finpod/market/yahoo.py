"""`fetch_market`: resumable downloads of daily bars from Yahoo Finance, with a reason for every missing ticker."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError, require_number
from finpod.files import Progress, to_json, write_bytes, write_text
from finpod.market.calendar import GRACE, NEW_YORK, sessions_of
from finpod.market.cleaning import build_market, package_versions
from finpod.market.data import DateLike, MarketData, as_date
from finpod.market.long_bars import RepairLog
from finpod.market.tidy import read_bars
from finpod.market.universe import AUTO, Membership, benchmark_and_calendar, resolve_members, static_members
from finpod.market.yahoo_client import Client, Missing

LONGEST_PAUSE = np.timedelta64(14, "D")
"""No exchange is closed for longer than this (at the Chinese New Year)."""
DAY = np.timedelta64(1, "D")
LISTED = 12
"""Largest number of tickers that an error lists."""
BATCH, ATTEMPTS = 25, 6
"""Tickers per request (`BATCH`), and attempts. The fetch gives up on a ticker after `ATTEMPTS` requests without an
answer. It gives up on all tickers after `ATTEMPTS` requests in a row without bars that leave tickers unanswered."""
WAIT = 5.0
"""Seconds to wait after a rate-limited or unanswered request. Each further such request in a row doubles the wait."""
REQUEST = "request.json"
_OURS = re.compile(r"\.?(request\.json|bars_).*")
"""Pattern of file names of an unfinished fetch. A dot in front marks a temporary file that a killed process left."""


def fetch_market(
    universe: str | Sequence[str] = "nasdaq100",
    start: DateLike = "2015-01-01",
    end: DateLike | None = None,
    *,
    benchmark: str | None = AUTO,
    calendar: str = AUTO,
    allow_missing: bool = False,
    partial: str | Path | None = None,
    deadline: float = 1800.0,
    now: Callable[[], datetime] = lambda: datetime.now(NEW_YORK),
    report: Progress = lambda doing, share: None,
) -> MarketData:
    """Download daily bars of a universe over [start, end], both days included; `end` defaults to today.

    `universe` is the name of an index (`finpod.market.universe.INDEXES`: nasdaq100, sp500, dow30, csi300, csi500), a
    membership CSV, or a list of tickers. Every asset that was a member on some day of the range is fetched. Members of
    an index or CSV are fetched under their newest symbols. `benchmark` is a ticker or None. `calendar` is a name in
    exchange_calendars. "auto" takes the benchmark and calendar of the index, or QQQ and XNYS for other universes.

    Prices are downloaded unadjusted (auto_adjust=False, actions=True) and adjusted by
    `finpod.market.cleaning.build_market`. Requests that are rate limited or not answered are repeated after growing
    waits, for `deadline` seconds in total. `manifest["failed"]` lists tickers without bars, with reasons. InputError
    is raised if Yahoo does not answer for a ticker or, if `universe` is a list, has no bars for one of its tickers.
    `allow_missing` allows both. The folder `partial` keeps downloaded bars. A later call for the same days resumes
    from them, and the caller removes the folder with `discard`.

    `now` returns the present time with its zone. `report` is called with the progress. Raises InputError for wrong
    arguments, DataError for network failures.
    """
    require_number("deadline", deadline, 0)
    moment, folder = now(), None if partial is None else Path(partial)
    membership = _members(universe)
    benchmark, exchange = benchmark_and_calendar(benchmark, calendar, membership)
    if exchange is None:
        raise InputError("calendar=None is only for files; give the exchange of the tickers, such as XNYS", "calendar")
    first, last, over = _sessions(start, end, exchange, moment)
    members = list(membership.during(first, last))
    tickers = members
    if benchmark is not None:
        benchmark = str(static_members([benchmark], sentence="").tickers[0])
        tickers = list(dict.fromkeys([benchmark, *members]))
    request: dict[str, Any] = {"auto_adjust": False, "actions": True}
    request |= {"start": f"{first!s:.10}", "stop": f"{last + DAY!s:.10}", "finished": f"{over!s:.10}"}
    bars = {} if folder is None else _stored(folder, request)
    resumed = len(bars.keys() & set(tickers))
    failed = gather(tickers, request, bars, folder, deadline, report)
    _check_answers(failed, len(tickers), allow_missing, is_kept=folder is not None)
    table = pd.concat([bars[t].assign(ticker=t) for t in tickers if t in bars], ignore_index=True)
    log = RepairLog()
    return build_market(
        read_bars(table, name="Yahoo", log=log),
        log=log,
        membership=membership,
        benchmark=benchmark,
        name="Yahoo",
        allow_missing=allow_missing or isinstance(universe, str),
        calendar=exchange,
        now=moment,
        manifest={
            "source": "yahoo",
            "title": f"Yahoo Finance, {len(members)} tickers, {first!s:.10} to {over!s:.10}",
            "path": "yahoo",
            "download": "yfinance with auto_adjust=False and actions=True, adjusted by Adj Close / Close",
            "request": {"universe": Path(universe).name if isinstance(universe, str) else members, **request},
            "fetch": {"asked": len(tickers), "fetched": len(tickers) - len(failed), "resumed": resumed},
            "failed": {ticker: missing.reason for ticker, missing in sorted(failed.items())},
            "versions": package_versions("yfinance", "index-constitution"),
        },
    )


def _sessions(start: DateLike, end: DateLike | None, calendar: str, now: datetime) -> tuple[np.datetime64, ...]:
    """Return the first day of [start, end], its last session up to today, and its last session over at `now`."""
    present = np.datetime64(now.astimezone(UTC).replace(tzinfo=None), "ns")
    zone = sessions_of(calendar, present - LONGEST_PAUSE, present).zone
    today = as_date(now.astimezone(zone).date())
    first, until = as_date(start, "start"), today if end is None else min(as_date(end, "end"), today)
    if until < first:
        raise InputError(f"the end {until!s:.10} is before the start {first!s:.10}; start earlier", argument="end")
    sessions = sessions_of(calendar, until - LONGEST_PAUSE, until)
    over = sessions.dates[sessions.closes + GRACE <= present][-1]
    if over < first:
        raise InputError(f"no session from {first!s:.10} to {until!s:.10} has ended; start on {over!s:.10} or earlier")
    return first, sessions.dates[-1], over


def _members(universe: str | Sequence[str]) -> Membership:
    """Return the members of a universe. Those of an index or a file have their newest symbols."""
    membership = resolve_members(universe, "asked for")
    if membership is None:
        raise InputError("universe is None; give an index, a membership CSV or a list of tickers", argument="universe")
    return membership.renamed_to_newest() if isinstance(universe, str) else membership


def _check_answers(failed: Mapping[str, Missing], total: int, allow_missing: bool, *, is_kept: bool) -> None:
    """Raise DataError if no ticker has bars. Unless `allow_missing`, raise InputError for tickers without an answer."""
    passing = sorted(ticker for ticker, missing in failed.items() if missing.passes)
    reasons = ", ".join(sorted({missing.reason for missing in failed.values() if missing.passes}))
    if len(failed) == total:
        why = f" ({reasons}); try again later" if reasons else "; check the symbols and the dates"
        raise DataError(f"Yahoo has no bars for any of {total} tickers{why}")
    if passing and not allow_missing:
        kept = f" (bars of {total - len(failed)} tickers are kept)" if is_kept else ""
        more = f" and {len(passing) - LISTED} more" if len(passing) > LISTED else ""
        raise InputError(
            f"Yahoo did not answer for {', '.join(passing[:LISTED])}{more} ({len(passing)} of {total} tickers; "
            f"{reasons}); try again later{kept}, or pass allow_missing=True"
        )


def _stored(folder: Path, request: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return ticker -> bars that an earlier fetch with this `request` stored in `folder`.

    Bars of another request are removed. The folder has `request.json` and one `bars_TICKER.parquet` per ticker, written
    atomically. Raises InputError for a folder with other files.
    """
    if folder.is_file() or not all(_OURS.fullmatch(path.name) for path in folder.glob("*")):
        raise InputError(f"{folder} is a file, or has files that no fetch wrote; choose a new or an empty folder")
    if not (folder / REQUEST).is_file() or (folder / REQUEST).read_text() != to_json(request):
        discard(folder)
    bars = {}
    for path in folder.glob("bars_*.parquet"):
        with suppress(OSError, ValueError):  # damaged, or removed by another process that finished the same fetch
            bars[path.stem.removeprefix("bars_")] = pd.read_parquet(path)
    return bars


def discard(folder: Path) -> None:
    """Remove the files of an unfinished fetch, including those of killed processes, then the folder if it is empty."""
    for path in folder.glob("*"):
        if _OURS.fullmatch(path.name):
            path.unlink(missing_ok=True)
    with suppress(OSError):  # does not exist, or is not empty
        folder.rmdir()


def gather(
    tickers: Sequence[str],
    request: Mapping[str, Any],
    bars: dict[str, pd.DataFrame],
    folder: Path | None,
    deadline: float,
    report: Progress,
) -> dict[str, Missing]:
    """Download bars of the tickers that `bars` lacks, and add them to `bars` and to `folder`.

    Return ticker -> reason for the tickers that still have no bars. Rate-limited and unanswered tickers go to the end
    of the queue. After a batch with such tickers, the next request waits `WAIT` seconds. Each further such batch in a
    row doubles the wait.
    """
    queue = deque(ticker for ticker in tickers if ticker not in bars)
    if not queue:
        return {}
    client = Client(request["start"], request["stop"], deadline=deadline)
    failed: dict[str, Missing] = {}
    tries: Counter[str] = Counter()
    barren, pause = 0, 0.0
    while queue:
        batch = [queue.popleft() for _ in range(min(BATCH, len(queue)))]
        downloaded, missing = client.ask(batch)
        bars.update(downloaded)
        if folder is not None and downloaded:
            write_text(folder / REQUEST, to_json(request))
            for ticker, table in downloaded.items():
                write_bytes(folder / f"bars_{ticker}.parquet", table.to_parquet(None))
        failed |= missing
        tries.update(batch)
        again = [ticker for ticker in missing if missing[ticker].passes]
        queue.extend(ticker for ticker in again if tries[ticker] < ATTEMPTS)
        done = len(bars.keys() & set(tickers))
        report(f"{done} of {len(tickers)} tickers from Yahoo", done / len(tickers))
        barren = barren + 1 if again and not downloaded else 0
        pause = max(WAIT, 2 * pause) if again else 0.0
        if queue and (barren == ATTEMPTS or monotonic() + pause >= client.ends):
            why = f"after {barren} requests without any bars" if barren == ATTEMPTS else "before the deadline"
            failed = dict.fromkeys(queue, Missing(f"no answer: not asked {why}", passes=True)) | failed
            break
        if queue and pause:
            report(f"Yahoo did not answer for {len(again)} tickers; asking again in {pause:.0f} s", done / len(tickers))
            sleep(pause)
    return {ticker: reason for ticker, reason in failed.items() if ticker not in bars}
