"""Bars a year: the rule on dates, its use by markets, and yearly figures."""

import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import empyrical
import exchange_calendars
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_agents import tiny_train
from made_markets import make_market

import finpod
from finpod.backtesting.comparison import compare
from finpod.backtesting.export import export
from finpod.cli import main
from finpod.errors import DataError, InputError
from finpod.evidence.attribution import attribute
from finpod.evidence.skill import evidence
from finpod.figures import percent, ratio
from finpod.market.data import MarketData
from finpod.market.snapshots import load_snapshot, save_snapshot
from finpod.measures import metrics, relative, rolling_sharpe, rolling_volatility
from finpod.periods import PeriodsWarning, contradiction, measure
from finpod.records import ResultWarning
from finpod.report import render
from finpod.report.training import render_training_report
from finpod.significance import sharpe_error
from finpod.tournament.history import read_history

SESSIONS = exchange_calendars.get_calendar("XNYS", start="2010-01-01", end="2024-12-31").sessions


def days(start, count, freq="D"):
    return pd.date_range(start, periods=count, freq=freq).to_numpy()


def sessions(count, *, first="2024-01-02", every=1):
    """`count` sessions of New York from `first` on."""
    return SESSIONS[SESSIONS.searchsorted(pd.Timestamp(first)) :][::every][:count].to_numpy()


def prices(count, seed=0, names=3):
    """[count, names] closes with a small drift."""
    return 100 * np.cumprod(1 + np.random.default_rng(seed).normal(0.002, 0.03, (count, names)), axis=0)


# the rule


@pytest.mark.parametrize(
    ("dates", "expected"),
    [
        (sessions(30), 252),
        (sessions(2000, first="2012-01-03"), 252),
        (days("2024-01-01", 30, "B"), 252),  # six weeks from a Monday to a Friday are 39 days
        (sessions(20, first="2019-12-20"), 252),  # three holidays in a month
        (days("2015-01-01", 1300, "B"), 252),  # foreign exchange, five days a week
        (days("2020-01-01", 731), 365),
        (days("2020-01-01", 182), 365),
        (days("2020-01-01", 29), 365),
        (sessions(400, first="2012-01-03", every=2), 126),
        (sessions(20, every=2), 126),
        (days("2020-01-03", 200, "7D"), 52),
        (days("2020-01-05", 30, "7D"), 52),
        (days("2020-01-05", 60, "14D"), 26),
        (days("2015-01-31", 40, "ME"), 12),
        (days("2015-01-31", 40, "BME"), 12),
        (days("2010-03-31", 40, "QE"), 4),
        (days("1990-12-31", 30, "YE"), 1),
        # too few dates for a measurement, but regular ones
        (days("2020-01-03", 4, "7D"), 52),
        (["2024-06-28", "2024-07-05", "2024-07-11", "2024-07-19", "2024-07-26"], 52),  # a holiday on a Friday
        (["2024-01-31", "2024-02-29", "2024-03-31", "2024-04-30"], 12),
        (["2024-05-31", "2024-06-28", "2024-07-31", "2024-08-30"], 12),  # last sessions, 28, 33 and 30 days apart
        (["2020-01-31", "2020-02-28", "2020-03-31", "2020-05-29", "2020-06-30"], 12),  # April is missing
        (days("2020-03-31", 5, "QE"), 4),
        (days("2010-12-31", 10, "YE"), 1),
    ],
)
def test_usual_numbers_are_measured_without_a_note(dates, expected):
    found = measure(np.array(dates, dtype="datetime64[ns]"))
    assert (found.per_year, found.sessions_per_year, found.bars_per_session) == (expected, expected, 1)
    assert (found.note, found.is_measured) == ("", True)


