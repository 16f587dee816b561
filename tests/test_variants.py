"""The spread over seeds: variants of a strategy in result, table, JSON and report (case D24)."""

import json

import numpy as np
import pytest
from made_markets import random_market

from finpod.backtesting.engine import backtest
from finpod.backtesting.result_io import load_result
from finpod.strategy import Strategy


class Fixed(Strategy):
    """Always the same weights."""

    variant_kind = "seed"

    def __init__(self, name, *weights, variants=()):
        self.name, self.weights, self.variants = name, np.array(weights), variants

    def decide(self, view):
        return self.weights


SEEDS = [Fixed("seed 0", 1, 0, 0), Fixed("seed 1", 0.5, 0.5, 0), Fixed("seed 2", 0, 0.4, 0.6)]


@pytest.fixture(scope="module")
def market():
    return random_market(60, 3, gaps=0)


@pytest.fixture(scope="module")
def result(market):
    return backtest(Fixed("family", 0.5, 0.3, 0.2, variants=SEEDS), market)


def test_d24_each_variant_is_run_alone_on_the_same_terms(market, result):
    assert list(result.variants) == ["seed 0", "seed 1", "seed 2"]
    for strategy in SEEDS:
        alone = backtest(strategy, market)
        np.testing.assert_array_equal(result.variants[strategy.name].to_numpy(), alone.equity.to_numpy())
        assert result.spread[strategy.name]["sharpe"] == alone.metrics.sharpe
        assert result.spread[strategy.name]["excess_over_equal_weight"] == alone.relative_to_equal_weight.excess
    sharpes = [result.spread[f"seed {i}"]["sharpe"] for i in range(3)]
    assert result.spread["mean"]["sharpe"] == pytest.approx(np.mean(sharpes))
    assert result.spread["sd"]["sharpe"] == pytest.approx(np.std(sharpes, ddof=1))
    assert result.spread["count"]["sharpe"] == 3


def test_d24_table_json_and_report_show_the_spread_and_it_survives_saving(market, result, tmp_path):
    mean = result.spread["mean"]["sharpe"]
    assert f"Sharpe {mean:.2f} (" in str(result)
    assert json.loads(result.to_json())["spread"]["mean"]["sharpe"] == mean
    assert result.report(tmp_path / "family.html").read_text().count("seed 1") == 1
    loaded = load_result(result.save(tmp_path / "run"))
    assert loaded.to_json() == result.to_json()
    np.testing.assert_array_equal(loaded.variants["seed 2"].to_numpy(), result.variants["seed 2"].to_numpy())
    assert backtest(Fixed("alone", 1, 0, 0), market).spread == {}
