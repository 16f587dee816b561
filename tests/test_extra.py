"""Extra columns: the first row that shows a value, refused tables, and columns in slices and snapshots."""

import json
import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_agents import make_setup, tiny_train
from made_agents import settings as agent_settings
from made_markets import random_market
from numpy.testing import assert_array_equal

import finpod
from finpod.errors import CheckpointError, DataError, InputError
from finpod.features import panel as features
from finpod.features.panel import build_panel, compute, resolve
from finpod.lookahead.perturbation import with_noise_after
from finpod.market import extra_tables
from finpod.market.extra import ExtraData
from finpod.market.extra_tables import with_extra
from finpod.market.snapshots import load_snapshot, save_snapshot
from finpod.strategy import FeatureTable, MarketView, Strategy, top_k
from finpod.tournament.pod import Slice, run_slice
from finpod.tournament.setup import from_shared

NAN = float("nan")
DAYS = ["2024-07-01", "2024-07-02", "2024-07-03", "2024-07-05", "2024-07-08", "2024-07-09"]
"""Six sessions: 3 July closes at 13:00 in New York, 4 July is a holiday, 6 and 7 July are a weekend."""


def bars(days=DAYS, tickers=("AAA", "BBB", "QQQ")):
    closes = 100 + np.arange(len(days) * len(tickers), dtype=float)
    rows = pd.MultiIndex.from_product([pd.to_datetime(days), tickers], names=["date", "ticker"])
    return pd.DataFrame({"close": closes}, index=rows).reset_index()


BASE = finpod.load_market(bars())


def load(extra, **options):
    return with_extra(BASE, extra, **options)


def pe(*rows, **columns):
    """A long table of (date, ticker, pe) or (date, ticker, pe, known_at)."""
    names = ["date", "ticker", "pe", "known_at"][: max(map(len, rows))]
    return pd.DataFrame(rows, columns=names).assign(**columns)


def shown(market, ticker="AAA", column="pe"):
    """What each row shows of a ticker."""
    return market.extra[column][:, market.tickers.index(ticker)].tolist()


# --- when a value is shown --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("known_at", "first"),
    [
        ("", "2024-07-02"),
        ("2024-07-02", "2024-07-02"),
        ("2024-07-02 09:00", "2024-07-02"),
        ("2024-07-02 16:00", "2024-07-02"),
        ("2024-07-02 16:00:01", "2024-07-03"),
        ("2024-07-02 4:30 PM", "2024-07-03"),
        ("2024-07-02T20:00:00Z", "2024-07-02"),
        ("2024-07-02T20:00:01Z", "2024-07-03"),
        ("2024-07-03T05:00:01+09:00", "2024-07-03"),
        ("2024-07-03 12:59", "2024-07-03"),
        ("2024-07-03 13:01", "2024-07-05"),  # a half day
        ("2024-07-04", "2024-07-05"),  # a holiday
        ("2024-07-06 10:00", "2024-07-08"),  # a weekend
        ("2024-06-20", "2024-07-01"),  # before the first row, and before its date: a forecast
        ("2024-07-09 16:01", None),
        ("2025-01-02", None),
    ],
)
def test_g21_a_value_is_shown_from_the_first_session_that_closes_at_or_after_its_known_at(known_at, first):
    market = load(pe(("2024-07-02", "AAA", 7.0, known_at), ("2024-07-01", "BBB", 1.0, "")))
    start = len(DAYS) if first is None else DAYS.index(first)
    assert_array_equal(shown(market), [NAN] * start + [7.0] * (len(DAYS) - start))


