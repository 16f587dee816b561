"""`fetch_market`: daily bars from Yahoo Finance, resumable, with the reason for every missing ticker."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from finpod.errors import DataError, InputError
from finpod.files import Progress
from finpod.market.calendar import GRACE, NEW_YORK, sessions_of
from finpod.market.cleaning import build_market, package_versions
from finpod.market.data import DateLike, MarketData, as_date
from finpod.market.long_bars import RepairLog
from finpod.market.parsing import normal_ticker
from finpod.market.tidy import read_bars
from finpod.market.universe import AUTO, Index, Membership, resolve_members, settled
from finpod.market.yahoo_fetch import Missing, PartialFetch, gather

LONGEST_PAUSE = np.timedelta64(14, "D")
"""Longest time without a session: the Chinese New Year."""
LISTED = 12
"""Most tickers that an error lists."""
_SYMBOL = re.compile(r"[A-Z0-9^][A-Z0-9.^=-]{0,19}")


class _Span(NamedTuple):
    """The days of a request."""

    first: np.datetime64
    last: np.datetime64
    """Last session of the request."""
    over: np.datetime64
    """Last session that is over, at most `last`."""


def fetch_market(
    universe: str | Sequence[str] = "nasdaq100",
    start: DateLike = "2015-01-01",
    end: DateLike | None = None,
    *,
    benchmark: str | None = AUTO,
    calendar: str = AUTO,
    allow_missing: bool = False,
    partial: str | Path | None = None,
    base_url: str | None = None,
    wait: float = 5.0,
    deadline: float = 1800.0,
    now: Callable[[], datetime] = lambda: datetime.now(NEW_YORK),
    report: Progress = lambda doing, share: None,
) -> MarketData:
    """Download daily bars of a universe over [start, end], both days included; `end` defaults to today.

        `universe` is the name of an index (`finpod.market.universe.INDEXES`: nasdaq100, sp500, dow30, csi300, csi500), a
        membership CSV, or a list of tickers. Every asset that was a member on some day of the range is fetched under its newest
        symbol. `benchmark` is a ticker, or None for none. `calendar` is an exchange of exchange_calendars. "auto" takes those of
        the index, and QQQ and XNYS for other universes.

        Prices are downloaded unadjusted (auto_adjust=False, actions=True) and adjusted here (see
    `finpod.market.cleaning.build_market`). Tickers that are rate limited or not answered are requested again after `wait`
    seconds or more, until `deadline` seconds are over. If some remain, InputError is raised unless `allow_missing`. Tickers
    that Yahoo does not have are listed in `manifest["failed"]` with the reason; those of a list raise InputError unless
    `allow_missing`. Downloaded bars are kept in the folder `partial`, from which the same request resumes; the caller
    removes it (`yahoo_fetch.discard`) once the market is stored.

    `base_url` sends all requests to another server with Yahoo's interface. `now` returns the present (aware), for tests.
        Raises InputError for invalid arguments and missing tickers, DataError for network failures.
    """
    moment = now()
    membership, index = _members(universe)
    benchmark, exchange = settled(benchmark, calendar, index)
    if exchange is None:
        raise InputError(
            "calendar is None; give the exchange on which the tickers trade, such as XNYS or XSHG", argument="calendar"
        )
    span = _span(start, end, exchange, moment)
    against = [] if benchmark is None else _symbols([benchmark])
    tickers = _symbols([*against, *membership.during(span.first, span.last)])
    request = _request(span, base_url)
    fetch = PartialFetch(None if partial is None else Path(partial), request)
    failed = _download(tickers, fetch, request, base_url, wait, deadline, report)
    _check_answers(failed, len(tickers), allow_missing, partial)
    bars = pd.concat([fetch.bars[t].assign(ticker=t) for t in tickers if t in fetch.bars], ignore_index=True)
    facts = {"asked": len(tickers), "fetched": len(tickers) - len(failed), "resumed": len(fetch.resumed & set(tickers))}
    requested = Path(universe).name if isinstance(universe, str) else tickers[len(against) :]
    log = RepairLog()
    return build_market(
        read_bars(bars, name="Yahoo", log=log),
        log=log,
        membership=membership,
        benchmark=next(iter(against), None),
        name="Yahoo",
        allow_missing=allow_missing or isinstance(universe, str),
        calendar=exchange,
        now=moment,
        manifest={
            "source": "yahoo",
            "title": f"Yahoo Finance, {len(tickers) - len(against)} tickers, {span.first!s:.10} to {span.over!s:.10}",
            "path": "yahoo",
            "download": "yfinance with auto_adjust=False and actions=True, adjusted by Adj Close / Close",
            "request": {"universe": requested, **request},
            "fetch": facts,
            "failed": {ticker: str(reason) for ticker, reason in sorted(failed.items())},
            "versions": package_versions("yfinance", "index-constitution"),
        },
    )


def _download(
    tickers: Sequence[str],
    fetch: PartialFetch,
    request: Mapping[str, Any],
    base_url: str | None,
    wait: float,
    deadline: float,
    report: Progress,
) -> dict[str, Missing]:
    """Download the tickers that the partial fetch lacks; return why the others have no bars."""
    for name, seconds in (("wait", wait), ("deadline", deadline)):
        if not seconds >= 0:
            raise InputError(f"{name} is {seconds}; give a number of seconds", argument=name)
    if fetch.bars.keys() >= set(tickers):
        return {}
    from finpod.market.yahoo_client import Client  # loads yfinance

    client = Client(request["start"], request["stop"], deadline=deadline, base_url=base_url)
    return gather(tickers, client.ask, fetch, wait=wait, ends=client.ends, report=report)


def _span(start: DateLike, end: DateLike | None, calendar: str, now: datetime) -> _Span:
    present = np.datetime64(now.astimezone(UTC).replace(tzinfo=None), "ns")
    zone = sessions_of(calendar, present - LONGEST_PAUSE, present).zone
    today = as_date(now.astimezone(zone).date())
    first, until = as_date(start, "start"), today if end is None else min(as_date(end, "end"), today)
    if until < first:
        raise InputError(f"the range ends on {until!s:.10}, before it starts on {first!s:.10}", argument="end")
    sessions = sessions_of(calendar, until - LONGEST_PAUSE, until)
    over = sessions.dates[sessions.closes + GRACE <= present][-1]
    if over < first:
        raise InputError(f"no session from {first!s:.10} to {until!s:.10} is over; the last one was on {over!s:.10}")
    return _Span(first, sessions.dates[-1], over)


def _members(universe: str | Sequence[str]) -> tuple[Membership, Index | None]:
    """Return the members, those of an index or a file under their newest symbols; and the index, if the universe is one."""
    membership, index = resolve_members(universe, "asked for")
    if membership is None:
        raise InputError("universe is None; give an index, a membership CSV or a list of tickers", argument="universe")
    return membership.renamed_to_newest() if isinstance(universe, str) else membership, index


def _symbols(labels: Sequence[str]) -> list[str]:
    """Return the tickers in Yahoo's spelling, each once. Raises InputError for an invalid symbol."""
    symbols = list(dict.fromkeys(normal_ticker(label) for label in labels))
    if wrong := [symbol for symbol in symbols if not _SYMBOL.fullmatch(symbol)]:
        raise InputError(f"{wrong[0]!r} is not a symbol; Yahoo's have letters, digits and . - = ^ only, such as BRK-B")
    return symbols


