"""The NASDAQ-100 of 2008 to 2021: gaps in its file, its members, and companies that left."""

import numpy as np
import pandas as pd
import pytest
from made_bars import suspicions

from finpod import backtest, load_market
from finpod.market.coverage import missing_during
from finpod.market.data import MarketData
from finpod.market.universe import read_members
from finpod.strategy import Strategy
from finpod.trading.ledger import Costs

pytestmark = pytest.mark.shared

DELISTED = {
    **{"DELL": "2013-10-28", "DTV": "2015-07-24", "KRFT": "2015-07-02", "SIAL": "2015-11-18", "ALTR": "2015-12-24"},
    **{"BRCM": "2016-01-29", "GMCR": "2016-03-02", "SNDK": "2016-05-11", "LLTC": "2017-03-10", "YHOO": "2017-06-16"},
    **{"WFM": "2017-08-28", "SPLS": "2017-09-12"},
}
ENDED_WITH_THEIR_SOURCE = {"APOL", "JOYG", "CELG", "VIAB", "ESRX", "CA", "SHLD", "SHPG", "TCFCA", "TCFCB", "FLIR"}
SPECIAL = {("EXPE", "2011-12-21"), ("ASML", "2012-11-29"), ("COST", "2015-02-05"), ("KDP", "2018-07-10")}
"""Spin-offs and special dividends of which the record is public."""


@pytest.fixture(scope="module")
def market(shared) -> MarketData:
    return load_market(shared / "data" / "nasdaq100_daily.parquet", members=shared / "data" / "nasdaq100_members.csv")


def test_nothing_needs_repair_and_every_anomaly_is_known(market):
    seen = suspicions(market)
    assert market.manifest["repairs"] == []
    assert seen["sessions without a bar"] == [("CELG", "2017-08-07"), ("CELG", "2017-11-08"), ("VIAB", "2017-11-08")]
    silent = pd.Series([name for name, _ in seen["bars without volume"]]).value_counts()
    assert silent.sum() == 35
    assert silent[silent > 1].to_dict() == {"CHTR": 18, "LILAK": 5, "BMRN": 2}
    ends = dict(seen["series that end early"])
    assert {name: day for name, day in ends.items() if name in DELISTED} == DELISTED
    assert set(ends) - set(DELISTED) == ENDED_WITH_THEIR_SOURCE
    parted = seen["days on which close and adj_close diverge"]
    assert set(parted) >= SPECIAL
    assert len(parted) == 32
    assert "VOD" not in {name for name, _ in parted}  # four percent twice a year is its usual dividend
    assert len(seen) == 4
    sentences = {(entry["ticker"], entry["date"]): entry["sentence"] for entry in market.manifest["suspicions"]}
    kdp = sentences["KDP", "2018-07-10"]
    assert all(value in kdp for value in ("-82.06%", "+11.45%", "103.75", "123.66", "+1.84%"))


def test_the_members_of_a_day_are_those_with_prices_and_the_rest_is_reported(shared, market):
    assert market.shape == (3376, 194)
    counts = (market.member & market.has_bar).sum(axis=1)
    days = {"2020-05-26": 103, "2019-05-13": 102, "2016-01-04": 101}
    assert {day: counts[market.row_of(day)] for day in days} == days
    row = market.row_of("2016-01-04")
    listed = read_members(shared / "data" / "nasdaq100_members.csv").during(market.dates[row], market.dates[row])
    without = missing_during(market.manifest, "2016-01-04", "2016-01-04")
    assert len(listed) == 105
    assert without == ["FOX", "FOXA", "LMCA", "LMCK"]
    held = set(np.array(market.tickers)[(market.member & market.has_bar)[row]])
    assert held == set(listed) - set(without)  # the equal weight of these has its figures in tests/test_golden.py


def test_members_of_a_window_without_prices(market):
    assert missing_during(market.manifest, "2020-01-02", "2021-05-28") == []
    assert missing_during(market.manifest, "2019-05-13", "2021-05-26") == ["CELG"]
    never = set(market.manifest["missing"]) & set(missing_during(market.manifest, "2009-01-01", "2016-12-31"))
    assert len(never) == 21  # of 2009 to 2016 without any price at all
    assert market.member[market.row_of("2012-01-03"), market.tickers.index("ENDP")]  # the list has NDOI for it
    assert market.manifest["coverage"]["2019"] == pytest.approx(0.9877, abs=1e-4)


class Keep(Strategy):
    """Buys one stock once and never sells."""

    def __init__(self, ticker):
        self.ticker = ticker

    def decide(self, view):
        return {self.ticker: 1.0} if view.step == 0 else None


@pytest.mark.parametrize(("name", "fill"), [("DELL", "open"), ("YHOO", "close")])
def test_b08_a_delisted_asset_becomes_cash_at_the_last_price(market, name, fill):
    column, last = market.tickers.index(name), market.row_of(DELISTED[name])
    members = np.flatnonzero(market.member[:, column])
    start, end = market.dates[[members[members <= last][-60], last + 20]]
    result = backtest(Keep(name), market, start=start, end=end, costs=Costs(fee_bps=0), fill=fill)
    assert result.equity.notna().all()
    gone = result.trades[result.trades["kind"] == "delisted"]
    assert list(gone["ticker"]) == [name]
    assert gone["date"].iloc[0] == pd.Timestamp(market.dates[last + 1])
    assert gone["price"].iloc[0] == market.close[last, column]
    assert result.equity.loc[market.dates[last] :].nunique() == 1
    assert any((event.code, event.ticker) == ("delisted", name) for event in result.events)
    assert result.weights.iloc[-1].sum() == 0
