"""Where the result came from, ready to print: the market, the size of the bets, single names, the worst months."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from finpod.backtesting.text import columns
from finpod.evidence.attribution import Attribution, attribute
from finpod.figures import money, percent, ratio, times
from finpod.report.provenance import Table
from finpod.report.skill import Mark, mark, scale_of, short_benchmark

if TYPE_CHECKING:
    from finpod.result import BacktestResult

_ENDS = 5
"""Names shown at each end of the table of contributions."""


class Gain(NamedTuple):
    """One row of the table of contributions."""

    name: str
    """Of what was held."""
    amount: str
    """Gain in currency, net of costs."""
    share: str
    """The same over the first cash."""
    said: str
    """Whether it is a gain, for readers who do not see the drawing."""
    mark: Mark | None
    """The drawing, from zero to the gain."""


def sources(result: BacktestResult) -> dict[str, Any]:
    """The section on where the result came from."""
    found = attribute(result)
    top, rest = gains(found.contributions, float(result.equity.iloc[0]))
    return {"facts": facts(result, found), "gains": top, "rest": rest, "months": worst_months(result, found)}


def facts(result: BacktestResult, found: Attribution) -> list[tuple[str, str, str]]:
    """What the account was exposed to and how often it was right: what, figure, meaning; undefined ones are left out."""
    shown = [
        (
            f"Beta with {short_benchmark(result)}",
            ratio(found.beta),
            f"which explains {percent(found.explained, 0)} of the variance",
        ),
        (
            "Beta with equal weight",
            ratio(found.equal_weight_beta),
            f"which explains {percent(found.equal_weight_explained, 0)} of the variance",
        ),
        ("Invested", percent(found.invested, 1), "of the account, on average"),
        (
            "Effective number of names",
            ratio(found.effective_names, 1),
            f"of {ratio(found.names, 1)} held on average; {ratio(found.least_effective_names, 1)} at the least",
        ),
        (
            "Largest position",
            percent(found.usual_largest, 1),
            f"on average; {percent(found.largest, 1)} at the most, in {found.largest_name}",
        ),
        (
            "Held for",
            ratio(found.holding_days, 1),
            f"sessions on average; {times(found.yearly_turnover)} of the account traded a year",
        ),
        (
            "Days with a gain",
            percent(found.rising_days, 1),
            f"of days; better than equal weight on {percent(found.winning_days, 1)}",
        ),
        (
            "Months with a gain",
            percent(found.rising_months, 1),
            f"of months; better than equal weight in {percent(found.winning_months, 1)}",
        ),
        ("Names with a gain", percent(found.gaining_names, 1), "of the names that moved while they were held"),
    ]
    return [row for row in shown if row[1] != "n/a"]


def gains(contributions: pd.Series, cash: float) -> tuple[list[Gain], list[tuple[str, str, str]]]:
    """The names with the greatest gains and the greatest losses [N], and closing rows of the others and of all.

    `contributions` are in currency, the largest first; `cash` is what the account began with.
    """
    whole, many = float(contributions.sum()), len(contributions) > 2 * _ENDS
    ends = pd.concat([contributions.iloc[:_ENDS], contributions.iloc[-_ENDS:]]) if many else contributions
    scale = scale_of([float(gain) for gain in ends])
    rows = [
        Gain(
            str(name),
            money(gain),
            percent(gain / cash),
            "gain" if gain > 0 else "loss" if gain < 0 else "nothing",
            _bar(float(gain), scale),
        )
        for name, gain in ends.items()
    ]
    rest = [
        (f"the other {len(contributions) - len(ends):,} names", *_amounts(whole - float(ends.sum()), cash)),
        ("all names", *_amounts(whole, cash)),
    ]
    return rows, rest if many else rest[1:]


def worst_months(result: BacktestResult, found: Attribution) -> Table:
    """The months in which the benchmark fell most, or equal weight where there is none."""
    own, bench, equal = columns(result).values()
    rows = [
        (at.month, percent(at.benchmark), percent(at.strategy), percent(at.equal_weight)) for at in found.worst_months
    ]
    return Table(("Month", bench, own, equal), rows)


def _bar(gain: float, scale: tuple[float, float]) -> Mark | None:
    drawn = mark(min(gain, 0.0), max(gain, 0.0), scale)
    return drawn and drawn._replace(tone="gain" if gain > 0 else "loss" if gain < 0 else "")


def _amounts(gain: float, cash: float) -> tuple[str, str]:
    share = gain / cash if cash else math.nan
    return money(gain), percent(share)
