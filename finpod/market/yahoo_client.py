"""Requests bars through yfinance, with a session that records why a ticker has no bars."""

import logging
import math
import time
import warnings
from collections.abc import Sequence
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

    reason: str
    """Unknown symbol, no data in the range, rate limited or no answer, with the HTTP status or the text of an error."""
    passes: bool = False
    """True if a later request may succeed, because Yahoo was busy or not reached. False if the ticker is the cause."""


class Client(Session):
    """HTTP session that requests daily bars through yfinance until a deadline, and records why symbols have no bars.

    The bars are those from the day `first` to the day before `stop`: unadjusted prices, adjusted closes, dividends and
    splits. The session records reasons because yfinance calls rate limits, broken networks and unknown symbols alike
    "possibly delisted". Raises DataError if Yahoo is unreachable.
    """

    def __init__(self, first: str, stop: str, *, deadline: float) -> None:
        super().__init__(impersonate="chrome")
        self._first, self._stop = first, stop
        self._reasons: dict[str, Missing] = {}
        self.ends = math.inf
        """Time at which requests stop, on the clock of `time.monotonic`."""
        try:
            self.get(YAHOO)
        except Exception as error:
            raise DataError(
                f"cannot reach {SERVER or YAHOO} ({first_line(error)}); check the network, or use a file, a snapshot "
                "or the sample"
            ) from error
        self.ends = time.monotonic() + deadline

    def ask(self, tickers: Sequence[str]) -> tuple[dict[str, pd.DataFrame], dict[str, Missing]]:
        """Request bars once. Return ticker -> bars and ticker -> `Missing`. Raises DataError if yfinance fails."""
        self._reasons.clear()
        YfData.cache_get.cache_clear()  # otherwise, yfinance may repeat an earlier HTTP 503
        logger = logging.getLogger("yfinance")  # it says "possibly delisted" for every failure
        disabled, logger.disabled = logger.disabled, True
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", module="yfinance")
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
                    session=self,
                )
        except Exception as error:
            reason = first_line(error)
            raise DataError(f"yfinance {yfinance.__version__} failed ({reason}); use a file or the sample") from error
        finally:
            logger.disabled = disabled
            YfData(session=Session(impersonate="chrome"))  # other code that uses yfinance must not get this session
        bars = {ticker: table for ticker in tickers if len(table := _bars_of(frame, ticker))}
        not_asked = Missing("no answer: yfinance did not ask", passes=True)
        return bars, {ticker: self._reasons.get(ticker, not_asked) for ticker in tickers if ticker not in bars}

    def request(self, method: Any, url: str, *args: Any, **options: Any) -> Response:
        """Return the answer to a request. Record it, or the error, as the reason in case the symbol has no bars."""
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
            self._reasons[symbol] = Missing(f"no answer: {first_line(error)}", passes=True)
            raise
        self._reasons[symbol] = _reason(answer)
        return answer


def _reason(answer: Response) -> Missing:
    """Return the reason why a symbol has no bars, from the status and content of Yahoo's answer."""
    status = f"HTTP {answer.status_code}"
    if answer.status_code == 429:
        return Missing(f"rate limited: {status}", passes=True)
    if not answer.content.startswith(b'{"chart"'):
        return Missing(f"no answer: {status} without a chart", passes=True)
    if answer.status_code == 404:
        return Missing(f"unknown symbol: {status}")
    if answer.status_code in (200, 400, 422):
        return Missing(f"no data in the range: {status}")
    return Missing(f"no answer: {status}", passes=True)


def _bars_of(frame: pd.DataFrame | None, ticker: str) -> pd.DataFrame:
    """Return the bars of one ticker that have a close, with the columns `date` and `COLUMNS`. May be empty."""
    if frame is None or not frame.size:
        return pd.DataFrame()
    missing = sorted(set(COLUMNS) - set(frame.columns.get_level_values(-1)))
    if missing or frame.columns.nlevels != 2:
        raise DataError(
            f"yfinance {yfinance.__version__} returned a table that finpod cannot read (no "
            f"{', '.join(missing) or 'ticker'} in its columns); install the version in constraints.txt"
        )
    table = frame.reindex(columns=pd.MultiIndex.from_product([[ticker], COLUMNS]))[ticker]
    table = table[table["Close"].notna()].astype("float64")
    days = pd.DatetimeIndex(table.index).tz_localize(None).normalize().as_unit("ns")
    return table.set_axis(days.rename("date"), axis=0).reset_index()
