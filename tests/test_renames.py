"""Renamed tickers: joined if a table lists them, refused if prices contradict it, reported if prices only fit."""

import numpy as np
import pandas as pd
import pytest
from made_bars import alone, places, repairs, suspicions
from numpy.testing import assert_allclose, assert_array_equal

from finpod import load_market
from finpod.cli import main
from finpod.errors import DataError, InputError
from finpod.market.renames import RENAMED, families

JOINED = "names joined, renamed"
LIKELY = "names that may have been renamed"
NEW_LEVEL = "price levels that change across a gap"
DAYS = pd.bdate_range("2022-04-04", periods=80)
DAY = pd.Timestamp("2022-06-09")
"""FB became META on this day."""


def walk(seed=0, first=190.0):
    """Closes in whole cents."""
    return np.round(first * np.cumprod(1 + np.random.default_rng(seed).normal(0, 0.02, len(DAYS))), 2)


def bars(ticker, close, days=DAYS, **columns):
    return pd.DataFrame({"date": days, "ticker": ticker, "close": close, "volume": 1000.0, **columns})


def renamed(old="FB", new="META", day=DAY, **columns):
    """One listing, its bars under two symbols."""
    return bars(np.where(day > DAYS, old, new), walk(), **columns)


def market_of(*tables, **options):
    """The market of these bars and of a name that has nothing to do with them."""
    frame = pd.concat([*tables, bars("AAA", walk(1, 50.0))], ignore_index=True)
    return load_market(frame, **{"benchmark": None, "calendar": None, **options})


def test_g11_the_bundled_table_joins_fb_and_meta():
    market = market_of(renamed())
    assert market.tickers == ("AAA", "META")
    assert_array_equal(market.close[:, 1], walk())
    assert market.has_bar.all()
    assert market.manifest["renamed"] == {"FB": "META"}
    assert places(market, JOINED) == [("META", "2022-06-09", "ticker", "FB", "META")]
    assert market.manifest["suspicions"] == []


@pytest.mark.parametrize(("old", "new", "day"), RENAMED)
def test_g11_every_rename_of_the_table(old, new, day):
    days = pd.bdate_range(pd.Timestamp(day) - pd.Timedelta(days=20), periods=30)
    frame = bars(np.where(days < day, old, new), 50 + np.arange(30) / 10, days)
    market = alone(frame)
    assert market.tickers == tuple(sorted({old, new}))  # `build_market` alone joins nothing
    market = load_market(frame, benchmark=None, calendar=None)
    assert market.tickers == (new,)
    assert market.has_bar.all()


def test_the_table_is_in_order_and_without_circles():
    days = [day for _, _, day in RENAMED]
    assert days == sorted(days)
    olds = [old for old, _, _ in RENAMED]
    assert len(set(olds)) == len(olds)
    assert ("SYMC", "NLOK", "GEN") in families()
    assert ("RIMM", "BBRY", "BB") in families()
    assert sorted(symbol for chain in families() for symbol in chain[:-1]) == sorted(olds)


@pytest.mark.parametrize("as_file", [False, True])
def test_g11_the_users_renames_join(as_file, tmp_path):
    renames = {"OLD": "NEW"}
    if as_file:
        (tmp_path / "renames.csv").write_text("Old;New;Date\nOLD;NEW;2022-06-09\nELSE;WHERE;\n")
        renames = tmp_path / "renames.csv"
    market = market_of(renamed("OLD", "NEW"), renames=renames)
    assert market.tickers == ("AAA", "NEW")
    assert_array_equal(market.close[:, 1], walk())
    assert places(market, JOINED) == [("NEW", "2022-06-09", "ticker", "OLD", "NEW")]


def test_g11_a_chain_is_joined_under_the_newest_symbol_of_the_market():
    days = pd.bdate_range("2019-10-01", "2022-12-30")
    close = 20 + np.arange(len(days)) / 100
    symbol = np.select([days < "2019-11-05", days < "2022-11-08"], ["SYMC", "NLOK"], "GEN")
    market = load_market(bars(symbol, close, days), benchmark=None, calendar=None)
    assert market.tickers == ("GEN",)
    assert_array_equal(market.close[:, 0], close)
    assert market.manifest["renamed"] == {"SYMC": "NLOK", "NLOK": "GEN"}
    earlier = days < "2022-11-08"
    market = load_market(bars(symbol, close, days)[earlier], benchmark=None, calendar=None)
    assert market.tickers == ("NLOK",)
    without = (symbol != "NLOK") | (days > "2022-11-01")
    market = load_market(bars(symbol, close, days)[without], benchmark=None, calendar=None)
    assert market.tickers == ("GEN",)
    own = {"GEN": "NEXT", "AAA": "SYMC"}
    start = bars("AAA", 19.0, pd.bdate_range("2019-09-02", "2019-09-30"))
    frame = pd.concat([start, bars(symbol, close, days)])
    assert load_market(frame, benchmark=None, calendar=None, renames=own).tickers == ("NEXT",)


