"""Membership from files and lists, and the indexes with known members, fetched from a local Yahoo."""

import json
import re
from datetime import datetime
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
import yahoo_server
from numpy.testing import assert_array_equal
from yahoo_server import Listing, serving

from finpod.backtesting.engine import backtest
from finpod.cli import main
from finpod.errors import DataError, InputError
from finpod.market.calendar import sessions_of
from finpod.market.coverage import listed_during, missing_during
from finpod.market.load import load_market
from finpod.market.snapshots import load_snapshot, save_snapshot
from finpod.market.universe import INDEXES, index_members, index_named, is_universe, read_members, static_members
from finpod.market.yahoo import fetch_market
from finpod.market.yahoo_fetch import RetryPolicy
from finpod.rules import EqualWeight


def written(tmp_path, text):
    path = tmp_path / "members.csv"
    path.write_text(text)
    return path


def days(*dates):
    return np.array(dates, dtype="datetime64[ns]")


def test_b06_universe_is_that_of_the_day(tmp_path):
    path = written(tmp_path, "ticker,from,to_exclusive\nX,2020-01-02,2020-07-01\nY,2020-07-01,\n")
    grid = read_members(path).grid(days("2020-06-30", "2020-07-01"), ["X", "Y", "Z"])
    assert_array_equal(grid, [[True, False, False], [False, True, False]])


def test_b06_reaches_the_market_and_no_table_warns(tmp_path):
    path = written(tmp_path, "ticker,from,to_exclusive\nX,2020-01-02,2020-07-01\nY,2020-07-01,\n")
    dates = pd.bdate_range("2020-06-29", "2020-07-02")
    bars = pd.concat([pd.DataFrame({"date": dates, "ticker": name, "close": 10.0}) for name in ("X", "Y", "QQQ")])
    market = load_market(bars, members=path)
    assert_array_equal(market.member, [[True, False]] * 2 + [[False, True]] * 2)
    assert market.manifest["survivorship"] is False
    static = load_market(bars)
    assert static.manifest["survivorship"] is True
    assert "2020-07-02" in static.manifest["membership"]


