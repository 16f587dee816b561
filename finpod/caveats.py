"""What a reader must know before believing a backtest."""

from __future__ import annotations

from finpod.evidence.alarms import alarms
from finpod.market.universe import listed_during, missing_during
from finpod.result import BacktestResult
from finpod.table import benchmark_cover


def caveats(result: BacktestResult) -> tuple[str, ...]:
    """Warnings for the table and the report, the gravest first."""
    return tuple(w for w in (*_selection(result), *_data(result), *_fills(result), *alarms(result)) if w)


def _selection(result: BacktestResult) -> list[str]:
    days = len(result.equity) - 1
    chosen_on = " on validation days" if result.trained_until else ", on these very days" if result.trials > 1 else ""
    return [
        f"in-sample: the window starts on or before {result.trained_until}, the last day the strategy was trained or chosen on; "
        "these figures say nothing about the future"
        if result.in_sample
        else "",
        f"short history: {days} return{'s' if days > 1 else ''}; yearly figures are extrapolated and mean little"
        if result.is_short
        else "",
        f"chosen among {result.trials} trials{chosen_on}; the best of many looks better than it is"
        if result.trials > 1
        else "",
    ]


def _data(result: BacktestResult) -> list[str]:
    manifest = result.manifest
    missing = list(manifest.get("missing", ()))
    if "without_prices" in manifest:
        missing = missing_during(manifest, result.equity.index[0], result.equity.index[-1])
    return [
        "there is no benchmark to set it against"
        if manifest.get("benchmark_kind") == "none"
        else f"the benchmark {result.benchmark} has no two bars in the window; nothing can be set against it"
        if result.benchmark_equity.count() < 2
        else benchmark_cover(result),
        f"simulated prices ({manifest.get('title', 'no title')}): the figures say nothing about real markets"
        if manifest.get("source") == "simulated"
        else "",
        f"survivorship: {manifest.get('membership', 'the list of names is not point in time')}; names that failed or "
        "left before are not in the data, which flatters every strategy"
        if manifest.get("survivorship")
        else "",
        f"the benchmark {result.benchmark} is a price return: it leaves dividends out while the stocks' prices include "
        "them, which flatters every strategy by about two percent a year"
        if manifest.get("benchmark_kind") == "price return"
        else "",
        f"{len(missing)} members lack prices on some of these dates, and are left out then: {', '.join(missing[:8])}"
        + (" ..." if len(missing) > 8 else "")
        if missing
        else "",
        _list_of_members(result),
        "the data do not say how their names were chosen; if with hindsight, every strategy is flattered"
        if "membership" not in manifest
        else "",
        *(str(note) for note in manifest.get("notes", ())),
    ]


def _list_of_members(result: BacktestResult) -> str:
    """How far the list of an index is from its size in the window; nothing within 1 % below and 5 % above it."""
    listed = listed_during(result.manifest, result.equity.index[0], result.equity.index[-1])
    if listed is None or 0.99 * listed.size <= listed.members <= 1.05 * listed.size:
        return ""
    if listed.members < listed.size:
        return (
            f"the list of members is not complete: it has {listed.members} of {listed.size} members of the {listed.title} on "
            f"{listed.day}; those it lacks have mostly left since, which flatters every strategy"
        )
    return (
        f"the list of members has {listed.members} names on {listed.day}, and the {listed.title} {listed.size}; some of them were "
        "no members any more"
    )


def _fills(result: BacktestResult) -> list[str]:
    """Whether it trades on other fills than it was trained with."""
    trained = result.agent.get("fill", result.fill)
    if trained == result.fill:
        return []
    return [f"it was trained and chosen with fills at the {trained}, and is filled at the {result.fill} here"]
