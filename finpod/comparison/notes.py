"""What a reader must know about a comparison: settings that differ, and how the window came about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from finpod.backtesting.text import describe_terms
from finpod.figures import percent

_UNFAIR: dict[str, tuple[str, Callable[[Any], str]]] = {
    "data": ("data", lambda value: f"{value[0]}, {value[1] or 'no hash'}"),
    "terms": ("terms", lambda value: describe_terms(*value)),
    "cash": ("starting cash", lambda value: f"{value:,}"),
    "risk_free": ("risk-free rates", percent),
}


class Unfair(NamedTuple):
    """A setting that differs between the runs and should not."""

    what: str
    """"data", "terms", "cash" or "risk_free"."""
    groups: tuple[tuple[Any, tuple[str, ...]], ...]
    """Each value of the setting and the runs that have it."""


@dataclass(frozen=True)
class Note:
    """Something a reader must know about a comparison."""

    code: str
    """"shortened" (the window), "several_rivals" or "intraday"."""
    data: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """JSON values that the sentence is made of."""


def unfair_sentence(unfair: Unfair) -> str:
    """Why a setting makes the comparison unfair."""
    what, write = _UNFAIR[unfair.what]
    groups = "; ".join(f"{write(value)} ({', '.join(names)})" for value, names in unfair.groups)
    end = ", so Sharpe ratios here are against 0 %" if unfair.what == "risk_free" else ""
    return f"no fair comparison: the {what} differ{'s' * (unfair.what == 'cash')}: {groups}{end}"


def note_sentence(note: Note) -> str:
    """What a reader must know about the comparison."""
    data = note.data
    if note.code == "several_rivals":
        return "the runs do not share one benchmark and one equal weight (data, costs, fills or start differ): each is shown"
    if note.code == "intraday":
        start = "first bar on" if data["from"] == "open" else "close of the first one"
        return f"intraday runs are compared session by session, from the {start}"
    lengths = "; ".join(f"{name} has {closes:,} from {span}" for name, (closes, span) in data["runs"].items())
    early = f". Runs that began earlier, {', '.join(data['invested'])}, enter with the positions they held"
    return (
        f"the window is shortened to the {data['closes']:,} closes that all runs have, {data['span']}: {lengths}"
        + early * bool(data["invested"])
    )
