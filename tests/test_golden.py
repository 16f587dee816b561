"""The ledger on real prices against figures computed independently; the table is read from the shared folder."""

import re
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from finpod import backtest, load_market, metrics
from finpod.market.data import MarketData
from finpod.result import BacktestResult
from finpod.rules import RULES
from finpod.trading.ledger import Costs

pytestmark = [pytest.mark.shared, pytest.mark.usefixtures("unaudited")]

FIGURES = ("total_return", "cagr", "volatility", "sharpe", "max_drawdown", "calmar")
WINDOWS = ("2020-05-26 .. 2021-05-26", "2019-05-13 .. 2021-05-26", "2016-01-04 .. 2020-05-22")
MEMBERS = dict(zip(WINDOWS, (103, 102, 101), strict=True))
NAMES = ("benchmark-hold", "buy-and-hold", "equal-weight")
SHORT = list(product(WINDOWS[:1], NAMES, ("close", "open"), (0, 10)))
LONG = [(*row, *terms) for *row, terms in product(WINDOWS[1:], NAMES[1:], (("close", 0), ("open", 10)))]


@cache
def golden_rows(shared: Path) -> dict[tuple, list[str]]:
    """Key (window, strategy, fill, fee in bps), or the window alone for the QQQ table -> the cells of its figures."""
    rows, window = {}, ""
    for line in (shared / "golden.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if not line.startswith("|") or len(cells) not in (8, 10):
            continue
        window = cells[0] if re.match(r"\d{4}-\d\d-\d\d \.\.", cells[0]) else window
        if len(cells) == 8 and cells[0] == window and window:
            rows[window] = cells[1:]
        elif len(cells) == 10 and (terms := re.fullmatch(r"(open|close), (\d+) bps", cells[2])):
            rows[window, cells[1], terms[1], int(terms[2])] = cells[3:]
    return rows


@pytest.fixture(scope="module")
def market(shared) -> MarketData:
    return load_market(shared / "data" / "nasdaq100_daily.parquet", members=shared / "data" / "nasdaq100_members.csv")


def run(market: MarketData, window: str, name: str, fill: str, fee: int) -> BacktestResult:
    start, end = window.split(" .. ")
    return backtest(RULES[name](), market, start=start, end=end, fill=fill, costs=Costs(fee_bps=fee))


def test_every_row_of_the_table_is_tested(shared):
    assert {key for key in golden_rows(shared) if isinstance(key, tuple)} == {*SHORT, *LONG}
    assert {key for key in golden_rows(shared) if isinstance(key, str)} == {*WINDOWS}


@pytest.mark.parametrize(("window", "name", "fill", "fee"), [*SHORT, *LONG])
def test_the_ledger_reproduces_the_table(shared, market, window, name, fill, fee):
    *figures, fees = golden_rows(shared)[window, name, fill, fee]
    result = run(market, window, name, fill, fee)
    found = [getattr(result.metrics, figure) for figure in FIGURES]
    assert found == pytest.approx([float(figure) for figure in figures], abs=1e-6, rel=0)
    assert result.fees == pytest.approx(float(fees.replace(",", "")), abs=0.5, rel=0)
    if name == "equal-weight":  # the column beside every other strategy is this very run
        assert result.equal_weight_metrics == result.metrics
    if name == "buy-and-hold":  # the members that have a bar on the decision day
        assert (result.trades["kind"] == "fill").sum() == MEMBERS[window]


@pytest.mark.parametrize("window", WINDOWS)
def test_qqq_on_the_windows_of_the_papers(shared, market, window):
    returns, *figures = golden_rows(shared)[window]
    first, last = market.window(*window.split(" .. "))
    found = metrics(market.benchmark_close[first : last + 1])
    assert found.days == int(returns)
    assert [getattr(found, name) for name in FIGURES] == pytest.approx([float(f) for f in figures], abs=1e-6, rel=0)
