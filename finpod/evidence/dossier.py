"""What must stand beside the result of a strategy: simple rules, random portfolios, other costs and sizes, the audit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace

import pandas as pd
import torch

from finpod.evidence.replays import capacity, cost_sweep, random_portfolios
from finpod.files import Progress
from finpod.lookahead.audit import quick_audit
from finpod.lookahead.packing import Packed
from finpod.records import Audit, ResultWarning
from finpod.result import BacktestResult
from finpod.rules import EqualWeight, baselines_for
from finpod.strategy import FeatureTable, Strategy
from finpod.trading.simulate import Path, Terms, Window, simulate
from finpod.weights import Decided, decisions_of


def with_audit(
    result: BacktestResult,
    strategy: Strategy | None,
    window: Window,
    before: Packed | None = None,
    run: Sequence[Decided] = (),
) -> BacktestResult:
    """The result with what the look-ahead audit of its decisions `run` found; what it tells is its first warning.

    `before` is the strategy as it was before the run: what it noted meanwhile is of later days.
    """
    if strategy is not None and before is not None:
        audit = quick_audit(strategy, window.market, before, run, (window.first, window.last))
    else:
        audit = Audit(None, subject="ready weights", reason="ready_weights")
    return replace(result, audit=audit, warnings=(*_warnings_of(audit), *result.warnings))


def _warnings_of(audit: Audit) -> Iterator[ResultWarning]:
    for finding in audit.findings:
        yield ResultWarning("look_ahead", asdict(finding))
    if audit.reason:
        yield ResultWarning("not_audited", {"reason": audit.reason, "note": audit.note})


def with_evidence(
    result: BacktestResult,
    strategy: Strategy,
    path: Path,
    window: Window,
    terms: Terms,
    *,
    seed: int = 0,
    progress: Progress = lambda doing, share: None,
) -> BacktestResult:
    """The result with its baselines, its fan, its cost sweep and its capacity.

    `path` is the account of the strategy in `window` on `terms`. Replays and random portfolios are functions of `seed`, so
    that two runs are identical.
    """
    progress("baselines", 0.0)
    plain = terms.uncapped  # the decisions that are replayed keep the caps already
    rules, notes = baselines_for(window.market)
    equal, table = EqualWeight(), FeatureTable(window.market)
    rules = [rule for rule in rules if (type(rule), rule.name) != (type(strategy), result.strategy)]
    others = {_label(rule.name, result): _run(rule, window, plain, table) for rule in rules}
    notes += [
        ResultWarning("rule_fell_back", {"rule": rule.name, "days": failures})
        for rule in rules
        if (failures := getattr(rule, "failures", 0))
    ]
    progress("random portfolios", 0.4)
    randoms = random_portfolios(path, window, terms, seed=seed)
    notes += [ResultWarning("no_random_portfolios", {"reason": randoms.reason})] if randoms.reason else []
    progress("costs and capacity", 0.7)
    targets, fair = {result.strategy: path.targets}, _run(equal, window, plain, table).targets
    itself = torch.allclose(path.targets, fair, rtol=0, atol=1e-12, equal_nan=True)
    if not itself:
        targets[_label("equal weight", result)] = fair
    targets |= {name: other.targets for name, other in others.items()}
    dates = pd.DatetimeIndex(window.dates, name="date")
    return replace(
        result,
        baselines={name: pd.Series(other.equity.numpy(), index=dates) for name, other in others.items()},
        fan=randoms.equity,
        cost_sweep=cost_sweep(targets, window, plain, risk_free=result.risk_free),
        capacity=capacity(targets, window, plain, risk_free=result.risk_free),
        warnings=(*result.warnings, *notes),
    )


def _label(rule: str, result: BacktestResult) -> str:
    """The name of a rule beside a result, which may have taken it for itself."""
    return rule if rule != result.strategy else f"{rule} (the rule)"


def _run(rule: Strategy, window: Window, terms: Terms, table: FeatureTable) -> Path:
    return simulate(window.execution, window.first, window.last, decisions_of(rule, rule.name, window, table), terms)
