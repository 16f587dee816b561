"""Add evidence to a result: warnings, baselines, random portfolios, figures at other fees and account sizes, audit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace

import pandas as pd
import torch

from finpod.evidence.attribution import flags
from finpod.evidence.replays import capacity, cost_sweep, random_portfolios
from finpod.files import Progress
from finpod.market.coverage import listed_during, missing_during
from finpod.records import Audit, ResultWarning
from finpod.result import BacktestResult
from finpod.rules import EqualWeight, baselines_for
from finpod.strategy import FeatureTable, Strategy
from finpod.trading.simulate import Path, Terms, Window, simulate
from finpod.weights import decisions_of

CLOSE = 0.05
"""Random portfolios are reported if their mean turnover differs from the strategy's by more than this fraction."""
SHOWN = 8
"""Largest number of missing members that a warning lists."""


def equity_of(path: Path, window: Window) -> pd.Series:
    """Return the equity of an account at the n + 1 closes of `window`, as a series by date. `path` is its history."""
    return pd.Series(path.equity.numpy(), pd.DatetimeIndex(window.dates, name="date"))


def with_audit(result: BacktestResult, audit: Audit) -> BacktestResult:
    """Return a copy of the result that contains the look-ahead audit. Its first warnings are those of the audit."""
    warnings = [ResultWarning("look_ahead", asdict(finding)) for finding in audit.findings]
    if audit.reason:
        warnings.append(ResultWarning("not_audited", {"reason": audit.reason, "note": audit.note}))
    return replace(result, audit=audit, warnings=(*warnings, *result.warnings))


def with_evidence(
    result: BacktestResult, path: Path, window: Window, terms: Terms, progress: Progress
) -> BacktestResult:
    """Return the result with baselines, random portfolios, and figures at other fees and account sizes.

    `path` is the history of the strategy's account, and `terms` are the costs, cash and caps of the account. A baseline
    that has the same name as the strategy is left out.
    """
    progress("baselines", 0.0)
    plain = terms.uncapped  # the recorded decisions respect the caps already
    rules, notes = baselines_for(window.market)
    table = FeatureTable(window.market)

    def run(rule: Strategy) -> Path:
        decide = decisions_of(rule, rule.name, window, table)
        return simulate(window.execution, window.first, window.last, decide, plain)

    rules = [rule for rule in rules if rule.name != result.strategy]
    others = {rule.name: run(rule) for rule in rules}
    failures = {rule.name: getattr(rule, "failures", 0) for rule in rules}
    notes += [ResultWarning("rule_fell_back", {"rule": rule, "days": days}) for rule, days in failures.items() if days]
    progress("random portfolios", 0.4)
    fan, reason, share = random_portfolios(path, window, terms)
    notes += [ResultWarning("no_random_portfolios", {"reason": reason})] if reason else []
    notes += [ResultWarning("random_turnover", {"share": share})] if abs(share - 1) > CLOSE else []
    progress("costs and capacity", 0.7)
    targets, equal = {result.strategy: path.targets}, run(EqualWeight()).targets
    if not torch.allclose(path.targets, equal, rtol=0, atol=1e-12, equal_nan=True):
        targets.setdefault("equal weight", equal)
    targets |= {name: other.targets for name, other in others.items()}
    return replace(
        result,
        baselines={name: equity_of(other, window) for name, other in others.items()},
        fan=fan,
        cost_sweep=cost_sweep(targets, window, plain, risk_free=result.risk_free),
        capacity=capacity(targets, window, plain, risk_free=result.risk_free),
        warnings=(*result.warnings, *notes),
    )


def warnings_of(result: BacktestResult) -> tuple[ResultWarning, ...]:
    """Return the warnings about ruin, selection of the strategy, benchmark, data and costs, and those of `flags`."""
    return (*_selection(result), *_benchmark(result), *_data(result), *flags(result))


def _selection(result: BacktestResult) -> Iterator[ResultWarning]:
    if result.ruined_on:
        yield ResultWarning("ruined", {"day": result.ruined_on})
    if result.in_sample:
        yield ResultWarning("in_sample", {"trained_until": result.trained_until})
    if result.is_short:
        yield ResultWarning("short_history", {"returns": len(result.equity) - 1})
    if result.trials > 1:
        on = "validation" if result.trained_until else "backtest"
        yield ResultWarning("many_trials", {"trials": result.trials, "on": on})


def _benchmark(result: BacktestResult) -> Iterator[ResultWarning]:
    kind, name = result.manifest.get("benchmark_kind"), {"benchmark": result.benchmark}
    if kind == "none":
        yield ResultWarning("no_benchmark")
    elif result.benchmark_equity.count() < 2:
        yield ResultWarning("empty_benchmark", name)
    elif cover := benchmark_cover(result):
        yield cover
    if kind == "price return":
        yield ResultWarning("price_return_benchmark", name)


def benchmark_cover(result: BacktestResult) -> ResultWarning | None:
    """Return a warning if the benchmark has two or more bars, but none on some dates of the window; otherwise None."""
    bars, window = result.benchmark_equity.dropna().index, result.benchmark_equity.index
    if not 1 < len(bars) < len(window):
        return None
    data = {"benchmark": result.benchmark, "bars": len(bars), "of": len(window)}
    return ResultWarning("benchmark_cover", data | {"first": f"{bars[0]:%Y-%m-%d}", "last": f"{bars[-1]:%Y-%m-%d}"})


def _data(result: BacktestResult) -> Iterator[ResultWarning]:
    """Yield warnings about the data, and a warning if fills, costs or bars per year differ from those in training."""
    manifest, window = result.manifest, (result.equity.index[0], result.equity.index[-1])
    if manifest.get("source") == "simulated":
        yield ResultWarning("simulated", {"title": manifest.get("title", "no title")})
    if manifest.get("survivorship"):
        membership = manifest.get("membership", "the list of assets is not point in time")
        yield ResultWarning("survivorship", {"membership": membership})
    missing = missing_during(manifest, *window) if "without_prices" in manifest else list(manifest.get("missing", ()))
    if missing:
        yield ResultWarning("missing_members", {"tickers": missing[:SHOWN], "count": len(missing)})
    listed = listed_during(manifest, *window)
    if listed is not None and not 0.99 * listed.size <= listed.members <= 1.05 * listed.size:
        yield ResultWarning("index_list", listed._asdict())
    if "membership" not in manifest:
        yield ResultWarning("unknown_universe")
    for note in (manifest.get("periods_note"), *manifest.get("notes", ())):
        if note:
            yield ResultWarning("note", {"text": str(note)})
    trained = result.agent.get("fill", result.fill)
    if trained != result.fill:
        yield ResultWarning("other_fill", {"trained": trained, "filled": result.fill})
    costs, used = result.agent.get("trading", {}).get("costs", {}), asdict(result.costs)
    if changed := [f"{name} = {value:g}" for name, value in costs.items() if value != used.get(name, value)]:
        yield ResultWarning("other_costs", {"trained": changed})
    trained, now = result.agent.get("periods_per_year", result.periods_per_year), result.periods_per_year
    if abs(trained / now - 1) > 0.1:
        yield ResultWarning("other_frequency", {"trained": trained, "now": now})
