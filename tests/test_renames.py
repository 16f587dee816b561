"""Renamed tickers: joined if a table lists them, refused if prices contradict it, reported if prices only fit."""

import numpy as np
import pandas as pd
import pytest
from made_bars import places, refuses, repairs, suspicions
from made_commands import run
from numpy.testing import assert_allclose, assert_array_equal

from finpod import DataError, InputError, load_market
from finpod.market.renames import bundled_renames
from finpod.market.universe import families

JOINED = "renamed tickers joined"
LIKELY = "tickers that may have been renamed"
NEW_LEVEL = "price levels that change across a gap"
DAYS = pd.bdate_range("2022-04-04", periods=80)
rows = np.arange(80)
DAY = pd.Timestamp("2022-06-09")
"""FB became META on this day."""
ALONE = {"benchmark": None, "calendar": None}
DATED = [rename for rename in bundled_renames() if rename.day is not None]


def walk(seed=0, first=190.0):
    """Closes in whole cents."""
    return np.round(first * np.cumprod(1 + np.random.default_rng(seed).normal(0, 0.02, len(DAYS))), 2)


def bars(ticker, close, days=DAYS, **columns):
    return pd.DataFrame({"date": days, "ticker": ticker, "close": close, "volume": 1000.0, **columns})


def renamed(old="FB", new="META", day=DAY, **columns):
    """One listing, its bars under two symbols."""
    return bars(np.where(day > DAYS, old, new), walk(), **columns)


def market_of(*tables, **options):
    """The market of these bars and of an unrelated asset."""
    return load_market(pd.concat([*tables, bars("AAA", walk(1, 50.0))], ignore_index=True), **{**ALONE, **options})


@pytest.mark.parametrize("rename", DATED, ids=lambda rename: rename.old)
def test_g11_every_bundled_rename_joins(rename):
    days = pd.bdate_range(pd.Timestamp(rename.day) - pd.Timedelta(days=20), periods=30)
    market = load_market(bars(np.where(days < rename.day, rename.old, rename.new), 50 + rows[:30] / 10, days), **ALONE)
    assert market.tickers == (rename.new,)
    assert market.has_bar.all()


def test_the_table_is_by_date_and_without_circles():
    days = [rename.day for rename in DATED]
    assert days == sorted(days)
    assert {symbol for chain in families() for symbol in chain[:-1]} == {rename.old for rename in bundled_renames()}


@pytest.mark.parametrize("renames", [None, {"OLD": "NEW"}, "Old;New;Date\nOLD;NEW;09/06/2022\nELSE;WHERE;\n"])
def test_g11_series_of_a_renamed_listing_are_joined(renames, tmp_path):
    old, new = ("OLD", "NEW") if renames else ("FB", "META")
    if isinstance(renames, str):
        (tmp_path / "renames.csv").write_text(renames)
        renames = tmp_path / "renames.csv"
    market = market_of(renamed(old, new), renames=renames, day_first=True)
    assert market.tickers == ("AAA", new)
    assert_array_equal(market.close[:, 1], walk())
    assert market.manifest["renamed"] == {old: new}
    assert places(market, JOINED) == [(new, "2022-06-09", "ticker", old, new)]
    assert market.manifest["suspicions"] == []


def test_g11_a_chain_is_joined_under_the_newest_symbol_of_the_market():
    days = pd.bdate_range("2019-10-01", "2022-12-30")
    close = 20 + np.arange(len(days)) / 100
    symbol = np.select([days < "2019-11-05", days < "2022-11-08"], ["SYMC", "NLOK"], "GEN")
    whole = bars(symbol, close, days)
    market = load_market(whole, **ALONE)
    assert market.tickers == ("GEN",)
    assert_array_equal(market.close[:, 0], close)
    assert market.manifest["renamed"] == {"SYMC": "NLOK", "NLOK": "GEN"}
    assert load_market(whole[(symbol != "NLOK") | (days > "2022-11-01")], **ALONE).tickers == ("GEN",)
    frame = pd.concat([bars("AAA", 19.0, pd.bdate_range("2019-09-02", "2019-09-30")), whole])
    assert load_market(frame, renames={"GEN": "NEXT", "AAA": "SYMC"}, **ALONE).tickers == ("NEXT",)


