"""Bars per year: the rule on dates, its use by markets, and every figure that is scaled by them."""

import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime

import empyrical
import exchange_calendars
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_agents import tiny_train
from made_bars import frame
from made_commands import run
from made_errors import refused
from made_markets import make_market

import finpod
from finpod.backtesting.comparison import compare
from finpod.backtesting.export import export
from finpod.evidence.attribution import attribute
from finpod.evidence.skill import evidence
from finpod.market.data import MarketData
from finpod.market.load import load_snapshot, save_snapshot
from finpod.measures import metrics, relative, rolling_sharpe, rolling_volatility
from finpod.periods import PeriodsWarning, contradiction, measure
from finpod.records import ResultWarning
from finpod.report.sections import render
from finpod.report.training import render_training_report
from finpod.significance import sharpe_error
from finpod.tournament.history import read_history

pytestmark = pytest.mark.usefixtures("apart")
SHANGHAI = exchange_calendars.get_calendar("XSHG", start="2012-01-01", end="2021-12-31").sessions.to_numpy()
SESSIONS = exchange_calendars.get_calendar("XNYS", start="2010-01-01", end="2024-12-31").sessions


def days(start, count, freq="D"):
    return pd.date_range(start, periods=count, freq=freq).to_numpy()


def sessions(count, *, first="2024-01-02", every=1):
    return SESSIONS[SESSIONS.searchsorted(pd.Timestamp(first)) :][::every][:count].to_numpy()


def prices(count, seed=0, names=3):
    """[count, names] closes with a small drift."""
    return 100 * np.cumprod(1 + np.random.default_rng(seed).normal(0.002, 0.03, (count, names)), axis=0)


def market_on(dates, seed=0):
    close = prices(len(dates), seed)
    return MarketData(dates=dates, tickers=("A", "B", "C"), close=close, benchmark_close=close.mean(axis=1))


@pytest.mark.parametrize(("dates", "expected", "note"), [
    (sessions(30), 252, None),
    (sessions(20, first="2019-12-20"), 252, None),  # three holidays in a month
    (days("2024-01-01", 30, "B"), 252, None),  # six weeks from a Monday to a Friday are 39 days
    (SHANGHAI, 252, None),  # 243 of them in most years
    (days("2020-01-01", 731), 365, None),
    (sessions(20, every=2), 126, None),
    (days("2020-01-05", 30, "7D"), 52, None),
    (days("2015-01-31", 40, "BME"), 12, None),
    (days("1990-12-31", 30, "YE"), 1, None),
    # too few dates for a measurement, but regular ones
    (["2024-06-28", "2024-07-05", "2024-07-11", "2024-07-19", "2024-07-26"], 52, None),  # a holiday on a Friday
    (["2024-05-31", "2024-06-28", "2024-07-31", "2024-08-30"], 12, None),  # last sessions, 28, 33 and 30 days apart
    (["2020-01-31", "2020-02-28", "2020-03-31", "2020-05-29", "2020-06-30"], 12, None),  # April is missing
    # too few dates, and not regular
    ([], 252, "0 dates over 0 days"),
    (sessions(19), 252, "19 dates over 27 days"),
    (days("2024-01-31", 3, "ME"), 252, "3 dates over 60 days"),  # two gaps are no rule
    (sessions(300, first="2012-01-03", every=3), 84, "unusual"),
    (days("1990-12-31", 30, "2YE"), 0.5, "unusual"),
])  # fmt: skip
def test_bars_a_year_are_usual_numbers_or_come_with_a_note(dates, expected, note):
    found = measure(np.array(dates, dtype="datetime64[ns]"))
    assert (found.sessions_per_year, found.bars_per_session) == (pytest.approx(expected, abs=0.01), 1)
    assert found.note == "" if note is None else note in found.note
    assert found.is_measured == (note is None or note == "unusual")


def test_holes_of_years_are_told():
    dates = np.r_[sessions(251, first="2012-01-03"), sessions(251, first="2018-01-02")]
    found = measure(dates)
    assert found.sessions_per_year == pytest.approx(71, abs=1)
    assert re.search(r"25\d without the long gaps \(up to \d+ days\)", found.note)
    assert contradiction(252, dates) == ""
    assert contradiction(52, dates) != ""


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


def test_few_dates_contradict_a_number_only_if_they_are_regular():
    assert contradiction(12, days("2024-01-31", 4, "ME")) == contradiction(12, sessions(8)) == ""
    assert "yearly figures use 252" in contradiction(252, days("2024-01-31", 4, "ME"))


