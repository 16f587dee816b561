"""Markets from files, the sample and snapshots, and their members: from files, lists and indexes."""

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from made_bars import frame, stamps
from made_commands import run
from made_errors import refused
from made_markets import NAN, random_market
from numpy.testing import assert_array_equal

from finpod import DataError, fetch_market
from finpod.backtesting.engine import backtest
from finpod.market.calendar import sessions_of
from finpod.market.coverage import listed_during, missing_during
from finpod.market.load import load_market, load_snapshot, sample_market, save_snapshot
from finpod.market.universe import INDEXES, index_members, index_named, is_universe, read_members, static_members
from finpod.rules import EqualWeight

BARS = frame(days=pd.bdate_range("2024-01-02", periods=6))
"""Bars of AAA, BBB and QQQ."""


def test_b11_members_without_prices_of_a_list_are_refused():
    refused(r"CCC \(1 of 3 ", load_market, BARS, members=["AAA", "BBB", "CCC"], about="allow_missing")
    market = load_market(BARS, members=["AAA", "CCC"], allow_missing=True)
    assert (market.tickers, market.manifest["missing"], market.manifest["survivorship"]) == (("AAA",), ["CCC"], True)
    assert load_market(BARS, benchmark="BBB").tickers == ("AAA", "QQQ")


def test_missing_and_foreign_files(tmp_path):
    (tmp_path / "bars.xlsx").write_text("x")
    (tmp_path / "plain").mkdir()
    for name in ("bars.xlsx", "plain"):
        refused(re.escape(name), load_market, tmp_path / name)
    for options, value in (
        ({"benchmark": "SPY"}, "SPY"),
        ({"members": []}, "list"),
        ({"members": ["AAA", "QQQ"]}, "QQQ"),
        ({"members": ["ZZZ"], "benchmark": "YYY"}, "no prices for members, such as ZZZ"),
    ):
        refused(value, load_market, BARS, **options)
    refused("int", load_market, 3)


def test_the_sample_describes_itself():
    market = sample_market()
    assert market.shape == (8313, 20)
    assert [str(day)[:10] for day in market.dates[[0, -1]]] == ["1990-01-02", "2022-12-28"]
    assert market.open is market.volume is None
    assert market.benchmark == "S&P 500 price index (dividends left out)"
    assert (market.manifest["benchmark_kind"], market.manifest["survivorship"]) == ("price return", True)
    # the index closed at 359.69 on the first session and at 3783.22 on the last
    assert market.benchmark_close[-1] / market.benchmark_close[0] == pytest.approx(3783.22 / 359.69)
    assert load_market("sample").content_hash == market.content_hash


def test_sample_and_snapshots_have_their_own_members_and_benchmark(tmp_path):
    market = load_market(BARS)
    folder = save_snapshot(market, tmp_path / "snapshot")
    assert load_market(folder).content_hash == load_market(folder, benchmark="qqq").content_hash == market.content_hash
    for path in (folder, "sample"):
        for options in (
            {"members": "nasdaq100"}, {"benchmark": "SPY"}, {"renames": {"A": "B"}}, {"calendar": "XTKS"}, {"decimal": ","},
            {"ticker": "AAA"}, {"ticker_column": "firm"}, {"day_first": True},
        ):  # fmt: skip
            refused("", load_market, path, about=next(iter(options)), **options)


def test_the_origin_of_a_market_repeats_its_loading(tmp_path):
    path = tmp_path / "bars.csv"
    BARS.rename(columns={"ticker": "firm"}).to_csv(path, index=False)
    market = load_market(path, ticker_column="firm", members=["AAA", "BBB"])
    assert market.manifest["path"] == "bars.csv"
    assert str(tmp_path) not in json.dumps(dict(market.manifest))
    assert market.origin == {"path": str(path), "ticker_column": "firm", "members": ["AAA", "BBB"]}
    assert load_market(**market.origin).content_hash == market.content_hash == load_market(BARS).content_hash
    pd.DataFrame({"date": ["2024-01-03"], "vix": [20.0]}).to_csv(tmp_path / "vix.csv", index=False)
    market = load_market(path, ticker_column="firm", extra=[tmp_path / "vix.csv"])
    assert market.origin["extra"] == [str(tmp_path / "vix.csv")]
    assert load_market(**market.origin).content_hash == market.content_hash
    assert load_market(BARS).origin == {}


