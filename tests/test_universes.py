"""The indexes whose members are known point in time: tables, symbols, defaults, and a fetch of them from a local Yahoo."""

import json
import re
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
import yahoo_server
from yahoo_server import Listing, serving

from finpod.backtesting.engine import backtest
from finpod.cli import main
from finpod.errors import DataError, InputError
from finpod.market.calendar import sessions_of
from finpod.market.coverage import listed_during
from finpod.market.load import load_market
from finpod.market.snapshots import load_snapshot, save_snapshot
from finpod.market.universe import INDEXES, index_members, index_named, is_universe
from finpod.market.yahoo import fetch_market
from finpod.market.yahoo_fetch import RetryPolicy
from finpod.rules import EqualWeight

FUNDS = {"nasdaq100": "QQQ", "sp500": "SPY", "dow30": "DIA", "csi300": "510300.SS", "csi500": "510500.SS"}
SHANGHAI = {"csi300", "csi500"}


def days(*dates):
    return np.array(dates, dtype="datetime64[ns]")


def frame(*names, calendar="XNYS", first="2024-02-01", last="2024-03-28"):
    """Flat bars of some names on the sessions of an exchange."""
    sessions = sessions_of(calendar, *days(first, last)).dates
    return pd.concat([pd.DataFrame({"date": sessions, "ticker": name, "close": 10.0}) for name in names])


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Run a command line in an empty folder: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(line):
        with pytest.raises(SystemExit) as ended:
            main(line.split())
        text = capsys.readouterr()
        return ended.value.code, text.out, text.err

    return call


def test_the_table_of_indexes_is_whole():
    import index_constitution

    assert set(INDEXES) == set(index_constitution.INDICES)
    assert {name: index.benchmark for name, index in INDEXES.items()} == FUNDS
    assert {name for name, index in INDEXES.items() if index.calendar == "XSHG"} == SHANGHAI
    assert {name: index.size for name, index in INDEXES.items()} == {
        "nasdaq100": 100, "sp500": 500, "dow30": 30, "csi300": 300, "csi500": 500,
    }  # fmt: skip


@pytest.mark.parametrize("name", INDEXES)
def test_every_symbol_is_written_as_yahoo_writes_it(name):
    """American shares with a dash before their class; Chinese ones with the suffix of Shanghai or Shenzhen."""
    tickers = index_members(name).tickers
    form = r"(60\d{4}|68\d{4})\.SS|(00\d{4}|30\d{4})\.SZ" if name in SHANGHAI else r"[A-Z]{1,5}(-[A-Z])?"
    assert [ticker for ticker in tickers if not re.fullmatch(form, ticker)] == []
    expected = {"sp500": {"BRK-B", "BF-B"}, "csi300": {"600000.SS", "000001.SZ"}, "csi500": {"600006.SS"}}
    assert expected.get(name, set()) <= set(tickers)


@pytest.mark.parametrize(
    ("name", "fewest", "most"),
    [("sp500", 483, 506), ("dow30", 30, 30), ("csi300", 299, 301), ("csi500", 500, 500), ("nasdaq100", 101, 110)],
)
def test_the_number_of_members_is_plausible_since_2009(name, fewest, most):
    members = index_members(name)
    sessions = sessions_of(INDEXES[name].calendar, *days("2009-01-05", "2024-12-31")).dates
    counts = members.count(sessions)
    assert (counts.min(), counts.max()) == (fewest, most)
    assert not members.survivorship
    assert INDEXES[name].title in members.sentence


def test_companies_whose_symbols_went_to_others_are_under_their_own():
    """Philip Morris Companies is MO today, not PM; Monster Worldwide was MWW later on, not Monster Beverage."""
    dow, nasdaq = index_members("dow30"), index_members("nasdaq100")
    grid = dow.grid(days("2002-01-02", "2005-01-03", "2009-01-05"), ["MO", "PM"])
    assert grid.tolist() == [[True, False], [True, False], [False, False]]
    grid = nasdaq.grid(days("2006-06-01", "2008-01-02", "2009-01-05", "2012-01-03"), ["MWW", "MNST"])
    assert grid.tolist() == [[True, False], [True, True], [False, True], [False, True]]


