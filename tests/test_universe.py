import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_array_equal

from finpod.errors import DataError, InputError
from finpod.market.coverage import missing_during
from finpod.market.load import load_market
from finpod.market.universe import index_members, read_members, static_members


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