@pytest.fixture
def market():
    """Awkward on purpose: gaps, an odd NaN, a name without any bar, a benchmark with a hole."""
    whole = random_market(3, gaps=0, manifest={"source": "file", "notes": ["a note"]}, benchmark=[400.0, NAN, 410.0])
    return replace(whole, close=np.c_[whole.close[:, :4], [-NAN] * 3], last_bar=None)


def test_b29_a_snapshot_comes_back_to_the_last_bit(market, tmp_path):
    part = market.rows(0, 2)
    again = load_snapshot(save_snapshot(part, tmp_path / "data" / "three"))
    assert again.content_hash == part.content_hash
    assert (again.tickers, again.manifest) == (part.tickers, part.manifest)
    assert again.tables.keys() == part.tables.keys()
    for name, table in {"dates": part.dates, "last_bar": part.last_bar, **part.tables}.items():
        assert_array_equal(getattr(again, name), table)
    assert again.last_bar[0] > again.dates[-1]  # that of the whole snapshot, not of the slice
    assert np.isnat(again.last_bar[4])
    content = json.loads((tmp_path / "data" / "three" / "manifest.json").read_text())
    assert (content["hash"], content["source"], content["created"][:2]) == (part.content_hash, "file", "20")
    assert set(content["versions"]) == {"finpod", "numpy", "pandas", "pyarrow"}


def change(bars):
    table = pq.read_table(bars)
    close = table["close"].to_numpy().copy()
    close[0] += 1e-12
    pq.write_table(table.set_column(table.column_names.index("close"), "close", [close]), bars)


@pytest.mark.parametrize(("fault", "message"), [
    (lambda bars, manifest, content: bars.write_bytes(bars.read_bytes()[:500]), "is damaged"),
    (lambda bars, manifest, content: change(bars), "does not match the hash"),
    (lambda bars, manifest, content: manifest.write_text(manifest.read_text()[:100]), "is damaged"),
    (lambda bars, manifest, content: manifest.write_text(json.dumps(content | {"tickers": None})), "is damaged"),
    (lambda bars, manifest, content: (content.pop("hash"), manifest.write_text(json.dumps(content))), "is damaged"),
    (lambda bars, manifest, content: manifest.write_text(json.dumps(content | {"format": 99})), "format 99"),
])  # fmt: skip
def test_damaged_snapshots_end_in_one_line(market, tmp_path, fault, message):
    folder = save_snapshot(market, tmp_path / "three")
    manifest = folder / "manifest.json"
    fault(folder / "bars.parquet", manifest, json.loads(manifest.read_text()))
    refused(message, load_snapshot, folder, error=DataError)


def test_several_writers_take_turns(tmp_path):
    """Of two contents: each reader finds a whole snapshot of one of the writers. Locks hold between threads as well."""
    folder = tmp_path / "data" / "same"
    markets = [random_market(250), random_market(250), random_market(251)]

    def write_and_read(market):
        return {load_snapshot(save_snapshot(market, folder, overwrite=True)).content_hash for _ in range(6)}

    with ThreadPoolExecutor(3) as pool:
        read = set().union(*pool.map(write_and_read, markets))
    assert read <= {market.content_hash for market in markets}
    assert sorted(path.name for path in folder.parent.rglob("*")) == ["bars.parquet", "manifest.json", "same"]