@pytest.mark.parametrize("name", INDEXES)
def test_a_universe_brings_its_benchmark_and_its_calendar(name):
    index, calendar = INDEXES[name], INDEXES[name].calendar
    everyone = index_members(name)
    members = everyone.during(*days("2024-02-01", "2024-02-01"))[:3]
    market = load_market(frame(*members, index.benchmark, calendar=calendar), members=name)
    assert (market.benchmark, market.manifest["calendar"]) == (index.benchmark, calendar)
    assert market.tickers == members
    assert market.member[0].all()
    listed = {"2024-02-01": int(everyone.count(market.dates[:1])[0])}
    assert market.manifest["listed"] == {"index": index.title, "size": index.size, "members": listed}
    assert len(market.manifest["missing"]) >= listed["2024-02-01"] - 3


def test_an_explicit_benchmark_and_calendar_win():
    bars = frame("600015.SS", "000001.SZ", "510300.SS", "159919.SZ", calendar="XSHG")
    assert load_market(bars, members="csi300", benchmark="159919.SZ").benchmark == "159919.SZ"
    without = load_market(bars, members="csi300", benchmark=None)
    assert without.benchmark == "none"
    assert {"600015.SS", "000001.SZ", "510300.SS"} <= set(without.tickers)
    every_date = load_market(bars, members="csi300", calendar=None)
    assert every_date.manifest["calendar"] == "the dates of the file"
    with pytest.raises(DataError, match="such as 2024-02-09, are no sessions of XSHG"):  # New Year
        load_market(frame("600000.SS", "510300.SS", calendar="XTKS"), members="csi300")
    american = load_market(frame("AAPL", "QQQ"))
    assert (american.benchmark, american.manifest["calendar"]) == ("QQQ", "XNYS")


def test_a_universe_without_its_benchmark_in_the_data_is_one_line(run):
    bars = frame("AAPL", "MSFT", "QQQ")
    with pytest.raises(InputError, match=r"no rows for the benchmark DIA; choose one .* with benchmark=, .*or None"):
        load_market(bars, members="dow30")
    assert load_market(bars, members="dow30", benchmark="QQQ").benchmark == "QQQ"
    bars.to_csv("bars.csv", index=False)
    for line in ("backtest equal-weight", "audit equal-weight", "data check"):
        code, _, err = run(
            f"{line} bars.csv --members dow30" if "data" in line else f"{line} --market bars.csv --members dow30"
        )
        assert (code, len(err.splitlines())) == (2, 1)
        assert "no rows for the benchmark DIA" in err
        assert "--benchmark" in err
    code, out, err = run("backtest equal-weight --market bars.csv --members dow30 --benchmark none --quick --no-report")
    assert code == 0, err
    assert "there is no benchmark" in out


def test_members_under_other_symbols_than_the_prices_are_one_line():
    message = (
        "its members are written 000001.SZ, 000002.SZ, 000063.SZ, the names with prices SH600000, SZ000001: use the"
    )
    with pytest.raises(DataError, match=message):
        load_market(frame("SH600000", "SZ000001", "510300.SS", calendar="XSHG"), members="csi300")


@pytest.mark.parametrize(
    ("word", "hint"),
    [("sp50", "sp500"), ("nasdaq10", "nasdaq100"), ("csi-30", "csi300"), ("dow3", "dow30"), ("xyz1", None)],
)
def test_an_unknown_universe_is_one_line(run, word, hint):
    message = f"unknown universe {word!r}" + (f" (did you mean {hint}?)" if hint else "") + "; choose from "
    for call in (
        lambda: index_named(word),
        lambda: index_members(word),
        lambda: load_market(frame("AAPL", "QQQ"), members=word),
        lambda: fetch_market(word, "2024-03-01", "2024-03-28"),
    ):
        with pytest.raises(InputError) as raised:
            call()
        assert str(raised.value).startswith(message)
        assert all(name in str(raised.value) for name in INDEXES)
    frame("AAPL", "QQQ").to_csv("bars.csv", index=False)
    for line in (
        f"data fetch --universe {word}",
        f"data fetch {word}",
        f"backtest momentum --market bars.csv --members {word}",
    ):
        code, _, err = run(line)
        assert (code, len(err.splitlines())) == (2, 1)
        assert message in err