@pytest.mark.parametrize("calendar", ["XLON", "XTKS", "XSHG", "XHKG", "XBOM", "BVMF"])
def test_every_exchange_has_252_sessions(calendar):
    dates = exchange_calendars.get_calendar(calendar, start="2012-01-01", end="2021-12-31").sessions.to_numpy()
    assert measure(dates).per_year == 252
    short = [measure(dates[first : first + 60]).per_year for first in range(0, len(dates) - 60, 20)]
    assert np.mean(np.array(short) == 252) > 0.97  # weeks of holidays remain, as at the Chinese new year


@pytest.mark.parametrize(
    ("dates", "fragment"),
    [
        ([], "0 dates over 0 days"),
        (sessions(1), "1 dates over 0 days"),
        (sessions(19), "19 dates over 27 days"),
        (days("2024-01-01", 28), "28 dates over 27 days"),
        (days("2024-01-31", 3, "ME"), "3 dates over 60 days"),  # two gaps are no rule
        (["2024-01-01", "2024-01-08", "2024-02-01", "2024-02-08", "2024-02-15", "2024-04-01", "2024-05-05"], "7 dates"),
    ],
)
def test_too_few_dates_are_252_with_a_note(dates, fragment):
    found = measure(np.array(dates, dtype="datetime64[ns]"))
    assert (found.sessions_per_year, found.is_measured) == (252, False)
    assert fragment in found.note
    assert "252 are assumed, give periods_per_year" in found.note


@pytest.mark.parametrize(
    ("dates", "expected"),
    [
        (sessions(300, first="2012-01-03", every=3), 84),
        (days("2020-01-01", 1200, "4D"), 91),
        (days("1990-12-31", 30, "2YE"), 0.5),
    ],
)
def test_other_numbers_are_rounded_with_a_note(dates, expected):
    found = measure(dates)
    assert found.sessions_per_year == pytest.approx(expected, abs=0.01)
    assert "no usual number" in found.note
    assert found.is_measured


@pytest.mark.parametrize(("years", "expected"), [(5, 71), (2, 126)])
def test_holes_of_years_are_told(years, expected):
    dates = np.r_[sessions(251, first="2012-01-03"), sessions(251, first=f"{2013 + years}-01-02")]
    found = measure(dates)
    assert found.sessions_per_year == pytest.approx(expected, abs=1)
    assert re.search(r"sessions a year, but 25\d without gaps of up to \d+ days; yearly figures use", found.note)
    assert contradiction(252, dates) == ""
    assert contradiction(52, dates) != ""


def test_bars_of_a_day_are_bars_of_one_session():
    hours = pd.date_range("2021-01-01", periods=24 * 200, freq="h").to_numpy()
    assert measure(hours)[:2] == (365, 24)
    assert measure(hours).per_year == 8760
    minutes = (sessions(60)[:, None] + np.timedelta64(570, "m") + np.arange(390) * np.timedelta64(1, "m")).ravel()
    assert measure(minutes[100:-100]).per_year == 252 * 390  # the first and the last session are not whole
    one_day = measure(minutes[:390])
    assert one_day.per_year == 252 * 390
    assert "1 dates" in one_day.note
    quarters = pd.date_range("2021-01-01", periods=96 * 100, freq="15min").to_numpy()
    assert measure(quarters).per_year == 365 * 96


