"""One request through yfinance, over a session that records each answer and can use another server."""

import logging
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pandas as pd
import yfinance
from curl_cffi.requests import Response, Session
from yfinance.data import YfData

from finpod.errors import DataError, first_line
from finpod.market.yahoo_fetch import Failure, Missing

CHART = "/v8/finance/chart/"
COLUMNS = {
    "Open": "open",
    "High": "high",
    "Low": "low",
    "Close": "close",
    "Adj Close": "adj_close",
    "Volume": "volume",
    "Dividends": "dividend",
    "Stock Splits": "split",
}
"""yfinance's columns under auto_adjust=False, actions=True, and what they are called here."""
SECONDS = 10.0
"""Longest wait for one answer. yfinance alone would wait 30 s for each cookie."""


class Client:
    """Daily bars over [first, stop), unadjusted with their adjusted close, dividends and splits.

    Requests stop at `ends`, on the clock of `time.monotonic`. `base_url` replaces Yahoo's servers for all requests, cookies
    and crumbs included.
    """

    def __init__(self, first: str, stop: str, *, ends: float, base_url: str | None = None) -> None:
        self._first, self._stop = first, stop
        self._session = _Session(ends, base_url)

    def ask(self, names: Sequence[str]) -> tuple[dict[str, pd.DataFrame], dict[str, Missing]]:
        """One request for some names: their bars, and why the others have none. Raises DataError if yfinance fails."""
        self._session.answers.clear()
        YfData.cache_get.cache_clear()  # it would repeat an earlier 503 to whoever asks again
        try:
            with _quiet():
                frame = yfinance.download(
                    list(names),
                    start=self._first,
                    end=self._stop,
                    interval="1d",
                    auto_adjust=False,
                    actions=True,
                    group_by="ticker",
                    multi_level_index=True,
                    progress=False,
                    threads=4,
                    timeout=SECONDS,
                    session=self._session,
                )
        except Exception as error:
            reason = first_line(error)
            raise DataError(f"yfinance {yfinance.__version__} failed ({reason}); use a file or the sample") from error
        finally:  # yfinance would go on with this session, its deadline included, wherever else it is used
            YfData(session=Session(impersonate="chrome"))
        bars = {name: table for name in names if len(table := _bars_of(frame, name))}
        return bars, {name: _reason(self._session.answers.get(name)) for name in names if name not in bars}


class _Session(Session):
    """yfinance's session with a deadline, a replaceable server, and the last answer for each symbol.

    The answers distinguish a rate limit, a broken network and an unknown symbol. yfinance calls all of them "possibly
    delisted".
    """

    def __init__(self, ends: float, base_url: str | None) -> None:
        super().__init__(impersonate="chrome")
        self._ends, self._server, self._lock = ends, base_url, threading.Lock()
        self.answers: dict[str, Response | Exception] = {}

    def request(self, method: Any, url: str, *args: Any, **options: Any) -> Response:
        symbol = urlsplit(url).path.partition(CHART)[2]
        try:
            answer: Response | Exception = self._send(method, url, *args, **options)
        except Exception as error:  # yfinance handles it; here it is only noted
            answer = error
        if symbol:
            with self._lock:
                self.answers[symbol] = answer
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _send(self, method: Any, url: str, *args: Any, **options: Any) -> Response:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline has passed")
        if self._server is not None:
            address = urlsplit(url)
            url = self._server.rstrip("/") + address._replace(scheme="", netloc="").geturl()
        return super().request(method, url, *args, **{**options, "timeout": min(SECONDS, left)})


def _reason(answer: Response | Exception | None) -> Missing:
    """Why there are no bars, from Yahoo's last answer for the symbol."""
    if answer is None:
        return Missing(Failure.UNREACHED, "yfinance did not ask")
    if isinstance(answer, Exception):
        return Missing(Failure.UNREACHED, first_line(answer))
    status = f"HTTP {answer.status_code}"
    if answer.status_code == 429:
        return Missing(Failure.LIMITED, status)
    try:
        speaks = "chart" in answer.json()
    except (ValueError, TypeError):
        speaks = False
    if not speaks:
        return Missing(Failure.UNREACHED, f"{status} without a chart")
    kinds = {404: Failure.UNKNOWN, 200: Failure.EMPTY, 400: Failure.EMPTY, 422: Failure.EMPTY}
    return Missing(kinds.get(answer.status_code, Failure.UNREACHED), status)


def _bars_of(frame: pd.DataFrame | None, name: str) -> pd.DataFrame:
    """The rows of one ticker that have a close: `date` and the values of `COLUMNS`, float64."""
    if frame is None or not frame.size:
        return pd.DataFrame()
    if frame.columns.nlevels != 2 or set(COLUMNS) - set(frame.columns.levels[1]):
        missing = sorted(set(COLUMNS) - set(frame.columns.get_level_values(-1)))
        raise DataError(
            f"yfinance {yfinance.__version__} gives another table than finpod knows (no {', '.join(missing) or 'ticker'}"
            " in its columns); install the version of constraints.txt"
        )
    if (name, "Close") not in frame.columns:
        return pd.DataFrame()
    table = frame[name].reindex(columns=list(COLUMNS)).set_axis(list(COLUMNS.values()), axis=1)
    table = table[table["close"].notna()].astype("float64")
    days = pd.DatetimeIndex(table.index).tz_localize(None).normalize().as_unit("ns")
    return table.set_axis(days.rename("date"), axis=0).reset_index()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence yfinance's log, which says "possibly delisted" for every failure, and its developer warnings."""
    logger = logging.getLogger("yfinance")
    sink = logging.NullHandler()
    propagate, logger.propagate = logger.propagate, False
    logger.addHandler(sink)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="yfinance")
            yield
    finally:
        logger.removeHandler(sink)
        logger.propagate = propagate
