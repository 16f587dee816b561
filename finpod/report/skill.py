"""What speaks for the strategy and what against: luck, simple rules, costs, size and the audit, ready to print."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from finpod.backtesting.sentences import anchor_name, finding_sentence, hurdle, lead, luck_sentence, reason
from finpod.backtesting.text import columns
from finpod.evidence.skill import ANCHOR, BENCHMARK, EQUAL_WEIGHT, MEASURED, ONE_SIDED, SAMPLING
from finpod.figures import count, percent, plural, ratio
from finpod.measures import metrics, relative
from finpod.records import Audit
from finpod.report.provenance import Table

if TYPE_CHECKING:
    from finpod.result import BacktestResult

_MEASURES: tuple[tuple[str, str, Callable[..., str], int], ...] = (
    ("sharpe", "Sharpe ratio", ratio, 2),
    ("cagr", "CAGR", percent, 1),
    ("max_drawdown", "Max drawdown", percent, 1),
)
"""What there are intervals of: key, heading, how it is written, and digits of the ends; the estimate has two."""
_SOURCES = {
    MEASURED: " (measured in the search)",
    SAMPLING: " (sampling deviation of a ratio of zero, 1 / sqrt(years))",
}
"""Where the deviation of the candidates comes from."""
_SHORT_NAME = 12
"""Letters up to which the benchmark is called by its name beside figures."""
_ROOM = 0.06
"""Share of a drawn scale that is left free at both ends."""


class Mark(NamedTuple):
    """A bar on a line beside its figures; all in percent of the line."""

    left: float
    """Where the bar begins."""
    width: float
    """How long it is."""
    zero: float
    """Where zero lies."""
    dot: float | None = None
    """Where the estimate lies."""
    tone: str = ""
    """'gain', 'loss' or '': whether the bar lies above zero, below it, or covers it."""


class Span(NamedTuple):
    """One row of the table of intervals."""

    label: str
    """What the figure is of."""
    estimate: str
    """The figure itself."""
    interval: str
    """From where to where it may lie."""
    said: str
    """Where zero lies, for readers who do not see the drawing."""
    mark: Mark | None
    """The drawing; None if it is undefined."""


def audited(result: BacktestResult) -> dict[str, Any]:
    """Whether the look-ahead audit failed, and whether it could not tell, by the names the templates use."""
    audit = result.audit
    failed, untold = (audit is not None and audit.passed is outcome for outcome in (False, None))
    return {"audit_failed": failed, "unaudited": untold}


def audit_box(result: BacktestResult) -> dict[str, Any]:
    """What the audit found where it did not pass."""
    findings = [] if result.audit is None else [finding_sentence(finding) for finding in result.audit.findings]
    return audited(result) | {"audit": audit_line(result.audit), "findings": findings}


def audit_line(audit: Audit | None) -> str:
    """What the look-ahead audit found in a few words; empty if none was run."""
    if audit is None:
        return ""
    if audit.passed is None:
        return f"Look-ahead audit: not audited: {reason(audit.reason, audit.note)}"
    span = f"on {plural(len(audit.days), 'day')}"
    if not audit.passed:
        return f"Look-ahead audit: failed {span}"
    beside = "; what it does not cover stands under Provenance" if audit.unchecked else ""
    return f"Look-ahead audit: passed {span}{beside}"


def not_run(result: BacktestResult) -> str:
    """Which of the usual comparisons this result lacks; empty if none."""
    missing = [
        part
        for part, found in (
            ("look-ahead audit", result.audit is not None and result.audit.passed is not None),
            ("simple rules", len(result.baselines) > 0),
            ("random portfolios", len(result.fan) > 0),
            ("other fees", len(result.cost_sweep) > 0),
            ("other sizes", len(result.capacity) > 0),
        )
        if not found
    ]
    return f"Not run for this result: {', '.join(missing)}." if missing else ""


def luck(result: BacktestResult, found: Mapping[str, Any]) -> dict[str, Any] | None:
    """The section on luck: sentence, intervals by measure, and the probabilities in words; None for a short history."""
    groups = [
        (title, spans)
        for measure, title, show, places in _MEASURES
        if (spans := _spans(result, found, measure, show, places))
    ]  # [(measure, rows)]
    answers = probabilities(result, found)
    if not groups and not answers:
        return None
    return {
        "sentence": luck_sentence(result),
        "level": f"{100 * found.get('level', 0.95):g} %",
        "groups": groups,
        "answers": answers,
        "note": (
            f"Block bootstrap of the returns, {count(found['resamples'])} resamples; " if found.get("resamples") else ""
        )
        + "the upright line is zero, and an interval that covers it is no evidence. "
        + ("The verdict takes wider ones, for the best of several results. " if result.candidates > 1 else "")
        + "Resamples fall from more peaks than the one record: a drawdown may lie far from the middle.",
    }


def probabilities(result: BacktestResult, found: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What was asked, the answer, and what it means; questions without an answer are left out."""
    candidates, anchor = result.candidates, anchor_name(result)
    barrier, level = hurdle(candidates), f"{100 * ONE_SIDED:g} %"
    source = _SOURCES.get(found.get("trial_sd_source", ""), "")
    active = f"of the returns less those of {anchor}"
    history = f"this record has {len(result.returns) / result.periods_per_year:.1f}"
    rows = [
        (
            "Chance that the true Sharpe ratio is above zero",
            _share(found.get("probabilistic_sharpe")),
            "from the length, skew and tails of this record, as if nothing else had been tried (probabilistic Sharpe ratio)",
        ),
        (
            f"Chance that it is above {barrier}",
            _share(found.get("deflated_sharpe")) if candidates > 1 else "",
            f"luck alone would show {ratio(found.get('expected_best'))}, as the ratios of the candidates deviate by "
            f"{ratio(found.get('trial_sd'))}{source} (deflated Sharpe ratio)",
        ),
        (
            f"Chance that {lead(candidates)}",
            _share(found.get("deflated_active_sharpe")),
            f"{active}, which tell of skill where the whole market rises",
        ),
        (
            "Years needed",
            _years(found.get("minimum_years")),
            f"of returns like these, before the chance of beating {barrier} passes {level}; {history}",
        ),
        (
            "Years needed for the excess",
            _years(found.get("minimum_active_years")),
            f"the same {active}; {history}",
        ),
        (
            f"Chance that the choice among {plural(result.trials, 'trial')} was overfitted",
            _share(found.get("overfitting")),
            "how often the best trial of one half of the validation days is below the median of the other (choosing blindly: "
            f"50 %); by luck alone the best would stand {ratio(found.get('validation_luck'))} above their mean ratio",
        ),
        (
            "Random portfolios beaten",
            _share(found.get("fan_beaten")),
            f"by Sharpe ratio, of {count(found.get('fan_size'))} with random weights that trade as much at the same costs",
        ),
    ]
    return [row for row in rows if row[1]]


