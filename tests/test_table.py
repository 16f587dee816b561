"""The text table and the writing of figures."""

import math

import numpy as np
import pandas as pd
import pytest
from made_results import make_result, trained

from finpod.backtesting.text import ROWS, agents_line, headline, spread_line
from finpod.evidence.assemble import warnings_of
from finpod.figures import count, money, percent, ratio, times
from finpod.records import Event


def row(text, label):
    return next(line for line in text.splitlines() if line.startswith(label)).removeprefix(label).split()


@pytest.mark.parametrize(
    ("written", "right"),
    [
        (percent(-1e-9), "0.00%"),
        (percent(math.nan), "n/a"),
        (percent(None), "n/a"),
        (percent(-0.12344), "-12.34%"),
        (percent(11.27), "1,127.00%"),
        (percent(0.05, 1), "5.0%"),
        (ratio(1.7468), "1.75"),
        (ratio(-math.inf), "n/a"),
        (times(2.998002), "3.00x"),
        (money(1_465_863.4), "1,465,863"),
        (money(-0.001), "0.00"),
        (money(12.5), "12.50"),
        (count(1104), "1,104"),
        (percent(1e250), "1e+252%"),
    ],
)
def test_e07_figures_are_written_plainly(written, right):
    assert written == right


def test_a30_text_shows_the_figures_of_the_result():
    result = make_result()
    text = str(result)
    metrics = (result.metrics, result.benchmark_metrics, result.equal_weight_metrics)
    assert row(text, "Sharpe") == [ratio(found.sharpe) for found in metrics]
    assert row(text, "Excess over benchmark")[0] == percent(result.relative.excess)
    assert result.relative.excess == result.metrics.total_return - result.benchmark_metrics.total_return
    assert row(text, "Buys") == [count((result.trades["shares"] > 0).sum())]
    assert row(text, "Time in cash") == ["5.00%"]


def test_a11_a13_short_histories_are_starred():
    assert row(str(make_result([100.0, 101.0])), "CAGR *")[0] == "1,127.40%"
    assert "*" not in str(make_result(days=20))
    rows = zip(headline(make_result(days=19)), ROWS, strict=True)
    assert all(label.endswith("*") == item.yearly for (label, _), item in rows)
    flat = str(make_result([1000.0] * 6))
    assert [row(flat, f"{label} *")[0] for label in ("Sharpe", "Calmar", "Volatility")] == ["n/a", "n/a", "0.00%"]


def test_a23_the_benchmark_may_miss_days():
    benchmark = pd.Series([400, 404, math.nan, 412.08], pd.bdate_range("2017-01-03", periods=4))
    text = str(make_result([100, 101, 102.01, 103.0301], benchmark_equity=benchmark))
    assert row(text, "Beta")[0] == "1.01"
    assert row(text, "Excess over benchmark")[0] == "0.01%"
    assert row(text, "Returns") == ["3", "2", "3"]
    unknown = str(make_result([100, 101, 102.01, 103.0301], benchmark_equity=benchmark * np.nan))
    assert row(unknown, "Total return")[1] == "n/a"


def test_c06_what_follows_the_table():
    events = tuple(Event(f"2018-03-0{day}", "no_price", f"N{day}") for day in range(1, 9))
    lines = str(trained(days=60, events=events)).splitlines()
    assert [sum(line.startswith(kind) for line in lines) for kind in ("turnover: ", "warning: ")] == [1, 1]
    shown = [line for line in lines if line.startswith("event: ")]
    assert [f"N{day}" in line for day, line in enumerate(shown, start=1)] == [True] * 5 + [False]


def test_names_cannot_break_the_table():
    """Long names are wrapped, and control characters left out."""
    benchmark = "S&P 500 price index (dividends left out), as stored"
    lines = str(make_result(days=60, strategy="two\nlines\x1b[31m" + "x" * 60, benchmark=benchmark)).splitlines()
    assert "\x1b" not in "".join(lines)
    assert "two lines" in lines[0]
    assert max(map(len, lines)) < 150


def test_d24_the_spread_and_the_best_agent_have_a_line():
    base = make_result(days=60)
    variants = {f"seed {i}": base.equity for i in range(3)}
    agents = {"a": base.equity, "b": base.equal_weight_equity}
    result = make_result(days=60, variants=variants, variant_kind="seed", agents=agents)
    assert spread_line(result).startswith("each of 3 seeds ")
    assert "understates" in spread_line(make_result(days=60, variants=variants, variant_kind="member"))
    assert f"Sharpe {ratio(base.metrics.sharpe)}, " in agents_line(result)
    assert (agents_line(base), spread_line(base)) == ("", "")


@pytest.mark.parametrize("missing", [[0, 1], [1], [0, 2, -1]])
def test_a23_a_benchmark_that_covers_a_part_is_told(missing):
    benchmark = make_result(days=40).benchmark_equity.copy()
    benchmark.iloc[missing] = math.nan
    part, bars = make_result(days=40, benchmark_equity=benchmark), benchmark.dropna()
    (warning,) = [warning for warning in warnings_of(part) if warning.code == "benchmark_cover"]
    first, last = (f"{bars.index[place]:%Y-%m-%d}" for place in (0, -1))
    assert warning.data == {"benchmark": "QQQ", "bars": len(bars), "of": 41, "first": first, "last": last}