def test_spells_may_repeat_overlap_and_lie_outside(tmp_path):
    path = written(
        tmp_path,
        "ticker,from,to_exclusive\nA,2019-01-01,2020-01-02\nA,2020-01-03,2020-01-06\n"
        "A,2020-01-03,2020-01-04\nB,2030-01-01,\nC,2000-01-01,2001-01-01\n",
    )
    members = read_members(path)
    dates = days("2020-01-01", "2020-01-02", "2020-01-03", "2020-01-06")
    assert_array_equal(members.grid(dates, ["A", "B", "C"])[:, 0], [True, False, True, False])
    assert not members.grid(dates, ["B", "C"]).any()
    assert members.during(dates[0], dates[-1]) == ("A",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a CSV"),
        ("ticker,from\nA,2020-01-01\n", "no column to_exclusive"),
        ("ticker,from,to_exclusive\n", "holds no member"),
        ("ticker,from,to_exclusive\nA,01/02/2020,\n", "from of A is '01/02/2020'"),
        ("ticker,from,to_exclusive\nA,,2020-01-01\n", "from of A is ''"),
        ("ticker,from,to_exclusive\nA,2020-01-02,2020-01-02\n", "spell of A ends on 2020-01-02, not after"),
    ],
)
def test_unusable_membership_files(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_members(written(tmp_path, text))


def test_missing_membership_file(tmp_path):
    with pytest.raises(InputError, match=r"no membership file .*nowhere\.csv"):
        read_members(tmp_path / "nowhere.csv")


def test_the_ticker_na_is_a_ticker(tmp_path):
    assert read_members(written(tmp_path, "ticker,from,to_exclusive\nNA,2020-01-01,\n")).tickers[0] == "NA"


def test_renamed_listings_are_found_under_the_symbol_of_the_prices():
    old = static_members(["FB", "AAPL", "SYMC"], sentence="a list")
    assert list(old.spelled_as(["META", "AAPL", "NLOK"]).tickers) == ["META", "AAPL", "NLOK"]
    assert list(old.spelled_as(["FB", "META", "AAPL"]).tickers) == ["FB", "AAPL", "SYMC"]
    assert list(old.renamed_to_newest().tickers) == ["META", "AAPL", "GEN"]
    assert list(static_members(["META"], sentence="a list").spelled_as(["FB"]).tickers) == ["FB"]


def test_an_old_symbol_that_another_company_took_is_not_renamed(tmp_path):
    """HCP was Healthpeak until 2019-11-04, and HashiCorp from 2021 on."""
    path = written(tmp_path, "ticker,from,to_exclusive\nHCP,2008-01-02,2019-11-05\nHCP,2021-12-09,\n")
    assert list(read_members(path).spelled_as(["PEAK"]).tickers) == ["PEAK", "HCP"]


def test_index_membership_is_point_in_time():
    members = index_members("nasdaq100")
    dates = pd.bdate_range("2010-01-04", "2024-12-31").to_numpy().astype("datetime64[ns]")
    names = members.during(dates[0], dates[-1])
    count = members.grid(dates, names).sum(axis=1)
    assert count.min() >= 95
    assert count.max() <= 110
    assert not members.survivorship
    assert "index-constitution" in members.sentence


def test_known_errors_of_the_index_package_are_mended():
    members = index_members("nasdaq100")
    grid = members.grid(
        days("2014-12-31", "2016-06-01", "2018-12-21", "2018-12-24", "2020-04-29", "2020-04-30"), ["WTW"]
    )
    assert_array_equal(grid[:, 0], [True, False, False, True, True, False])
    grid = members.grid(days("2014-12-31", "2015-06-01", "2015-12-21", "2016-07-18"), ["TCOM", "ENDP"])
    assert_array_equal(grid, [[True, True], [False, False], [True, True], [True, False]])
    assert "NDOI" not in members.tickers
    assert "ENDP" in members.tickers


def test_members_without_prices_are_named_with_their_days(tmp_path):
    """GONE has no prices at all, LATE only after it joined, HALF not after its series ended; a short gap does not count."""
    path = written(
        tmp_path,
        "ticker,from,to_exclusive\nAAA,2020-01-01,\nGONE,2024-02-01,2024-02-06\nGONE,2024-03-01,\nLATE,2024-01-02,\n"
        "HALF,2024-01-02,2024-03-01\n",
    )
    dates = pd.bdate_range("2024-02-01", "2024-03-08")
    dates = dates[dates != "2024-02-19"]
    spans = {"AAA": dates, "LATE": dates[10:], "HALF": dates[:12], "QQQ": dates}
    bars = pd.concat([pd.DataFrame({"date": days, "ticker": name, "close": 10.0}) for name, days in spans.items()])
    bars = bars[(bars["ticker"] != "AAA") | (bars["date"] != "2024-02-20")]
    manifest = load_market(bars, members=path).manifest
    assert manifest["missing"] == ["GONE"]
    assert manifest["without_prices"] == {
        "GONE": [["2024-02-01", "2024-02-05"], ["2024-03-01", "2024-03-08"]],
        "HALF": [["2024-02-20", "2024-02-29"]],
        "LATE": [["2024-02-01", "2024-02-14"]],
    }
    assert missing_during(manifest, "2024-02-06", "2024-02-19") == ["LATE"]
    assert missing_during(manifest, "2024-02-29", "2024-03-04") == ["GONE", "HALF"]
    assert missing_during({}, "2024-02-29", "2024-03-04") == []


@pytest.mark.shared
def test_package_agrees_with_the_membership_file(shared):
    filed = read_members(shared / "data" / "nasdaq100_members.csv").renamed_to_newest()
    packaged = index_members("nasdaq100").renamed_to_newest()
    dates = pd.bdate_range("2008-01-02", "2021-05-28").to_numpy().astype("datetime64[ns]")
    other_symbols = {
        "ENDP",
        "NDOI",
        "TCFCA",
        "TCFCB",
        "FOXA",
        "CMCSK",
        "MNST",
        "MWW",
    }  # each list spells these its own way
    names = sorted({*filed.during(dates[0], dates[-1]), *packaged.during(dates[0], dates[-1])} - other_symbols)
    ours, theirs = filed.grid(dates, names), packaged.grid(dates, names)
    assert 0 < (ours != theirs).sum() < 50  # of 360,000 member-days: a few days around a change


def test_membership_files_are_read_as_spreadsheets_write_them(tmp_path):
    path = tmp_path / "members.csv"
    path.write_bytes("\ufeffTicker;From;To_Exclusive\r\nA;2020-01-01;2020-06-01\r\nB;2020-01-01;\r\n".encode())
    plain = tmp_path / "plain.csv"
    plain.write_text("ticker,from,to_exclusive\nA,2020-01-01,2020-06-01\nB,2020-01-01,\n")
    days = pd.bdate_range("2020-05-25", "2020-06-05").to_numpy()
    np.testing.assert_array_equal(read_members(path).grid(days, ["A", "B"]), read_members(plain).grid(days, ["A", "B"]))


FUNDS = {"nasdaq100": "QQQ", "sp500": "SPY", "dow30": "DIA", "csi300": "510300.SS", "csi500": "510500.SS"}
SHANGHAI = {"csi300", "csi500"}


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
    [("csi-30", "csi300"), ("xyz1", None)],
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