def test_a_symbol_alone_is_renamed_only_by_the_user():
    table = renamed()[DAYS < DAY]
    assert market_of(table).tickers == ("AAA", "FB")
    market = market_of(table, renames={"FB": "META"})
    assert (market.tickers, repairs(market)) == (("AAA", "META"), {JOINED: 1})
    assert market_of(renamed(), renames={"META": "FB"}).tickers == ("AAA", "FB")  # a bundled rename reversed


@pytest.mark.parametrize("renames", [None, {"FB": "META"}])
def test_g11_an_overlap_with_different_prices_names_both(renames):
    other = bars("META", walk(7, 12.0))[DAYS < "2022-05-02"]
    refuses(lambda: market_of(renamed(), other, renames=renames), "FB", "META", "2022-04-04", "renames={'FB':'FB'}")
    assert market_of(renamed(), other, renames={"FB": "FB"}).tickers == ("AAA", "FB", "META")


def test_g11_days_on_which_both_symbols_have_the_same_price_count_once():
    market = market_of(bars("FB", walk())[DAYS < "2022-06-12"], bars("META", walk())[DAYS >= "2022-06-02"])
    assert market.tickers == ("AAA", "META")
    assert_array_equal(market.close[:, 1], walk())


def test_g11_an_old_symbol_that_another_company_took_keeps_its_later_bars(tmp_path):
    days = pd.bdate_range("2022-04-04", "2022-09-30")
    later = bars("FB", 30.0 + rows[:40] / 10, days[days >= "2022-08-08"][:40])
    members = tmp_path / "members.csv"
    members.write_text("ticker,from,to_exclusive\nFB,2013-12-20,2022-06-09\nMETA,2022-06-09,\nAAA,2020-01-01,\n")
    market = market_of(renamed()[DAYS < "2022-07-20"], later, members=members)
    assert market.tickers == ("AAA", "FB", "META")
    new, other = market.has_bar[:, 2], market.has_bar[:, 1]
    assert_array_equal(market.close[new, 2], walk()[DAYS < "2022-07-20"])
    assert_array_equal(market.close[other, 1], later["close"])
    assert market.dates[other][0] == np.datetime64("2022-08-08")
    assert market.member[:, 2].all()  # members before the rename are those of the renamed listing
    assert not market.member[:, 1].any()


def test_g11_a_new_symbol_that_was_another_companys_is_left_alone():
    """A file that ends before the rename, and one in which that company ended before the listing begins."""
    before = DAYS < "2022-05-16"
    market = market_of(bars("FB", walk())[before], bars("META", walk(7, 12.0))[before])
    assert market.tickers == ("AAA", "FB", "META")
    assert repairs(market) == {}
    other = bars("META", 12.0, pd.bdate_range("2022-01-03", "2022-01-28"))
    market = market_of(other, renamed())
    assert market.tickers == ("AAA", "FB", "META")
    assert suspicions(market)["renames that were not applied"] == [("META", "2022-01-03")]
    assert market_of(other, renamed(), renames={"FB": "META"}).tickers == ("AAA", "META")


DIVIDEND, EARLIER = np.where(DAYS < "2022-07-01", 0.9, 1.0), np.where(DAYS < "2022-05-02", 0.8, 1.0)


@pytest.mark.parametrize(("factor", "lacking", "right"), [
    (np.where(DAYS < DAY, 1.0, DIVIDEND), "", DIVIDEND),  # the old symbol lacks a later dividend of the new one
    (DIVIDEND, "", DIVIDEND),
    (EARLIER * DIVIDEND, "META", EARLIER),
])  # fmt: skip
def test_adjusted_closes_of_both_symbols_come_to_one_scale(factor, lacking, right):
    table = renamed(adj_close=walk() * factor)
    table.loc[table["ticker"] == lacking, "adj_close"] = np.nan
    assert_allclose(load_market(table, **ALONE).close[:, 0], walk() * right, rtol=1e-12)


def test_rows_without_a_price_keep_their_actions_and_prices_of_zero_are_masked():
    table = renamed(split=np.where(rows == 20, 4.0, 1.0)).assign(close=np.where(rows < 20, walk() * 4, walk()))
    table.loc[20, "close"] = np.nan
    assert_allclose(load_market(table, **ALONE).close[:20, 0], walk()[:20], rtol=1e-12)
    market = market_of(renamed(adj_close=np.where(np.abs(rows - 47) < 2, 0.0, walk())))
    assert market.tickers == ("AAA", "META")
    assert (~market.has_bar[:, 1]).sum() == 3


