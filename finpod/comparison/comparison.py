"""A comparison of runs: the value, and its text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from finpod.backtesting.sentences import SEVERITIES, warning_sentence
from finpod.backtesting.text import TURNOVER, short_note
from finpod.comparison.contrasts import LEVEL, RESAMPLES, Pair, Rival
from finpod.comparison.notes import Note, Unfair, note_sentence, unfair_sentence
from finpod.figures import COMMON, Row, count, figure, plain, ratio, text_table
from finpod.files import to_json
from finpod.periods import yearly_note
from finpod.records import ResultWarning, Severity, records
from finpod.result import SHORT_HISTORY, BacktestResult
from finpod.significance import Interval, expected_best

ROWS = (
    *COMMON,
    Row("information_ratio", "Information ratio over equal weight", "ratio", yearly=True),
    Row("turnover", "Turnover", "times"),
    Row("yearly_turnover", "Turnover a year", "times", yearly=True),
    Row("costs", "Costs, of the first value", "percent"),
)
"""Figures in the order they are shown."""
RANKED = {"sharpe": "Sharpe", "cagr": "CAGR", "max_drawdown": "drawdown", "information_ratio": "information ratio"}
"""Figures whose ranks are shown; JSON has those of all."""
_WIDTH = 18
"""Letters in a line of a column's heading."""
FLAWS: dict[str, str] = {severity.value: text for severity, text in SEVERITIES.items()} | {"in_sample": "in-sample"}
"""What stands beside the name of a run whose figures mean nothing."""
_NO_INTERVAL = {
    "short": "the history is too short",
    "ruined": "one of them was ruined",
    "same": "they are the same account",
}


RETURNS = ("total_return", "cagr", "excess", "excess_over_equal_weight")
MORE = (*RETURNS, "sharpe", "sortino", "max_drawdown", "calmar", "information_ratio")
LESS = ("volatility", "turnover", "yearly_turnover", "costs")
"""Figures that are ranked: more is better, or less is."""


class Warned(NamedTuple):
    """A warning of one or more runs."""

    warning: ResultWarning
    """The warning."""
    runs: tuple[str, ...]
    """Names of the runs that have it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """R runs side by side on their n + 1 common sessions; prints itself as a table."""

    runs: Mapping[str, BacktestResult]
    """The results by the names they go by here, intraday ones session by session."""
    equity: pd.DataFrame
    """[n + 1, R] value of each account over its value at the first common close."""
    rivals: Mapping[str, Rival]
    """Benchmarks and equal weights by name: one of each where the runs agree on it, else named after their runs too."""
    figures: Mapping[str, Mapping[str, float]]
    """Run -> figure -> value: those of `Metrics`, excess over benchmark and equal weight, the information ratio over equal
    weight, turnover, and costs as a share of the account at the first common close."""
    rival_figures: Mapping[str, Mapping[str, float]]
    """The same of the rivals, as far as they have them."""
    correlation: pd.DataFrame
    """[R, R] correlation of the returns less those of each run's equal weight; NaN for one that never strays from it."""
    pairs: tuple[Pair, ...]
    """Every two runs, in order."""
    risk_free: float
    """Yearly rate that all Sharpe ratios here are measured against."""
    unfair: tuple[Unfair, ...] = ()
    """Why the runs cannot be compared fairly."""
    notes: tuple[Note, ...] = ()
    """What a reader must know about the comparison."""

    @property
    def ranks(self) -> dict[str, dict[str, float]]:
        """Run -> figure -> place, 1 being the best; equal figures share one, undefined ones have none (NaN)."""
        table = pd.DataFrame(self.figures).astype(float).round(12)
        more = table.loc[list(MORE)].rank(axis=1, method="min", ascending=False)
        places = pd.concat([more, table.loc[list(LESS)].rank(axis=1, method="min")])
        return {name: dict(places[name]) for name in self.runs}

    @property
    def flaws(self) -> dict[str, str]:
        """Run -> what makes its figures mean nothing: a `Severity`, "in_sample", or empty for a sound run."""
        return {name: _flaw(run) for name, run in self.runs.items()}

    @property
    def warnings(self) -> tuple[Warned, ...]:
        """The warnings of the runs, those first after which the figures mean nothing."""
        runs: dict[ResultWarning, list[str]] = {}
        for name, run in self.runs.items():
            for warning in (*_lacking(run), *run.warnings):
                runs.setdefault(warning, []).append(name)
        warned = [Warned(warning, tuple(names)) for warning, names in runs.items()]
        return tuple(sorted(warned, key=lambda one: (not one.warning.grave, one.warning.code != "look_ahead")))

    @property
    def candidates(self) -> int:
        """Results of this window behind all the runs; those of one search count once. See `BacktestResult.candidates`."""
        searches = {to_json(run.agent) if run.agent else name: run.candidates for name, run in self.runs.items()}
        return max(sum(searches.values()), len(self.runs))

    @property
    def periods_per_year(self) -> float:
        """Returns in a year, of all runs; intraday ones are compared session by session."""
        return next(iter(self.runs.values())).periods_per_year

    @property
    def is_short(self) -> bool:
        """Whether there are too few returns for yearly figures to mean anything."""
        return len(self.equity) - 1 < SHORT_HISTORY

    @property
    def chance(self) -> dict[int, float]:
        """Number of skill-less candidates -> information ratio their best would show: the runs, and the candidates behind them.

        `expected_best` of independent ones with the sampling deviation of a ratio of zero, 1 / sqrt(years).
        """
        sd = math.sqrt(self.periods_per_year / (len(self.equity) - 1))
        return {count: expected_best(count, sd) for count in sorted({len(self.runs), self.candidates})}

    def to_json(self) -> str:
        """All of it but the curves, as deterministic JSON; undefined figures are null."""
        days, ranks = self.equity.index, self.ranks
        content = {
            "start": f"{days[0]:%Y-%m-%d}",
            "end": f"{days[-1]:%Y-%m-%d}",
            "returns": len(days) - 1,
            "risk_free": self.risk_free,
            "periods_per_year": self.periods_per_year,
            "runs": {
                name: _described(run) | {"figures": self.figures[name], "ranks": ranks[name]}
                for name, run in self.runs.items()
            },
            "rivals": self.rival_figures,
            "pairs": [pair.described() for pair in self.pairs],
            "level": LEVEL,
            "resamples": RESAMPLES,
            "correlation": {name: dict(self.correlation[name]) for name in self.runs},
            "unfair": [{"what": one.what, "runs": [names for _, names in one.groups]} for one in self.unfair],
            "notes": [asdict(note) for note in self.notes],
            "warnings": [asdict(warned.warning) | {"runs": warned.runs} for warned in self.warnings],
            "candidates": self.candidates,
            "chance": self.chance,
        }
        return to_json(content)

    def report(self, path: str | Path, *, overwrite: bool = True, title: str = "") -> Path:
        """Write the self-contained HTML page and return its path."""
        from finpod.report.compare import write_comparison

        return write_comparison(self, Path(path), overwrite=overwrite, title=title)

    def __str__(self) -> str:
        return format_comparison(self)


