"""The sections of the report of a backtest: which there are, and the figures that each prints. No markup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from finpod.backtesting.sentences import event_sentence, verdict_lines, warning_sentence
from finpod.backtesting.text import TURNOVER, columns, describe_terms, headline, short_note, spread_note
from finpod.evidence.attribution import flags
from finpod.evidence.skill import evidence
from finpod.evidence.warnings import benchmark_cover
from finpod.figures import amount, count, money, percent, ratio, times
from finpod.measures import drawdown_table, period_returns
from finpod.periods import session_dates, yearly_note
from finpod.records import GRAVE, ResultWarning
from finpod.report.pages import Section
from finpod.report.provenance import Table, members, provenance
from finpod.report.skill import audit_box, audit_line, audited, luck, not_run, rules, sweep
from finpod.report.sources import sources

if TYPE_CHECKING:
    from finpod.result import BacktestResult

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TOP_HOLDINGS = 10


class Cell(NamedTuple):
    """A month of the heat map."""

    text: str
    """The return, or nothing for a month outside the window."""
    tone: str = ""
    """'gain' or 'loss'."""
    strength: float = 0.0
    """How deep the colour is, 0 to 1."""


def summary(result: BacktestResult) -> str:
    """The result in one paragraph."""
    own, start, end = result.metrics, *(f"{result.equity.index[i]:%Y-%m-%d}" for i in (0, -1))
    days = f"{own.days:,} return{'s' if own.days != 1 else ''}"
    yearly = "" if result.is_short else f" ({percent(own.cagr)} a year)"
    had, returned = "equal weight had", "the equal weight of the names returned"
    if result.has_benchmark:
        bench = result.benchmark_metrics
        had = f"{result.benchmark} had {ratio(bench.sharpe)} and equal weight"
        returned = f"{result.benchmark} returned {percent(bench.total_return)} and the equal weight of the names"
    sharpe = (
        ""
        if result.is_short
        else (f" Its Sharpe ratio was {ratio(own.sharpe)}; {had} {ratio(result.equal_weight_metrics.sharpe)}.")
    )
    ruined = f" The account was ruined on {day}: it fell to zero." if (day := result.ruined_on) else ""
    return (
        f"From {start} to {end} ({days}), {result.strategy} turned {money(result.equity.iloc[0])} into "
        f"{money(result.equity.iloc[-1])}: a total return of {percent(own.total_return)}{yearly} after costs of "
        f"{money(result.fees)}. Over the {'days it has' if benchmark_cover(result) else 'same days'} "
        f"{returned} {percent(result.equal_weight_metrics.total_return)}. The deepest fall below a peak was "
        f"{percent(own.max_drawdown)}.{sharpe}{ruined}"
    )


def notes(result: BacktestResult) -> list[tuple[str, bool]]:
    """The warnings as sentences, each with whether it is grave; an in-sample window and ruin are warned of in any case."""
    warnings = [*result.warnings, *(alarm for alarm in flags(result) if alarm not in result.warnings)]
    codes = {warning.code for warning in warnings}
    if result.in_sample and not codes & GRAVE:
        warnings.insert(0, ResultWarning("in_sample", {"trained_until": result.trained_until}))
    if result.ruined_on:
        warnings.insert(0, ResultWarning("ruined", {"day": result.ruined_on}))
    sentences = [(warning_sentence(warning), warning.grave) for warning in warnings]
    return [(text[:1].upper() + text[1:], grave) for text, grave in sentences]


def tiles(result: BacktestResult) -> list[tuple[str, str, str]]:
    """The figures at the top: label, figure, and what to set it beside."""
    own, bench, equal = result.metrics, result.benchmark_metrics, result.equal_weight_metrics
    star = " *" if result.is_short else ""
    common = " on the days the benchmark has" if benchmark_cover(result) else ""
    return [
        (
            "Total return",
            percent(own.total_return),
            f"{percent(own.cagr)} a year" if not star else "not scaled up to a year",
        ),
        (f"Sharpe{star}", ratio(own.sharpe), f"benchmark {ratio(bench.sharpe)}, equal weight {ratio(equal.sharpe)}"),
        (
            "Max drawdown",
            percent(own.max_drawdown),
            f"benchmark {percent(bench.max_drawdown)}, equal weight {percent(equal.max_drawdown)}",
        ),
        ("Excess over benchmark", percent(result.relative.excess), f"total return less the benchmark's{common}"),
        (
            "Excess over equal weight",
            percent(result.relative_to_equal_weight.excess),
            "same names, same dates, same costs",
        ),
    ]


def timeline(result: BacktestResult) -> list[list[dict[str, Any]]]:
    """Training, validation and test windows as rows of bars: name, days, and place on the line in percent.

    Windows that share days stand on different rows, so that none hides another.
    """
    days = session_dates(result.equity.index)
    spans = [
        (name, np.datetime64(first, "D"), np.datetime64(last, "D"))
        for name, (first, last) in sorted(result.windows.items(), key=lambda window: window[1])
    ]
    spans.append(("test" if result.trained_until and not result.in_sample else "backtest", days[0], days[-1]))
    origin = min(first for _, first, _ in spans)
    length = max(int((max(last for *_, last in spans) - origin).astype(int)), 1)
    rows: list[list[dict[str, Any]]] = []
    for name, first, last in spans:
        bar = {
            "name": name,
            "first": str(first),
            "last": str(last),
            "left": min(100 * int((first - origin).astype(int)) / length, 99.5),
            "width": max(100 * int((last - first).astype(int)) / length, 0.5),
        }
        free = (
            row for row in rows if all(other["last"] < bar["first"] or bar["last"] < other["first"] for other in row)
        )
        if (row := next(free, None)) is None:
            rows.append(row := [])
        row.append(bar)
    return rows


def window_legend(result: BacktestResult) -> list[tuple[str, str]]:
    """Each kind of window, and what the line beside its colour says; retraining makes many windows of a kind."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for bar in (bar for row in timeline(result) for bar in row):
        kinds.setdefault(bar["name"].split()[0], []).append(bar)
    return [
        (
            kind,
            f"{kind} window, {bars[0]['first']} to {bars[0]['last']}"
            if len(bars) == 1
            else f"{len(bars)} {kind} windows, {min(b['first'] for b in bars)} to {max(b['last'] for b in bars)}; each is listed "
            "under Spread over seeds and agents",
        )
        for kind, bars in kinds.items()
    ]