def test_g05_metrics_measure_the_bars_a_year():
    returns = pd.Series([0.01, 0.02, -0.01, 0.03], pd.date_range("2024-01-31", periods=4, freq="ME"))
    assert metrics(returns=returns).sharpe == pytest.approx(2.535462764, abs=5e-10)
    assert metrics(returns=returns.to_numpy()).sharpe == pytest.approx(11.618950, abs=5e-7)
    with pytest.warns(PeriodsWarning, match="252, but the dates have about 12 bars per year") as warned:
        assert metrics(returns=returns, periods_per_year=252).sharpe == pytest.approx(11.618950, abs=5e-7)
    assert warned[0].filename == __file__
    for index in (
        pd.period_range("2024-01", periods=4, freq="M"),
        pd.Index(returns.index.date),
        pd.Index(returns.index.strftime("%Y-%m-%d")),
        returns.index.tz_localize("America/New_York"),
        pd.Index(returns.index.date, dtype="date32[day][pyarrow]"),
    ):
        assert metrics(returns=returns.set_axis(index)).sharpe == pytest.approx(2.535462764, abs=5e-10)
    frame = pd.DataFrame({"one": returns, "two": returns * 2})
    assert metrics(returns=frame).sharpe == pytest.approx([2.535462764, 2.535462764], abs=5e-10)


def test_g05_weekly_returns_are_measured_at_52_a_year():
    fridays = pd.date_range("2019-01-04", periods=199, freq="W-FRI")
    returns = pd.Series(np.random.default_rng(1).normal(0, 0.02, 199), fridays)
    found, daily = metrics(returns=returns), metrics(returns=returns.to_numpy())
    assert 1 + found.cagr == pytest.approx((1 + found.total_return) ** (52 / 199), rel=1e-12)
    assert found.sharpe == pytest.approx(daily.sharpe * math.sqrt(52 / 252), abs=1e-12)
    rolled, last = rolling_sharpe(returns, 60)[-1], metrics(returns=returns.iloc[-60:])
    assert (rolled, rolling_volatility(returns, 60)[-1]) == pytest.approx((last.sharpe, last.volatility))


def test_g05_relative_figures_are_scaled_as_the_common_dates_are():
    random = np.random.default_rng(2)
    dates = pd.date_range("2020-01-31", periods=36, freq="ME")
    equity, benchmark = (pd.Series(np.cumprod(1 + random.normal(0.01, 0.03, 36)), dates) for _ in range(2))
    assert relative(equity, benchmark) == relative(equity.to_numpy(), benchmark.to_numpy(), periods_per_year=12)
    assert relative(equity, benchmark.to_numpy()) == relative(equity, benchmark)
    daily = pd.Series(np.cumprod(1 + random.normal(0, 0.01, 1200)), pd.date_range("2020-01-01", periods=1200))
    assert relative(daily, benchmark).alpha == relative(daily.reindex(dates), benchmark).alpha


@pytest.mark.parametrize("number", [0, math.nan, math.inf, "252", True])
def test_numbers_that_cannot_be_are_refused(number, tmp_path):
    for call in (
        lambda: metrics([1, 2], periods_per_year=number),
        lambda: replace(make_market(prices(40)), periods_per_year=number),
        lambda: finpod.load_market(tmp_path / "nosuch.csv", periods_per_year=number),  # told before anything is read
    ):
        refused(re.escape(f"periods_per_year is {number!r};"), call)


DAYS = pd.DatetimeIndex(sessions(4))


@pytest.mark.parametrize(("index", "message"), [
    (DAYS[[0, 1, 2, 2]], "2024-01-04 is followed by 2024-01-04"),
    (DAYS[:3].append(pd.DatetimeIndex([pd.NaT])), "no date at position 3"),
    (DAYS.strftime("%Y-%m-%d")[[1, 0, 2, 3]], "2024-01-03 is followed by 2024-01-02"),
    (DAYS.tz_localize("Asia/Tokyo")[[0, 1, 2, 2]], "2024-01-04.* is followed by 2024-01-04"),
    (pd.Index(DAYS, dtype="timestamp[us][pyarrow]")[[1, 0, 2, 3]], "2024-01-03.* is followed by 2024-01-02"),
    ([0, 1, 0, 1], "1 is followed by 0"), (["Jan 2020", "Feb 2020", "Mar 2020", "Apr 2020"], "'Jan 2020'"),
    ([20240131, 20240229, 20240331, 20240430], "20240131"),
    ([pd.Timestamp("2024-01-02", tz=zone) for zone in ("UTC", "Asia/Tokyo", "UTC", "UTC")], "2024-01-02"),
])  # fmt: skip
def test_g07_labels_that_are_no_dates_in_order_are_refused(index, message):
    for call in (
        lambda values: metrics(values + 1),
        lambda values: metrics(returns=values.to_frame()),
        lambda values: relative([1.0, 2.0, 3.0, 4.0], values + 2),
        lambda values: rolling_volatility(values, 2),
    ):
        refused(message, call, pd.Series([-0.10, 0.30, -0.20, 0.05], index))