class Contrast(NamedTuple):
    """One pair of runs in words."""

    label: str
    """Who is set against whom."""
    cagr: str
    """Difference in percentage points a year."""
    cagr_span: str
    """Its interval."""
    sharpe: str
    """Difference of the Sharpe ratios."""
    sharpe_span: str
    """Its interval."""
    said: str
    """What they say."""


def figure_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Label and cells, the runs first and the rivals after them; an empty cell where a rival has no such figure."""
    columns, star = [*comparison.figures.values(), *comparison.rival_figures.values()], " *" * comparison.is_short
    return [
        (row.label + star * row.yearly, [figure(own[row.key], row.kind) if row.key in own else "" for own in columns])
        for row in ROWS
    ]


def rank_rows(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """Label and places of the runs by the figures that matter most, 1 being the best."""
    ranks = comparison.ranks.values()
    return [(f"Rank by {label}", [count(places[key]) for places in ranks]) for key, label in RANKED.items()]


def contrasts(comparison: Comparison) -> list[Contrast]:
    """Every two runs in words."""
    return [_contrast(pair) for pair in comparison.pairs]


def pairs_note(comparison: Comparison) -> str:
    """How many of the intervals luck would part from zero; empty for a single pair."""
    judged = sum(pair.cagr is not None for pair in comparison.pairs)
    return f"of {judged} pairs without any difference, one in twenty would seem to differ" if judged > 1 else ""


def headings(comparison: Comparison) -> list[str]:
    """Heading of the column of each run: its name, and what makes its figures mean nothing."""
    return [f"{name} ({FLAWS[flaw]})" if flaw else name for name, flaw in comparison.flaws.items()]


def selection(comparison: Comparison) -> str:
    """What choosing among these runs amounts to, in one sentence."""
    said = "Choosing the best of several runs on the window they are compared on is selection bias, and flatters the chosen one"
    if comparison.is_short:
        return f"{said}."
    shown = [f"{ratio(best)} for the best of {number:,}" for number, best in comparison.chance.items()]
    behind = f", all the candidates behind these {len(comparison.runs)} runs" if len(shown) > 1 else ""
    return (
        f"{said}: without any skill, luck alone is expected to show an information ratio over equal weight of "
        f"{' and of '.join(shown)}{behind}."
    )


def warning_lines(comparison: Comparison) -> list[tuple[str, str, bool]]:
    """The warnings of the runs: names of the runs (empty for all), sentence, and whether the figures mean nothing."""
    everyone = tuple(comparison.runs)
    return [
        ("" if names == everyone else ", ".join(names), warning_sentence(warning), warning.grave)
        for warning, names in comparison.warnings
    ]


def format_comparison(comparison: Comparison) -> str:
    """The table with what must be known to read it, as plain text without a newline at the end."""
    start, end = (f"{comparison.equity.index[place]:%Y-%m-%d}" for place in (0, -1))
    returns = len(comparison.equity) - 1
    lines = [f"{len(comparison.runs)} runs, {start} .. {end}, {returns:,} returns", ""]
    rows = [*figure_rows(comparison), *rank_rows(comparison)]
    lines += text_table([*headings(comparison), *comparison.rivals], rows, _WIDTH)
    lines += [short_note(returns)] if comparison.is_short else []
    lines += [TURNOVER, yearly_note(comparison.periods_per_year, comparison.periods_per_year), ""]
    for pair in contrasts(comparison):
        figures = f"CAGR {pair.cagr} points ({pair.cagr_span}), Sharpe {pair.sharpe} ({pair.sharpe_span}): " * bool(
            pair.cagr
        )
        lines.append(f"{pair.label}: {figures}{pair.said}")
    lines += [*filter(None, [pairs_note(comparison)]), _correlations(comparison), "", selection(comparison)]
    if comparison.unfair or comparison.notes or comparison.warnings:
        lines.append("")
    warned = [
        (f"warning{f' ({names})' if names else ''}: {text}", grave) for names, text, grave in warning_lines(comparison)
    ]
    lines += [text for text, grave in warned if grave]
    lines += [*map(unfair_sentence, comparison.unfair), *map(note_sentence, comparison.notes)]
    lines += [text for text, grave in warned if not grave]
    return "\n".join(map(plain, lines))


def _flaw(run: BacktestResult) -> str:
    """What makes the figures of a run mean nothing, the gravest first; empty for a sound run."""
    if run.audit is not None and run.audit.passed is False:
        return run.audit.severity or Severity.LOOKS_AHEAD
    return "in_sample" if run.in_sample else ""


def _lacking(run: BacktestResult) -> Iterator[ResultWarning]:
    """Grave warnings that a run should have and does not."""
    codes = {warning.code for warning in run.warnings}
    if run.audit is not None and run.audit.passed is False and "look_ahead" not in codes:
        yield ResultWarning("look_ahead", {"severity": run.audit.severity or Severity.LOOKS_AHEAD})
    if run.in_sample and "in_sample" not in codes:
        yield ResultWarning("in_sample", {"trained_until": run.trained_until})


def _contrast(pair: Pair) -> Contrast:
    label = f"{pair.first} over {pair.second}"
    if pair.cagr is None or pair.sharpe is None:
        return Contrast(label, "", "", "", "", f"no interval: {_NO_INTERVAL[pair.reason]}")
    growth, quality = _judged(pair.cagr), _judged(pair.sharpe)
    said = growth if quality in (growth, "") else f"growth {growth}, Sharpe {quality}"
    cagr, sharpe = (
        [_signed(scale * end, digits) for end in span[:3]]
        for span, scale, digits in ((pair.cagr, 100, 1), (pair.sharpe, 1, 2))
    )
    return Contrast(label, cagr[1], f"{cagr[0]} to {cagr[2]}", sharpe[1], f"{sharpe[0]} to {sharpe[2]}", said)


def _signed(value: float, digits: int) -> str:
    """A difference with its sign; what rounds to zero has none, and what is undefined is n/a."""
    rounded = round(value, digits)
    return f"{rounded:+.{digits}f}" if math.isfinite(value) and rounded else ratio(value, digits)


def _judged(found: Interval) -> str:
    if not math.isfinite(found.low):
        return ""
    if found.covers_zero:
        return "not distinguishable from luck"
    return "better than luck explains" if found.low > 0 else "worse than luck explains"


def _correlations(comparison: Comparison) -> str:
    table = comparison.correlation
    said = [f"{pair.first}/{pair.second} {ratio(table.loc[pair.first, pair.second])}" for pair in comparison.pairs]
    return f"correlation of returns in excess of equal weight: {', '.join(said)}"


def _described(run: BacktestResult) -> dict[str, Any]:
    """What a run is, for JSON."""
    return {
        "strategy": run.strategy,
        "window": [f"{run.equity.index[place]:%Y-%m-%d}" for place in (0, -1)],
        "cash": float(run.equity.iloc[0]),
        "costs": asdict(run.costs),
        "trained_until": run.trained_until,
        "warnings": records(run.warnings),
    } | {
        key: getattr(run, key)
        for key in ("benchmark", "fill", "whole_shares", "risk_free", "trials", "opened", "in_sample", "data_hash")
    }