def months(result: BacktestResult) -> list[tuple[str, list[Cell], str]]:
    """The heat map: year, twelve months, return of the year."""
    dates, equity = session_dates(result.equity.index), result.equity.to_numpy()
    periods, values = period_returns(equity, dates, "month")
    years, totals = period_returns(equity, dates, "year")
    deepest = max(float(np.abs(values).max()), 1e-9)
    cells = {
        str(period): Cell(
            percent(value, 1),
            "gain" if value > 0 else "loss" if value < 0 else "",
            round(0.08 + 0.62 * abs(value) / deepest, 2),
        )
        for period, value in zip(periods, values, strict=True)
    }
    return [
        (str(year), [cells.get(f"{year}-{month:02}", Cell("")) for month in range(1, 13)], percent(total, 1))
        for year, total in zip(years, totals, strict=True)
    ]


def years(result: BacktestResult) -> Table:
    """Return of each calendar year beside benchmark and equal weight."""
    dates = session_dates(result.equity.index)
    curves = (result.equity, result.benchmark_equity, result.equal_weight_equity)
    found = [dict(zip(*period_returns(curve.to_numpy(), dates, "year"), strict=True)) for curve in curves]
    rows = []
    for year in found[0]:
        own, bench, equal = (column.get(year, np.nan) for column in found)
        rows.append(
            (str(year), percent(own), percent(bench), percent(equal), percent(own - bench), percent(own - equal))
        )
    return Table(("Year", *columns(result).values(), "over benchmark", "over equal weight"), rows)


def worst_drawdowns(result: BacktestResult) -> Table:
    """The five deepest drawdowns."""
    rows = [
        (
            percent(spell.depth),
            str(spell.peak),
            str(spell.valley),
            str(spell.recovery or "not yet"),
            count(spell.sessions),
        )
        for spell in drawdown_table(result.equity, result.equity.index)
    ]
    return Table(("Depth", "Peak", "Valley", "Recovery", "Sessions"), rows)


def holdings(result: BacktestResult) -> Table:
    """The largest holdings by average weight."""
    held = result.weights.iloc[1:]
    average, final, days = held.mean(), held.iloc[-1], (held > 0).sum()
    top = average[average > 0].nlargest(_TOP_HOLDINGS).index
    rows = [
        (str(name), percent(average[name]), percent(final[name]), percent(held[name].max()), count(days[name]))
        for name in top
    ]
    rest = average.drop(top).sum()
    foot = [
        ("other names", percent(rest), percent(final.drop(top).sum()), "", ""),
        ("cash", percent(result.cash_weight.iloc[1:].mean()), percent(result.cash_weight.iloc[-1]), "", ""),
    ]
    return Table(("Name", "Average weight", "Final weight", "Largest weight", "Sessions held"), rows, foot)


