"""Exports: pyfolio, empyrical and quantstats compute the figures of finpod from them."""

import json
from dataclasses import asdict, replace

import empyrical
import numpy as np
import pandas as pd
import pytest
from made_errors import refused
from made_markets import intraday_market
from made_results import make_result, trained
from made_strategies import does

import finpod
from finpod.backtesting.export import export, to_pyfolio
from finpod.files import EXPORT
from finpod.rules import EqualWeight


@pytest.fixture(scope="module")
def market():
    return finpod.simulate_market(names=6, days=300, signal=0.1, seed=3)


def strongest(view):
    """Two of the first five names, a tenth in cash."""
    closes = view.closes(20)
    return 0.9 * finpod.top_k(closes[-1] / closes[0], 2, among=view.tradable & (np.arange(6) < 5))


@pytest.fixture(scope="module")
def result(market):
    return finpod.backtest(does(strongest, every=5), market, start=market.dates[60], fill="close")


def read_all(folder):
    """Every file of an export by the line of Python that export.json gives for it."""
    described = json.loads((folder / EXPORT).read_text())
    here = {"pd": pd}
    return {
        file.partition(".")[0]: eval(line.replace(f"'{file}'", repr(str(folder / file))), here)
        for file, line in described["files"].items()
    }


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_files_hold_what_memory_holds(result, tmp_path, form):
    notes = export(result, tmp_path / "out", format=form)
    found, expected = read_all(tmp_path / "out"), to_pyfolio(result)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {EXPORT, *(f"{name}.{form}" for name in found)}
    assert set(found) == {"returns", "positions", "transactions", "benchmark", "equal_weight"}
    for name, table in found.items():
        assert str(table.index.tz) == "UTC"
        equal = pd.testing.assert_series_equal if table.ndim == 1 else pd.testing.assert_frame_equal
        loose = dict.fromkeys(("check_freq", "check_names", "check_dtype", "check_index_type"), False)
        equal(table, getattr(expected, name), rtol=1e-15, **loose)
    assert notes == expected.notes


def test_tickers_that_look_like_something_else_stay_tickers(tmp_path):
    made, tickers = make_result(days=40, names=2), ["0700", "NA", "TRUE", "nan", "1e5", "date", ""]
    trades = made.trades.assign(ticker=np.resize(tickers, len(made.trades)))
    export(replace(made, trades=trades), tmp_path / "out")
    assert list(read_all(tmp_path / "out")["transactions"]["symbol"]) == list(trades["ticker"])


def test_transactions_explain_the_positions_and_these_the_account(result, market):
    """Shares summed up, times the last close, are the positions; money spent and costs are the change of cash."""
    series = to_pyfolio(result)
    np.testing.assert_allclose(series.positions.sum(axis=1), result.equity.iloc[1:], rtol=1e-12)
    assert (series.positions.drop(columns="cash") != 0).any().all()
    held = series.transactions.groupby("symbol")["amount"].sum() * pd.Series(market.close[-1], index=market.tickers)
    last = series.positions.iloc[-1].drop("cash")
    np.testing.assert_allclose(held.reindex(last.index), last, rtol=1e-9, atol=1e-9 * result.equity.iloc[-1])
    spent = (series.transactions["amount"] * series.transactions["price"]).sum() + result.fees
    assert result.equity.iloc[0] - spent == pytest.approx(series.positions["cash"].iloc[-1], abs=1e-6)


def test_a01_empyrical_finds_the_figures_of_finpod(result):
    series, own = to_pyfolio(result), result.metrics
    names = {"cum_returns_final": "total_return", "cagr": "cagr", "annual_volatility": "volatility",
             "sharpe_ratio": "sharpe", "sortino_ratio": "sortino", "max_drawdown": "max_drawdown",
             "calmar_ratio": "calmar"}  # fmt: skip
    for theirs, ours in names.items():
        assert getattr(empyrical, theirs)(series.returns) == pytest.approx(getattr(own, ours), rel=1e-12), ours
    assert empyrical.beta(series.returns, series.benchmark) == pytest.approx(result.relative.beta, rel=1e-12)
    ruined = to_pyfolio(make_result([1000, 900, 950, 0, 0])).returns  # with a loss on the first day
    assert (empyrical.max_drawdown(ruined), ruined.iloc[-1]) == (pytest.approx(-1.0), 0)