@pytest.mark.parametrize("text", ["sp500", "SP500", "S&P 500", "s&p-500"])
def test_an_index_may_be_written_as_its_owner_does(text):
    assert index_named(text) is INDEXES["sp500"]


def test_tickers_are_no_universes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not any(map(is_universe, ("AAPL", "aapl", "dow", "DOW3", "0700.HK", "aapl,msft", "./sp500", "members.csv")))
    (tmp_path / "sp500").mkdir()  # a snapshot of that name, say, is no list of members
    frame("AAPL", "SPY").to_csv("bars.csv", index=False)
    market = load_market("bars.csv", members="sp500")
    assert market.manifest["listed"]["index"] == "S&P 500"
    assert market.origin["members"] == "sp500"


def test_how_complete_the_list_is_counts_within_the_window():
    manifest = {
        "listed": {
            "index": "S&P 500",
            "size": 500,
            "members": {"2009-01-05": 483, "2010-01-04": 490, "2011-01-03": 499},
        }
    }
    assert listed_during(manifest, "2009-03-02", "2009-06-01") == ("S&P 500", "2009-01-05", 483, 500)
    assert listed_during(manifest, "2010-01-04", "2011-06-01") == ("S&P 500", "2010-01-04", 490, 500)
    assert listed_during(manifest, "2012-01-04", "2012-06-01") == ("S&P 500", "2011-01-03", 499, 500)
    assert listed_during(manifest, "2008-01-04", "2008-06-01") == ("S&P 500", "2009-01-05", 483, 500)
    assert listed_during({}, "2009-03-02", "2009-06-01") is None
    assert "listed" not in load_market(frame("AAPL", "QQQ"), members=["AAPL"]).manifest


def test_a_list_that_is_not_whole_is_said_in_the_result(run):
    """The list of the S&P 500 has 483 of 500 members in January 2009, and 502 in 2024."""
    lacking = {"title": "S&P 500", "day": "2009-01-05", "members": 483, "size": 500}
    for name, year, data in (("sp500", 2009, [lacking]), ("sp500", 2024, [])):
        bars = frame("AAPL", "MSFT", "SPY", first=f"{year}-01-05", last=f"{year}-03-31")
        market = load_market(bars, members=name)
        result = backtest(EqualWeight(), market)
        assert [warning.data for warning in result.warnings if warning.code == "index_list"] == data
    bars.to_csv("bars.csv", index=False)
    assert "502 of 500 members of the S&P 500 on 2024-01-05" in run("data check bars.csv --members sp500")[1]
    bars = frame("AAPL", "MSFT", "QQQ", first="2009-01-05", last="2009-03-31")
    result = backtest(EqualWeight(), load_market(bars, members="nasdaq100"))
    excess = {"title": "NASDAQ-100", "day": "2009-01-05", "members": 109, "size": 100}
    assert [warning.data for warning in result.warnings if warning.code == "index_list"] == [excess]


def test_snapshots_and_the_sample_keep_their_own_benchmark(tmp_path):
    folder = save_snapshot(load_market(frame("AAPL", "DIA"), members="dow30"), tmp_path / "dow30")
    assert load_market(folder).benchmark == "DIA"
    assert load_market(folder, benchmark="DIA").benchmark == "DIA"
    for path in (folder, "sample"):
        with pytest.raises(InputError, match="not QQQ; leave benchmark out"):
            load_market(path, benchmark="QQQ")


@pytest.fixture
def private_cache(tmp_path_factory):
    yahoo_server.use_cache(tmp_path_factory.mktemp("yfinance"))


def flat(calendar, first, last):
    zone = {"XNYS": "America/New_York", "XSHG": "Asia/Shanghai"}[calendar]
    sessions = [f"{day!s:.10}" for day in sessions_of(calendar, *days(first, last)).dates]
    return Listing(sessions, [100.0] * len(sessions), zone=zone)