def test_a_lone_symbol_keeps_its_name_unless_the_user_renames_it():
    table = renamed()[DAYS < DAY]
    assert market_of(table).tickers == ("AAA", "FB")
    market = market_of(table, renames={"FB": "META"})
    assert market.tickers == ("AAA", "META")
    assert repairs(market) == {JOINED: 1}
    assert market_of(renamed()[DAYS >= DAY], renames={"FB": "META"}).tickers == ("AAA", "META")


@pytest.mark.parametrize("renames", [None, {"FB": "META"}])
def test_g11_an_overlap_with_different_prices_names_both(renames):
    other = bars("META", walk(7, 12.0))
    with pytest.raises(DataError, match=r"FB was renamed META, but their closes on 2022-04-04 are .*\{'FB': 'FB'\}"):
        market_of(renamed(), other[DAYS < "2022-05-02"], renames=renames)
    market = market_of(renamed(), other[DAYS < "2022-05-02"], renames={"FB": "FB"})
    assert market.tickers == ("AAA", "FB", "META")


@pytest.mark.parametrize("renames", [None, {"FB": "META"}])
@pytest.mark.parametrize("overlap", ["a week", "all"])
def test_g11_an_overlap_with_the_same_prices_counts_once(renames, overlap):
    close = walk()
    begin = DAY - pd.Timedelta(days=7) if overlap == "a week" else DAYS[0]
    market = market_of(
        bars("FB", close)[DAY + pd.Timedelta(days=3) > DAYS], bars("META", close)[begin <= DAYS], renames=renames
    )
    assert market.tickers == ("AAA", "META")
    assert_array_equal(market.close[:, 1], close)


def test_an_old_symbol_that_another_company_took_keeps_its_later_bars(tmp_path):
    """Members of before the rename are those of the renamed listing."""
    days = pd.bdate_range("2022-04-04", "2022-09-30")
    later = bars("FB", 30.0 + np.arange(40) / 10, days[days >= "2022-08-08"][:40])
    (tmp_path / "members.csv").write_text(
        "ticker,from,to_exclusive\nFB,2013-12-20,2022-06-09\nMETA,2022-06-09,\nAAA,2020-01-01,\n"
    )
    market = market_of(renamed()[DAYS < "2022-07-20"], later, members=tmp_path / "members.csv")
    assert market.tickers == ("AAA", "FB", "META")
    meta = market.has_bar[:, 2]
    assert_array_equal(market.close[meta, 2], walk()[DAYS < "2022-07-20"])
    own = market.has_bar[:, 1]
    assert_array_equal(market.close[own, 1], later["close"])
    assert market.dates[own][0] == np.datetime64("2022-08-08")
    assert market.member[:, 2].all()
    assert not market.member[:, 1].any()


def test_a_new_symbol_that_was_another_companys_is_left_alone():
    """A file that ends before the rename, and one in which that company ended before the listing begins."""
    earlier = market_of(bars("FB", walk())[DAYS < "2022-05-16"], bars("META", walk(7, 12.0))[DAYS < "2022-05-16"])
    assert earlier.tickers == ("AAA", "FB", "META")
    assert repairs(earlier) == {}
    other = bars("META", 12.0, pd.bdate_range("2022-01-03", "2022-01-28"))
    market = market_of(other, renamed())
    assert market.tickers == ("AAA", "FB", "META")
    assert suspicions(market)["renames that were not applied"] == [("META", "2022-01-03")]
    assert market_of(other, renamed(), renames={"FB": "META"}).tickers == ("AAA", "META")


def test_the_adjusted_closes_of_both_symbols_come_to_one_scale():
    """Each symbol is adjusted to its own end: the new one for a dividend that the old one does not know of."""
    close = walk()
    factor = np.where(DAYS < "2022-07-01", 0.9, 1.0)
    right = close * factor
    whole = load_market(bars("META", close, adj_close=right), benchmark=None, calendar=None)
    vendor = np.where(DAYS < DAY, close, right)
    market = load_market(renamed(adj_close=vendor), benchmark=None, calendar=None)
    assert_allclose(market.close, whole.close, rtol=1e-12)
    back_filled = load_market(renamed(adj_close=right), benchmark=None, calendar=None)
    assert_allclose(back_filled.close, whole.close, rtol=1e-12)


def test_g11_a_wide_table_with_a_column_for_each_symbol(tmp_path):
    close, after = walk(), DAYS.to_numpy() >= DAY
    wide = pd.DataFrame({"FB": np.where(after, np.nan, close), "META": np.where(after, close, np.nan)}, DAYS)
    wide["AAA"] = walk(1)
    wide.rename_axis("date").to_csv(tmp_path / "closes.csv")
    for source in (wide, tmp_path / "closes.csv"):
        market = load_market(source, benchmark=None, calendar=None)
        assert market.tickers == ("AAA", "META")
        assert_array_equal(market.close[:, 1], close)
        assert repairs(market) == {JOINED: 1}