@pytest.mark.parametrize(
    "known_at",
    [
        pd.to_datetime(["2024-07-02 20:00:01+00:00"]),
        pd.to_datetime(["2024-07-02 16:00:01"]),
        pd.to_datetime(["2024-07-02 20:00:01+00:00"]).astype(pd.ArrowDtype(pa.timestamp("us", "UTC"))),
        [pd.Timestamp("2024-07-02 20:00:01+00:00").to_pydatetime()],
    ],
    ids=["aware", "naive", "arrow", "datetime"],
)
def test_times_of_every_type_are_on_the_clock_of_the_exchange(known_at):
    table = pe(("2024-07-01", "AAA", 7.0)).assign(known_at=known_at)
    assert_array_equal(shown(load(table)), [NAN, NAN, 7, 7, 7, 7])


def test_without_a_calendar_a_time_counts_for_its_day():
    table = pe(("2024-07-02", "AAA", 7.0, "2024-07-02 23:59"), ("2024-07-04", "BBB", 1.0, ""))
    market = load(table, calendar=None)
    assert_array_equal(shown(market), [NAN, 7, 7, 7, 7, 7])
    assert_array_equal(shown(market, "BBB"), [NAN, NAN, NAN, 1, 1, 1])


def test_of_the_values_known_the_one_with_the_latest_date_is_shown_then_the_one_known_last():
    table = pe(
        ("2024-07-01", "AAA", 1.0, ""),
        ("2024-07-01", "AAA", 2.0, "2024-07-02"),  # a revision of the first
        ("2024-07-08", "AAA", 5.0, "2024-07-03"),  # a forecast for a later day
        ("2024-07-05", "AAA", 4.0, "2024-07-05"),  # older than the forecast
        ("2024-07-08", "AAA", NAN, "2024-07-08"),  # an empty cell is no value
    )
    assert_array_equal(shown(load(table)), [1, 2, 5, 5, 5, 5])
    assert_array_equal(shown(load(table.sample(frac=1, random_state=1))), [1, 2, 5, 5, 5, 5])
    facts = load(table).manifest["extra"]["pe"]
    assert (facts["values"], facts["never_shown"]) == (4, 1)


def intraday_bars():
    times = [f"{day} {hour}" for day in DAYS[:2] for hour in ("09:30", "12:30", "15:30")]
    return bars(times)


def test_in_an_intraday_market_a_time_is_compared_with_the_time_of_the_bar():
    table = pe(("2024-07-01", "AAA", 7.0, "2024-07-01 12:30"), ("2024-07-01", "BBB", 8.0, "2024-07-01 12:31"))
    market = finpod.load_market(intraday_bars(), extra=table)
    assert_array_equal(shown(market), [NAN, 7, 7, 7, 7, 7])
    assert_array_equal(shown(market, "BBB"), [NAN, NAN, 8, 8, 8, 8])


def test_in_an_intraday_market_a_day_without_a_time_counts_from_its_close():
    market = finpod.load_market(intraday_bars(), extra=pe(("2024-07-01", "AAA", 7.0)))
    assert_array_equal(shown(market), [NAN, NAN, NAN, 7, 7, 7])


def test_a_day_stays_a_day_whatever_times_other_rows_have():
    rows = [("2024-07-01", "AAA", 7.0, "2024-07-01"), ("2024-07-02", "BBB", 8.0, "2024-07-02 12:30")]
    for table in (
        pe(rows[0]),
        pe(*rows),
        pe(*rows).assign(known_at=pd.to_datetime([row[3] for row in rows], utc=True, format="ISO8601")),
    ):
        market = finpod.load_market(intraday_bars(), extra=table)
        assert_array_equal(shown(market), [NAN, NAN, NAN, 7, 7, 7])


stamps = st.datetimes(pd.Timestamp("2024-06-28"), pd.Timestamp("2024-07-11"))
entries = st.lists(
    st.tuples(st.sampled_from(DAYS), st.sampled_from(["AAA", "BBB"]), st.integers(0, 5).map(float), stamps),
    min_size=1,
    max_size=12,
    unique_by=lambda row: (row[0], row[1], row[3]),
)
CLOSES = [pd.Timestamp(f"{day} {'13:00' if day == '2024-07-03' else '16:00'}") for day in DAYS]