def trading(result: BacktestResult) -> Table:
    """Counts of trades, turnover and what they cost."""
    trades, table = result.trades, result.table["strategy"]
    fills = trades[trades["kind"] == "fill"]
    traded = float(fills["notional"].abs().sum())
    rows = [
        ("Buys", count(table["buys"])),
        ("Sells", count(table["sells"])),
        ("Delistings turned to cash", count(len(trades) - len(fills))),
        ("Sessions with a fill", f"{fills['date'].nunique():,} of {len(result.returns):,}"),
        ("Names traded", count(fills["ticker"].nunique())),
        ("Traded in all", money(traded)),
        ("Average fill", money(traded / len(fills) if len(fills) else np.nan)),
        ("Turnover (traded notional / equity at the fill, both sides)", times(table["turnover"])),
        ("Turnover a year" + " *" * result.is_short, times(table["yearly_turnover"])),
        ("Costs paid", money(result.fees)),
        ("Costs as a share of the first cash", percent(result.fees / result.equity.iloc[0])),
        ("Time in cash (average share of the account)", percent(table["cash"])),
    ]
    return Table(("", "Figure"), rows)


def badges(result: BacktestResult) -> dict[str, Any]:
    """What stands above the title."""
    simulated = result.manifest.get("source") == "simulated"
    return {"in_sample": result.in_sample, "simulated": simulated, "ruined": result.ruined_on, **audited(result)}


def setup(result: BacktestResult) -> dict[str, Any]:
    """Window, data and terms."""
    start, end = (f"{result.equity.index[row]:%Y-%m-%d}" for row in (0, -1))
    title = result.manifest.get("title", result.manifest.get("source", "unnamed market"))
    terms = describe_terms(result.costs, result.fill, result.whole_shares)
    return {"start": start, "end": end, "data_title": title, "terms": terms}


def _yearly(result: BacktestResult) -> str:
    return yearly_note(result.periods_per_year, result.sessions_per_year)


def _short(result: BacktestResult) -> str:
    return short_note(result.metrics.days) if result.is_short else ""


def _tiles(result: BacktestResult) -> dict[str, Any]:
    shown = {"tiles": tiles(result), "audit": audit_line(result.audit), "not_run": not_run(result)}
    return audited(result) | shown | {"yearly_note": _yearly(result), "short_note": _short(result)}


def _rules(result: BacktestResult) -> dict[str, Any] | None:
    many = result.fan.shape[1]
    name = f"{many:,} random portfolios: median, middle half, nine in ten"
    return {"rules": rules(result), "random_name": name} if len(result.baselines) or many else None


def _costs(result: BacktestResult) -> dict[str, Any] | None:
    fees = sweep(result, {f"{fee:g} bps": figures for fee, figures in result.cost_sweep.items()})
    sizes = sweep(result, {amount(size): figures for size, figures in result.capacity.items()})
    return {"fees": fees, "sizes": sizes} if fees or sizes else None


HEAD = (Section("badges", "Badges", badges), Section("setup", "Window and data", setup))
"""What stands beside the title."""

LEAD = (
    Section("summary", "Summary", lambda result: {"summary": summary(result)}),
    Section("verdict", "Verdict", lambda result: {"verdicts": said} if (said := verdict_lines(result)) else None),
    Section("warnings", "Warnings", lambda result: {"notes": said} if (said := notes(result)) else None),
    Section("audit", "Look-ahead audit", audit_box),
    Section("tiles", "Key figures", _tiles),
)
"""What stands between the title and the table of contents, without headings."""

SECTIONS = (
    Section(
        "performance",
        "Performance",
        lambda result: {"timeline": timeline(result), "window_legend": window_legend(result)},
        "second",
    ),
    Section(
        "figures",
        "Headline figures",
        lambda result: {
            "columns": list(columns(result).values()),
            "headline": headline(result),
            "yearly_note": _yearly(result),
            "turnover_note": TURNOVER,
            "short_note": _short(result),
        },
        "first",
    ),
    Section("luck", "Luck or skill?", lambda result: luck(result, evidence(result))),
    Section("rules", "Against simple rules", _rules),
    Section("costs", "Costs and capacity", _costs),
    Section("sources", "Where it came from", sources),
    Section(
        "returns",
        "Returns",
        lambda result: {"month_names": MONTHS, "months": months(result), "years": years(result)},
    ),
    Section("risk", "Risk", lambda result: {"drawdowns": worst_drawdowns(result)}),
    Section(
        "trading", "Holdings and trading", lambda result: {"holdings": holdings(result), "trading": trading(result)}
    ),
    Section(
        "spread",
        "Spread over seeds and agents",
        lambda result: {"members": tables, "spread_note": spread_note(result)} if (tables := members(result)) else None,
    ),
    Section("events", "Events", lambda result: {"events": [event_sentence(event) for event in result.events]}),
    Section("provenance", "Provenance", lambda result: {"groups": provenance(result)}),
    Section("definitions", "How the figures are defined", lambda result: {}),
)
"""What stands below it, in this order."""
