"""Where a result comes from, and how far the agents behind it differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from finpod.backtesting.sentences import anchor_name, finding_sentence, reason, unchecked
from finpod.backtesting.text import describe_terms, who_varies
from finpod.figures import count, money, percent, ratio
from finpod.files import versions
from finpod.market.long_bars import repair_lines, suspicion_lines
from finpod.periods import describe
from finpod.records import Audit

if TYPE_CHECKING:
    from finpod.result import BacktestResult

_LONGEST = 400
"""Characters of a text that are shown."""
_TITLES = {"board": "All trials, ranked on validation", "members": "Members of the ensemble"}
"""Headings of what an ensemble lists of its agents."""
_HEADS = {"seed": "Agent seed"}
"""Columns of those lists: an agent's own seed is not that of its tournament."""
_LONG_SERIES = 8
"""Figures by name, such as one a year, that are more than this stand on one line."""
_LABELS = {
    "survivorship": "Names chosen with hindsight (survivorship)",
    "versions": "Made with",
    "left_out": "Features that the data cannot give",
    "dropped": "Features dropped, undefined on this share of the training rows",
    "undefined": "Features undefined on this share of the training rows",
}
"""What keys are called whose own words would not do."""


class Table(NamedTuple):
    """A table of text."""

    head: tuple[str, ...]
    """Names of the columns."""
    rows: Sequence[Sequence[str]]
    """Cells, the first of each row being its label."""
    foot: Sequence[Sequence[str]] = ()
    """Closing rows: mean, spread and count."""
    own: str = ""
    """Label of the strategy's own row, if it stands among others."""


def members(result: BacktestResult) -> list[tuple[str, Table]]:
    """Tables of what differs between seeds or agents, with mean, spread and count, for each list that `agent` holds."""
    variants = who_varies(result).capitalize()
    tables = [(f"{variants} on its own over this window", _variants(result.spread))] if variants else []
    if result.agents:
        tables.append(
            ("Each agent on its own over this window, the best on validation first", _variants(result.agent_spread))
        )
    for name, value in sorted(result.agent.items()):
        if isinstance(value, (list, tuple)) and len(value) > 1 and all(isinstance(item, Mapping) for item in value):
            tables.append((_TITLES.get(name, _words(name)), _spread([dict(item) for item in value])))
        elif (
            isinstance(value, Mapping) and len(value) > 1 and all(isinstance(item, Mapping) for item in value.values())
        ):
            tables.append((_words(name), _spread([{"": key, **item} for key, item in sorted(value.items())])))
    return tables


def _variants(spread: Mapping[str, Mapping[str, float]]) -> Table:
    """What each variant did alone, closed by mean, standard deviation and count."""
    keys = list(next(iter(spread.values())))
    show = {"sharpe": ratio, "calmar": ratio}
    lines = [(name, *(show.get(key, percent)(row[key]) for key in keys)) for name, row in spread.items()]
    return Table(("", *map(_words, keys)), lines[:-3], [*lines[-3:-1], ("count", *(str(len(lines) - 3) for _ in keys))])


def provenance(result: BacktestResult) -> list[tuple[str, list[tuple[str, str]]]]:
    """Everything needed to repeat the run, in groups of label and text."""
    start, end = (f"{result.equity.index[i]:%Y-%m-%d}" for i in (0, -1))
    manifest = dict(result.manifest)
    spread = {name for name, _ in members(result)}
    agent = {key: value for key, value in result.agent.items() if _TITLES.get(key, _words(key)) not in spread}
    run = [
        ("Strategy", result.strategy),
        ("Window", f"{start} to {end}, {len(result.returns):,} returns"),
        ("Starting cash", money(result.equity.iloc[0])),
        ("Costs and fills", describe_terms(result.costs, result.fill, result.whole_shares)),
        ("Benchmark", f"{result.benchmark}, bought at the first close, without cost" * result.has_benchmark or "none"),
        ("Equal weight", "point-in-time members, every session, same dates, same costs"),
        ("Anchor of the verdict", f"{anchor_name(result)}, same dates, same costs"),
        ("Results of this window looked at", count(result.opened)),
        ("Risk-free rate", percent(result.risk_free)),
        ("Periods a year", describe(result.periods_per_year, result.sessions_per_year)),
        ("Trained or chosen until", result.trained_until or "not trained"),
        *((f"{_words(name)} window", f"{first} to {last}") for name, (first, last) in sorted(result.windows.items())),
        ("Trials (agents by rounds)", count(result.trials)),
        ("In-sample", "yes" if result.in_sample else "no"),
    ]
    checks = [
        ("Repaired or masked", repair_lines(manifest)),
        ("Looks wrong, left alone", suspicion_lines(manifest)),
    ]
    for listed in ("repairs", "suspicions", "suspicion_counts", "without_prices"):
        manifest.pop(listed, None)
    data = [
        ("Title", str(manifest.pop("title", manifest.get("source", "unnamed")))),
        ("Content hash (SHA-256)", result.data_hash or "none"),
        *_flat(manifest),
        *((label, "; ".join(line.strip() for line in lines)) for label, lines in checks if lines),
    ]
    made_with = versions("finpod", "numpy", "pandas", "torch", "matplotlib", "pyfolio-reloaded")
    groups = [
        ("Run", run),
        ("Data", data),
        ("Agent", _flat(agent)),
        ("Search", _flat(result.search) if result.trials > 1 else []),
        ("Look-ahead audit", _audit(result.audit)),
        ("This report was made with", list(made_with.items())),
    ]
    return [(title, rows) for title, rows in groups if rows]


