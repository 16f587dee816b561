"""Figures of reference runs, texts of the report pages and help texts against the files in `golden/`.

After a change that is meant to alter them, run `pytest tests/test_golden_files.py --golden` and review the difference.
"""

import json
import math
from functools import cache

import numpy as np
import pytest
from made_logs import write_run
from made_markets import random_market
from made_pages import Page
from made_results import examined, make_result
from made_saved import SAVED, VALIDATED, saved_market
from made_strategies import does
from typer.main import get_command
from typer.testing import CliRunner

import finpod
from finpod.backtesting.comparison import compare
from finpod.cli import app
from finpod.report import pages
from finpod.report.compare import render_comparison
from finpod.report.sections import render
from finpod.report.training import render_training_report
from finpod.tournament.history import read_history

LEFT_OUT = {"agent", "audit", "contributions", "data_hash", "format", "manifest", "verdicts"}
"""Keys of result.json that hold provenance, or the same figures in another unit."""
POINTS = 8
"""Values of the equity curve that are kept of each run."""


def fallen_most(view):
    """Equal parts in the three assets that fell most in five days."""
    closes = view.closes(6)
    return finpod.top_k(closes[0] / closes[-1], 3, among=view.tradable & view.member)


def reversal(names, days, seed, first, **terms):
    """A run on a simulated market, from row `first` on; the strategy chooses again every fifth day."""
    market = finpod.simulate_market(names=names, days=days, signal=0.1, seed=seed)
    return finpod.backtest(does(fallen_most, every=5), market, start=market.dates[first], **terms)


def close_fills():
    momentum = finpod.load_strategy("momentum")
    market = finpod.sample_market()
    return finpod.backtest(momentum, market, start="2016-01-04", end="2017-12-29", fill="close", examine=True)


def delisting():
    equal_weight = finpod.load_strategy("equal-weight")
    return finpod.backtest(equal_weight, random_market(80), fill="open", delisting_return=-0.3)


def ensemble():
    market = saved_market()
    return finpod.backtest(finpod.load_strategy(SAVED / "ensemble"), market, start=market.dates[VALIDATED])


BY_SHARE = finpod.Costs(fee_bps=5, slippage_bps=2, per_share=0.005)
RUNS = {
    "open fills": lambda: reversal(8, 300, 1, 20, fill="open", risk_free=0.02),
    "close fills": close_fills,
    "whole shares": lambda: reversal(6, 200, 2, 10, costs=BY_SHARE, cash=5_000, whole_shares=True),
    "market impact": lambda: reversal(6, 200, 3, 30, costs=finpod.Costs(fee_bps=5, impact=1.0), cash=1e8),
    "delisting": delisting,
    "ensemble": ensemble,
}


@cache
def run(name):
    return RUNS[name]()


def figures(result):
    """Path in result.json -> number, and some values of the curve and of the trades."""
    flat = {}

    def walk(value, path):
        if isinstance(value, dict):
            for key in sorted(value.keys() - LEFT_OUT):
                walk(value[key], f"{path}/{key}".lstrip("/"))
        elif isinstance(value, list):
            for place, item in enumerate(value):
                walk(item, f"{path}/{place}")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            flat[path] = value

    walk(json.loads(result.to_json()), "")
    for row in np.linspace(0, len(result.equity) - 1, POINTS).round().astype(int):
        flat[f"equity/{result.equity.index[row]:%Y-%m-%d}"] = float(result.equity.iloc[row])
    for kind, trades in result.trades.groupby("kind"):
        flat[f"trades/{kind}"] = len(trades)
        flat[f"trades/{kind}/shares"] = float(trades["shares"].abs().sum())
    return flat


@pytest.mark.parametrize("name", RUNS)
def test_the_figures_of_a_reference_run(name, golden):
    """Of the ensemble the weights come from a float32 network, whose sums depend on the processor."""
    tolerance = 2e-5 if name == "ensemble" else 1e-9  # relative above 1 and absolute below
    actual = figures(run(name))
    file = f"{name.replace(' ', '_')}.json"
    expected = json.loads(golden(file, json.dumps(actual, indent=0, sort_keys=True) + "\n"))
    assert actual.keys() == expected.keys()
    wrong = {
        path: (actual[path], value)
        for path, value in expected.items()
        if not math.isclose(actual[path], value, rel_tol=tolerance, abs_tol=tolerance)
    }
    assert wrong == {}
    if name == "delisting":
        assert actual["trades/delisted"] > 0


@pytest.mark.parametrize("name", ["close fills", "ensemble"])
def test_the_printed_table_of_a_reference_run(name, golden):
    text = f"{run(name)}\n"
    assert text == golden(f"{name.replace(' ', '_')}.txt", text)


def backtest_page(folder):
    return render(examined(days=300, names=12, randoms=20))


def compare_page(folder):
    results = [make_result(seed=seed, days=300, names=5, strategy=f"strategy {seed}") for seed in range(2)]
    return render_comparison(compare(results))


def training_page(folder):
    return render_training_report(read_history(write_run(folder / "run", seeds=2, lost=[2], failed=[5])))


@pytest.mark.parametrize("page", [backtest_page, compare_page, training_page])
def test_the_text_of_a_page(page, golden, tmp_path, monkeypatch):
    monkeypatch.setitem(pages._templates().globals, "made_with", {"finpod": "of this test"})
    text = "\n".join(Page(page(tmp_path)).lines) + "\n"
    assert text == golden(f"{page.__name__}.txt", text)


def commands(command, path=()):
    """Every command line of the tree of commands, as words."""
    yield path
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from commands(child, (*path, name))


def test_the_help_of_every_command(golden, monkeypatch):
    monkeypatch.setenv("TERMINAL_WIDTH", "100")
    lines = [(*path, "--help") for path in commands(get_command(app))]
    lines += [(name, "--help-advanced") for name in ("train", "walkforward")]
    parts = []
    for line in lines:
        ended = CliRunner().invoke(app, line, prog_name="finpod", terminal_width=100)
        assert ended.exit_code == 0, ended.output
        parts.append(ended.output.strip())
    text = "\n\n".join(parts) + "\n"
    assert text == golden("help.txt", text)
