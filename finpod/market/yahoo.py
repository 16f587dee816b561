"""`fetch_market`: daily bars from Yahoo Finance through yfinance, batch by batch, each failure named."""

import logging
import re
import socket
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError
from finpod.market.clean import build_market, package_versions, tidy_bars
from finpod.market.data import DateLike, MarketData, as_date
from finpod.market.universe import index_members, static_members

HOST = "query2.finance.yahoo.com"
NEW_YORK = ZoneInfo("America/New_York")
CLOSED = np.timedelta64(16 * 60 + 15, "m")
"""Time of day in New York from which a session's bar counts as finished: the close and a quarter of an hour."""
_TRANSIENT = (
    "rate limit",
    "too many requests",
    "429",
    "timed out",
    "timeout",
    "connection",
    "resolve",
    "currently down",
)
"""What a reason contains when the name was not answered for, as against answered with no data."""


class Answer(NamedTuple):
    """What a source says to one request."""

    bars: pd.DataFrame
    """Dates as index, columns (field, ticker) as yfinance gives them; may lack names."""
    errors: Mapping[str, str]
    """Name -> reason, for names that failed."""


Download = Callable[[Sequence[str], str, str], Answer]
"""(tickers, first day, first day after the last) -> Answer."""


@dataclass
class _Harvest:
    """What has come in so far."""

    bars: list[pd.DataFrame] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    unanswered: dict[str, str] = field(default_factory=dict)


def fetch_market(
    universe: str | Sequence[str] = "nasdaq100",
    start: DateLike = "2015-01-01",
    end: DateLike | None = None,
    *,
    benchmark: str = "QQQ",
    allow_missing: bool = False,
    batch: int = 25,
    attempts: int = 4,
    wait: float = 5.0,
    deadline: float = 900.0,
    download: Download | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(NEW_YORK),
    sleep: Callable[[float], None] = time.sleep,
) -> MarketData:
    """Daily bars of a universe ("nasdaq100", point in time, or a list of tickers) over [start, end], both days included.

    Prices come unadjusted with their adjusted close (auto_adjust=False, actions=True) and are adjusted here. A name that
    is rate limited is asked again, after waits that double from `wait` seconds, `attempts` times in all; names already
    fetched are not. Members of an index that Yahoo no longer has are named in `manifest["missing"]`; a name of a list
    without data, and any name still unanswered at the end, is an error unless `allow_missing`. `deadline` seconds end
    the whole job. The bar of a session that is not over yet is left out. `download`, `now` (aware) and `sleep` exist
    to be replaced in tests. Raises InputError for the arguments and missing names, DataError for what the network does.
    """
    today = now().astimezone(NEW_YORK)
    first, last = as_date(start), as_date(today.date() if end is None else end)
    if last < first:
        raise InputError(f"the range ends on {last!s:.10}, before it starts on {first!s:.10}")
    if isinstance(universe, str):
        membership = index_members(universe).renamed_to_newest()
    else:
        membership = static_members(universe, sentence=f"static list of {len(set(universe))} names asked for")
    names = list(dict.fromkeys([benchmark, *membership.during(first, last)]))
    if download is None:
        _check_connection()
        download = download_yahoo
    ends = time.monotonic() + deadline
    harvest = _collect(names, first, last, _Budget(download, batch, attempts, wait, ends, sleep))
    _check_answers(harvest, len(names), allow_missing)
    bars, unfinished = _finished(tidy_bars(pd.concat(harvest.bars, ignore_index=True), name="Yahoo"), today)
    return build_market(
        bars,
        membership=membership,
        benchmark=benchmark,
        name="Yahoo",
        allow_missing=allow_missing or isinstance(universe, str),
        manifest=_manifest(f"{len(names) - 1} names, {first!s:.10} to {last!s:.10}", harvest, unfinished),
    )


def _manifest(extent: str, harvest: _Harvest, unfinished: int) -> dict[str, Any]:
    return {
        "source": "yahoo",
        "title": f"Yahoo Finance, {extent}",
        "path": "yahoo",
        "download": "yfinance with auto_adjust=False and actions=True, adjusted by Adj Close / Close",
        "failed": dict(sorted((harvest.failed | harvest.unanswered).items())),
        "notes": [f"{unfinished} bars of the unfinished session are left out."] if unfinished else [],
        "versions": package_versions("yfinance", "index-constitution"),
    }


def download_yahoo(tickers: Sequence[str], first: str, stop: str) -> Answer:
    """One request through yfinance; the reasons of failures are read from its log, since it never raises."""
    import yfinance

    log = _Reasons()
    logger = logging.getLogger("yfinance")
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(log)
    try:
        bars = yfinance.download(
            list(tickers),
            start=first,
            end=stop,
            interval="1d",
            auto_adjust=False,
            actions=True,
            group_by="column",
            multi_level_index=True,
            progress=False,
            threads=4,
        )
    finally:
        logger.removeHandler(log)
        logger.propagate = propagate
    return Answer(pd.DataFrame() if bars is None else bars, log.reasons)