def _audit(audit: Audit | None) -> list[tuple[str, str]]:
    """Each point of the audit in full, one after the other."""
    if audit is None:
        return []
    points = [
        ("Days", "; ".join(audit.days)),
        ("Decisions", "" if audit.decisions is None else count(audit.decisions)),
        ("Findings", "; ".join(map(finding_sentence, audit.findings))),
        ("Not checked", "; ".join(unchecked(audit))),
        ("Passed", {True: "yes", False: "no", None: "not audited"}[audit.passed]),
        ("Reason", reason(audit.reason, audit.note) if audit.reason else ""),
    ]
    return [(label, text) for label, text in points if text]


def _spread(rows: list[dict[str, Any]]) -> Table:
    first = ("", "agent", "agent_id", "seed")
    head = sorted(
        {key for row in rows for key in row}, key=lambda key: (key not in first, not key.endswith("score"), key)
    )
    foot = []
    for label, reduce in (
        ("mean", np.mean),
        ("standard deviation", lambda values: np.std(values, ddof=1)),
        ("count", len),
    ):
        cells = [label]
        for key in head[1:]:
            values = [row[key] for row in rows if _is_figure(row.get(key)) and np.isfinite(row[key])]
            scored = len(values) > 1 and key.endswith("score")
            cells.append(_text(reduce(values)) if scored else "")
        foot.append(cells)
    return Table(
        tuple(_HEADS.get(key, _words(key)) for key in head),
        [[_text(row.get(key)) for key in head] for row in rows],
        foot,
    )


def _flat(content: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for key, value in sorted(content.items()):
        label = f"{prefix}{_LABELS.get(str(key)) or _words(str(key))}"
        if key == "versions" and isinstance(value, Mapping):
            rows.append((label, ", ".join(f"{name} {_text(item)}" for name, item in sorted(value.items()))))
        elif isinstance(value, Mapping) and len(value) > _LONG_SERIES and all(map(_is_figure, value.values())):
            rows.append((label, ", ".join(f"{name}: {_text(item)}" for name, item in sorted(value.items()))))
        elif isinstance(value, Mapping):
            rows += _flat(value, f"{label}: ")
        elif isinstance(value, (str, list, tuple)) and not value:
            continue
        elif (
            isinstance(value, (list, tuple))
            and len(value) > 1
            and all(map(_is_figure, value))
            and "seed" not in label.lower()
        ):
            rows.append(
                (
                    label,
                    f"{', '.join(map(_text, value))} (mean {_text(np.mean(value))}, standard deviation "
                    f"{_text(np.std(value, ddof=1))}, count {len(value)})",
                )
            )
        else:
            rows.append((label, _text(value)))
    return rows


def _text(value: Any) -> str:
    if value is None:
        return "n/a"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if _is_figure(value):
        return _figure(value)
    if isinstance(value, (list, tuple)):
        value = ", ".join(map(_text, value))
    text = str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text):,} characters)"


def _figure(value: Any) -> str:
    if isinstance(value, (int, np.integer)):
        return str(value)
    if not np.isfinite(value):
        return "n/a"
    return f"{value + 0.0:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.5g}"


def _is_figure(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_))


def _words(key: str) -> str:
    text = str(key).replace("_", " ").replace("cagr", "CAGR")
    return text[:1].upper() + text[1:]