def test_g07_labels_that_are_no_dates_may_be_any_that_increase():
    values = [0.1, -0.1, 0.2, 0.1]
    for labels in ([3, 5, 7, 9], list("abcd")):
        assert metrics(returns=pd.Series(values, labels)) == metrics(returns=values)
    hours = pd.date_range("2024-10-01", "2024-11-30", freq="h", tz="America/New_York")  # an hour comes twice
    assert metrics(returns=pd.Series(np.linspace(-0.01, 0.011, len(hours)), hours)).days == len(hours)


def test_a_market_keeps_its_bars_a_year_in_every_part(tmp_path):
    market = market_on(days("2020-01-05", 60, "7D"))
    save_snapshot(market.rows(10, 14), tmp_path / "weekly")
    parts = [market, market.rows(3, 4), market.select(["B"]), load_snapshot(tmp_path / "weekly")]
    parts += [market.benchmark_market(), market.rows(10, 14).benchmark_market().rows(1, 2)]
    for part in parts:
        assert (part.periods_per_year, part.sessions_per_year, part.bars_per_session) == (52, 52, 1)
        assert "periods_note" not in part.manifest

    def with_periods(market, periods):
        return replace(market, periods_per_year=periods, sessions_per_year=None)

    by_hand = with_periods(market, 48)
    assert by_hand.content_hash == market.content_hash
    assert (by_hand.rows(0, 5).periods_per_year, by_hand.manifest) == (48, market.manifest)
    assert "about 52 bars" in with_periods(market, 252).rows(0, 5).manifest["periods_note"]
    assert with_periods(with_periods(market, 252), 52).manifest == market.manifest


def table_of(dates, seed=0):
    """A long table of AAA, BBB and QQQ on some dates."""
    close = prices(len(dates), seed).ravel()
    return frame(days=pd.DatetimeIndex(dates))[["date", "ticker"]].assign(close=close, adj_close=close)


def test_bars_that_are_weekly_or_longer_may_have_any_date():
    """Mondays, some of them holidays; month-ends, a third of them no sessions; and ends of years."""
    for first, freq, expected in (("2015-01-05", "7D", 52), ("2015-01-31", "ME", 12), ("2010-12-31", "YE", 1)):
        dates = days(first, 15, freq)
        market = finpod.load_market(table_of(dates))
        assert np.array_equal(market.dates, dates)
        assert (market.periods_per_year, market.manifest["repairs"]) == (expected, [])


def test_weekly_bars_of_weeks_that_are_not_over_are_dropped():
    dates = days("2024-01-07", 20, "7D")  # Sundays, at which weeks end
    friday = datetime(2024, 5, 17, 18, 0, tzinfo=UTC)  # before the close of the last session of the last week
    assert finpod.load_market(table_of(dates), now=friday).dates[-1] == dates[-2]
    assert finpod.load_market(table_of(dates), now=friday.replace(hour=21)).dates[-1] == dates[-1]


def test_a_number_given_by_hand_is_used_and_told(tmp_path):
    dates = days("2020-01-05", 60, "7D")
    market = finpod.load_market(table_of(dates), periods_per_year=52)
    assert (market.periods_per_year, market.manifest.get("periods_note")) == (52, None)
    wrong = finpod.load_market(table_of(dates), periods_per_year=252)
    assert (wrong.periods_per_year, wrong.content_hash) == (252, market.content_hash)
    note = wrong.manifest["periods_note"]
    assert "252, but the dates have about 52 bars per year" in note
    assert ResultWarning("note", {"text": note}) in finpod.backtest("buy-and-hold", wrong).warnings
    save_snapshot(wrong, tmp_path / "weekly")
    assert finpod.load_market(tmp_path / "weekly").manifest["periods_note"] == note
    mended = finpod.load_market(tmp_path / "weekly", periods_per_year=52)
    assert (mended.periods_per_year, mended.manifest.get("periods_note")) == (52, None)
    assert "10 dates over 11 days" in make_market(prices(10)).manifest["periods_note"]


