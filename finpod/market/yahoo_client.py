"""Requests bars through yfinance, with a session that records each answer."""

import logging
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pandas as pd
import yfinance
from curl_cffi.requests import Response, Session
from yfinance.data import YfData

from finpod.errors import DataError, first_line

CHART = "/v8/finance/chart/"
COLUMNS = ("Open", "High", "Low", "Close", "Adj Close", "Volume", "Dividends", "Stock Splits")
"""Columns of a ticker in yfinance's table under auto_adjust=False, actions=True."""
YAHOO = "https://query2.finance.yahoo.com"
SERVER: str | None = None
"""Address that replaces Yahoo's servers in all requests, for tests."""
SECONDS = 10.0
"""Longest wait for one answer, in seconds. Without this limit, yfinance waits 30 s for each cookie."""


class Missing(NamedTuple):
    """Reason why a ticker has no bars."""

    kind: str
    """Kind of the reason: unknown symbol, no data in the range, rate limited, or no answer."""
    detail: str
    """HTTP status of the answer, or the text of the error."""
    passes: bool = False
    """True if a later request may succeed, because the answer was not about the ticker."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class Client:
    """Requests unadjusted daily bars, adjusted closes, dividends, splits. Raises DataError if Yahoo is unreachable."""

    def __init__(self, first: str, stop: str, *, deadline: float) -> None:
        self._first, self._stop = first, stop
        self._session = _Session()
        try:
            self._session.get(YAHOO)
        except Exception as error:
            raise DataError(
                f"cannot reach {SERVER or YAHOO} ({first_line(error)}); check the network, or use a file, a snapshot "
                "or the sample"
            ) from error
        self.ends = self._session.ends = time.monotonic() + deadline
        """Time at which requests stop, on the clock of `time.monotonic`."""

    def ask(self, tickers: Sequence[str]) -> tuple[dict[str, pd.DataFrame], dict[str, Missing]]:
        """Request tickers once. Return ticker -> bars, and ticker -> `Missing`. Raises DataError if yfinance fails."""
        self._session.answers.clear()
        YfData.cache_get.cache_clear()  # or else yfinance repeats an earlier 503 from its cache
        try:
            with _quiet():
                frame = yfinance.download(
                    list(tickers),
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
        finally:  # other code that uses yfinance must not get this session
            YfData(session=Session(impersonate="chrome"))
        bars = {ticker: table for ticker in tickers if len(table := _bars_of(frame, ticker))}
        return bars, {ticker: _reason(self._session.answers.get(ticker)) for ticker in tickers if ticker not in bars}


class _Session(Session):
    """yfinance's session with a deadline, and the last answer for each symbol.

    Answers distinguish rate limits, broken networks and unknown symbols. yfinance calls each "possibly delisted".
    """

    def __init__(self) -> None:
        super().__init__(impersonate="chrome")
        self.ends = math.inf
        self.answers: dict[str, Response | Exception] = {}

    def request(self, method: Any, url: str, *args: Any, **options: Any) -> Response:
        address = urlsplit(url)
        symbol = address.path.partition(CHART)[2]
        if SERVER is not None:
            url = SERVER + address._replace(scheme="", netloc="").geturl()
        left = self.ends - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError("the deadline has passed")
            answer = super().request(method, url, *args, **{**options, "timeout": min(SECONDS, left)})
        except Exception as error:  # recorded here, handled by yfinance
            self.answers[symbol] = error
            raise
        self.answers[symbol] = answer
        return answer


def _reason(answer: Response | Exception | None) -> Missing:
    """Return the reason for missing bars, from Yahoo's last answer for the symbol."""
    if not isinstance(answer, Response):
        detail = "yfinance did not ask" if answer is None else first_line(answer)
        return Missing("no answer", detail, passes=True)
    status = f"HTTP {answer.status_code}"
    if answer.status_code == 429:
        return Missing("rate limited", status, passes=True)
    try:
        is_chart = "chart" in answer.json()
    except (ValueError, TypeError):
        is_chart = False
    if not is_chart:
        return Missing("no answer", f"{status} without a chart", passes=True)
    if answer.status_code in (200, 400, 422):
        return Missing("no data in the range", status)
    return Missing("unknown symbol", status) if answer.status_code == 404 else Missing("no answer", status, passes=True)


def _bars_of(frame: pd.DataFrame | None, ticker: str) -> pd.DataFrame:
    """Return the rows of one ticker that have a close: `date`, and `COLUMNS` float64."""
    if frame is None or not frame.size:
        return pd.DataFrame()
    if frame.columns.nlevels != 2 or set(COLUMNS) - set(frame.columns.levels[1]):
        missing = sorted(set(COLUMNS) - set(frame.columns.get_level_values(-1)))
        raise DataError(
            f"yfinance {yfinance.__version__} returned a table that finpod cannot read (no "
            f"{', '.join(missing) or 'ticker'} in its columns); install the version in constraints.txt"
        )
    if (ticker, "Close") not in frame.columns:
        return pd.DataFrame()
    table = frame[ticker].reindex(columns=list(COLUMNS))
    table = table[table["Close"].notna()].astype("float64")
    days = pd.DatetimeIndex(table.index).tz_localize(None).normalize().as_unit("ns")
    return table.set_axis(days.rename("date"), axis=0).reset_index()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence yfinance's log, which says "possibly delisted" for every failure, and its developer warnings."""
    logger = logging.getLogger("yfinance")
    disabled, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="yfinance")
            yield
    finally:
        logger.disabled = disabled