def test_members_and_benchmark_follow_the_rename(tmp_path):
    (tmp_path / "members.csv").write_text("ticker,from,to_exclusive\nOLD,2020-01-01,2022-05-02\nAAA,2020-01-01,\n")
    market = market_of(renamed("OLD", "NEW"), renames={"OLD": "NEW"}, members=tmp_path / "members.csv")
    assert_array_equal(market.member[:, 1], DAYS < "2022-05-02")
    market = market_of(renamed("OLD", "NEW"), renames={"OLD": "NEW"}, benchmark="OLD")
    assert market.benchmark == "NEW"
    assert_array_equal(market.benchmark_close, walk())


def test_g11_a_join_at_another_price_is_a_suspicion():
    market = market_of(renamed().assign(close=walk() * np.where(DAYS < DAY, 1, 20)))
    assert market.tickers == ("AAA", "META")
    assert suspicions(market)["renamed tickers that join at different prices"] == [("META", "2022-06-09")]


@pytest.mark.parametrize(("renames", "error", "word"), [
    ({"FBB": "METTA"}, InputError, "FBB"), ({"FB": "AAA", "AAA": "FB"}, InputError, "circular"),
    (["FB", "META"], InputError, "['FB', 'META']"), ("nowhere.csv", InputError, "nowhere.csv"),
    ("old,new\n", DataError, "renames.csv"), ("from,to\nFB,META\n", DataError, "old"),
    ("old,new,date\nFB,META,06/09/2022\n", DataError, "'06/09/2022'"),
    ("old,new\nFB,META\nFB,AAA\n", DataError, "FB"),
])  # fmt: skip
def test_renames_that_cannot_be_used(renames, error, word, tmp_path):
    if isinstance(renames, str) and "\n" in renames:
        (tmp_path / "renames.csv").write_text(renames)
        renames = tmp_path / "renames.csv"
    refuses(lambda: market_of(renamed(), renames=renames), word, error=error)


def test_g11_an_asset_that_ends_where_another_begins_is_a_likely_rename():
    """At about the same price on the next session, or at the same price on one session."""
    for step, likely in ((0.03, [("OLD", "2022-06-08")]), (0.25, [])):
        close = np.where(DAYS < DAY, 20.0, 20.0 * (1 + step)) + rows % 2 / 100
        assert suspicions(market_of(renamed("OLD", "NEW").assign(close=close))).get(LIKELY, []) == likely
    old, new = bars("OLD", walk())[DAYS <= DAY], bars("NEW", walk())[DAYS >= DAY].reset_index(drop=True)
    assert LIKELY in suspicions(market_of(old, new))
    new.loc[0, "close"] *= 1.05
    assert LIKELY not in suspicions(market_of(old, new))


@pytest.mark.parametrize(
    ("before", "after", "gap", "flagged"),
    [(14, 180, 40, True), (14, 180, 3, False), (14, 25, 40, False), (14, 29, 5, True)],
)
def test_g11_a_level_that_changes_across_a_gap_is_flagged(before, after, gap, flagged):
    close = np.where(rows < 20, before, after) * (1 + rows % 2 / 100)
    there = (rows < 20) | (rows >= 20 + gap)
    market = market_of(bars("XYZ", close)[there])
    assert_array_equal(market.has_bar[:, 1], there)
    assert suspicions(market).get(NEW_LEVEL, []) == ([("XYZ", f"{DAYS[20 + gap]:%Y-%m-%d}")] if flagged else [])
    table = bars("XYZ", close, split=np.where(rows == 20 + gap, before / after, 1.0))[there]
    assert NEW_LEVEL not in suspicions(market_of(table))  # a listed split explains the level


def test_a_run_goes_on_with_the_renames_it_was_begun_with(apart):
    renamed("OLD", "NEW").to_csv("bars.csv", index=False)
    (apart / "renames.csv").write_text("old,new\nOLD,NEW\n")
    one = load_market("bars.csv", renames="renames.csv", **ALONE)
    assert one.origin == {"path": str(apart / "bars.csv"), "renames": str(apart / "renames.csv"), **ALONE}
    assert load_market(**one.origin).content_hash == one.content_hash
    checked = run("data check bars.csv --renames renames.csv --calendar none --benchmark none")
    assert (checked.code, "NEW 2022-06-09 ticker OLD -> NEW" in checked.out) == (0, True)