def test_g11_an_old_symbol_whose_last_price_is_carried_forward():
    close, after = walk(), DAYS.to_numpy() >= DAY
    old = bars("FB", np.where(after, close[~after][-1], close), volume=np.where(after, 0.0, 1000.0))
    market = market_of(old, bars("META", close)[after])
    assert market.tickers == ("AAA", "META")
    assert_array_equal(market.close[:, 1], close)
    assert repairs(market) == {
        JOINED: 1,
        "bars dropped, the last price of a renamed symbol carried forward": after.sum(),
    }


def test_an_action_on_a_day_without_a_price_is_kept():
    close = np.where(np.arange(80) < 20, walk() * 4, walk())
    table = renamed(split=np.where(np.arange(80) == 20, 4.0, 1.0)).assign(close=close)
    table.loc[20, "close"] = np.nan
    market = load_market(table, benchmark=None, calendar=None)
    assert_allclose(market.close[:20, 0], walk()[:20], rtol=1e-12)


def test_prices_of_zero_at_the_join():
    """They are masked after the join, as elsewhere."""
    table = renamed(adj_close=walk())
    table.loc[[46, 47, 48], ["close", "adj_close"]] = 0.0
    market = market_of(table)
    assert market.tickers == ("AAA", "META")
    assert (~market.has_bar[:, 1]).sum() == 3
    both = bars("META", 0.0)[DAY - pd.Timedelta(days=3) <= DAYS].assign(
        close=lambda frame: np.r_[0.0, walk()[-len(frame) + 1 :]]
    )
    assert market_of(bars("FB", walk())[DAYS <= DAY], both).tickers == ("AAA", "META")


@pytest.mark.parametrize("lacking", ["FB", "META"])
def test_one_of_two_symbols_without_adjusted_closes(lacking):
    close = walk()
    table = renamed(adj_close=close * np.where(DAYS < "2022-05-02", 0.8, 1.0) * np.where(DAYS < "2022-07-01", 0.9, 1.0))
    table.loc[table["ticker"] == lacking, "adj_close"] = np.nan
    market = load_market(table, benchmark=None, calendar=None)
    assert market.has_bar.all()
    kept = {"FB": np.where(DAYS < "2022-07-01", 0.9, 1.0), "META": np.where(DAYS < "2022-05-02", 0.8, 1.0)}[lacking]
    assert_allclose(market.close[:, 0], close * kept, rtol=1e-12)


def test_members_and_benchmark_follow_the_rename(tmp_path):
    market = market_of(renamed("OLD", "NEW"), renames={"OLD": "NEW"}, members=["OLD"], benchmark="AAA")
    assert market.tickers == ("NEW",)
    assert market.member.all()
    (tmp_path / "members.csv").write_text("ticker,from,to_exclusive\nOLD,2020-01-01,2022-05-02\nAAA,2020-01-01,\n")
    market = market_of(renamed("OLD", "NEW"), renames={"OLD": "NEW"}, members=tmp_path / "members.csv")
    assert_array_equal(market.member[:, 1], DAYS < "2022-05-02")
    market = market_of(renamed("OLD", "NEW"), renames={"OLD": "NEW"}, benchmark="OLD")
    assert market.benchmark == "NEW"
    assert_array_equal(market.benchmark_close, walk())


def test_a_join_at_another_price_is_a_suspicion():
    table = renamed()
    table.loc[table["ticker"] == "META", "close"] *= 20
    market = market_of(table)
    assert market.tickers == ("AAA", "META")
    assert suspicions(market)["renamed names that join at different prices"] == [("META", "2022-06-09")]


@pytest.mark.parametrize(
    ("renames", "kind", "message"),
    [
        ({"FBB": "METTA"}, InputError, "has none of the names FBB; its 3 names are such as AAA, FB, META"),
        ({"FB": "AAA", "AAA": "FB"}, InputError, "renames go in a circle: "),
        ({"FB": "a b"}, DataError, "renames: .* cannot be a ticker"),
        (["FB", "META"], InputError, "renames is .*give a mapping such as {'FB': 'META'}, or a CSV"),
        ("nowhere.csv", InputError, r"there is no file of renames nowhere\.csv"),
        ("old,new\n", DataError, "holds no rename"),
        ("from,to\nFB,META\n", DataError, r"has no column old; a file of renames has the columns old, new"),
        ("old,new,date\nFB,META,06/09/2022\n", DataError, "'06/09/2022' is not a date"),
        ("old,new\nFB,META\nFB,AAA\n", DataError, "renames FB twice"),
    ],
)
def test_renames_that_cannot_be_used(renames, kind, message, tmp_path):
    if isinstance(renames, str) and "\n" in renames:
        (tmp_path / "renames.csv").write_text(renames)
        renames = tmp_path / "renames.csv"
    with pytest.raises(kind, match=message) as caught:
        market_of(renamed(), renames=renames)
    assert "\n" not in str(caught.value)


