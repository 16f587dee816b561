"""Tables of bars for tests of reading and cleaning."""

import numpy as np
import pandas as pd
from made_errors import refused

from finpod.errors import DataError
from finpod.market.cleaning import build_market
from finpod.market.long_bars import RepairLog
from finpod.market.tidy import read_bars

DAYS = pd.bdate_range("2024-01-02", periods=5)
"""Five sessions in a row."""


def stamps(*dates):
    return np.array(dates, dtype="datetime64[ns]")


def frame(tickers=("AAA", "BBB", "QQQ"), days=DAYS, **columns):
    """Tidy bars with a different close for every row: 100, 101, ... going through the names, then the days."""
    rows = pd.MultiIndex.from_product([days, tickers], names=["date", "ticker"]).to_frame(index=False)
    close = 100.0 + np.arange(len(rows))
    return rows.assign(open=close - 0.5, high=close + 1, low=close - 1, close=close, volume=1000.0).assign(**columns)


def closes(bars):
    """Ticker -> closes in order of date."""
    return {ticker: part["close"].tolist() for ticker, part in bars.groupby("ticker", observed=True)}


def refuses(call, *words, error=DataError, argument=None):
    """The call ends in one line that has the words, about the argument."""
    raised = refused("", call, error=error, about=argument or ...)
    for word in words:
        assert word in str(raised)


def one_name(close, **columns):
    """Bars of the name AAA on sessions in a row, with what else is given."""
    days = pd.bdate_range("2024-01-02", periods=len(close))
    return pd.DataFrame({"date": days, "ticker": "AAA", "close": np.asarray(close, dtype=float), **columns})


def built(bars, **options):
    """The market of some bars, every date a session unless told otherwise."""
    defaults = {"membership": None, "benchmark": "QQQ", "manifest": {"source": "file"}, "calendar": None}
    log = RepairLog()
    return build_market(read_bars(bars, log=log), log=log, **{**defaults, **options})


def alone(bars, **options):
    """The market of bars without a benchmark."""
    return built(bars, benchmark=None, **options)


def repairs(market):
    """Kind -> count."""
    return {entry["kind"]: entry["count"] for entry in market.manifest["repairs"]}


def places(market, kind):
    """The places of one kind of repair as (ticker, date, column, was, became)."""
    entries = [entry for entry in market.manifest["repairs"] if entry["kind"] == kind]
    return [tuple(place.values()) for entry in entries for place in entry["places"]]


def suspicions(market):
    """Kind -> [(ticker, date), ...]."""
    found = {}
    for entry in market.manifest["suspicions"]:
        found.setdefault(entry["kind"], []).append((entry["ticker"], entry["date"]))
    return found