def plainly_shown(rows, ticker, close):
    """What a row that closes at `close` shows, by the words of the rule."""
    known = [(date, at, value) for date, name, value, at in rows if name == ticker and at <= close]
    return max(known)[2] if known else NAN


@given(entries)
@settings(max_examples=50, deadline=None)
def test_the_rule_in_plain_python(rows):
    market = load(pe(*rows))
    for ticker in ("AAA", "BBB"):
        assert_array_equal(shown(market, ticker), [plainly_shown(rows, ticker, close) for close in CLOSES])


class Ranks(Strategy):
    """Holds the ticker with the highest value of a column."""

    def decide(self, view):
        return top_k(np.nan_to_num(view.extra("pe", 1)[0], nan=-1.0), 1, among=view.tradable)


def seen_up_to(market, row):
    """Everything that a decision on a row can get of the extra columns."""
    view = MarketView(market, row, table=FeatureTable(market))
    names = ["return_5", "extra:pe"]
    return [view.extra("pe", row + 1), view.features(names), view.window(row + 1, names), Ranks().decide(view)]


@given(entries, entries, st.integers(0, len(DAYS) - 1))
@settings(max_examples=50, deadline=None)
def test_g21_adding_rows_that_become_known_later_changes_no_view_feature_or_decision_before(rows, more, row):
    later = [one for one in more if one[3] > CLOSES[row] and one[:2] + one[3:] not in {r[:2] + r[3:] for r in rows}]
    before, after = load(pe(*rows)), load(pe(*rows, *later))
    for one, other in zip(seen_up_to(before, row), seen_up_to(after, row), strict=True):
        assert_array_equal(one, other)


# --- the forms of a table -----------------------------------------------------------------------------------------------


TABLE = pe(("2024-07-01", "AAA", 1.5), ("2024-07-01", "BBB", 2.5), ("2024-07-05", "AAA", 3.5))
EXPECTED = {"AAA": [1.5, 1.5, 1.5, 3.5, 3.5, 3.5], "BBB": [2.5] * 6}
WIDE = TABLE.pivot_table(index="date", columns="ticker", values="pe")


def write(frame, path):
    frame.to_parquet(path) if path.suffix == ".parquet" else frame.to_csv(path, index=frame.index.name is not None)
    return path


