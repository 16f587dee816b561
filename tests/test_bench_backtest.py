"""The lines of `finpod bench` on backtests: what is run, beside whom, and what makes a rate; never how fast."""

import sys
import time
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from finpod.backtesting.engine import backtest
from finpod.bench import backtests as bench
from finpod.synthetic import simulate_market


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in (("DAYS", 40), ("STRATEGIES", 3), ("RESAMPLES", 20)):
        monkeypatch.setattr(bench, name, value)
    for peer in ("vectorbt", "quantstats", "pyfolio"):
        monkeypatch.setitem(sys.modules, peer, None)


@pytest.fixture
def clock(monkeypatch):
    """A clock that only `tick` moves, by so many seconds."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return lambda seconds: now.__setitem__(0, now[0] + seconds)


def test_the_shortest_time_counts_and_the_first_call_does_not(clock):
    times = iter([0.25, 4.0, 2.0, 3.0, 5.0, 6.0])
    assert bench.shortest(lambda: clock(next(times)), 9.0) == 2.0
    assert next(times) == 5.0, "it went on until nine seconds had passed"


def test_two_calls_count_however_long_they_take(clock):
    times = iter([9.0, 8.0, 7.0, 1.0])
    assert bench.shortest(lambda: clock(next(times)), 0.001) == 7.0


def test_bars_are_names_times_returns_times_strategies(monkeypatch):
    monkeypatch.setattr(bench, "shortest", lambda call, seconds: (call() and None) or 0.5)
    lines = bench.backtest_lines(4, 1.0)
    assert tuple(lines) == bench.BACKTEST
    assert lines["backtest bars/s"] == lines["backtest exact bars/s"] == 4 * 40 / 0.5
    assert lines["backtest whole result bars/s"] == 4 * 40 / 0.5
    assert lines["backtest strategies at once bars/s"] == 3 * 4 * 40 / 0.5
    assert lines["backtest batch"] == "4 names x 40 returns; 3 strategies at once; shortest of several"
    for name in bench.BACKTEST:
        assert "vectorbt" not in name or lines[name] == "n/a: import of vectorbt halted; None in sys.modules"


def test_vectorbt_gets_the_same_weights_prices_and_fees(monkeypatch):
    asked = []

    class Portfolio:
        orders = SimpleNamespace(records_readable="")

        @classmethod
        def from_orders(cls, close, **given):
            print("chatter")
            warnings.warn("and more of it", DeprecationWarning, stacklevel=1)
            asked.append((close, given))
            return cls()

        def value(self):
            time.sleep(0.004)

        def asset_value(self, group_by):
            assert not group_by

    monkeypatch.setitem(sys.modules, "vectorbt", SimpleNamespace(Portfolio=Portfolio))
    lines = bench.backtest_lines(4, 0.01)
    close, given = asked[0]
    market = simulate_market(names=4, days=41)
    np.testing.assert_array_equal(close, market.close)
    np.testing.assert_array_equal(given["size"], bench.made_weights(3, market)[0])
    assert given["size"].index.equals(pd.DatetimeIndex(market.dates))
    assert (given["fees"], given["size_type"], given["cash_sharing"]) == (0.001, "targetpercent", True)
    own, peer = lines["backtest bars/s"], lines["backtest vectorbt bars/s"]
    assert lines["backtest / vectorbt"] == own / peer
    assert lines["backtest strategies at once / vectorbt"] == lines["backtest strategies at once bars/s"] / peer
    whole = lines["backtest vectorbt whole result bars/s"]
    assert whole < 4 * 40 / 0.004
    assert lines["backtest whole result / vectorbt"] == lines["backtest whole result bars/s"] / whole


def test_weights_are_made_alike_each_time_and_can_be_traded():
    market = simulate_market(names=5, days=30)
    weights = bench.made_weights(2, market)
    assert weights.shape == (2, 30, 5)
    assert weights.dtype == np.float32
    np.testing.assert_array_equal(weights, bench.made_weights(2, market))
    assert len(backtest(weights, market).equity) == 30


def test_the_bootstrap_is_the_one_of_the_result(monkeypatch):
    asked = []
    monkeypatch.setattr("finpod.significance.intervals", lambda *given, **terms: asked.append((given, terms)))
    lines = bench.bootstrap_lines(0.001)
    assert tuple(lines) == bench.BOOTSTRAP
    (own, others), terms = asked[0]
    assert own.shape == others["other"].shape == (40,)
    assert terms == {"resamples": 20}
    assert lines["bootstrap batch"] == "20 resamples of 2 series of 40 returns; shortest of several"


def test_reports_are_written_of_the_same_series(monkeypatch):
    own, sheets = [], []
    monkeypatch.setattr("finpod.result.BacktestResult.report", lambda self, path: own.append(self))

    def html(returns, benchmark, output):
        time.sleep(0.002)
        sheets.append(("quantstats", returns, benchmark))

    def full(returns, positions, transactions, benchmark_rets):
        time.sleep(0.002)
        sheets.append(("pyfolio", returns, benchmark_rets))

    monkeypatch.setitem(sys.modules, "quantstats", SimpleNamespace(reports=SimpleNamespace(html=html)))
    monkeypatch.setitem(sys.modules, "pyfolio", SimpleNamespace(create_full_tear_sheet=full))
    lines = bench.report_lines(4, 0.005)
    assert tuple(lines) == bench.REPORT
    result = own[0]
    assert lines["report batch"] == f"40 returns, {len(result.trades):,} trades; shortest of several"
    assert {name for name, *_ in sheets} == {"quantstats", "pyfolio"}
    for _, returns, benchmark in sheets:
        np.testing.assert_allclose(returns, result.returns)
        np.testing.assert_allclose(benchmark, result.benchmark_equity.pct_change().dropna())
    for peer in ("quantstats", "pyfolio"):
        assert lines[f"report {peer} seconds"] > 0.002
        assert lines[f"report / {peer}"] == lines["report seconds"] / lines[f"report {peer} seconds"]


def test_a_peer_that_fails_is_a_line_and_no_end(capsys):
    def breaks(peer):
        print("about to break")
        raise AttributeError("numpy has no attribute 'bool'\nand a long story")

    assert bench.beside("math", breaks) == "n/a: numpy has no attribute 'bool'"
    assert bench.beside("math", lambda peer: {}["nothing"]) == "n/a: 'nothing'"
    assert bench.beside("math", lambda peer: (_ for _ in ()).throw(ValueError())) == "n/a: ValueError"
    assert bench.beside("no_such_package", breaks) == "n/a: No module named 'no_such_package'"
    assert bench.beside("math", lambda peer: peer.floor(2.5)) == 2
    assert capsys.readouterr().out == ""
