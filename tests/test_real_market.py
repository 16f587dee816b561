"""The NASDAQ-100 of 2008 to 2021: gaps in its file, its members, and companies that left."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from made_bars import suspicions

from finpod import backtest, load_market
from finpod.cli import main
from finpod.features.panel import compute
from finpod.market.coverage import missing_during
from finpod.market.data import MarketData
from finpod.market.universe import read_members
from finpod.rules import RULES
from finpod.strategy import Strategy
from finpod.trading.ledger import Costs

pytestmark = pytest.mark.shared

DELISTED = {
    "DELL": "2013-10-28",
    "DTV": "2015-07-24",
    "KRFT": "2015-07-02",
    "SIAL": "2015-11-18",
    "ALTR": "2015-12-24",
    "BRCM": "2016-01-29",
    "GMCR": "2016-03-02",
    "SNDK": "2016-05-11",
    "LLTC": "2017-03-10",
    "YHOO": "2017-06-16",
    "WFM": "2017-08-28",
    "SPLS": "2017-09-12",
}
ENDED_WITH_THEIR_SOURCE = {"APOL", "JOYG", "CELG", "VIAB", "ESRX", "CA", "SHLD", "SHPG", "TCFCA", "TCFCB", "FLIR"}
SPECIAL = {  # spin-offs and special dividends of which the record is public
    ("EXPE", "2011-12-21"),
    ("MDLZ", "2012-10-02"),
    ("ASML", "2012-11-29"),
    ("COST", "2012-12-06"),
    ("TMUS", "2013-05-01"),
    ("KLAC", "2014-11-26"),
    ("COST", "2015-02-05"),
    ("NLOK", "2016-03-04"),
    ("COST", "2017-05-08"),
    ("KDP", "2018-07-10"),
    ("MTCH", "2018-12-04"),
    ("TRIP", "2019-11-19"),
    ("NLOK", "2020-02-03"),
    ("QRTEA", "2020-08-28"),
    ("QRTEA", "2020-09-15"),
    ("QRTEA", "2020-11-27"),
}


@pytest.fixture(scope="module")
def market(shared) -> MarketData:
    return load_market(shared / "data" / "nasdaq100_daily.parquet", members=shared / "data" / "nasdaq100_members.csv")


def test_nothing_needs_repair_and_every_blemish_is_known(market):
    found = suspicions(market)
    assert market.manifest["repairs"] == []
    assert found["sessions without a bar"] == [("CELG", "2017-08-07"), ("CELG", "2017-11-08"), ("VIAB", "2017-11-08")]
    silent = pd.Series([name for name, _ in found["bars without volume"]]).value_counts()
    assert silent.sum() == 35
    assert silent[silent > 1].to_dict() == {"CHTR": 18, "LILAK": 5, "BMRN": 2}
    assert (silent == 1).sum() == 10
    ends = dict(found["series that end early"])
    assert {name: day for name, day in ends.items() if name in DELISTED} == DELISTED
    assert set(ends) - set(DELISTED) == ENDED_WITH_THEIR_SOURCE
    parted = found["days on which close and adj_close part"]
    assert set(parted) >= SPECIAL
    assert len(parted) == 33
    assert "VOD" not in {name for name, _ in parted}  # four percent twice a year is what it pays
    assert set(found) == {
        "sessions without a bar",
        "bars without volume",
        "series that end early",
        "days on which close and adj_close part",
    }


def test_a_distribution_says_what_it_did_to_the_return(market):
    told = {(entry["ticker"], entry["date"]): entry["sentence"] for entry in market.manifest["suspicions"]}
    assert told["KDP", "2018-07-10"] == (
        "close -82.06%, adj_close +11.45%: a spin-off or special dividend of 103.75 on 123.66; "
        "reinvested at the day's close +1.84%"
    )


def test_check_prints_it_for_people_and_for_machines(shared, capsys):
    line = ["data", "check", str(shared / "data" / "nasdaq100_daily.parquet")]
    with pytest.raises(SystemExit, match="0"):
        main([*line, "--members", str(shared / "data" / "nasdaq100_members.csv")])
    text = capsys.readouterr().out
    assert "repairs: none" in text
    assert "  bars without volume: 35\n    AMD 2015-01-02 volume 0, one price of 2.67 all day\n" in text
    assert "    DELL 2013-10-28 the last bar; the data go on to 2021-05-28\n" in text
    assert "FOX: 2014-12-22 .. 2019-03-12" in text
    with pytest.raises(SystemExit, match="0"):
        main([*line, "--json"])
    facts = json.loads(capsys.readouterr().out)
    assert facts["suspicion_counts"]["sessions without a bar"] == 3
    assert facts["repairs"] == []


def test_the_members_of_a_day_are_those_with_prices_and_the_rest_is_named(shared, market):
    row = market.row_of("2016-01-04")
    listed = read_members(shared / "data" / "nasdaq100_members.csv").during(market.dates[row], market.dates[row])
    without = missing_during(market.manifest, "2016-01-04", "2016-01-04")
    assert len(listed) == 105
    assert without == ["FOX", "FOXA", "LMCA", "LMCK"]
    held = {name for name, there in zip(market.tickers, (market.member & market.has_bar)[row], strict=True) if there}
    assert held == set(listed) - set(without)
    assert len(held) == 101  # the equal weight of these has its figures in tests/test_golden.py
    assert {"GOOG", "TSLA", "NFLX", "YHOO"} <= held
    assert "PYPL" in held
    assert "MRNA" not in held


def test_members_of_a_window_without_prices(market):
    assert missing_during(market.manifest, "2020-01-02", "2021-05-28") == []
    assert missing_during(market.manifest, "2019-05-13", "2021-05-26") == ["CELG"]
    never = set(market.manifest["missing"]) & set(missing_during(market.manifest, "2009-01-01", "2016-12-31"))
    assert len(never) == 21  # of 2009 to 2016 without any price at all
    assert market.member[market.row_of("2012-01-03"), market.tickers.index("ENDP")]  # the list has NDOI for it
    years = market.manifest["coverage"]
    assert years["2020"] == 1.0
    assert years["2019"] == pytest.approx(0.9877, abs=1e-4)
    assert years["2009"] < 0.9


def test_a_static_list_of_the_last_days_members_is_flagged(shared, market):
    last = [name for name, there in zip(market.tickers, market.member[-1], strict=True) if there]
    flattered = load_market(shared / "data" / "nasdaq100_daily.parquet", members=last)
    assert flattered.manifest["survivorship"] is True
    result = backtest(RULES["equal-weight"](), flattered, start="2016-01-04", end="2020-05-22")
    (survivors,) = [warning for warning in result.warnings if warning.code == "survivorship"]
    assert survivors.data["membership"].startswith("static list of 102 names")
    assert "survivorship" in str(result)
    honest = backtest(RULES["equal-weight"](), market, start="2016-01-04", end="2020-05-22")
    assert not any(warning.code == "survivorship" for warning in honest.warnings)
    assert result.metrics.sharpe > honest.metrics.sharpe + 0.2  # which is why it must be said


class Keep(Strategy):
    """Buys the named stocks once, in equal parts, and never sells."""

    def __init__(self, names):
        self.names, self.bought = names, False

    def decide(self, view):
        if self.bought:
            return None
        self.bought = True
        return {name: 1 / len(self.names) for name in self.names}


@pytest.mark.parametrize("name", ["DELL", "DTV", "BRCM", "SNDK", "LLTC", "YHOO", "WFM"])
@pytest.mark.parametrize("fill", ["open", "close"])
def test_who_leaves_the_exchange_becomes_cash_at_the_last_price(market, name, fill):
    column, last = market.tickers.index(name), market.row_of(DELISTED[name])
    members = np.flatnonzero(market.member[:, column])
    start, end = members[members <= last][-60], last + 20
    result = backtest(
        Keep([name]), market, start=market.dates[start], end=market.dates[end], costs=Costs(fee_bps=0), fill=fill
    )
    assert result.equity.notna().all()
    gone = result.trades[result.trades["kind"] == "delisted"]
    assert list(gone["ticker"]) == [name]
    assert gone["date"].iloc[0] == pd.Timestamp(market.dates[last + 1])
    assert gone["price"].iloc[0] == market.close[last, column]
    assert result.equity.loc[market.dates[last] :].nunique() == 1
    assert any((event.code, event.ticker) == ("delisted", name) for event in result.events)
    assert result.weights.iloc[-1].sum() == 0


@pytest.mark.parametrize("seed", range(2))
def test_changing_the_future_changes_no_bit_of_the_past(shared, seed):
    """All rows of the file after a random day are replaced; market and features before it stay as they were."""
    random = np.random.default_rng(seed)
    names = ["AAPL", "KDP", "CHTR", "CELG", "EXPE", "LILAK", "YHOO", "ZM", "QQQ"]
    recent = [("ticker", "in", names), ("date", ">=", pd.Timestamp("2017-01-03"))]
    bars = pd.read_parquet(shared / "data" / "nasdaq100_daily.parquet", filters=recent)
    dates = np.unique(bars["date"])
    day = dates[random.integers(300, len(dates) - 5)]
    later = (bars["date"] > day).to_numpy()
    changed = bars.copy()
    numbers = ["open", "high", "low", "close", "adj_close"]
    changed.loc[later, numbers] = bars.loc[later, numbers].mul(np.exp(random.normal(0, 0.5, later.sum())), axis=0)
    changed.loc[later, "volume"] = random.integers(0, 10**8, later.sum())
    changed = changed[~later | (random.random(len(bars)) > 0.1)]
    one, other = load_market(bars), load_market(changed)
    stop = one.row_of(day) + 1
    assert one.content_hash != other.content_hash
    for name in ("open", "high", "low", "close", "volume", "factor", "benchmark_close", "benchmark_open"):
        before, now = (getattr(which, name)[:stop].astype(np.float64).view(np.int64) for which in (one, other))
        assert (before == now).all(), name
    before, now = (compute(which)[:stop].view(torch.int32) for which in (one, other))
    assert torch.equal(before, now)