FORMS = {
    "long": TABLE,
    "another order of columns": TABLE[["pe", "ticker", "date"]],
    "other spellings": TABLE.rename(columns={"date": "Date", "ticker": "Symbol"}),
    "filtered rows": TABLE.iloc[[2, 0, 1]],
    "date as index": TABLE.set_index(pd.DatetimeIndex(TABLE["date"], name="date")).drop(columns="date"),
    "date and ticker as index": TABLE.set_index(["date", "ticker"]),
    "ticker and date as index without names": TABLE.set_index(["ticker", "date"]).rename_axis([None, None]),
    "series": TABLE.set_index(["date", "ticker"])["pe"],
    "series without a name": {"pe": TABLE.set_index(["date", "ticker"])["pe"].rename(None)},
    "wide": {"pe": WIDE},
    "wide with text as index": {"pe": WIDE.rename_axis(index=None, columns=None)},
    "wide with dates as column": {"pe": WIDE.reset_index()},
    "one column under a key": {"pe": TABLE.rename(columns={"pe": "value"})},
    "two levels": pd.concat({"pe": WIDE}, axis=1),
    "two levels, ticker first": pd.concat({"pe": WIDE}, axis=1).swaplevel(axis=1),
    "pyarrow types": TABLE.assign(date=pd.to_datetime(TABLE["date"])).convert_dtypes(dtype_backend="pyarrow"),
    "numbers as text": TABLE.astype({"pe": str}),
    "tickers in small letters": TABLE.assign(ticker=TABLE["ticker"].str.lower()),
    "wide, in small letters": {"pe": WIDE.rename(columns=str.lower)},
    "days as numbers": TABLE.assign(date=TABLE["date"].str.replace("-", "").astype(int)),
    "given twice": pd.concat([TABLE, TABLE]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_table_is_read_alike(form):
    market = load(FORMS[form])
    assert market.extra.names == ("pe",)
    assert {ticker: shown(market, ticker) for ticker in market.tickers} == EXPECTED


@pytest.mark.parametrize(
    ("name", "frame"),
    [
        ("any.csv", TABLE),
        ("any.parquet", TABLE),
        ("pe.csv", WIDE),
        ("pe.parquet", WIDE),
        ("levels.parquet", TABLE.set_index(["date", "ticker"])),
        ("semicolons.csv", TABLE),
        ("row_numbers.csv", TABLE),
    ],
)
def test_files_are_read_alike(name, frame, tmp_path):
    path = tmp_path / name
    if path.stem == "semicolons":
        frame.to_csv(path, sep=";", decimal=",", index=False)
    elif path.stem == "row_numbers":
        frame.to_csv(path)
    else:
        write(frame, path)
    market = load(str(path))
    assert {ticker: shown(market, ticker) for ticker in market.tickers} == EXPECTED
    assert market.manifest["extra"]["pe"]["file"] == name


def test_a_column_without_tickers_has_one_value_for_all(tmp_path):
    vix = pd.DataFrame({"date": ["2024-07-02", "2024-07-05"], "VIX": [12.5, 13.5]})
    for table in (vix, write(vix, tmp_path / "any.csv"), vix.set_index(pd.to_datetime(vix["date"]))["VIX"]):
        market = load(table)
        assert market.extra.is_shared("VIX")
        assert_array_equal(market.extra["VIX"].T, [[NAN, 12.5, 12.5, 13.5, 13.5, 13.5]] * 2)
    assert load({"vix": vix}).extra.names == ("vix",)


def test_several_tables_give_several_columns(tmp_path):
    vix = pd.DataFrame({"date": ["2024-07-02"], "vix": [12.5]})
    market = load([TABLE, {"roe": WIDE * 2}, write(vix, tmp_path / "macro.csv")])
    assert market.extra.names == ("pe", "roe", "vix")
    assert shown(market, "BBB", "roe") == [5.0] * 6
    again = with_extra(market, {"beta": WIDE})
    assert again.extra.names == ("pe", "roe", "vix", "beta")
    assert list(again.manifest["extra"]) == ["pe", "roe", "vix", "beta"]


# --- the manifest, and bad input ----------------------------------------------------------------------------------------


def test_the_manifest_counts_what_was_read_and_what_is_never_shown():
    table = pe(
        ("2024-06-01", "AAA", 1.0),
        ("2024-06-02", "AAA", 2.0),
        ("2024-07-06", "AAA", 3.0),
        ("2024-07-07", "AAA", 4.0),
        ("2024-08-01", "BBB", 5.0),
        *(("2024-07-01", f"Z{i}", 1.0) for i in range(7)),
    )
    market = load(table)
    assert market.manifest["extra"] == {
        "pe": {
            "file": "the extra table",
            "per": "ticker",
            "values": 5,
            "never_shown": 3,
            "known_before_the_first_session": 2,
            "known_after_the_last_session": 1,
            "unknown_tickers": {"count": 7, "first": ["Z0", "Z1", "Z2", "Z3", "Z4"]},
        }
    }
    assert_array_equal(shown(market), [2, 2, 2, 2, 4, 4])
    json.dumps(market.manifest)


def test_a_column_that_is_never_shown_is_noted():
    market = load(pe(("2030-01-02", "AAA", 1.0)))
    assert np.isnan(market.extra["pe"]).all()
    assert market.manifest["notes"][-1] == "the extra column pe shows no value: all were known after the last session"


@pytest.mark.parametrize(
    ("extra", "error", "message"),
    [
        (pe(("2024-07-01", "ZZZ", 1.0)), DataError, "none of its 1 tickers, such as ZZZ, is in the market"),
        ({"pe": WIDE.add_suffix("Z")}, DataError, "none of its 2 tickers, such as AAAZ, BBBZ, is in the market"),
        (WIDE, DataError, 'a column for each ticker and no name; give it as {"name": frame}'),
        (WIDE.assign(vix=1.0), DataError, "a column AAA, a ticker of the market, and a column vix, which is none"),
        (
            pe(("2024-07-01", "AAA", 1.0), ("2024-07-01", "AAA", 2.0)),
            DataError,
            "two values of pe of AAA dated 2024-07-01 and known at 2024-07-01: 1 and 2",
        ),
        (
            pe(("2024-07-01", "AAA", 1.0, "2024-07-02 10:00"), ("2024-07-01", "AAA", 2.0, "2024-07-02 10:00")),
            DataError,
            "dated 2024-07-01 and known at 2024-07-02 10:00:00: 1 and 2",
        ),
        (
            pd.DataFrame({"date": ["2024-07-01"] * 2, "vix": [1.0, 2.0]}),
            DataError,
            "two values of vix dated 2024-07-01",
        ),
        (TABLE.assign(pe=NAN), DataError, "the column pe holds no number"),
        (TABLE.assign(roe=NAN), DataError, "the column roe holds no number"),
        (TABLE.assign(pe=[1.0, np.inf, 2.0]), DataError, "pe of BBB dated 2024-07-01 is inf"),
        (TABLE.assign(pe=["1", "high", "2"]), DataError, "pe 'high' is not a number"),
        (TABLE.assign(firm="Acme"), DataError, "firm 'Acme' is not a number"),
        (TABLE.iloc[:0], DataError, "holds no row"),
        (TABLE.drop(columns="pe"), DataError, "has no column of values beside date, ticker"),
        (TABLE.drop(columns="date"), DataError, "has no column date"),
        (TABLE.assign(date="soon"), DataError, "'soon' is not a date"),
        (TABLE.assign(date=["2024-07-01", None, "2024-07-02"]), DataError, "row 2 has no date"),
        (TABLE.assign(ticker=["AAA", None, "BBB"]), DataError, "row 2 has no ticker"),
        (TABLE.assign(known_at="9999-12-31"), DataError, "'9999-12-31' is no date from 1700 to 2200"),
        (TABLE.assign(known_at="2024-07-01 18:00 EST"), DataError, "has a time that cannot be read"),
        (TABLE.assign(known_at="2024-07-01 6 PM"), DataError, "has a time that cannot be read"),
        (TABLE.assign(known_at=45293), DataError, "the date 45293 is a number"),
        (TABLE.assign(roe=1.0).set_axis(["date", "ticker", "pe", "pe"], axis=1), DataError, "has two columns pe"),
        (TABLE.rename(columns={"pe": "Close"}), InputError, "a column Close, which is the name of a table of finpod"),
        (TABLE.rename(columns={"pe": "volume"}), InputError, "rename it, such as own_volume"),
        (TABLE.rename(columns={"pe": "return_5"}), InputError, "which is the name of a feature of finpod"),
        (TABLE.rename(columns={"pe": "default"}), InputError, "which is the name of a feature of finpod"),
        (
            pd.DataFrame({"date": ["2024-07-01"], "aaa": [1.0]}),
            DataError,
            "a column aaa, a ticker of the market, if its letters are made capitals: it may be one variable by ticker, or",
        ),
        (TABLE.rename(columns={"pe": "p,e"}), InputError, "take the comma out of its name"),
        ([TABLE, TABLE], InputError, "two extra tables have the column pe"),
        ("nowhere.csv", InputError, "there is no extra table nowhere.csv; give a parquet or CSV file"),
        (7, InputError, "extra is 7; give a frame"),
        ({"pe": 7}, InputError, "extra is 7; give a frame"),
    ],
)
def test_bad_tables_end_in_one_line(extra, error, message):
    with pytest.raises(error) as caught:
        load(extra)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_name_of_every_feature_is_reserved():
    assert {*features.FEATURES, *features.SETS} == extra_tables.FEATURES


# --- views, features and what travels with a market ---------------------------------------------------------------------


@pytest.fixture
def market():
    """Five tickers over 130 rows with a column per ticker, NaN at first, and one value for all."""
    random = np.random.default_rng(0)
    score, rate = random.normal(size=(130, 5)), random.normal(size=130)
    score[:10], rate[:3] = NAN, NAN
    return replace(random_market(days=130, gaps=0.05), extra=ExtraData({"score": score, "rate": rate}, 5))


def test_a_view_shows_the_last_rows_and_no_more(market):
    view = MarketView(market, 20)
    assert view.extra_names == ("score", "rate")
    assert_array_equal(view.extra("score", 4), market.extra["score"][17:21])
    assert_array_equal(view.extra("rate", 2), np.repeat(market.extra["rate"][19:21, :1], 5, axis=1))
    early = MarketView(market, 1).extra("score", 4)
    assert early.shape == (4, 5)
    assert np.isnan(early).all()
    for column in ("score", "rate"):
        with pytest.raises(ValueError, match="read-only"):
            view.extra(column, 2)[0] = 1.0
    with pytest.raises(InputError, match="there is no extra column 'scores'; did you mean score"):
        view.extra("scores", 1)
    with pytest.raises(InputError, match=", since the market has none; give the table with extra="):
        MarketView(random_market(), 3).extra("score", 1)
    with pytest.raises(InputError, match="at least one row"):
        view.extra("score", 0)


def test_features_are_the_columns_where_there_is_a_bar(market):
    values = compute(market, ["extra:score", "extra:rate"]).numpy()
    for i, column in enumerate(("score", "rate")):
        assert_array_equal(values[..., i], np.where(market.has_bar, market.extra[column], NAN).astype(np.float32))
    panel = build_panel(market, ["return_5", "extra:score", "extra:rate"], fit=(20, 80))
    assert panel.scaling.kinds == ("cross", "cross", "pooled")
    assert panel.names == ("return_5", "extra:score", "extra:rate")
    again = build_panel(market, scaling=panel.scaling)
    assert_array_equal(again.features, panel.features)
    with pytest.raises(InputError, match="did you mean score"):
        resolve(market, ["extra:scor"])
    with pytest.raises(InputError, match="give the table with extra="):
        build_panel(random_market(days=130), scaling=panel.scaling)


def test_columns_are_cut_with_the_rows_and_tickers_of_their_market(market):
    rows = market.rows(5, 50)
    assert_array_equal(rows.extra["score"], market.extra["score"][5:50])
    assert_array_equal(rows.extra["rate"], market.extra["rate"][5:50])
    two = market.select(["D", "A"])
    assert_array_equal(two.extra["score"], market.extra["score"][:, [3, 0]])
    assert_array_equal(two.extra["rate"], market.extra["rate"][:, :2])
    holes = replace(market, benchmark_close=np.where(np.arange(130) == 7, NAN, market.benchmark_close))
    alone = holes.benchmark_market()
    assert alone.extra.names == ("score", "rate")
    assert_array_equal(alone.extra["rate"][:, 0], np.delete(market.extra["rate"][:, 0], 7))
    assert np.isnan(alone.extra["score"]).all()


def test_columns_of_another_shape_are_refused(market):
    for extra in (ExtraData({"score": np.zeros((130, 4))}, 4), ExtraData({"rate": np.zeros(129)}, 5)):
        with pytest.raises(DataError, match="the market has 130 rows and 5 tickers"):
            replace(market, extra=extra)


def test_the_hash_covers_the_columns_and_is_unchanged_without_them(market):
    plain = finpod.simulate_market(names=4, days=100)
    assert plain.content_hash.startswith("1082c82ba10df40e")  # on record: saved results name it
    hashes = {market.content_hash, market.rows(0, 129).content_hash, random_market(days=130, gaps=0.05).content_hash}
    for tables in (
        {"score": market.extra["score"]},
        {"other": market.extra["score"], "rate": market.extra["rate"][:, 0]},
        {"score": market.extra["score"], "rate": market.extra["rate"]},
        {"score": market.extra["score"] + 1, "rate": market.extra["rate"][:, 0]},
    ):
        hashes.add(replace(market, extra=ExtraData(tables, 5)).content_hash)
    assert len(hashes) == 7
    swapped = {"rate": market.extra["rate"][:, 0], "score": market.extra["score"]}
    assert replace(market, extra=ExtraData(swapped, 5)).content_hash == market.content_hash


def test_a_snapshot_keeps_the_columns(market, tmp_path):
    again = load_snapshot(save_snapshot(market, tmp_path / "snapshot"))
    assert again.content_hash == market.content_hash
    assert again.extra.names == market.extra.names
    assert [again.extra.is_shared(name) for name in again.extra.names] == [False, True]
    for name in market.extra.names:
        assert_array_equal(again.extra[name], market.extra[name])
    more = finpod.load_market(str(tmp_path / "snapshot"), extra=pd.DataFrame({"date": [again.dates[4]], "vix": [20.0]}))
    assert more.extra.names == ("score", "rate", "vix")
    assert_array_equal(more.extra["vix"][:, 0], [NAN] * 4 + [20.0] * 126)


FEATURES = ["return_5", "extra:score", "extra:rate"]


def test_columns_travel_to_pods_on_other_machines(market):
    setup = make_setup(market, features=FEATURES)
    there = from_shared(pickle.loads(pickle.dumps(setup.to_shared())))
    assert there.task.panel.names == tuple(FEATURES)
    assert there.task.market.content_hash == setup.task.market.content_hash
    piece = Slice(agent_settings(), None, False, 64, True)
    assert_array_equal(run_slice(there, piece).returns, run_slice(setup, piece).returns)


def test_an_agent_trains_on_the_columns_and_trades_where_they_are(market, tmp_path):
    tiny_train(market, tmp_path / "agent", features=FEATURES)
    agent = finpod.load_strategy(tmp_path / "agent")
    assert agent.features == tuple(FEATURES)
    start = str(market.dates[105])[:10]
    result = finpod.backtest(agent, market, start=start, examine=False)
    assert result.metrics.days > 10
    other = replace(market, extra=ExtraData({"score": -market.extra["score"], "rate": market.extra["rate"][:, 0]}, 5))
    assert not np.allclose(finpod.backtest(agent, other, start=start, examine=False).equity, result.equity)
    with pytest.raises(
        CheckpointError, match="agent was trained on extra:score, extra:rate; give the table with extra="
    ):
        finpod.backtest(agent, random_market(days=130, gaps=0.05), start=start)


def test_noise_after_a_row_leaves_what_was_known(market):
    other = with_noise_after(market, 60)
    for name in market.extra.names:
        assert_array_equal(other.extra[name][:61], market.extra[name][:61])
        assert not np.array_equal(other.extra[name][61:], market.extra[name][61:], equal_nan=True)
        assert other.extra.is_shared(name) == market.extra.is_shared(name)
    plain = replace(market, extra=ExtraData())
    assert_array_equal(with_noise_after(plain, 60).close, other.close)


@pytest.mark.parametrize(
    "known",
    [
        pd.to_datetime(["2024-01-10"]),
        pd.to_timedelta(["7D"]),
        [pd.Timestamp("2024-01-10").date()],
        pd.Series(pd.to_datetime(["2024-01-10"])).astype(pd.ArrowDtype(pa.date32())),
    ],
)
def test_g21_a_column_of_dates_among_the_values_is_refused(known):
    """A day of publication under another name would be a number, and the values be shown before they were known."""
    table = pd.DataFrame({"date": ["2024-01-03"], "ticker": ["AAA"], "pe": [1.0], "rdq": known})
    with pytest.raises(DataError, match="rdq"):
        load(table)
