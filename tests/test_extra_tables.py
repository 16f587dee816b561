"""Extra tables: the first row that shows a value, the forms of a table, the manifest, and refused tables."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_bars import frame, refuses
from made_errors import refused
from numpy.testing import assert_array_equal

import finpod
from finpod.errors import DataError, InputError
from finpod.market.extra_tables import with_extra
from finpod.strategy import FeatureTable, MarketView

NAN = float("nan")
DAYS = ["2024-07-01", "2024-07-02", "2024-07-03", "2024-07-05", "2024-07-08", "2024-07-09"]
"""Six sessions: 3 July closes at 13:00 in New York, 4 July is a holiday, 6 and 7 July are a weekend."""


BASE = finpod.load_market(frame(days=pd.to_datetime(DAYS)))
INTRADAY = frame(days=pd.to_datetime([f"{day} {hour}" for day in DAYS[:2] for hour in ("09:30", "12:30", "15:30")]))


def load(extra, **options):
    return with_extra(BASE, extra, **options)


def pe(*rows, **columns):
    """A long table of (date, ticker, pe) or (date, ticker, pe, known_at)."""
    names = ["date", "ticker", "pe", "known_at"][: max(map(len, rows))]
    return pd.DataFrame(rows, columns=names).assign(**columns)


def shown(market, ticker="AAA", column="pe"):
    """The value of a ticker in each row."""
    return market.extra[column][:, market.tickers.index(ticker)].tolist()


@pytest.mark.parametrize(("known_at", "first"), [
    ("", "2024-07-02"),
    ("2024-07-02 16:00:01", "2024-07-03"),
    ("2024-07-02 4:30 PM", "2024-07-03"),
    ("2024-07-02T20:00:00Z", "2024-07-02"),
    ("2024-07-03 13:01", "2024-07-05"),  # a half day
    ("2024-07-04", "2024-07-05"),  # a holiday
    ("2024-07-06 10:00", "2024-07-08"),  # a weekend
    ("2024-06-20", "2024-07-01"),  # before the first row, and before its date: a forecast
    ("2024-07-09 16:01", None),
])  # fmt: skip
def test_g21_a_value_is_shown_from_the_first_session_that_closes_at_or_after_its_known_at(known_at, first):
    market = load(pe(("2024-07-02", "AAA", 7.0, known_at), ("2024-07-01", "BBB", 1.0, "")))
    start = len(DAYS) if first is None else DAYS.index(first)
    assert_array_equal(shown(market), [NAN] * start + [7.0] * (len(DAYS) - start))


def test_times_of_every_type_are_on_the_clock_of_the_exchange():
    aware = pd.to_datetime(["2024-07-02 20:00:01+00:00"])
    for known_at in (aware, aware.astype(pd.ArrowDtype(pa.timestamp("us", "UTC"))), [1719950401]):
        table = pe(("2024-07-01", "AAA", 7.0)).assign(known_at=known_at)
        assert_array_equal(shown(load(table)), [NAN, NAN, 7, 7, 7, 7])


def test_of_the_values_known_the_one_with_the_latest_date_is_shown_then_the_one_known_last():
    table = pe(
        ("2024-07-01", "AAA", 1.0, ""),
        ("2024-07-01", "AAA", 2.0, "2024-07-02"),  # a revision of the first
        ("2024-07-08", "AAA", 5.0, "2024-07-03"),  # a forecast for a later day
        ("2024-07-05", "AAA", 4.0, "2024-07-05"),  # older than the forecast
        ("2024-07-08", "AAA", NAN, "2024-07-08"),  # an empty cell is no value
    )
    for rows in (table, table.sample(frac=1, random_state=1)):
        market = load(rows)
        assert_array_equal(shown(market), [1, 2, 5, 5, 5, 5])
        facts = market.manifest["extra"]["pe"]
        assert (facts["values"], facts["never_shown"]) == (4, 1)


def test_in_an_intraday_market_a_time_is_compared_with_the_time_of_the_bar():
    """A day without a time counts from its close, whatever times other rows have. Without a calendar a time counts for its day."""
    rows = [("2024-07-01", "AAA", 7.0, "2024-07-01 12:30"), ("2024-07-01", "BBB", 8.0, "2024-07-01 12:31")]
    market = finpod.load_market(INTRADAY, extra=pe(*rows))
    assert_array_equal(shown(market), [NAN, 7, 7, 7, 7, 7])
    assert_array_equal(shown(market, "BBB"), [NAN, NAN, 8, 8, 8, 8])
    rows = [("2024-07-01", "AAA", 7.0, "2024-07-01"), ("2024-07-02", "BBB", 8.0, "2024-07-02 12:30")]
    utc = pd.to_datetime([row[3] for row in rows], utc=True, format="ISO8601")
    for table in (pe(*rows), pe(*rows).assign(known_at=utc)):
        assert_array_equal(shown(finpod.load_market(INTRADAY, extra=table)), [NAN, NAN, NAN, 7, 7, 7])
    table = pe(("2024-07-02", "AAA", 7.0, "2024-07-02 23:59"))
    assert_array_equal(shown(load(table, calendar=None)), [NAN, 7, 7, 7, 7, 7])


stamps = st.datetimes(pd.Timestamp("2024-06-28"), pd.Timestamp("2024-07-11"))
entries = st.lists(
    st.tuples(st.sampled_from(DAYS), st.sampled_from(["AAA", "BBB"]), st.integers(0, 5).map(float), stamps),
    min_size=1,
    max_size=12,
    unique_by=lambda row: (row[0], row[1], row[3]),
)
CLOSES = [pd.Timestamp(f"{day} {'13:00' if day == '2024-07-03' else '16:00'}") for day in DAYS]


def shown_by_the_rule(rows, ticker, close):
    """The value in a row that closes at `close`, by the words of the rule."""
    known = [(date, at, value) for date, name, value, at in rows if name == ticker and at <= close]
    return max(known)[2] if known else NAN


def seen_up_to(market, row):
    """Everything that a decision on a row can get of the extra columns."""
    view = MarketView(market, row, table=FeatureTable(market))
    names = ["return_5", "extra:pe"]
    return [view.extra("pe", row + 1), view.features(names), view.window(row + 1, names)]


@given(entries, entries, st.integers(0, len(DAYS) - 1))
@settings(max_examples=25, deadline=None)
def test_g21_the_rule_in_plain_python_and_rows_that_become_known_later_change_nothing_before(rows, more, row):
    before = load(pe(*rows))
    for ticker in ("AAA", "BBB"):
        assert_array_equal(shown(before, ticker), [shown_by_the_rule(rows, ticker, close) for close in CLOSES])
    later = [one for one in more if one[3] > CLOSES[row] and one[:2] + one[3:] not in {r[:2] + r[3:] for r in rows}]
    after = load(pe(*rows, *later))
    for one, other in zip(seen_up_to(before, row), seen_up_to(after, row), strict=True):
        assert_array_equal(one, other)


TABLE = pe(("2024-07-01", "AAA", 1.5), ("2024-07-01", "BBB", 2.5), ("2024-07-05", "AAA", 3.5))
EXPECTED = {"AAA": [1.5, 1.5, 1.5, 3.5, 3.5, 3.5], "BBB": [2.5] * 6}
FORMS = {
    "other spellings and another order": TABLE.set_axis(["Date", "Symbol", "pe"], axis=1).iloc[:, ::-1],
    "filtered rows": TABLE.iloc[[2, 0, 1]],
    "date as index": TABLE.set_index(pd.DatetimeIndex(TABLE["date"], name="date")).drop(columns="date"),
    "ticker and date as index without names": TABLE.set_index(["ticker", "date"]).rename_axis([None, None]),
    "pyarrow types": TABLE.assign(date=pd.to_datetime(TABLE["date"])).convert_dtypes(dtype_backend="pyarrow"),
    "text": TABLE.assign(ticker=TABLE["ticker"].str.lower(), pe=TABLE["pe"].astype(str)),
    "given twice": pd.concat([TABLE, TABLE]),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_table_is_read_alike(form):
    market = load(FORMS[form])
    assert market.extra.names == ("pe",)
    assert {ticker: shown(market, ticker) for ticker in market.tickers} == EXPECTED


def test_files_are_read_alike(tmp_path):
    TABLE.to_csv(tmp_path / "semicolons.csv", sep=";", decimal=",", index=False)
    TABLE.set_index(["date", "ticker"]).to_parquet(tmp_path / "levels.parquet")
    for path in tmp_path.iterdir():
        market = load(str(path))
        assert {ticker: shown(market, ticker) for ticker in market.tickers} == EXPECTED
        assert market.manifest["extra"]["pe"]["file"] == path.name


def test_several_tables_and_one_value_for_all_tickers():
    market = load([TABLE, pd.DataFrame({"date": ["2024-07-02", "2024-07-05"], "VIX": [12.5, 13.5]})])
    assert market.extra.is_shared("VIX")
    assert_array_equal(market.extra["VIX"].T, [[NAN, 12.5, 12.5, 13.5, 13.5, 13.5]] * 2)
    again = with_extra(market, TABLE.rename(columns={"pe": "roe"}))
    assert again.extra.names == tuple(again.manifest["extra"]) == ("pe", "VIX", "roe")
    assert shown(again, "BBB", "roe") == [2.5] * 6


def test_the_manifest_counts_what_was_read_and_what_is_never_shown():
    dates = ["2024-06-01", "2024-06-02", "2024-07-06", "2024-07-07"]
    rows = [(date, "AAA", value + 1.0) for value, date in enumerate(dates)]
    market = load(pe(*rows, ("2024-08-01", "BBB", 5.0), *(("2024-07-01", f"Z{i}", 1.0) for i in range(7))))
    facts = {"file": "the extra table", "per": "ticker", "values": 5, "never_shown": 3}
    facts |= {"unknown_tickers": {"count": 7, "first": ["Z0", "Z1", "Z2", "Z3", "Z4"]}}
    assert json.loads(json.dumps(market.manifest))["extra"] == {"pe": facts}
    assert_array_equal(shown(market), [2, 2, 2, 2, 4, 4])
    late = load(pe(("2030-01-02", "AAA", 1.0)))
    assert np.isnan(late.extra["pe"]).all()
    assert "pe" in late.manifest["notes"][-1]


KNOWN = "2024-07-02 10:00"


@pytest.mark.parametrize(("extra", "error", "word"), [
    (pe(("2024-07-01", "ZZZ", 1.0)), DataError, "ZZZ"),
    (pd.DataFrame({"date": ["2024-07-01"], "VIX": [1.0], "aaa": [1.0]}), DataError, "aaa"),
    (pd.concat({"pe": TABLE}, axis=1), DataError, "two levels"),
    (pe(("2024-07-01", "AAA", 1.0, KNOWN), ("2024-07-01", "AAA", 2.0, KNOWN)), DataError, KNOWN),
    (pd.DataFrame({"date": ["2024-07-01"] * 2, "vix": [1.0, 2.0]}), DataError, "vix dated 2024-07-01"),
    (TABLE.assign(roe=NAN), DataError, "roe"),
    (TABLE.assign(pe=[1.0, np.inf, 2.0]), DataError, "pe of BBB dated 2024-07-01 is inf"),
    (TABLE.iloc[:0], DataError, "no row"), (TABLE.drop(columns="pe"), DataError, "date, ticker"),
    (TABLE.drop(columns="date"), DataError, "no column 'date'"),
    (TABLE.rename(columns={"date": "datadate"}), DataError, "datadate"),
    (TABLE.assign(date=["2024-07-01", None, "2024-07-02"]), DataError, "row 2"),
    (TABLE.assign(known_at=20240702, **{"Known At": 20240703}), DataError, "known_at"),
    (TABLE.assign(roe=1.0).set_axis(["date", "ticker", "pe", "pe"], axis=1), DataError, "pe"),
    (TABLE.rename(columns={"pe": "member"}), InputError, "own_member"),
    (TABLE.rename(columns={"pe": "p,e"}), InputError, "'p,e'"), ([TABLE, TABLE], InputError, "pe"),
    ("nowhere.csv", InputError, "nowhere.csv"), (7, InputError, "extra is of type int"),
    (pd.Series([1.0, 2.0]), InputError, "extra is of type Series; give a frame (for a series: series.to_frame('NAME')"),
])  # fmt: skip
def test_bad_tables_end_in_one_line(extra, error, word):
    refuses(lambda: load(extra), word, error=error)


@pytest.mark.parametrize("known", [pd.to_datetime(["2024-01-10"]), [pd.Timestamp("2024-01-10").date()]])
def test_g21_a_column_of_dates_among_the_values_is_refused(known):
    """A day of publication under another name would be a number, and the values be shown before they were known."""
    refuses(lambda: load(pe(("2024-01-03", "AAA", 1.0), rdq=known)), "rdq")


def test_a_period_is_known_from_its_last_day_on():
    table = pd.DataFrame({"date": pd.period_range("2024Q1", periods=1, freq="Q"), "eps": [1.5]})
    closes = pd.DataFrame({"AAA": np.arange(100.0, 170)}, pd.bdate_range("2024-01-02", periods=70))
    market = finpod.load_market(closes, benchmark=None, extra=table)
    assert market.dates[np.isfinite(market.extra["eps"][:, 0])][0] == np.datetime64(
        "2024-04-01"
    )  # the quarter ends on a Sunday
    hours = pd.DataFrame({"AAA": 10.5 * np.arange(1, 8)}, pd.period_range("2024-01-02 09:00", periods=7, freq="h"))
    assert finpod.load_market(hours, benchmark=None, calendar=None).dates[1] == np.datetime64("2024-01-02T10:00")
    refused("members is of type DataFrame", finpod.load_market, closes, benchmark=None, members=closes > 0)


def test_an_old_symbol_in_a_table_means_the_company_that_had_it_on_that_day():
    days = pd.to_datetime(["2022-06-06", "2022-06-07", "2022-06-08"])
    market = finpod.load_market(frame(days=days).replace({"AAA": "META"}), benchmark=None)
    extra = pd.DataFrame({"date": days[:2], "ticker": "FB", "pe": [7.0, 8.0]})
    assert with_extra(market, extra).extra["pe"][:, market.tickers.index("META")].tolist() == [7.0, 8.0, 8.0]