def rules(result: BacktestResult) -> Table | None:
    """Strategy, benchmark, equal weight and every simple rule, ranked by Sharpe ratio; None if no rule was run."""
    if not result.baselines:
        return None
    own, bench, equal = columns(result).values()
    curves = {own: result.equity, bench: result.benchmark_equity}
    if not np.allclose(result.equity, result.equal_weight_equity, rtol=1e-12):
        curves[equal] = result.equal_weight_equity
    curves |= {name: curve for name, curve in result.baselines.items() if name not in curves}
    figures = {name: _figures(result, curve) for name, curve in curves.items()}
    ranked = sorted(figures, key=lambda name: -figures[name][2] if math.isfinite(figures[name][2]) else math.inf)
    show = (percent, percent, ratio, percent, ratio, percent)
    rows = [
        (name, str(place), *(write(value) for write, value in zip(show, figures[name], strict=True)))
        for place, name in enumerate(ranked, 1)
    ]
    head = ("", "Rank", "CAGR", "Volatility", "Sharpe", "Max drawdown", "Calmar", "Excess over benchmark")
    return Table(head, rows, own=own)


def sweep(result: BacktestResult, found: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Table | None:
    """Sharpe ratio and rank of each strategy at each fee or size, best of the first one first, and what it cost."""
    if not found:
        return None
    steps, own = list(found.values()), columns(result)["strategy"]
    first = {name: _known(figures.get("rank")) for name, figures in steps[0].items()}
    names = sorted({name for at in steps for name in at}, key=lambda name: (_last(first.get(name)), name))
    rows = [(name, *(_sharpe_and_rank(at.get(name, {})) for at in steps)) for name in names]
    paid = [at.get(own, {}).get("costs") for at in steps]
    foot = (
        [(f"costs a year of {own}", *map(percent, paid))] if any(math.isfinite(_known(cost)) for cost in paid) else []
    )
    return Table(("", *found), rows, foot, own=own)


def short_benchmark(result: BacktestResult) -> str:
    """The name of the benchmark where it is short, else what it is."""
    return result.benchmark if len(result.benchmark) <= _SHORT_NAME else "benchmark"


def mark(low: float, high: float, scale: tuple[float, float], dot: float | None = None) -> Mark | None:
    """The bar from `low` to `high` on a line that spans `scale`; None where an end is undefined."""
    if not all(math.isfinite(end) for end in (low, high, *scale)):
        return None
    start, length = scale[0], max(scale[1] - scale[0], 1e-12)
    left, right, zero = (round(100 * (value - start) / length, 1) for value in (low, high, 0.0))
    at = None if dot is None or not math.isfinite(dot) else round(100 * (dot - start) / length, 1)
    return Mark(left, round(right - left, 1), zero, at, "gain" if low > 0 else "loss" if high < 0 else "")


def scale_of(values: Sequence[float]) -> tuple[float, float]:
    """A scale that holds zero and every finite value, with a little room at both ends."""
    known = [0.0, *(value for value in values if math.isfinite(value))]
    room = _ROOM * (max(known) - min(known) or 1.0)
    return min(known) - room, max(known) + room


def _spans(
    result: BacktestResult, found: Mapping[str, Any], key: str, show: Callable[..., str], places: int
) -> list[Span]:
    ends = {
        name: [_known(figures[key].get(end)) for end in ("low", "estimate", "high")]
        for name, figures in (found.get("intervals") or {}).items()
        if key in figures
    }
    labels = {
        ANCHOR: f"minus {anchor_name(result)}",
        EQUAL_WEIGHT: "minus equal weight",
        BENCHMARK: f"minus {short_benchmark(result)}",
    }
    scale = scale_of([value for three in ends.values() for value in three])
    spans = []
    for name, (low, estimate, high) in ends.items():
        sign = "+" if name in labels else ""
        shown = [
            f"{sign * (value > 0)}{show(value, digits)}"
            for value, digits in ((low, places), (estimate, 2), (high, places))
        ]
        drawn = mark(low, high, scale, estimate)
        said = {"gain": "above zero", "loss": "below zero", "": "covers zero"}[drawn.tone] if drawn else "undefined"
        spans.append(Span(labels.get(name, name), shown[1], f"{shown[0]} to {shown[2]}", said, drawn))
    return spans


def _figures(result: BacktestResult, curve: pd.Series) -> tuple[float, ...]:
    """CAGR, volatility, Sharpe, drawdown, Calmar and excess over the benchmark of a curve on its own days."""
    known = curve.dropna()
    if len(known) < 2:
        return (math.nan,) * 6
    own = metrics(known.to_numpy(), risk_free=result.risk_free, periods_per_year=result.periods_per_year)
    lead = relative(
        curve.reindex(result.equity.index).to_numpy(),
        result.benchmark_equity.to_numpy(),
        periods_per_year=result.periods_per_year,
    )
    return own.cagr, own.volatility, own.sharpe, own.max_drawdown, own.calmar, lead.excess


def _sharpe_and_rank(figures: Mapping[str, float]) -> str:
    rank = _known(figures.get("rank"))
    return ratio(figures.get("sharpe")) + (f" ({rank:.0f})" if math.isfinite(rank) else "")


def _last(rank: float | None) -> float:
    """A rank to sort by: undefined ones come last."""
    known = _known(rank)
    return math.inf if math.isnan(known) else known


def _share(value: float | None) -> str:
    return percent(value, 1) if math.isfinite(_known(value)) else ""


def _years(value: float | None) -> str:
    known = _known(value)
    return "" if math.isnan(known) else "no number is enough" if math.isinf(known) else f"{known:.1f}"


def _known(value: float | None) -> float:
    return math.nan if value is None else float(np.float64(value))
