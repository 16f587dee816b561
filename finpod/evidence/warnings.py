"""What to know before believing a backtest, as records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from finpod.evidence.attribution import flags
from finpod.market.coverage import listed_during, missing_during
from finpod.records import ResultWarning
from finpod.result import BacktestResult

SHOWN = 8
"""Missing members that are named."""


def warnings_of(result: BacktestResult) -> tuple[ResultWarning, ...]:
    """Warnings for the table and the report: how the strategy was chosen, then the data, the fills and the policy."""
    return (*_selection(result), *_benchmark(result), *_data(result), *_fills(result), *flags(result))


def benchmark_cover(result: BacktestResult) -> ResultWarning | None:
    """The part of the window that the benchmark covers; None if it is all of it, or too little for a figure."""
    bars, window = result.benchmark_equity.dropna().index, result.benchmark_equity.index
    if not 1 < len(bars) < len(window):
        return None
    data: dict[str, Any] = {
        "benchmark": result.benchmark,
        "bars": len(bars),
        "of": len(window),
        "first": f"{bars[0]:%Y-%m-%d}",
        "last": f"{bars[-1]:%Y-%m-%d}",
        "whole": bool(window[[0, -1]].equals(bars[[0, -1]])),
    }
    return ResultWarning("benchmark_cover", data)


def _selection(result: BacktestResult) -> Iterator[ResultWarning]:
    if result.in_sample:
        yield ResultWarning("in_sample", {"trained_until": result.trained_until})
    if result.is_short:
        yield ResultWarning("short_history", {"returns": len(result.equity) - 1})
    if result.trials > 1:
        on = "validation" if result.trained_until else "window"
        yield ResultWarning("many_trials", {"trials": result.trials, "on": on})


def _benchmark(result: BacktestResult) -> Iterator[ResultWarning]:
    kind = result.manifest.get("benchmark_kind")
    if kind == "none":
        yield ResultWarning("no_benchmark")
    elif result.benchmark_equity.count() < 2:
        yield ResultWarning("empty_benchmark", {"benchmark": result.benchmark})
    elif (cover := benchmark_cover(result)) is not None:
        yield cover
    if kind == "price return":
        yield ResultWarning("price_return_benchmark", {"benchmark": result.benchmark})


def _data(result: BacktestResult) -> Iterator[ResultWarning]:
    manifest = result.manifest
    missing = list(manifest.get("missing", ()))
    if "without_prices" in manifest:
        missing = missing_during(manifest, result.equity.index[0], result.equity.index[-1])
    if manifest.get("source") == "simulated":
        yield ResultWarning("simulated", {"title": manifest.get("title", "no title")})
    if manifest.get("survivorship"):
        membership = manifest.get("membership", "the list of assets is not point in time")
        yield ResultWarning("survivorship", {"membership": membership})
    if missing:
        yield ResultWarning("missing_members", {"tickers": missing[:SHOWN], "count": len(missing)})
    listed = listed_during(manifest, result.equity.index[0], result.equity.index[-1])
    if listed is not None and not 0.99 * listed.size <= listed.members <= 1.05 * listed.size:
        yield ResultWarning("index_list", listed._asdict())
    if "membership" not in manifest:
        yield ResultWarning("unknown_universe")
    notes = [*filter(None, [manifest.get("periods_note")]), *manifest.get("notes", ())]
    yield from (ResultWarning("note", {"text": str(note)}) for note in notes)


def _fills(result: BacktestResult) -> Iterator[ResultWarning]:
    """Whether it trades on other fills than it was trained with."""
    trained = result.agent.get("fill", result.fill)
    if trained != result.fill:
        yield ResultWarning("other_fill", {"trained": trained, "filled": result.fill})
