"""Warnings, events, findings and verdicts as sentences: a template for each code."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from string import Formatter
from typing import Any

from finpod.evidence.skill import ANCHOR, BENCHMARK, EQUAL_WEIGHT, LEVEL, Code, code_of, excess_growth
from finpod.figures import plural
from finpod.periods import is_weekly_or_longer
from finpod.records import Audit, Event, Finding, ResultWarning, Severity
from finpod.result import BacktestResult

Data = Mapping[str, Any]

REASONS = {
    "ready_weights": "weights given as an array are not audited; a row of weights may depend on later prices",
    "no_decision": "the strategy made no decision on a day that can be audited",
    "not_repeatable": "on {note}, two computations on the same data differ, so the audit cannot detect look-ahead; "
    "draw random numbers from a generator that the strategy seeds itself",
    "failed": "{note}",
}
"""`Audit.reason` -> text on why an audit has no outcome."""

UNCHECKED = {
    "later_decisions": "decisions after the last day checked",
    "other_accounts": "decisions for an account with other cash or positions",
    "other_days": "features on days that were not sampled",
    "undated": "later data in a form without dates (lists, bytes, single numbers, a scaler's statistics over all "
    "rows), and extra columns with few tickers or sessions",
    "native": "files read by native code other than pyarrow and polars, and tests of whether a file exists",
    "system": "environment variables, system and package files, and, from Python 3.14 on, the clock of `datetime`",
}
"""Code in `Audit.unchecked` -> text for it."""

NO_RANDOM_PORTFOLIOS = {
    "intraday": "they are only for daily or longer bars",
    "never_traded": "the strategy never traded",
    "one_asset": "there are fewer than two assets to choose from",
}
"""Reason of `random_portfolios` -> text on why there are none."""

_NOT_BOUGHT = "{day}: {ticker} was not bought: %s ({count:# such order} in all)"
EVENTS = {
    "skipped": "{day}: the first decision was skipped, because the data have no row before the start",
    "delisted": "{day}: {ticker} has no later bars (delisted, or its data end); {shares:.6g} shares were converted to "
    "cash at {price:.6g}",
    "not_member": _NOT_BOUGHT % "it was not an index member on the decision day",
    "no_price": _NOT_BOUGHT % "it had no price at the fill",
    "no_volume": _NOT_BOUGHT % "its market impact is unknown, because no member had any volume in the past month",
    "no_cash": _NOT_BOUGHT % "there was no cash left",
    "no_whole_share": _NOT_BOUGHT % "the order, or the cash for it, was less than one whole share",
}
"""Code of an event -> template, filled with the fields of the event."""

_NOT_DATED = "does not set trained_until, so the days on which the model was fitted are unknown"
_CHANGES = "{where}: first leak on {day}; {value} on {largest_on} {by} when later rows %s (on {days} of {checked} bars)"
FINDINGS = {
    "cut": _CHANGES % "are left out",
    "noise": _CHANGES % "are replaced by noise",
    "held": "{where}: on {day} '{subject}' contains {note}; use {instead} instead, or a new strategy object if an "
    "earlier run stored it",
    "model": "{where}: '{subject}' is {note}, and the strategy " + _NOT_DATED,
    "fill": "fills: first leak on {day}; with fill='{fill}' the order for {subject} is filled at {size:.6g}, a price "
    "that was known when the order was decided",
    "backfilled": "data: prices of {subject} do not move from {day} until its first real bar on {until}: they look "
    "back-filled{others}",
    "extra": "data: from {day} on, the column extra:{subject} has a rank correlation of {size:.2f} with the next "
    "returns, {over} {sessions:# session} (the limit is {most:.2f}); check the dates of the column",
}
"""Kind of a finding -> template. The other kinds ("file", "network", "process", "clock") use `_READ`."""
_READ = "{where}: {who} {note} while {doing} {day}"
_PARTS = ("decisions", "invested", "run", "features", "fills", "data")
_PART_NAMES = {"invested": "decisions once invested", "run": "decisions in a run"}


class _Words(Formatter):
    """Formatter like `str.format` that joins lists with commas, and writes a number with its noun for `# noun`."""

    def format_field(self, value: Any, spec: str) -> str:
        if isinstance(value, (list, tuple)):
            return ", ".join(map(str, value))
        return plural(value, spec[2:]) if spec.startswith("# ") else super().format_field(value, spec)


def _say(template: str, data: Data) -> str:
    return _Words().vformat(template, (), data)


def _capped(data: Data) -> str:
    caps = {"weights": data["max_weight"], "turnover": data["max_turnover"]}
    parts = [f"{name} at most {cap:.4g}" for name, cap in caps.items() if cap is not None]
    short = f"; {plural(data['in_cash'], 'decision')} had too few assets, so a part of the account stayed in cash"
    return f"capped, as fractions of the account: {' and '.join(parts)}{short * bool(data['in_cash'])}"


def _too_good(data: Data) -> str:
    figure = f"a Sharpe ratio of {data['sharpe']:.2f}" if "sharpe" in data else f"growth of {data['cagr']:.0%} per year"
    return f"too good: {figure} is more than any known daily strategy earns after costs; check for look-ahead first"


def _unaudited(data: Data) -> str:
    heading = "NOT REPEATABLE" if data["reason"] == "not_repeatable" else "not audited"
    return f"{heading}: {reason(data['reason'], data['note'])}"


def _look_ahead(data: Data) -> str:
    finding = finding_sentence(Finding(**data)) if "kind" in data else "the audit of its decisions failed"
    return f"{_heading(Severity(data['severity']))}: {finding}"


def _shortened(data: Data) -> str:
    lengths = "; ".join(f"{name} has {closes:,} from {span}" for name, (closes, span) in data["runs"].items())
    return (
        f"the comparison uses only the {data['closes']:,} common closes, {data['span']}: {lengths}. A run that began "
        "earlier starts with the positions that it held at the first common close"
    )


WARNINGS: dict[str, str | Callable[[Data], str]] = {
    "in_sample": "in-sample: the window starts on or before {trained_until}, the last day of training and selection; "
    "these figures say nothing about the future",
    "ruined": "ruined on {day}: the account fell to zero",
    "look_ahead": _look_ahead,
    "not_audited": _unaudited,
    "undated_model": "the strategy holds {model} and " + _NOT_DATED,
    "short_history": "short history: {returns:# return}; yearly figures are extrapolated and mean little",
    "many_trials": "chosen among {trials:# trial} on the {on} days; the best of many trials looks better than it is",
    "no_benchmark": "the market has no benchmark",
    "empty_benchmark": "the benchmark {benchmark} has fewer than two bars in the window; nothing is compared with it",
    "benchmark_cover": "the benchmark {benchmark} has {bars:,} of the window's {of:,} bars, from {first} to {last}; "
    "excess, beta and other relative figures use only these bars",
    "price_return_benchmark": "the benchmark {benchmark} is a price index without dividends, but the prices of the "
    "stocks include them; this flatters every strategy by the dividends of the benchmark",
    "simulated": "simulated prices ({title}): the figures say nothing about real markets",
    "survivorship": "survivorship bias: {membership}; companies that failed or left earlier are not in the data, which "
    "flatters every strategy",
    "unknown_universe": "the data do not say how their assets were selected; hindsight flatters every strategy",
    "missing_members": "on dates without prices, {count:# index member} cannot be traded, for example {tickers}",
    "index_list": "the list of members has {members} assets, but the {title} had {size} members on {day}; a list that "
    "lacks former members of the index flatters every strategy",
    "note": "{text}",
    "other_costs": "the strategy was trained with other costs than those of this backtest: {trained}",
    "other_fill": "the strategy was trained with fills at the {trained}, but this backtest fills at the {filled}",
    "undefined_features": "undefined more often than in training: {count:# feature} of the agents, above all {worst} on "
    "{share:.0%} of the members' bars; agents observe undefined values as zero, so load data that begin earlier",
    "other_frequency": "the strategy was trained on {trained:g} bars per year, but the data of this backtest have {now:g}",
    "unfilled": lambda data: event_sentence(Event(**data)),
    "capped": _capped,
    "too_good": _too_good,
    "never_traded": "degenerate policy: it never traded",
    "all_cash": "degenerate policy: almost all cash, {cash:.1%} of the account",
    "one_asset": "degenerate policy: almost all in one asset, {share:.1%} of the invested amount",
    "one_trading_day": "buy and hold: it traded on one day only",
    "untouched": "close to buy and hold: from {day} on, the account differed from the positions of that day by "
    "{share:.1%} at most",
    "constant_cash": "constant cash: about {cash:.0%} of the account is always in cash",
    "closet_benchmark": "closet benchmark: beta {beta:.2f} and a tracking error of {tracking_error:.2%} per year",
    "closet_equal_weight": "closet equal weight: a tracking error of {tracking_error:.2%} per year",
    "rules_daily_only": "{rules} are left out: they are rules for daily bars",
    "rules_missing": "{rules} are left out: the package {package} is not installed",
    "rules_without_volumes": "{rules} is left out: the data have no volumes",
    "rule_fell_back": "{rule} found no optimum on {days:# day} and used inverse-volatility weights instead",
    "no_random_portfolios": lambda data: f"no random portfolios: {NO_RANDOM_PORTFOLIOS[data['reason']]}",
    "random_turnover": "the random portfolios trade only {share:.0%} of the strategy's turnover, so their costs are lower",
    "shortened": _shortened,
    "several_rivals": "the runs have different benchmarks or equal-weight portfolios, because their data, terms or "
    "start differ; the table shows them all",
}
"""Code of a warning, or of a note of a comparison -> its sentence, as a template or as a function of the data."""


def warning_sentence(warning: ResultWarning) -> str:
    """Return the text of a warning, without a full stop at the end. The text of a "note" is returned unchanged."""
    sentence = WARNINGS[warning.code]
    return _say(sentence, warning.data) if isinstance(sentence, str) else sentence(warning.data)


def event_sentence(event: Event) -> str:
    """Return the event as one sentence that begins with its day."""
    return _say(EVENTS[event.code], vars(event))


def finding_sentence(finding: Finding) -> str:
    """Return the finding as one sentence that begins with the audited part."""
    data, is_part = finding.data, finding.where in _PARTS
    vanished = finding.size is None or not math.isfinite(finding.size)
    words = {
        "where": _PART_NAMES.get(finding.where, finding.where) if is_part else f"feature {finding.where}",
        "value": f"the {'weight of' if is_part else 'value for'} {finding.subject}",
        "by": "appears, vanishes or cannot be computed" if vanished else f"changes by {finding.size:.3g}",
        "instead": "single fields, such as market.tickers," if data.get("market") else "a column passed as extra=",
        "others": f" ({data['count']} assets in all)" if data.get("count", 1) > 1 else "",
        "over": "over" if data.get("shared") else "on average over",
        "who": finding.subject or "another thread",
        "doing": "computing the values of" if finding.where == "features" else "deciding on",
    }
    return _say(FINDINGS.get(finding.kind, _READ), {**vars(finding), **data, **words})


def _heading(severity: Severity) -> str:
    return severity.value.replace("_", " ").upper()


def severity_of(audit: Audit) -> str:
    """Return the heading of the most severe finding of an audit that failed."""
    return _heading(audit.severity or Severity.LOOKS_AHEAD)


def reason(code: str, note: str = "") -> str:
    """Return text on why an audit has no outcome."""
    return REASONS[code].format(note=note) if code in REASONS else "no day was checked"


def unchecked(audit: Audit) -> list[str]:
    """Return the text of each code in `Audit.unchecked`; for an unknown code, the code with spaces for underscores."""
    return [UNCHECKED.get(code, code.replace("_", " ")) for code in audit.unchecked]


def audit_outcome(audit: Audit) -> str:
    """Return the outcome of an audit with the days or decisions that it checked, as one line."""
    if audit.passed is None:
        return _unaudited({"reason": audit.reason, "note": audit.note})
    days = f"{plural(len(audit.days), 'day')} from {audit.days[0]} to {audit.days[-1]}" if audit.days else "no day"
    if audit.compared is not None and audit.days:
        days = f"{plural(audit.compared, 'decision')} up to {audit.days[-1]}"
    return f"{'no look-ahead found' if audit.passed else severity_of(audit)} (checked: {days})"


def format_audit(audit: Audit) -> str:
    """Return the audit as plain text with one line for each finding."""
    lines = [f"{audit.subject}: {audit_outcome(audit)}"]
    lines += [f"  {finding_sentence(finding)}" for finding in audit.findings]
    lines += [f"  not checked: {'; '.join(unchecked(audit))}"] if audit.unchecked else []
    return "\n".join(lines)


def hurdle(candidates: int) -> str:
    """Return text for the Sharpe ratio that a result has to exceed, if it was chosen from `candidates` results."""
    return f"the best of {candidates:,} candidates without skill" if candidates > 1 else "zero"


def anchor_name(result: BacktestResult) -> str:
    """Return the anchor and how often it is rebalanced, such as 'equal weight every 5 sessions'."""
    unit = "bars" if result.is_intraday or is_weekly_or_longer(result.equity.index) else "sessions"
    return result.anchor.replace("-", " ") + f" every {result.anchor_every} {unit}" * (result.anchor_every > 1)


LUCK = {
    Code.MORE: "significantly better: luck alone does not explain it",
    Code.NOT_DISTINGUISHABLE: "not distinguishable from luck",
    Code.WORSE: "significantly worse: bad luck alone does not explain it",
}


def verdict_lines(result: BacktestResult) -> list[str]:
    """Return sentences on the growth in excess of anchor, equal weight and benchmark, each with the text of `doubt`."""
    names = {ANCHOR: anchor_name(result), EQUAL_WEIGHT: "equal weight", BENCHMARK: result.benchmark}
    lines = []
    wide = f" (widened for the best of {result.candidates:,})" if result.candidates > 1 else ""
    for over, interval in excess_growth(result).items():
        shown = (f"{round(100 * value, 1) + 0.0:+.1f}" for value in interval[:3])
        code, (low, estimate, high) = code_of(interval), shown
        hindsight = code is Code.MORE and over == BENCHMARK and result.manifest.get("survivorship")
        but = ", but assets selected with hindsight may" if hindsight else ""
        span = f"{estimate} points per year, {100 * LEVEL:.0f} % interval {low} to {high}{wide}"
        lines.append(f"Excess over {names[over]}: {span}; {LUCK[code]}{but}{doubt(result.audit)}")
    return lines


def lead(candidates: int, excess: str = "the excess") -> str:
    """Return text on the event whose probability is 'deflated_active_sharpe' (see `finpod.evidence.skill.evidence`)."""
    if candidates == 1:
        return f"the true Sharpe ratio of {excess} is above zero"
    return f"{hurdle(candidates)} would show a lower Sharpe ratio of {excess}"


def doubt(audit: Audit | None) -> str:
    """Return a reservation to append to a verdict if the look-ahead audit failed or has no outcome; else empty."""
    if audit is None or audit.passed:
        return ""
    if audit.passed is None:
        return ", and the strategy was not audited"
    return f", but the strategy {severity_of(audit).lower()}: this is no evidence of skill"
