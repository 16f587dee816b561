"""Warnings, events, findings and verdicts as sentences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from finpod.evidence.skill import ANCHOR, BENCHMARK, EQUAL_WEIGHT, LEVEL, Code, Verdict, evidence, verdicts
from finpod.figures import plural
from finpod.records import Audit, Event, Finding, ResultWarning, Severity
from finpod.result import BacktestResult

Data = Mapping[str, Any]

SEVERITIES = {Severity.LOOKS_AHEAD: "LOOKS AHEAD", Severity.CAN_LOOK_AHEAD: "CAN LOOK AHEAD"}
"""Severity -> heading."""

REASONS = {
    "ready_weights": "ready weights are not audited; a row may have used later rows",
    "no_decision": "the strategy made no decision on the days sampled",
    "not_repeatable": "two decisions on the same data differ on {note}, so look-ahead cannot be told from chance; draw random "
    "numbers from a generator of the strategy's own",
    "failed": "{note}",
}
"""Reason code -> why an audit has no outcome."""

UNCHECKED = {
    "later_decisions": "decisions after the last day checked",
    "other_accounts": "accounts other than that of the run",
    "other_days": "features on days that were not sampled",
    "undated": "later data without dates, such as lists, bytes, single numbers, signs, or statistics over all rows (a scaler's)",
    "native": "files that native code reads without pyarrow or polars, and checks whether a file exists",
    "system": "files of the system and of packages, such as those under /etc and /proc",
    "clock": "the clock as `datetime` tells it, which this version of Python does not let finpod record",
    "readers": "files that are read by functions of pyarrow or polars that the installed version does not have where finpod looks",
    "few_values": "extra columns with too few tickers or sessions to compare them with the next returns",
}
"""Code of `Audit.unchecked` -> clause."""
NOT_DATED = "{model} and does not set trained_until: nothing shows on which days it was fitted"


NO_RANDOM_PORTFOLIOS = {
    "intraday": "they are for daily bars",
    "never_traded": "the strategy never traded",
    "one_asset": "there are no two assets to choose from",
}
"""Reason -> why random portfolios were left out."""

NOT_FILLED = {
    "not_member": "it was not a member on the day of the decision",
    "no_price": "there was no price to fill at",
    "no_cash": "there was no cash left",
    "no_whole_share": "the cash did not cover one whole share",
}
"""Reason -> why an order was not filled."""


def _chosen(data: Data) -> str:
    where = {"validation": " on validation days", "window": ", on these very days"}.get(data["on"], "")
    return f"chosen among {plural(data['trials'], 'trial')}{where}; the best of many looks better than it is"


def _missing(data: Data) -> str:
    more = " ..." if data["count"] > len(data["tickers"]) else ""
    return (
        f"{plural(data['count'], 'member')} without prices on some of these dates, left out on them: "
        f"{', '.join(data['tickers'])}{more}"
    )


def _index_list(data: Data) -> str:
    index, listed = f"{data['size']} members of the {data['title']} on {data['day']}", data["members"]
    if listed < data["size"]:
        return (
            f"the list of members is incomplete: it has {listed} of {index}; most missing ones have left since, which "
            "flatters every strategy"
        )
    return f"the list of members has {listed} assets for the {index}; some of them were no longer members"


def _cover(data: Data) -> str:
    partial = "" if data["whole"] else ", so the excess is not the difference of the two total returns"
    return (
        f"the benchmark {data['benchmark']} has {data['bars']:,} of the window's {data['of']:,} bars, from {data['first']} to "
        f"{data['last']}; excess, beta and the other relative figures use the days the benchmark has{partial}"
    )


def _too_good(data: Data) -> str:
    figure = f"a Sharpe ratio of {data['sharpe']:.2f}" if "sharpe" in data else f"growth of {data['cagr']:.0%} a year"
    return f"too good: {figure} is more than any known daily strategy earns after costs; look for look-ahead first"


def _unaudited(data: Data) -> str:
    heading = "NOT REPEATABLE" if data["reason"] == "not_repeatable" else "not audited"
    return f"{heading}: {reason(data['reason'], data['note'])}"


def _look_ahead(data: Data) -> str:
    heading = SEVERITIES[Severity(data["severity"])]
    return f"{heading}: {finding_sentence(Finding(**data)) if 'kind' in data else 'the audit of its decisions failed'}"


def _capped(data: Data) -> str:
    parts = [f"no weight above {data['max_weight']:.4g}"] if data["max_weight"] is not None else []
    parts += [f"no decision trades above {data['max_turnover']:.4g}"] if data["max_turnover"] is not None else []
    if data["in_cash"]:
        fewest = math.ceil(1 / data["max_weight"] - 1e-6)
        parts[-1] += (
            f"; the rest stayed in cash on {plural(data['in_cash'], 'decision')} with fewer than {fewest:,} assets"
        )
    return f"capped, as shares of the account: {' and '.join(parts)}"


WARNINGS: dict[str, str | Callable[[Data], str]] = {
    "in_sample": "in-sample: the window starts on or before {trained_until}, the last day the strategy was trained or chosen on; "
    "these figures say nothing about the future",
    "ruined": "ruined on {day}: the account fell to zero",
    "look_ahead": _look_ahead,
    "not_audited": _unaudited,
    "undated_model": f"the strategy holds {NOT_DATED}",
    "short_history": lambda d: (
        f"short history: {plural(d['returns'], 'return')}; yearly figures are extrapolated and mean little"
    ),
    "many_trials": _chosen,
    "no_benchmark": "there is no benchmark to compare it with",
    "empty_benchmark": "the benchmark {benchmark} has fewer than two bars in the window; nothing can be compared with it",
    "benchmark_cover": _cover,
    "price_return_benchmark": "the benchmark {benchmark} is a price return: it leaves dividends out while the stocks' prices "
    "include them, which flatters every strategy by about two percent a year",
    "simulated": "simulated prices ({title}): the figures say nothing about real markets",
    "survivorship": "survivorship: {membership}; companies that failed or left before are not in the data, which flatters every "
    "strategy",
    "unknown_universe": "the data do not say how their assets were chosen; a choice with hindsight flatters every strategy",
    "missing_members": _missing,
    "index_list": _index_list,
    "note": "{text}",
    "other_fill": "it was trained and chosen with fills at the {trained}, and is filled at the {filled} here",
    "unfilled": lambda d: event_sentence(Event(**d)),
    "capped": _capped,
    "too_good": _too_good,
    "never_traded": "degenerate policy: it never traded",
    "all_cash": "degenerate policy: almost all cash, {cash:.1%} of the account",
    "one_asset": "degenerate policy: almost all in one asset, {share:.1%} of what is invested",
    "one_trading_day": "buy and hold: it traded on one day only",
    "untouched": "close to buy and hold: at most {share:.1%} of the account differed from positions left alone from {day} on",
    "constant_cash": "market timing that never switches: about {cash:.0%} of the account is always in cash",
    "closet_benchmark": "closet benchmark: beta {beta:.2f} and a tracking error of {tracking_error:.2%} a year",
    "closet_equal_weight": "closet equal weight: a tracking error of {tracking_error:.2%} a year",
    "rules_daily_only": lambda d: f"{', '.join(d['rules'])} are left out: they are rules for daily bars",
    "rules_missing": lambda d: f"{', '.join(d['rules'])} are left out: the package {d['package']} is not installed",
    "rules_without_volumes": lambda d: f"{', '.join(d['rules'])} is left out: the data have no volumes",
    "rule_fell_back": lambda d: (
        f"{d['rule']} found no solution on {plural(d['days'], 'day')} and held inverse volatility then"
    ),
    "no_random_portfolios": lambda d: f"no random portfolios: {NO_RANDOM_PORTFOLIOS[d['reason']]}",
}
"""Code of a warning -> its sentence: a format string for its data, or a function of them."""

_WHERE = {
    "decisions": "decisions",
    "invested": "decisions once invested",
    "run": "decisions in a run",
    "features": "features",
    "fills": "fills",
    "data": "data",
}
_CHANGED = {"cut": "are left out", "noise": "are replaced by noise"}


def warning_sentence(warning: ResultWarning) -> str:
    """The warning as one sentence, without a capital or a full stop."""
    sentence = WARNINGS[warning.code]
    return sentence.format(**warning.data) if isinstance(sentence, str) else sentence(warning.data)


def event_sentence(event: Event) -> str:
    """The event as one sentence that begins with its day."""
    if event.code == "skipped":
        return f"{event.day}: no row before the start to decide on; the first decision was skipped"
    if event.code == "delisted":
        return (
            f"{event.day}: {event.ticker} has no more bars (it left the exchange, or its source ended); {event.shares:.6g} "
            f"shares turned to cash at {event.price:.6g}"
        )
    return f"{event.day}: {event.ticker} was not bought: {NOT_FILLED[event.code]} ({plural(event.count, 'such order')} in all)"


def finding_sentence(finding: Finding) -> str:
    """The finding as one sentence that begins with the part examined."""
    where = _WHERE.get(finding.where, f"feature {finding.where}")
    if finding.kind in _CHANGED:
        data = finding.data
        value = f"the weight of {finding.subject}" if finding.where in _WHERE else f"the value for {finding.subject}"
        vanished = finding.size is None or not math.isfinite(finding.size)
        by = "appears, vanishes or cannot be computed" if vanished else f"changes by {finding.size:.3g}"
        return (
            f"{where}: first leak on {finding.day}; {value} on {data['largest_on']} {by} when later rows "
            f"{_CHANGED[finding.kind]} ({data['days']} of {data['checked']} days)"
        )
    if finding.kind == "held":
        cure = "what it needs, such as market.tickers" if finding.data.get("market") else "later data through extra="
        return f"{where}: on {finding.day} {finding.subject} holds {finding.note}; pass {cure} instead"
    if finding.kind == "model":
        return f"{where}: {finding.subject} is {NOT_DATED.format(model=finding.note)}"
    if finding.kind == "fill":
        return (
            f"fills: first leak on {finding.day}; with fill='{finding.data['fill']}' an order of that decision for "
            f"{finding.subject} is filled at {finding.size:.6g}, a price the decision has seen"
        )
    if finding.kind == "backfilled":
        others = f" ({finding.data['count']} assets in all)" if finding.data["count"] > 1 else ""
        return (
            f"data: prices of {finding.subject} do not move from {finding.day} until its first real bar on "
            f"{finding.data['until']}: they look back-filled{others}"
        )
    if finding.kind == "extra":
        data = finding.data
        over = "over" if data["shared"] else "on average over"
        return (
            f"data: the column extra:{finding.subject} has a rank correlation of {finding.size:.2f} with the next returns, "
            f"{over} {plural(data['sessions'], 'session')} from {finding.day} on; the limit is {data['most']:.2f}; check its dates"
        )
    doing = "computing the values of" if finding.where == "features" else "deciding on"
    return f"{where}: {finding.subject or 'another thread'} {finding.note} while {doing} {finding.day}"


def severity_of(findings: Sequence[Finding]) -> str:
    """Heading of the most severe finding."""
    grave = any(finding.severity is Severity.LOOKS_AHEAD for finding in findings)
    return SEVERITIES[Severity.LOOKS_AHEAD if grave or not findings else Severity.CAN_LOOK_AHEAD]


def reason(code: str, note: str = "") -> str:
    """Why an audit has no outcome."""
    return REASONS[code].format(note=note) if code in REASONS else "no day was checked"


def unchecked(audit: Audit) -> list[str]:
    """Limits of the audit, a clause each. Unknown codes of earlier versions are shown as they are."""
    return [UNCHECKED.get(code, code.replace("_", " ")) for code in audit.unchecked]


def format_audit(audit: Audit) -> str:
    """The audit as plain text, a line a finding."""
    span = "no day"
    if audit.days:
        span = f"{plural(len(audit.days), 'day')} from {audit.days[0]} to {audit.days[-1]}"
    if audit.passed is None:
        outcome = _unaudited({"reason": audit.reason, "note": audit.note})
    elif audit.passed:
        outcome = f"no look-ahead found on {span}"
    else:
        outcome = f"{severity_of(audit.findings)}, checked on {span}"
    lines = [f"{audit.subject}: {outcome}", *(f"  {finding_sentence(finding)}" for finding in audit.findings)]
    if gaps := unchecked(audit):
        lines.append(f"  not checked: {'; '.join(gaps)}")
    return "\n".join(lines)


def hurdle(candidates: int) -> str:
    """Threshold of a deflated Sharpe ratio."""
    return f"the best of {candidates:,} without skill" if candidates > 1 else "zero"


def anchor_name(result: BacktestResult) -> str:
    """The anchor and how often it is rebalanced, such as 'equal weight every 5 sessions'."""
    unit = "bars" if result.is_intraday else "sessions"
    return result.anchor.replace("-", " ") + f" every {result.anchor_every} {unit}" * (result.anchor_every > 1)


def verdict_lines(result: BacktestResult) -> list[str]:
    """One sentence for each verdict: over the anchor, equal weight and the benchmark."""
    return [verdict_sentence(verdict, result) for verdict in verdicts(result)]


def verdict_sentence(verdict: Verdict, result: BacktestResult) -> str:
    """The interval of an excess growth and its meaning, with a reservation if the audit failed."""
    name = {ANCHOR: anchor_name(result), EQUAL_WEIGHT: "equal weight", BENCHMARK: result.benchmark}[verdict.over]
    hindsight = verdict.code is Code.MORE and verdict.over == BENCHMARK and result.manifest.get("survivorship")
    return (
        f"Excess over {name}: {_span(verdict, result.candidates)}: {_LUCK[verdict.code]}"
        + (", but assets chosen with hindsight explain it as well" if hindsight else "")
        + doubt(result.audit)
    )


def luck_sentence(result: BacktestResult) -> str:
    """The growth over the anchor and its deflated Sharpe ratio as one sentence; empty without an interval."""
    verdict = next((one for one in verdicts(result) if one.over == ANCHOR), None)
    deflated = evidence(result)["deflated_active_sharpe"]
    if verdict is None or math.isnan(deflated):
        return ""
    return (
        f"Growth over {anchor_name(result)} is {_span(verdict, result.candidates)}, and the chance that "
        f"{lead(result.candidates)} is {100 * deflated:.0f} %: {_LUCK[verdict.code]}{doubt(result.audit)}"
    )


def lead(candidates: int, excess: str = "the excess") -> str:
    """The event whose probability is the deflated active Sharpe ratio."""
    if candidates == 1:
        return f"the true Sharpe ratio of {excess} is above zero"
    return f"{hurdle(candidates)} would show a lower Sharpe ratio of {excess}"


def doubt(audit: Audit | None) -> str:
    """Reservation about a verdict of skill; empty if the look-ahead audit passed or was not run."""
    if audit is None or audit.passed:
        return ""
    if audit.passed is None:
        return ", and it was not audited"
    does = "has later rows within reach" if audit.only_held else severity_of(audit.findings).lower()
    return f", but it {does}: this is no evidence of skill"


_LUCK = {
    Code.MORE: "more than luck explains",
    Code.NOT_DISTINGUISHABLE: "not distinguishable from luck",
    Code.WORSE: "worse than luck explains",
}


def _span(verdict: Verdict, candidates: int) -> str:
    interval = verdict.interval
    estimate, low, high = (f"{100 * value:+.1f}" for value in (interval.estimate, interval.low, interval.high))
    wide = f" (widened for the best of {candidates:,})" if candidates > 1 else ""
    return f"{estimate} points a year, {100 * LEVEL:.0f} % interval {low} to {high}{wide}"