def test_a_user_may_turn_a_rename_of_the_table_round():
    assert market_of(renamed(), renames={"META": "FB"}).tickers == ("AAA", "FB")


@pytest.mark.parametrize(("step", "likely"), [(0.03, True), (-0.08, True), (0.25, False), (-0.5, False)])
def test_g11_a_name_that_ends_where_another_begins_is_a_likely_rename(step, likely):
    close = walk()
    after = DAYS >= DAY
    start = np.argmax(after)
    close[after] = np.round(close[start - 1] * (1 + step) * close[after] / close[start], 2)
    market = market_of(bars(np.where(after, "NEW", "OLD"), close))
    assert market.tickers == ("AAA", "NEW", "OLD")
    assert suspicions(market).get(LIKELY, []) == ([("OLD", "2022-06-08")] if likely else [])
    if likely:
        sentence = next(entry["sentence"] for entry in market.manifest["suspicions"] if entry["kind"] == LIKELY)
        assert "NEW begins on 2022-06-09" in sentence


def test_two_bars_on_one_day_must_be_at_one_price_to_be_a_likely_rename():
    def of(price):
        old = bars("OLD", walk())[DAYS <= DAY]
        new = bars("NEW", walk())[DAYS >= DAY].reset_index(drop=True)
        new.loc[0, "close"] *= price
        return suspicions(market_of(old, new)).get(LIKELY, [])

    assert of(1.0) == [("OLD", "2022-06-09")]
    assert of(1.05) == []


@pytest.mark.parametrize(
    ("before", "after", "gap", "flagged"),
    [
        (14.0, 180.0, 40, True),
        (180.0, 14.0, 40, True),
        (14.0, 180.0, 3, False),
        (14.0, 25.0, 40, False),
        (14.0, 29.0, 5, True),
    ],
)
def test_g11_a_level_that_changes_across_a_gap_is_flagged(before, after, gap, flagged):
    noise = walk() / walk()[0] * 0 + 1 + np.arange(len(DAYS)) % 2 / 100
    close = np.where(np.arange(len(DAYS)) < 20, before, after) * noise
    there = (np.arange(len(DAYS)) < 20) | (np.arange(len(DAYS)) >= 20 + gap)
    market = market_of(bars("XYZ", close)[there])
    assert_array_equal(market.has_bar[:, 1], there)
    assert suspicions(market).get(NEW_LEVEL, []) == ([("XYZ", f"{DAYS[20 + gap]:%Y-%m-%d}")] if flagged else [])


def test_g11_a_split_listed_across_a_gap_explains_the_level():
    close = np.where(np.arange(len(DAYS)) < 20, 400.0, 100.0) + np.arange(len(DAYS)) % 2
    there = (np.arange(len(DAYS)) < 20) | (np.arange(len(DAYS)) >= 40)
    table = bars("XYZ", close, split=np.where(np.arange(len(DAYS)) == 40, 4.0, 1.0))[there]
    assert NEW_LEVEL not in suspicions(market_of(table))


def test_a_run_goes_on_with_the_renames_it_was_begun_with(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    renamed("OLD", "NEW").to_csv("bars.csv", index=False)
    (tmp_path / "renames.csv").write_text("old,new\nOLD,NEW\n")
    options = {"benchmark": None, "calendar": None}
    one = load_market("bars.csv", renames="renames.csv", **options)
    assert one.origin == {"path": str(tmp_path / "bars.csv"), "renames": str(tmp_path / "renames.csv"), **options}
    other = load_market("bars.csv", renames={"OLD": "NEW"}, **options)
    assert other.origin["renames"] == {"OLD": "NEW"}
    assert load_market(**other.origin).content_hash == one.content_hash


def test_the_command_line_takes_a_file_of_renames(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pd.concat([renamed("OLD", "NEW"), bars("QQQ", walk(3))]).to_csv("bars.csv", index=False)
    (tmp_path / "renames.csv").write_text("old,new\nOLD,NEW\n")
    with pytest.raises(SystemExit, match="0"):
        main(["data", "check", "bars.csv", "--renames", "renames.csv", "--calendar", "none"])
    assert "names joined, renamed: 1\n    NEW 2022-06-09 ticker OLD -> NEW" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["backtest", "equal-weight", "--market", "bars.csv", "--renames", "nowhere.csv"])
    assert "nowhere.csv" in capsys.readouterr().err