def _request(span: _Span, base_url: str | None) -> dict[str, Any]:
    """Return the parameters of a request. A fetch resumes an earlier one only if these are equal."""
    return {
        "server": base_url or "Yahoo",
        "start": f"{span.first!s:.10}",
        "stop": f"{span.last + np.timedelta64(1, 'D')!s:.10}",  # Yahoo's end is exclusive
        "finished": f"{span.over!s:.10}",
        "auto_adjust": False,
        "actions": True,
    }


def _check_answers(failed: Mapping[str, Missing], total: int, allow_missing: bool, partial: str | Path | None) -> None:
    """Raise for tickers without an answer, and for a fetch without any bar."""
    passing = {ticker: str(reason) for ticker, reason in sorted(failed.items()) if reason.passes}
    reasons = ", ".join(sorted(set(passing.values())))
    if len(passing) == total:
        raise DataError(f"Yahoo answered for none of {total} tickers ({reasons}); try again later")
    if passing and not allow_missing:
        kept = "" if partial is None else f" ({total - len(failed)} tickers are kept)"
        more = f" and {len(passing) - LISTED} more" if len(passing) > LISTED else ""
        raise InputError(
            f"Yahoo did not answer for {', '.join(list(passing)[:LISTED])}{more} ({len(passing)} of {total} tickers; "
            f"{reasons}); try again later{kept}, or pass allow_missing=True"
        )
    if len(failed) == total:
        raise DataError(f"Yahoo gave no bar for any of {total} tickers; check the symbols and the dates")