def test_the_dow_is_fetched_with_its_fund(run, private_cache):
    """Every member since February 2024: Amazon took the place of Walgreens, which the source does not know any more."""
    listing = flat("XNYS", "2024-02-01", "2024-03-28")
    with serving(lambda symbol: None if symbol == "WBA" else listing) as server:
        line = f"data fetch --universe dow30 --start 2024-02-01 --end 2024-03-28 --base-url {server.url} --json"
        code, out, err = run(line)
        asked = set(server.names())
    assert code == 0, err
    assert asked | {"WBA"} == {"DIA", *index_members("dow30").during(*days("2024-02-01", "2024-03-28"))}
    told = json.loads(out)
    assert (told["benchmark"], told["names"], told["path"]) == ("DIA", 30, "data/dow30")
    assert told["failed"] == {"WBA": "unknown symbol: HTTP 404"}
    assert told["missing"] == ["WBA"]
    assert "30 of 31 names; missing WBA" not in err
    assert "missing WBA" in err
    market = load_snapshot("data/dow30")
    assert market.manifest["calendar"] == "XNYS"
    assert market.manifest["request"]["universe"] == "dow30"
    assert market.manifest["listed"]["members"] == {"2024-02-01": 30}
    column = market.tickers.index("AMZN")
    assert f"{market.dates[market.member[:, column].argmax()]!s:.10}" == "2024-02-26"


def test_the_csi_300_is_fetched_with_the_sessions_of_shanghai(monkeypatch, private_cache):
    """A slice of its list, over New Year of the Chinese calendar; the bar of the day under way is left out."""
    import index_constitution

    whole = index_constitution.history("csi300")
    monkeypatch.setattr("index_constitution.history", lambda name: whole.iloc[:60])
    members = index_members("csi300").during(*days("2024-02-01", "2024-03-28"))
    assert 10 <= len(members) <= 30
    listing = flat("XSHG", "2024-02-01", "2024-03-28")
    now = datetime(2024, 3, 28, 14, 0, tzinfo=ZoneInfo("Asia/Shanghai"))  # an hour before the close, 2 in New York
    with serving(lambda symbol: listing) as server:
        options = {"base_url": server.url, "patience": RetryPolicy(wait=0.0), "now": lambda: now}
        market = fetch_market("csi300", "2024-02-01", **options)
        later = fetch_market("csi300", "2024-02-01", **options | {"now": lambda: now.replace(hour=16)})
        asked = set(server.names())
    assert asked == {"510300.SS", *members}
    assert (market.benchmark, market.manifest["calendar"]) == ("510300.SS", "XSHG")
    assert market.tickers == members
    sessions = sessions_of("XSHG", *days("2024-02-01", "2024-03-28")).dates
    np.testing.assert_array_equal(market.dates, sessions[:-1])
    np.testing.assert_array_equal(later.dates, sessions)
    assert np.datetime64("2024-02-19") in market.dates  # a holiday in New York
    assert np.datetime64("2024-02-12") not in market.dates


def test_a_fetch_takes_another_calendar_and_no_benchmark(private_cache):
    listing = flat("XSHG", "2024-02-01", "2024-03-28")
    with serving(lambda symbol: listing) as server:
        options = {"base_url": server.url, "patience": RetryPolicy(wait=0.0)}
        span = ("2024-02-01", "2024-03-28")
        market = fetch_market(["600000.SS"], *span, benchmark=None, calendar="XSHG", **options)
        with pytest.raises(InputError, match="calendar is None"):
            fetch_market(["600000.SS"], *span, benchmark=None, calendar=None, **options)
        with pytest.raises(InputError, match="unknown calendar 'MARS'"):
            fetch_market(["600000.SS"], *span, calendar="MARS", **options)
    assert (market.benchmark, market.tickers, server.names()) == ("none", ("600000.SS",), ["600000.SS"])
    assert market.title == "Yahoo Finance, 1 names, 2024-02-01 to 2024-03-28"
