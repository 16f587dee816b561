"""Bars a year of markets, and every figure that is scaled by them."""

import json
from datetime import UTC, datetime

import empyrical
import numpy as np
import pandas as pd
import pytest
from made_agents import tiny_train
from made_commands import run
from made_markets import make_market
from test_periods import days, prices

import finpod
from finpod.backtesting.comparison import compare
from finpod.backtesting.export import export
from finpod.errors import InputError
from finpod.evidence.attribution import attribute
from finpod.evidence.skill import evidence
from finpod.market.data import MarketData
from finpod.market.load import load_snapshot, save_snapshot
from finpod.measures import metrics
from finpod.records import ResultWarning
from finpod.report.sections import render
from finpod.report.training import render_training_report
from finpod.significance import sharpe_error
from finpod.tournament.history import read_history


def test_a_market_keeps_its_bars_a_year_in_every_part(tmp_path):
    market = MarketData(
        dates=days("2020-01-05", 60, "7D"), tickers=("A", "B", "C"), close=prices(60), benchmark_close=prices(60)[:, 0]
    )
    save_snapshot(market.rows(10, 14), tmp_path / "weekly")
    parts = [market, market.rows(3, 4), market.select(["B"]), load_snapshot(tmp_path / "weekly")]
    parts += [market.benchmark_market(), market.rows(10, 14).benchmark_market().rows(1, 2)]
    for part in parts:
        assert (part.periods_per_year, part.sessions_per_year, part.bars_per_session) == (52, 52, 1)
        assert "periods_note" not in part.manifest
    by_hand = market.with_periods(48)
    assert by_hand.content_hash == market.content_hash
    assert (by_hand.rows(0, 5).periods_per_year, by_hand.manifest) == (48, market.manifest)
    assert "about 52 bars" in market.with_periods(252).rows(0, 5).manifest["periods_note"]
    assert market.with_periods(252).with_periods(52).manifest == market.manifest


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
        (days("2015-01-05", 60, "7D"), 52),  # Mondays, some of them holidays
        (days("2015-01-31", 60, "ME"), 12),  # month-ends, a third of them no sessions
        (days("2010-12-31", 10, "YE"), 1),
    ],
)
def test_bars_that_are_weekly_or_longer_may_have_any_date(dates, expected):
    market = finpod.load_market(table_of(dates))
    assert np.array_equal(market.dates, dates)
    assert market.periods_per_year == expected
    assert market.manifest["repairs"] == []


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
    assert "252, but the dates are about 52 bars a year" in note
    result = finpod.backtest("buy-and-hold", wrong)
    assert ResultWarning("note", {"text": note}) in result.warnings
    save_snapshot(wrong, tmp_path / "weekly")
    assert finpod.load_market(tmp_path / "weekly").manifest["periods_note"] == note
    mended = finpod.load_market(tmp_path / "weekly", periods_per_year=52)
    assert (mended.periods_per_year, mended.manifest.get("periods_note")) == (52, None)
    assert "10 dates over 11 days" in make_market(prices(10)).manifest["periods_note"]


# every yearly figure follows


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def assert_empyrical(figures, returns, number):
    """CAGR, volatility and Sharpe ratio are those of empyrical at so many periods a year."""
    expected = {
        "cagr": empyrical.cagr(returns, annualization=number),
        "volatility": empyrical.annual_volatility(returns, annualization=number),
        "sharpe": empyrical.sharpe_ratio(returns, annualization=number),
    }
    assert {name: figures[name] for name in expected} == pytest.approx(expected, rel=1e-12, abs=1e-9)


@pytest.mark.parametrize(
    ("dates", "number", "calendar", "text"),
    [
        (days("2020-01-01", 731), 365, None, "365 sessions a year"),
        (days("2017-01-01", 200, "7D"), 52, "XNYS", "52 bars a year"),
    ],
)
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
    hours = days("2021-01-01", 24 * 60, "h")
    close, benchmark = prices(len(hours), seed=5), prices(len(hours))[:, 0]
    market = MarketData(dates=hours, tickers=("A", "B", "C"), close=close, benchmark_close=benchmark)
    result = finpod.backtest("equal-weight", market)
    assert (result.periods_per_year, result.sessions_per_year, result.is_intraday) == (8760, 365, True)
    assert_empyrical(vars(result.metrics), result.returns, 8760)
    daily = result.by_session()
    assert (daily.periods_per_year, daily.sessions_per_year, len(daily.returns)) == (365, 365, 60)
    assert_empyrical(vars(daily.metrics), daily.returns, 365)
    interval = evidence(result)["intervals"]["strategy"]["sharpe"]
    assert interval["estimate"] == pytest.approx(daily.metrics.sharpe)
    assert attribute(result).yearly_turnover == pytest.approx(result.turnover.mean() * 8760)
    assert not result.is_short
    assert finpod.backtest("equal-weight", market, end=market.dates[24 * 15]).is_short
    assert "yearly figures: 8,760 bars a year (365 sessions)" in str(result)


def test_g05_weekly_runs_are_compared_and_exported_at_52(tmp_path):
    market = finpod.load_market(table_of(days("2017-01-01", 200, "7D"), seed=4))
    runs = [finpod.backtest(name, market) for name in ("buy-and-hold", "equal-weight")]
    found = compare(runs)
    for result, figures in zip(runs, found.figures.values(), strict=True):
        assert figures["sharpe"] == pytest.approx(result.metrics.sharpe)
    assert json.loads(found.to_json())["periods_per_year"] == 52
    daily = finpod.backtest("buy-and-hold", make_market(prices(300)))
    with pytest.raises(InputError, match=r"52 bars a year.* 252 sessions a year"):
        compare([runs[0], daily])
    notes = export(runs[0], tmp_path / "weekly")
    assert sum("52 sessions a year" in note and "252" in note for note in notes) == 1
    assert json.loads((tmp_path / "weekly" / "export.json").read_text())["periods_per_year"] == 52


def test_g05_agents_are_scored_at_the_number_of_the_market(tmp_path):
    close, dates = prices(120, seed=6), days("2017-01-01", 120, "7D")
    market = MarketData(dates=dates, tickers=("A", "B", "C"), close=close, benchmark_close=close.mean(axis=1))
    ensemble = tiny_train(market, tmp_path / "strategies" / "weekly")
    frequency = {"periods_per_year": 52, "sessions_per_year": 52}
    assert {name: ensemble.provenance[name] for name in frequency} == frequency
    history = read_history(tmp_path / "strategies" / "weekly")
    assert history.frequency == frequency
    for trial in history.trials:
        ratio = metrics(returns=trial.returns, periods_per_year=52).sharpe  # of the returns over the baseline
        assert trial.metrics["information_ratio"] == pytest.approx(ratio)
        assert trial.score == pytest.approx(ratio - sharpe_error(trial.returns, periods_per_year=52))
    assert "less its standard error (52 bars a year)" in render_training_report(history)
    assert "yearly figures: 52 bars a year" in run("leaderboard weekly").out.splitlines()


def test_the_number_can_be_given_on_the_command_line():
    table_of(days("2017-01-01", 200, "7D")).to_csv("bars.csv", index=False)
    line = "audit equal-weight --market bars.csv --json --periods-per-year"
    assert "--periods-per-year is 0" in run(line, "0").error
    assert run(line, "100").code == 0