def test_without_locks_writing_is_still_all_or_nothing(market, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    assert load_snapshot(save_snapshot(market, tmp_path / "three")).content_hash == market.content_hash


HEAD = "ticker,from,to_exclusive\n"
SPAN = ("2024-02-01", "2024-03-28")


@pytest.fixture
def members(tmp_path):
    """A function: text -> path of a membership file."""

    def written(text):
        path = tmp_path / "members.csv"
        path.write_text(text)
        return path

    return written


def frame(*tickers, calendar="XNYS", first=SPAN[0], last=SPAN[1]):
    """Flat bars of some assets on the sessions of an exchange."""
    sessions = sessions_of(calendar, *stamps(first, last)).dates
    return pd.concat([pd.DataFrame({"date": sessions, "ticker": ticker, "close": 10.0}) for ticker in tickers])


@pytest.mark.parametrize("form", ["plain", "spreadsheet", "tabs", "parquet"])
def test_b06_universe_is_that_of_the_day(members, form):
    text = HEAD + "X,2020-01-02,2020-07-01\nY,2020-07-01,\n"
    path = members("\ufeff" + text.title().replace(",", ";").replace("\n", "\r\n") if form == "spreadsheet" else text)
    if form == "tabs":
        path = members(text.replace("-", "/").replace(",", "\t"))
    elif form == "parquet":
        pd.read_csv(path, parse_dates=["from"]).to_parquet(path := path.with_suffix(".parquet"))
    dates = pd.bdate_range("2020-06-29", "2020-07-02")
    bars = pd.concat([pd.DataFrame({"date": dates, "ticker": name, "close": 10.0}) for name in ("X", "Y", "QQQ")])
    market = load_market(bars, members=path)
    assert_array_equal(market.member, [[True, False]] * 2 + [[False, True]] * 2)
    assert market.manifest["survivorship"] is False
    static = load_market(bars)
    assert static.manifest["survivorship"] is True
    assert "2020-07-02" in static.manifest["membership"]


def test_bars_missing_on_the_sessions_of_another_exchange_are_noted():
    both = pd.concat([frame("A"), frame("B", calendar="XTKS")])
    for bars, noted in ((frame("A", "B"), False), (both, True)):
        notes = load_market(bars, benchmark=None, calendar=None).manifest["notes"]
        assert any("4.9% of the bars are missing" in note for note in notes) is noted


def test_spells_may_repeat_overlap_and_lie_outside(members):
    spells = "A,2019-01-01,2020-01-02\nA,2020-01-03,2020-01-06\nA,2020-01-03,2020-01-04\nNA,2030-01-01,\n"
    membership = read_members(members(HEAD + spells))
    dates = stamps("2020-01-01", "2020-01-02", "2020-01-03", "2020-01-06")
    assert_array_equal(membership.grid(dates, ["A", "NA"]).T, [[True, False, True, False], [False] * 4])
    assert membership.during(dates[0], dates[-1]) == ("A",)
    assert membership.grid(dates, ["A", "NA"]).sum(axis=1).tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(("text", "value"), [
    ("ticker,from\nA,2020-01-01\n", "to_exclusive"), (HEAD, r"members\.csv"),
    (HEAD + "A,,2020-01-01\n", "'from' of A is NaT"),
    (HEAD + "A,2020-01-02,2020-01-02\n", "'from' of A is 2020-01-02"),
])  # fmt: skip
def test_unusable_membership_files(members, text, value):
    refused(value, read_members, members(text), error=DataError)


def test_renamed_listings_are_found_under_the_symbol_of_the_prices(members):
    old = static_members(["FB", "AAPL", "SYMC"], sentence="a list")
    assert list(old.spelled_as(["META", "AAPL", "NLOK"]).tickers) == ["META", "AAPL", "NLOK"]
    assert list(old.spelled_as(["FB", "META", "AAPL"]).tickers) == ["FB", "AAPL", "SYMC"]
    assert list(old.renamed_to_newest().tickers) == ["META", "AAPL", "GEN"]
    assert list(static_members(["META"], sentence="a list").spelled_as(["FB"]).tickers) == ["FB"]
    # HCP was Healthpeak until 2019-11-04, and HashiCorp from 2021 on
    path = members(HEAD + "HCP,2008-01-02,2019-11-05\nHCP,2021-12-09,\n")
    assert list(read_members(path).spelled_as(["PEAK"]).tickers) == ["PEAK", "HCP"]


def test_members_without_prices_are_reported_with_their_days(members):
    """GONE has no prices at all, LATE only after it joined, HALF not after its series ended; a short gap does not count."""
    path = members(
        HEAD + "AAA,2020-01-01,\nGONE,2024-02-01,2024-02-06\nGONE,2024-03-01,\nLATE,2024-01-02,\n"
        "HALF,2024-01-02,2024-03-01\n"
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
    # days as a member: AAA 26 (25 with a bar), GONE 9 (0), LATE 26 (16), HALF 20 (12)
    assert manifest["coverage"] == {"2024": round(53 / 81, 6)}
    assert missing_during(manifest, "2024-02-06", "2024-02-19") == ["LATE"]
    assert missing_during(manifest, "2024-02-29", "2024-03-04") == ["GONE", "HALF"]


@pytest.mark.parametrize(
    ("name", "fewest", "most"),
    [("nasdaq100", 101, 110), ("sp500", 482, 506), ("dow30", 30, 30), ("csi300", 299, 301), ("csi500", 500, 500)],
)
def test_each_index_has_its_members_benchmark_and_calendar(name, fewest, most):
    """The members since 2009, in Yahoo's spelling: American shares with a dash before a class, Chinese ones with a suffix."""
    index, membership = INDEXES[name], index_members(name)
    form = r"(60\d{4}|68\d{4})\.SS|(00\d{4}|30\d{4})\.SZ" if name in ("csi300", "csi500") else r"[A-Z]{1,5}(-[A-Z])?"
    assert [ticker for ticker in membership.tickers if not re.fullmatch(form, ticker)] == []
    tickers = np.unique(membership.tickers).tolist()
    counts = membership.grid(sessions_of(index.calendar, *stamps("2009-01-05", "2024-12-31")).dates, tickers).sum(
        axis=1
    )
    assert (counts.min(), counts.max()) == (fewest, most)
    some = membership.during(*stamps("2024-02-01", "2024-02-01"))[:3]
    market = load_market(frame(*some, index.benchmark, calendar=index.calendar), members=name)
    assert (market.benchmark, market.manifest["calendar"], market.tickers) == (index.benchmark, index.calendar, some)
    listed = {"2024-02-01": int(membership.grid(market.dates[:1], tickers).sum())}
    assert market.manifest["listed"] == {"index": index.title, "size": index.size, "members": listed}
    assert len(market.manifest["missing"]) >= listed["2024-02-01"] - 3


@pytest.mark.parametrize(("index", "tickers", "dates", "expected"), [
    ("nasdaq100", ["WTW", "TCOM"], ["2014-12-31", "2015-06-01", "2015-12-21", "2018-12-24", "2020-04-30"],
     ["11", "00", "01", "11", "01"]),
    # Monster Worldwide was MWW later on, not Monster Beverage; Philip Morris Companies is MO today, not PM
    ("nasdaq100", ["MWW", "MNST"], ["2006-06-01", "2008-01-02", "2009-01-05", "2012-01-03"], ["10", "11", "01", "01"]),
    ("dow30", ["MO", "PM"], ["2002-01-02", "2005-01-03", "2009-01-05"], ["10", "10", "00"]),
])  # fmt: skip
def test_known_errors_of_the_index_package_are_corrected(index, tickers, dates, expected):
    membership = index_members(index)
    assert not pd.DataFrame([membership.tickers, membership.start, membership.stop]).T.duplicated().any()
    grid = membership.grid(stamps(*dates), tickers).astype(int)
    assert ["".join(map(str, row)) for row in grid] == expected


def test_an_explicit_benchmark_and_calendar_win():
    bars = frame("600015.SS", "000001.SZ", "510300.SS", "159919.SZ", calendar="XSHG")
    assert load_market(bars, members="csi300", benchmark="159919.SZ").benchmark == "159919.SZ"
    assert load_market(bars, members="csi300", benchmark=None).benchmark == "none"
    assert load_market(bars, members="csi300", calendar=None).manifest["calendar"] == "the dates of the file"
    new_year = frame("600000.SS", "510300.SS", calendar="XTKS")
    refused(r"2024-02-09.* XSHG", load_market, new_year, members="csi300", error=DataError)
    refused("DIA", load_market, frame("AAPL", "MSFT", "QQQ"), members="dow30", about="benchmark")
    spelled = frame("SH600000", "SZ000001", "510300.SS", calendar="XSHG")
    told = r"000001\.SZ, 000002\.SZ, 000063\.SZ.* SH600000, SZ000001"
    refused(told, load_market, spelled, members="csi300", error=DataError)


@pytest.mark.parametrize("word", ["csi-30", "xyz1", "foo"])
def test_an_unknown_universe_is_one_line(word):
    for call in (lambda name: fetch_market(name, *SPAN), lambda name: load_market(frame("AAPL", "QQQ"), members=name)):
        raised = refused(repr(word), call, word)
        assert ("did you mean csi300?" in str(raised)) == (word == "csi-30")
    told = run(f"data fetch --universe {word}").error
    assert repr(word) in told
    assert f"such as {'FOO' if word == 'foo' else 'AAPL'}, or" in told
    refused("members is of type int", load_market, frame("AAPL", "QQQ"), members=5, about="members")


def test_an_index_has_several_spellings_and_tickers_are_not_indexes(apart):
    assert {index_named(text) for text in ("sp500", "SP500", "S&P 500", "s&p-500")} == {INDEXES["sp500"]}
    assert all(map(is_universe, ("foo", "dow", "xyz1")))
    assert not any(map(is_universe, ("AAPL", "DOW", "DOW3", "0700.HK", "aapl,msft", "./sp500", "members.csv")))
    (apart / "sp500").mkdir()  # a folder of that name is not a list of members
    assert load_market(frame("AAPL", "SPY"), members="sp500").manifest["listed"]["index"] == "S&P 500"
    (apart / "bars.csv").write_text(frame("AAPL", "SPY").to_csv(index=False))
    assert load_market("bars.csv", members="sp500").origin["members"] == "sp500"


@pytest.mark.parametrize(("year", "members", "warns"), [(2009, 482, True), (2024, 502, False)])
def test_an_incomplete_list_is_reported_in_the_result(tmp_path, year, members, warns):
    """The list of the S&P 500 has 482 of 500 members in January 2009, and 502 in 2024."""
    bars = frame("AAPL", "MSFT", "SPY", first=f"{year}-01-05", last=f"{year}-03-31")
    result = backtest(EqualWeight(), load_market(bars, members="sp500"))
    counts = {"2008-01-04": 490, f"{year}-01-05": members, "2025-01-04": 400}
    manifest = {"listed": {"index": "S&P 500", "size": 500, "members": counts}}
    assert listed_during(manifest, f"{year}-03-02", f"{year}-06-01") == ("S&P 500", f"{year}-01-05", members, 500)
    facts = {"title": "S&P 500", "day": f"{year}-01-05", "members": members, "size": 500}
    assert [warning.data for warning in result.warnings if warning.code == "index_list"] == [facts] * warns
    bars.to_csv(tmp_path / "bars.csv", index=False)
    assert f"{members} of 500 members" in run(f"data check {tmp_path}/bars.csv --members sp500").out