def assert_empyrical(figures, returns, number):
    """CAGR, volatility and Sharpe ratio are those of empyrical at so many periods per year."""
    expected = {
        "cagr": empyrical.cagr(returns, annualization=number),
        "volatility": empyrical.annual_volatility(returns, annualization=number),
        "sharpe": empyrical.sharpe_ratio(returns, annualization=number),
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected, rel=1e-12, abs=1e-9)


@pytest.mark.parametrize(("dates", "number", "calendar", "text"), [
    (days("2020-01-01", 731), 365, None, "365 sessions per year"),
    (days("2017-01-01", 200, "7D"), 52, "XNYS", "52 bars per year"),
])  # fmt: skip
def test_g05_continuous_and_weekly_files_agree_with_empyrical(dates, number, calendar, text):
    market = finpod.load_market(table_of(dates, seed=3), calendar=calendar)
    result = finpod.backtest("buy-and-hold", market, costs=finpod.Costs(fee_bps=10))
    content = json.loads(result.to_json())
    assert_empyrical(content["metrics"], result.returns, number)
    steps = pd.Series(market.benchmark_close).pct_change().dropna()
    assert_empyrical(content["table"]["benchmark"], steps, number)
    assert (content["periods_per_year"], content["sessions_per_year"]) == (number, number)
    assert f"yearly figures: {text}" in str(result).splitlines()
    assert render(result).count(f"Yearly figures: {text}") == 2
    assert finpod.load_result(result.save("run")).metrics == result.metrics


def test_g05_what_goes_by_sessions_takes_the_number_of_the_market():
    market = market_on(days("2021-01-01", 24 * 60, "h"), seed=5)
    result = finpod.backtest("equal-weight", market)
    assert (result.periods_per_year, result.sessions_per_year, result.is_intraday) == (8760, 365, True)
    assert_empyrical(vars(result.metrics), result.returns, 8760)
    daily = result.by_session()
    assert (daily.periods_per_year, daily.sessions_per_year, len(daily.returns)) == (365, 365, 60)
    assert_empyrical(vars(daily.metrics), daily.returns, 365)
    assert evidence(result)["intervals"]["strategy"]["sharpe"]["estimate"] == pytest.approx(daily.metrics.sharpe)
    assert attribute(result)["yearly_turnover"] == pytest.approx(result.turnover.mean() * 8760)
    assert not result.is_short
    assert finpod.backtest("equal-weight", market, end=market.dates[24 * 15]).is_short
    assert "yearly figures: 8,760 bars per year (365 sessions)" in str(result)


def test_g05_weekly_runs_are_compared_and_exported_at_52(tmp_path):
    market = finpod.load_market(table_of(days("2017-01-01", 200, "7D"), seed=4))
    runs = [finpod.backtest(name, market) for name in ("buy-and-hold", "equal-weight")]
    found = compare(runs)
    for result, figures in zip(runs, found.figures.values(), strict=True):
        assert figures["sharpe"] == pytest.approx(result.metrics.sharpe)
    assert json.loads(found.to_json())["periods_per_year"] == 52
    daily = finpod.backtest("buy-and-hold", make_market(prices(300)))
    refused("fewer than two sessions in common", compare, [runs[0], daily])
    notes = export(runs[0], tmp_path / "weekly")
    assert sum("52 sessions per year" in note and "252" in note for note in notes) == 1
    assert json.loads((tmp_path / "weekly" / "export.json").read_text())["periods_per_year"] == 52


def test_g05_agents_are_scored_at_the_number_of_the_market(tmp_path):
    market = market_on(days("2017-01-01", 120, "7D"), seed=6)
    ensemble = tiny_train(market, tmp_path / "strategies" / "weekly")
    frequency = {"periods_per_year": 52, "sessions_per_year": 52}
    assert {name: ensemble.provenance[name] for name in frequency} == frequency
    history = read_history(tmp_path / "strategies" / "weekly")
    assert history.frequency == frequency
    for trial in history.trials:
        ratio = metrics(returns=trial.returns, periods_per_year=52).sharpe  # of the returns over the baseline
        assert trial.metrics["information_ratio"] == pytest.approx(ratio)
        assert trial.score == pytest.approx(ratio - sharpe_error(trial.returns, periods_per_year=52))
    assert "less its standard error (52 bars per year)" in render_training_report(history)
    assert "yearly figures: 52 bars per year" in run("leaderboard weekly").out.splitlines()
