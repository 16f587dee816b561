"""Provenance of a result, and tables of the figures of its seeds and agents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from finpod.backtesting.text import who_varies
from finpod.figures import WRITE, percent, ratio
from finpod.market.long_bars import check_lines
from finpod.report.pages import words
from finpod.result import BacktestResult

LONGEST = 400
"""Largest number of characters of a value that are shown."""
LONG_SERIES = 8
"""A series of up to this many numbers, such as one per year, is shown line by line. Longer series are on one line."""
TITLES = {"board": "All trials, ranked on validation", "members": "Members of the ensemble"}
"""Key of `BacktestResult.agent` -> title of the list of agents under this key."""
LABELS = {
    "alike": "Max correlation",
    "hold": "Rebalance every",
    "survivorship": "Assets chosen with hindsight (survivorship)",
    "versions": "Made with",
    "left_out": "Features that the data do not provide",
    "dropped": "Features dropped, and the fraction of the members' training bars on which they are undefined",
    "undefined": "Features, and the fraction of the members' training bars on which they are undefined",
}
"""Key -> label, for keys that are not clear by themselves."""


class Table(NamedTuple):
    """A table of text."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]  # the first cell of a row is the label of the row
    foot: Sequence[Sequence[str]]  # mean, standard deviation and count


def members(result: BacktestResult) -> list[tuple[str, Table]]:
    """Return (title, table) for variants (seeds or members), agents, and each list of agents in the provenance."""
    tables = []
    if result.variants:
        tables.append((f"{who_varies(result).capitalize()} on its own over this window", _variants(result.spread)))
    if result.agents:
        title = "Each agent on its own over this window, the best on validation first"
        tables.append((title, _variants(result.agent_spread)))
    listed = {name: _records(value) for name, value in sorted(result.agent.items())}
    return tables + [(TITLES.get(name, words(name)), _listed(rows)) for name, rows in listed.items() if len(rows) > 1]


def _records(value: Any) -> list[Mapping[str, Any]]:
    """Return the rows of a list of mappings; empty for any other value."""
    return list(value) if isinstance(value, (list, tuple)) and all(isinstance(row, Mapping) for row in value) else []


def _variants(spread: Mapping[str, Mapping[str, float]]) -> Table:
    """Return `spread` (variant -> figures) as a table. Its entries 'mean', 'sd' and 'count' become the foot."""
    frame = pd.DataFrame(spread).T.rename({"sd": "standard deviation"})
    show = {"sharpe": ratio, "calmar": ratio}
    lines = [(name, *(show.get(key, percent)(row[key]) for key in frame)) for name, row in frame[:-1].iterrows()]
    counts = ("count", *map(WRITE["count"], frame.loc["count"]))
    return Table(("", *map(words, frame)), lines[:-2], [*lines[-2:], counts])


def _listed(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a list of agents as a table. The foot has mean, standard deviation and count of the scores."""
    first = ("agent", "agent_id", "seed")
    keys = sorted({key for row in rows for key in row}, key=lambda it: (it not in first, not it.endswith("score"), it))
    scores = pd.DataFrame(rows, columns=[key for key in keys if key.endswith("score")]).apply(pd.to_numeric)
    known = scores.where(np.isfinite(scores)).agg(["mean", "std", "count"]).reindex(columns=keys[1:])
    cells = [["" if math.isnan(value) else _text(value) for value in row] for row in known.to_numpy().tolist()]
    head = ["Agent seed" if key == "seed" else words(key) for key in keys]  # a tournament also has a seed
    foot = [[label, *row] for label, row in zip(("mean", "standard deviation", "count"), cells, strict=True)]
    return Table(head, [[_text(row.get(key)) for key in keys] for row in rows], foot)


def provenance(result: BacktestResult) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return (title, list of (label, text)) for the data, agent and search of a result. Empty groups are left out."""
    manifest = dict(result.manifest)
    title = str(manifest.pop("title", manifest.get("source", "unnamed")))
    checks = dict(zip(("Repaired or masked", "Suspicious, left unchanged"), check_lines(manifest), strict=True))
    for listed in ("repairs", "suspicions", "suspicion_counts", "without_prices"):
        manifest.pop(listed, None)
    data = [("Title", title), ("Content hash (SHA-256)", result.data_hash or "none"), *flat(manifest)]
    data += [(label, "; ".join(line.strip() for line in lines)) for label, lines in checks.items() if lines]
    agent = {key: value for key, value in result.agent.items() if len(_records(value)) < 2}
    groups = {"Data": data, "Agent": flat(agent), "Search": flat(result.search if result.trials > 1 else {})}
    return [(title, rows) for title, rows in groups.items() if rows]


def flat(content: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested values as (label, text) pairs. None and empty values are left out."""
    rows: list[tuple[str, str]] = []
    for key, value in sorted(content.items()):
        label = f"{prefix}{LABELS.get(key) or words(key)}"
        is_series = isinstance(value, Mapping) and len(value) > LONG_SERIES
        if key == "versions" or (is_series and all(isinstance(item, (int, float)) for item in value.values())):
            between = " " if key == "versions" else ": "
            rows.append((label, ", ".join(f"{name}{between}{_text(item)}" for name, item in sorted(value.items()))))
        elif isinstance(value, Mapping):
            rows += flat(value, f"{label}: ")
        elif value is not None and value not in ("", [], ()):
            rows.append((label, _text(value)))
    return rows


def _text(value: Any) -> str:
    """Return a JSON value as text. Integers have no commas, so that seeds can be copied."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "n/a"
    if isinstance(value, float):
        return f"{value + 0.0:,.0f}" if value == round(value) else f"{value:.5g}"
    text = ", ".join(map(_text, value)) if isinstance(value, (list, tuple)) else str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text):,} characters)"