def test_pyfolio_takes_the_files_as_they_are(result, tmp_path, capsys):
    import matplotlib.pyplot as plt
    import pyfolio

    export(result, tmp_path / "out")
    found = read_all(tmp_path / "out")
    accounts = {"positions": found["positions"], "transactions": found["transactions"]}
    figures = pyfolio.timeseries.perf_stats(found["returns"], factor_returns=found["benchmark"], **accounts)
    assert figures["Sharpe ratio"] == pytest.approx(result.metrics.sharpe, rel=1e-12)
    assert figures["Max drawdown"] == pytest.approx(result.metrics.max_drawdown, rel=1e-12)
    assert figures["Gross leverage"] == pytest.approx(1 - result.cash_weight.iloc[1:].mean(), rel=1e-9)
    pyfolio.create_simple_tear_sheet(found["returns"], benchmark_rets=found["benchmark"], **accounts)
    assert plt.get_fignums()
    plt.close("all")
    capsys.readouterr()


def test_an_account_that_never_traded_has_neither_positions_nor_transactions():
    idle = make_result(np.full(30, 1000.0))
    series = to_pyfolio(replace(idle, weights=idle.weights * 0, trades=idle.trades[:0]))
    assert (series.positions, series.transactions) == (None, None)
    assert [note.partition(":")[0] for note in series.notes] == ["no positions", "no transactions"]


def test_a_benchmark_keeps_its_price_where_it_has_no_bar():
    made = make_result([100, 101, 102.01, 103.0301, 104])
    bars = pd.Series([400, 404, np.nan, 412.08, np.nan], made.equity.index)
    series = to_pyfolio(replace(made, benchmark_equity=bars))
    assert list(series.benchmark) == pytest.approx([0.01, 0, 0.02])
    assert list(series.benchmark.index) == list(series.returns.index[:3])
    assert "in sessions without a bar, the benchmark keeps its last price" in series.notes
    for without in (bars.where(bars == 404), bars * np.nan):
        assert to_pyfolio(replace(made, benchmark_equity=without)).benchmark is None


def test_intraday_results_go_session_by_session():
    intraday = finpod.backtest(EqualWeight(), intraday_market(20))
    series = to_pyfolio(intraday)
    days = pd.bdate_range("2024-01-01", periods=20, tz="UTC")
    assert list(series.returns.index) == list(days)
    assert (1 + series.returns).prod() - 1 == pytest.approx(intraday.metrics.total_return, rel=1e-12)
    assert (len(series.transactions), len(series.positions)) == (len(intraday.trades), 20)
    assert set(series.transactions.index) <= set(days)


def test_a25_an_existing_folder_is_refused_and_an_export_replaced_on_request(tmp_path):
    made, out = trained(30), tmp_path / "out"
    export(make_result(days=5), out)
    refused("out exists already", export, made, out)
    refused("xml", export, made, tmp_path / "other", format="xml")
    refused("not an export", export, made, made.save(tmp_path / "run"), overwrite=True)
    refused("'cash'", to_pyfolio, replace(made, weights=made.weights.rename(columns={"N01": "cash"})))
    export(made, out, format="parquet", overwrite=True)
    assert not (out / "returns.csv").exists()
    assert len(read_all(out)["returns"]) == 30
    assert json.loads((out / EXPORT).read_text())["warnings"] == [asdict(warning) for warning in made.warnings]
    zone = "America/New_York"  # of the dates, which changes no return
    aware = replace(made, equity=made.equity.tz_localize(zone), weights=made.weights.tz_localize(zone))
    assert to_pyfolio(made).returns.equals(to_pyfolio(aware).returns)