@given(
    st.sampled_from([(1, 365), (7, 52), (14, 26)]),
    st.integers(150, 600),
    st.integers(0, 20_000),
    st.integers(1, 4),
    st.data(),
)
@settings(max_examples=60, deadline=None)
def test_gaps_order_and_time_of_day_do_not_matter(kind, count, first, bars, data):
    step, expected = kind
    dates = np.datetime64("1970-01-01") + first + step * np.arange(count)
    inner = data.draw(st.lists(st.integers(1, count - 2), unique=True, max_size=count // 40))
    dates = np.delete(dates, inner)
    hours = np.sort(data.draw(st.lists(st.integers(0, 23), unique=True, min_size=bars, max_size=bars)))
    stamps = (dates.astype("datetime64[h]")[:, None] + hours).ravel()
    stamps = data.draw(st.randoms(use_true_random=False)).sample(list(stamps), len(stamps))
    found = measure(np.array(stamps))
    assert (found.sessions_per_year, found.bars_per_session, found.note) == (expected, bars, "")
    assert contradiction(expected * bars, np.array(stamps)) == ""
    assert contradiction(expected * bars * 1.2, np.array(stamps)) != ""


@pytest.mark.parametrize(
    ("number", "dates", "agrees"),
    [
        (250, sessions(300, first="2012-01-03"), True),
        (260, sessions(300, first="2012-01-03"), True),
        (365, sessions(300, first="2012-01-03"), False),
        (252, days("2020-01-01", 300), False),
        (12, days("2024-01-31", 4, "ME"), True),
        (252, days("2024-01-31", 4, "ME"), False),
        (252, sessions(5), True),  # five dates say little
        (12, sessions(8), False),  # but not that they are months
        (12, sessions(2), True),
    ],
)
def test_a_number_given_by_hand_is_held_against_the_dates(number, dates, agrees):
    note = contradiction(number, dates)
    assert (note == "") == agrees
    if not agrees:
        assert note.startswith(f"periods_per_year is {number}, but the dates are about ")
        assert f"yearly figures use {number}" in note


# metrics


def test_g05_metrics_measure_the_bars_a_year():
    returns = pd.Series([0.01, 0.02, -0.01, 0.03], pd.date_range("2024-01-31", periods=4, freq="ME"))
    assert metrics(returns=returns).sharpe == pytest.approx(2.535462764, abs=5e-10)
    assert metrics(returns=returns.to_numpy()).sharpe == pytest.approx(11.618950, abs=5e-7)
    with pytest.warns(
        PeriodsWarning, match="periods_per_year is 252, but the dates are about 12 bars a year"
    ) as warned:
        assert metrics(returns=returns, periods_per_year=252).sharpe == pytest.approx(11.618950, abs=5e-7)
    assert warned[0].filename == __file__
    for index in (
        pd.period_range("2024-01", periods=4, freq="M"),
        pd.Index(returns.index.date),
        pd.Index(returns.index.strftime("%Y-%m-%d")),
        returns.index.tz_localize("America/New_York"),
        pd.Index(returns.index, dtype="timestamp[us][pyarrow]"),
        pd.Index(returns.index.date, dtype="date32[day][pyarrow]"),
        pd.CategoricalIndex(returns.index),
    ):
        assert metrics(returns=returns.set_axis(index)).sharpe == pytest.approx(2.535462764, abs=5e-10)
    frame = pd.DataFrame({"one": returns, "two": returns * 2})
    assert metrics(returns=frame).sharpe == pytest.approx([2.535462764, 2.535462764], abs=5e-10)


def test_g05_weekly_returns_as_they_were_tried():
    steps = np.random.default_rng(1).normal(0, 0.02, 199)
    steps += 1.16846 ** (1 / 199) / np.exp(np.log1p(steps).mean()) - 1
    steps[-1] = 1.16846 / np.prod(1 + steps[:-1]) - 1
    returns = pd.Series(steps, pd.date_range("2019-01-04", periods=199, freq="W-FRI"))
    found = metrics(returns=returns)
    assert found.total_return == pytest.approx(0.16846, abs=1e-12)
    assert found.cagr == pytest.approx(0.0415, abs=5e-5)
    assert metrics(returns=steps).cagr == pytest.approx(0.2179, abs=5e-5)
    assert found.sharpe == pytest.approx(metrics(returns=steps).sharpe * math.sqrt(52 / 252), abs=1e-12)
    rolled = rolling_sharpe(returns, 60), rolling_volatility(returns, 60)
    last = metrics(returns=returns.iloc[-60:])
    assert (rolled[0][-1], rolled[1][-1]) == (pytest.approx(last.sharpe), pytest.approx(last.volatility))


def test_g05_relative_figures_are_scaled_as_the_common_dates_are():
    random = np.random.default_rng(2)
    dates = pd.date_range("2020-01-31", periods=36, freq="ME")
    equity, benchmark = (pd.Series(np.cumprod(1 + random.normal(0.01, 0.03, 36)), dates) for _ in range(2))
    assert relative(equity, benchmark) == relative(equity.to_numpy(), benchmark.to_numpy(), periods_per_year=12)
    assert relative(equity, benchmark.to_numpy()) == relative(equity, benchmark)
    daily = pd.Series(np.cumprod(1 + random.normal(0, 0.01, 1200)), pd.date_range("2020-01-01", periods=1200))
    assert relative(daily, benchmark).alpha == relative(daily.reindex(dates), benchmark).alpha
    with pytest.warns(PeriodsWarning, match="about 12 bars a year"):
        relative(equity, benchmark, periods_per_year=252)
    hours = pd.date_range("2021-01-01", periods=24 * 60, freq="h")
    one, other = (pd.Series(np.cumprod(1 + random.normal(0, 0.01, len(hours))), hours) for _ in range(2))
    assert relative(one, other.iloc[5:]).beta == pytest.approx(relative(one.iloc[5:], other.iloc[5:]).beta)
    assert relative(one, other) == relative(one.to_numpy(), other.to_numpy(), periods_per_year=8760)


@pytest.mark.parametrize("number", [0, -12, math.nan, math.inf, "252", True, [252]])
def test_numbers_that_cannot_be_are_refused(number, tmp_path):
    market = make_market(prices(40))
    for call in (
        lambda: metrics([1, 2], periods_per_year=number),
        lambda: relative([1, 2, 3], [1, 2, 4], periods_per_year=number),
        lambda: market.with_periods(number),
        lambda: replace(market, periods_per_year=number),
        lambda: finpod.load_market(tmp_path / "nosuch.csv", periods_per_year=number),  # told before anything is read
    ):
        with pytest.raises(
            InputError, match=re.escape(f"periods_per_year is {number!r}; it must be a positive number")
        ):
            call()


def test_g07_repeated_and_unordered_dates_are_refused():
    dates = sessions(4)
    day = pd.DatetimeIndex(dates)
    repeated = pd.Series([100.0, 110, 121, 121], day[[0, 1, 2, 2]])
    mixed = pd.Series([-0.10, 0.30, -0.20, 0.05], day[[1, 0, 2, 3]])
    for call in (
        lambda values: metrics(values + 1),
        lambda values: metrics(returns=values),
        lambda values: metrics(returns=values.to_frame()),
        lambda values: relative(values + 2, [1.0, 2.0, 3.0, 4.0]),
        lambda values: relative([1.0, 2.0, 3.0, 4.0], values + 2),
        lambda values: rolling_sharpe(values, 2),
        lambda values: rolling_volatility(values, 2),
    ):
        with pytest.raises(InputError, match="has 2024-01-04 twice; keep one value a date"):
            call(repeated)
        with pytest.raises(
            InputError, match="out of order: 2024-01-03 is followed by 2024-01-02; sort it, oldest first"
        ):
            call(mixed)
        with pytest.raises(InputError, match="no date at position 3"):
            call(mixed.set_axis([*sorted(day[:3]), pd.NaT]))
    for index in (
        day.strftime("%Y-%m-%d"),
        pd.Index(day.date),
        pd.PeriodIndex(day, freq="D"),
        day.tz_localize("Asia/Tokyo"),
        pd.Index(day, dtype="timestamp[us][pyarrow]"),
    ):
        with pytest.raises(InputError, match=r"2024-01-03.* is followed by 2024-01-02"):
            metrics(returns=mixed.set_axis(index[[1, 0, 2, 3]]))
        with pytest.raises(InputError, match=r"has 2024-01-04.* twice"):
            metrics(repeated.set_axis(index[[0, 1, 2, 2]]))


def test_g07_labels_that_are_no_dates_must_increase_as_well():
    values = [0.1, -0.1, 0.2, 0.1]
    with pytest.raises(InputError, match="the series of returns is out of order: 1 is followed by 0"):
        metrics(returns=pd.Series(values, [0, 1, 0, 1]))
    with pytest.raises(InputError, match="has 1 twice"):
        metrics(returns=pd.Series(values, [0, 1, 1, 2]))
    assert metrics(returns=pd.Series(values, [3, 5, 7, 9])) == metrics(returns=values)
    assert metrics(returns=pd.Series(values, list("abcd"))) == metrics(returns=values)


def test_g05_whole_numbers_such_as_20240131_are_dates():
    months = pd.Series([0.01, 0.02, -0.01, 0.03], index=[20200131, 20200229, 20200331, 20200430])
    assert metrics(returns=months).sharpe == pytest.approx(2.535462764, rel=1e-9)


@pytest.mark.parametrize("labels", [["Jan 2020", "Feb 2020", "Mar 2020"], [1577836800, 1580515200, 1583020800]])
def test_g07_labels_that_may_be_dates_and_cannot_be_read_are_refused(labels):
    with pytest.raises(InputError, match=str(labels[0])):
        metrics(returns=pd.Series([0.01, 0.02, -0.01], index=labels))


def test_g07_an_hour_that_comes_twice_on_the_clock_is_not_repeated():
    hours = pd.date_range("2024-10-01", "2024-11-30", freq="h", tz="America/New_York")
    assert metrics(returns=pd.Series(np.linspace(-0.01, 0.011, len(hours)), hours)).days == len(hours)


# markets


def test_a_market_keeps_its_bars_a_year_in_every_part(tmp_path):
    market = MarketData(
        dates=days("2020-01-05", 60, "7D"), tickers=("A", "B", "C"), close=prices(60), benchmark_close=prices(60)[:, 0]
    )
    save_snapshot(market.rows(10, 14), tmp_path / "weekly")
    for part in (
        market,
        market.rows(10, 14),
        market.rows(3, 4),
        market.select(["B"]),
        market.benchmark_market(),
        market.rows(10, 14).benchmark_market().rows(1, 2),
        load_snapshot(tmp_path / "weekly"),
    ):
        assert (part.periods_per_year, part.sessions_per_year, part.is_intraday) == (52, 52, False)
        assert "periods_note" not in part.manifest
    by_hand = market.with_periods(48)
    assert by_hand.content_hash == market.content_hash
    assert (by_hand.rows(0, 5).periods_per_year, by_hand.manifest) == (48, market.manifest)
    assert "about 52 bars" in market.with_periods(252).rows(0, 5).manifest["periods_note"]
    assert market.with_periods(252).with_periods(52).manifest == market.manifest


def test_small_markets_say_that_252_are_assumed():
    market = make_market(prices(10))
    assert market.periods_per_year == 252
    assert "10 dates over 11 days are too few" in market.manifest["periods_note"]
    result = finpod.backtest(finpod.load_strategy("equal-weight"), market)
    assert ResultWarning("note", {"text": market.manifest["periods_note"]}) in result.warnings
    assert "periods_note" not in market.with_periods(252).manifest
    for count in (30, 300):  # those of an exchange are not few
        assert make_market(prices(count)).manifest == {}


def test_snapshots_of_before_are_measured(tmp_path):
    folder = save_snapshot(make_market(prices(60)), tmp_path / "daily")
    content = json.loads((folder / "manifest.json").read_text())
    for name in ("periods_per_year", "sessions_per_year"):
        assert content.pop(name) == 252
    (folder / "manifest.json").write_text(json.dumps(content))
    assert load_snapshot(folder).periods_per_year == 252
    (folder / "manifest.json").write_text(json.dumps(content | {"periods_per_year": -1, "sessions_per_year": 252}))
    with pytest.raises(DataError, match="is damaged"):
        load_snapshot(folder)


def table_of(dates, seed=0):
    """A long table of AAA, BBB and QQQ on some dates."""
    close = prices(len(dates), seed)
    return pd.DataFrame(
        {
            "date": np.repeat(np.asarray(dates, dtype="datetime64[ns]"), 3),
            "ticker": np.tile(["AAA", "BBB", "QQQ"], len(dates)),
            "close": close.ravel(),
            "adj_close": close.ravel(),
        }
    )


@pytest.mark.parametrize(
    ("dates", "expected"),
    [
        (days("2015-01-04", 60, "7D"), 52),  # Sundays
        (days("2015-01-03", 60, "7D"), 52),  # Saturdays
        (days("2015-01-05", 60, "7D"), 52),  # Mondays, some of them holidays
        (days("2015-01-31", 60, "ME"), 12),  # month-ends, a third of them no sessions
        (days("2015-01-01", 60, "MS"), 12),  # firsts of the month, New Year among them
        (days("2010-12-31", 10, "YE"), 1),
        (days("2015-01-31", 3, "ME"), 252),
    ],
)
def test_bars_that_are_weekly_or_longer_may_have_any_date(dates, expected):
    market = finpod.load_market(table_of(dates))
    assert np.array_equal(market.dates, dates)
    assert market.periods_per_year == expected
    assert market.manifest["repairs"] == []
    assert not any(entry["kind"] == "sessions without a bar" for entry in market.manifest["suspicions"])
    assert market.window("2015-01-01", "2015-01-31") == market.window(None, "2015-01-31") if expected == 12 else True


def test_weekly_bars_of_weeks_that_are_not_over_are_dropped():
    dates = days("2024-01-07", 20, "7D")  # Sundays, at which weeks end
    friday = datetime(
        2024, 5, 17, 18, 0, tzinfo=UTC
    )  # before the close of the last session of the week of the last bar
    assert finpod.load_market(table_of(dates), now=friday).dates[-1] == dates[-2]
    for later in (datetime(2024, 5, 17, 21, 0, tzinfo=UTC), datetime(2024, 5, 18, 12, 0, tzinfo=UTC)):
        assert finpod.load_market(table_of(dates), now=later).dates[-1] == dates[-1]


def test_a_number_given_by_hand_is_used_and_told(tmp_path):
    dates = days("2020-01-05", 60, "7D")
    market = finpod.load_market(table_of(dates), periods_per_year=52)
    assert (market.periods_per_year, market.manifest.get("periods_note")) == (52, None)
    wrong = finpod.load_market(table_of(dates), periods_per_year=252)
    assert (wrong.periods_per_year, wrong.content_hash) == (252, market.content_hash)
    note = "periods_per_year is 252, but the dates are about 52 bars a year"
    assert wrong.manifest["periods_note"].startswith(note)
    result = finpod.backtest(finpod.load_strategy("buy-and-hold"), wrong)
    assert any(str(warning.data.get("text")).startswith(note) for warning in result.warnings)
    assert note in str(result)
    assert note[1:] in render(result)
    save_snapshot(wrong, tmp_path / "weekly")
    assert finpod.load_market(tmp_path / "weekly").manifest["periods_note"].startswith(note)
    mended = finpod.load_market(tmp_path / "weekly", periods_per_year=52)
    assert (mended.periods_per_year, mended.manifest.get("periods_note")) == (52, None)
    assert finpod.load_market("sample", periods_per_year=250).periods_per_year == 250


# every yearly figure follows


KINDS = {
    "continuous": (days("2020-01-01", 731), 365, None, "365 sessions a year"),
    "weekly": (days("2017-01-01", 200, "7D"), 52, "XNYS", "52 bars a year"),
}


@pytest.fixture(params=list(KINDS))
def kind(request, tmp_path, monkeypatch):
    """A file of 24/7 or weekly bars in the working folder, and what is to come of it."""
    dates, number, calendar, text = KINDS[request.param]
    monkeypatch.chdir(tmp_path)
    table_of(dates, seed=3).to_csv(tmp_path / "bars.csv", index=False)
    return SimpleNamespace(number=number, calendar=calendar, text=text)


def assert_empyrical(figures, returns, number):
    """CAGR, volatility and Sharpe ratio are those of empyrical at so many periods a year."""
    expected = {
        "cagr": empyrical.cagr(returns, annualization=number),
        "volatility": empyrical.annual_volatility(returns, annualization=number),
        "sharpe": empyrical.sharpe_ratio(returns, annualization=number),
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected, rel=1e-12, abs=1e-9)


def test_g05_continuous_and_weekly_files_agree_with_empyrical(kind, capsys):
    market = finpod.load_market("bars.csv", calendar=kind.calendar)
    result = finpod.backtest(finpod.load_strategy("buy-and-hold"), market, costs=finpod.Costs(fee_bps=10))
    assert_empyrical(vars(result.metrics), result.returns, kind.number)
    steps = pd.Series(market.benchmark_close).pct_change().dropna()
    assert_empyrical(vars(result.benchmark_metrics), steps, kind.number)
    assert_empyrical(vars(metrics(result.equity)), result.returns, kind.number)
    content = json.loads(result.to_json())
    assert_empyrical(content["metrics"], result.returns, kind.number)
    assert_empyrical(content["table"]["benchmark"], steps, kind.number)
    assert (content["periods_per_year"], content["sessions_per_year"]) == (kind.number, kind.number)
    printed = {
        "CAGR": percent(empyrical.cagr(result.returns, annualization=kind.number)),
        "Volatility": percent(empyrical.annual_volatility(result.returns, annualization=kind.number)),
        "Sharpe": ratio(empyrical.sharpe_ratio(result.returns, annualization=kind.number)),
    }
    lines, page = str(result).splitlines(), render(result)
    for label, cell in printed.items():
        assert next(line for line in lines if line.startswith(label)).split()[1] == cell
        assert re.search(rf'<th scope="row">{label}</th><td>{re.escape(cell)}</td>', page)
    assert f"yearly figures: {kind.text}" in lines
    assert page.count(f"Yearly figures: {kind.text}") == 2
    result.save("run")
    assert finpod.load_result("run").metrics == result.metrics
    with pytest.raises(SystemExit):
        main(["backtest", "buy-and-hold", "--market", "bars.csv", "--calendar", kind.calendar or "none", "--json"])
    assert json.loads(capsys.readouterr().out)["metrics"] == content["metrics"]


def test_g05_what_goes_by_sessions_takes_the_number_of_the_market():
    hours = days("2021-01-01", 24 * 60, "h")
    market = MarketData(
        dates=hours,
        tickers=("A", "B", "C"),
        close=prices(len(hours), seed=5),
        benchmark_close=prices(len(hours))[:, 0],
        manifest={"membership": "made"},
    )
    result = finpod.backtest(finpod.load_strategy("equal-weight"), market)
    assert (result.periods_per_year, result.sessions_per_year, result.is_intraday) == (8760, 365, True)
    assert_empyrical(vars(result.metrics), result.returns, 8760)
    daily = result.by_session()
    assert (daily.periods_per_year, daily.sessions_per_year, len(daily.returns)) == (365, 365, 60)
    assert_empyrical(vars(daily.metrics), daily.returns, 365)
    interval = evidence(result)["intervals"]["strategy"]["sharpe"]
    assert interval["estimate"] == pytest.approx(daily.metrics.sharpe)
    assert attribute(result).yearly_turnover == pytest.approx(result.turnover.mean() * 8760)
    assert not result.is_short
    assert finpod.backtest(finpod.load_strategy("equal-weight"), market, end=market.dates[24 * 15]).is_short
    assert "yearly figures: 8,760 bars a year (365 sessions)" in str(result)


def test_g05_weekly_runs_are_compared_at_52():
    market = finpod.load_market(table_of(days("2017-01-01", 200, "7D"), seed=4))
    runs = [finpod.backtest(finpod.load_strategy(name), market) for name in ("buy-and-hold", "equal-weight")]
    found = compare(runs)
    for run, figures in zip(runs, found.figures.values(), strict=True):
        assert figures["sharpe"] == pytest.approx(run.metrics.sharpe)
        assert figures["yearly_turnover"] == pytest.approx(run.table["strategy"]["yearly_turnover"])
    assert json.loads(found.to_json())["periods_per_year"] == 52
    assert "yearly figures: 52 bars a year" in str(found)
    daily = finpod.backtest(finpod.load_strategy("buy-and-hold"), make_market(prices(300)))
    with pytest.raises(
        InputError, match=r"has 52 bars a year and .* 252 sessions a year; compare daily runs with daily"
    ):
        compare([runs[0], daily])


def weekly_market():
    close = prices(120, seed=6)
    return MarketData(
        dates=days("2017-01-01", 120, "7D"), tickers=("A", "B", "C"), close=close, benchmark_close=close.mean(axis=1)
    )


def test_g05_agents_are_scored_at_the_number_of_the_market(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ensemble = tiny_train(weekly_market(), tmp_path / "strategies" / "weekly")
    frequency = {"periods_per_year": 52, "sessions_per_year": 52}
    assert {name: ensemble.provenance[name] for name in frequency} == frequency
    history = read_history(tmp_path / "strategies" / "weekly")
    assert history.frequency == frequency
    for trial in history.trials:
        ratio = metrics(returns=trial.returns, periods_per_year=52).sharpe  # of the returns over the baseline
        assert trial.metrics["information_ratio"] == pytest.approx(ratio)
        assert trial.score == pytest.approx(ratio - sharpe_error(trial.returns, periods_per_year=52))
    assert "less its standard error (52 bars a year)" in render_training_report(history)
    for option in ("--json", "--top=3"):
        with pytest.raises(SystemExit):
            main(["leaderboard", "weekly", option])
        printed = capsys.readouterr().out
        if option == "--json":
            assert frequency.items() <= json.loads(printed).items()
        else:
            assert "yearly figures: 52 bars a year" in printed.splitlines()


def test_a_run_is_not_gone_on_with_at_another_number(tmp_path):
    def watch(status):
        if status.board.log:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny_train(weekly_market(), tmp_path / "weekly", watch=watch)
    with pytest.raises(InputError, match=r"periods_per_year was 52 and is 252; .* its scores would not compare"):
        tiny_train(weekly_market().with_periods(252), tmp_path / "weekly", resume=True)
    assert tiny_train(weekly_market(), tmp_path / "weekly", resume=True).provenance["periods_per_year"] == 52


def test_g05_an_export_says_how_many_returns_a_year_it_has(tmp_path):
    market = finpod.load_market(table_of(days("2017-01-01", 200, "7D"), seed=4))
    result = finpod.backtest(finpod.load_strategy("equal-weight"), market)
    notes = export(result, tmp_path / "weekly")
    assert sum("count 252 returns a year" in note and "these data have 52" in note for note in notes) == 1
    assert json.loads((tmp_path / "weekly" / "export.json").read_text())["periods_per_year"] == 52
    daily = finpod.backtest(finpod.load_strategy("equal-weight"), make_market(prices(300)))
    assert not any("returns a year" in note for note in export(daily, tmp_path / "daily"))


@pytest.mark.parametrize("command", ["audit equal-weight", "data check bars.csv"])
def test_the_number_can_be_given_on_the_command_line(command, kind, capsys):
    market = [] if "bars.csv" in command else ["--market", "bars.csv"]
    line = [*command.split(), *market, "--calendar", kind.calendar or "none", "--json"]
    for number, code in (("0", 2), ("100", 0)):
        with pytest.raises(SystemExit) as ended:
            main([*line, "--periods-per-year", number])
        assert ended.value.code == code
        assert ("--periods-per-year is 0" in capsys.readouterr().err) == (code == 2)