class _Reasons(logging.Handler):
    """Collects `['AAA', 'BBB']: reason` lines of yfinance's log."""

    def __init__(self) -> None:
        super().__init__(level=logging.ERROR)
        self.reasons: dict[str, str] = {}

    def emit(self, record: logging.LogRecord) -> None:
        found = re.match(r"\s*\[(.+?)\]: (.*)", record.getMessage())
        if found:
            reason = found.group(2).strip().splitlines()[0]
            self.reasons |= dict.fromkeys(re.findall(r"'([^']+)'", found.group(1)), reason)


class _Budget(NamedTuple):
    """How patiently to ask."""

    download: Download
    batch: int
    attempts: int
    wait: float
    ends: float
    sleep: Callable[[float], None]


def _collect(names: Sequence[str], first: np.datetime64, last: np.datetime64, budget: _Budget) -> _Harvest:
    """Ask for all names in batches, and again for those that were not answered for."""
    harvest = _Harvest()
    pending, stop = list(names), str(last + np.timedelta64(1, "D"))[:10]  # Yahoo's end is exclusive
    for attempt in range(budget.attempts):
        if attempt:
            pause = budget.wait * 2 ** (attempt - 1)
            if time.monotonic() + pause > budget.ends:
                break
            budget.sleep(pause)
        harvest.unanswered = {}
        for chunk in (pending[at : at + budget.batch] for at in range(0, len(pending), budget.batch)):
            answer = _within(budget.ends, budget.download, chunk, str(first)[:10], stop)
            _sort_in(harvest, chunk, answer)
        if not harvest.unanswered:
            break
        pending = list(harvest.unanswered)
    return harvest


def _sort_in(harvest: _Harvest, chunk: Iterable[str], answer: Answer) -> None:
    bars = tidy_bars(answer.bars, name="Yahoo") if answer.bars.size else None
    found = set() if bars is None else set(bars["ticker"].astype(object)[bars["close"].notna()])
    for name in chunk:
        reason = answer.errors.get(name, "no data")
        if name in found:
            continue
        transient = any(word in reason.lower() for word in _TRANSIENT)
        (harvest.unanswered if transient else harvest.failed)[name] = reason
    if bars is not None and found:
        kept = bars[bars["ticker"].isin(list(found)) & bars["close"].notna()]
        harvest.bars.append(kept.assign(ticker=kept["ticker"].astype(object)))


def _check_answers(harvest: _Harvest, asked: int, allow_missing: bool) -> None:
    if harvest.unanswered and not allow_missing:
        raise InputError(
            f"Yahoo did not answer for {', '.join(sorted(harvest.unanswered))} ({len(harvest.unanswered)} of "
            f"{asked} names: {next(iter(harvest.unanswered.values()))}); try again later, or allow missing "
            "names"
        )
    if not harvest.bars:
        raise DataError(f"Yahoo gave no bar for any of {asked} names; check the symbols and the dates")


def _within(ends: float, download: Download, *request: Any) -> Answer:
    """The answer, or a DataError at the deadline: a network that swallows packets must not hang the job."""
    outcome: list[Answer | Exception] = []

    def ask() -> None:
        try:
            outcome.append(download(*request))
        except Exception as error:  # handed over to the caller's thread
            outcome.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(max(ends - time.monotonic(), 0))
    if not outcome:
        raise DataError(
            f"Yahoo did not answer within the deadline (asked for {', '.join(request[0][:3])} ...); "
            "try again later, or use a file, a snapshot or the sample"
        )
    if isinstance(outcome[0], Exception):
        reason = (str(outcome[0]).strip() or type(outcome[0]).__name__).splitlines()[0]
        raise DataError(f"the download from Yahoo failed ({reason}); try again later, or use a file") from outcome[0]
    return outcome[0]


def _check_connection(seconds: float = 5.0) -> None:
    """Raise DataError at once where there is no way to Yahoo (or to the proxy that leads there)."""
    proxy = urllib.parse.urlsplit(urllib.request.getproxies().get("https", ""))
    host, port = (proxy.hostname, proxy.port or 8080) if proxy.hostname else (HOST, 443)
    try:
        socket.create_connection((host, port), timeout=seconds).close()
    except OSError as error:
        raise DataError(
            f"cannot reach {host} ({error}); check the network, or use a file, a snapshot or the sample"
        ) from error


def _finished(bars: pd.DataFrame, now: datetime) -> tuple[pd.DataFrame, int]:
    """The bars of sessions that are over at `now` (New York time), and how many were left out."""
    wall = np.datetime64(now.replace(tzinfo=None), "ns")
    over = bars["date"].to_numpy() + CLOSED <= wall
    return bars[over].reset_index(drop=True), int((~over).sum())
