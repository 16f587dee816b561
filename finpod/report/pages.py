"""Renders pages from their parts. A part that raises an error is replaced by a line, and the rest is rendered."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from finpod.backtesting.sentences import anchor_name, audit_outcome, event_sentence, finding_sentence, unchecked
from finpod.backtesting.text import TURNOVER, describe_terms, short_note
from finpod.errors import ReportWarning, first_line
from finpod.evidence.assemble import benchmark_cover
from finpod.figures import WRITE, figure, percent, plural, ratio, short_amount
from finpod.files import require_free_file, versions, write_text
from finpod.periods import describe, yearly_note
from finpod.report.svg import Chart, Spec, draw

LONGEST = 200
"""Largest number of characters of an error message in a page."""


class Section(NamedTuple):
    """A part of a page, printed by the macro of the same name.

    `values` takes the subject of the page, such as a BacktestResult. It returns the values that the macro prints, or
    None to leave the section out.
    """

    name: str  # name of the macro, and anchor of the heading
    title: str
    values: Callable[[Any], Mapping[str, Any] | None] = lambda subject: {}
    style: str = ""  # CSS class of the element


class Layout(NamedTuple):
    """The template, charts and sections of a page."""

    template: str  # NAME.html.j2 is the page, _NAME.html.j2 has the macros of its sections
    charts: tuple[Spec, ...]
    head: tuple[Section, ...]  # sections next to the title
    lead: tuple[Section, ...]  # sections below the title, without headings
    sections: tuple[Section, ...]  # further sections, with headings


def write_page(render: Callable[[], str], path: str | Path, *, overwrite: bool = True) -> Path:
    """Write a page atomically and return its path. Raises InputError if the file cannot be written or replaced."""
    target = Path(path)
    require_free_file(target, overwrite)
    write_text(target, render())
    return target


def render_page(layout: Layout, subject: Any, called: str, *, drawn: Any = None, **shared: Any) -> str:
    """Return the page of a subject as HTML. Templates can use the `shared` values and the charts.

    The charts show `drawn`, or the subject if `drawn` is None. A chart or section that raises an error is replaced by
    one line, and a ReportWarning is issued. The text of the warning starts with `called`, the name of the page.
    """
    left_out: list[str] = []
    charts = {spec.name: _chart(spec, subject if drawn is None else drawn, left_out) for spec in layout.charts}
    shared["charts"] = {name: chart for name, chart in charts.items() if chart is not None}
    macros, page = (_templates().get_template(f"{mark}{layout.template}.html.j2") for mark in ("_", ""))
    head, lead, sections = (
        [printed for section in group if (printed := _print(macros, section, subject, shared, left_out))]
        for group in (layout.head, layout.lead, layout.sections)
    )
    html = page.render(**shared, head={part["name"]: part["html"] for part in head}, lead=lead, sections=sections)
    for line in left_out:
        warnings.warn(" ".join(f"{called}: {line}".split()), ReportWarning, stacklevel=2)
    return html


def _chart(spec: Spec, subject: Any, left_out: list[str]) -> Chart | None:
    try:
        return draw(spec, subject)
    except Exception as error:
        return Chart(spec.title, _instead("chart", spec.title, error, left_out), wide=spec.wide)


def _print(
    macros: Template, section: Section, subject: Any, shared: Mapping[str, Any], left_out: list[str]
) -> dict[str, Any] | None:
    """Return the fields of a section and its 'html' (one line after an error), or None if the section has no values."""
    try:
        if (values := section.values(subject)) is None:
            return None
        html = getattr(macros.make_module({**shared, **values}), section.name)()
    except Exception as error:
        line = _instead("section", section.title, error, left_out)
        html = Markup('<p class="empty">{}</p>\n').format(line)
    return section._asdict() | {"html": html}


def _instead(kind: str, title: str, error: Exception, left_out: list[str]) -> str:
    """Return the line that takes the place of a failed part, and add the part to `left_out`."""
    cause = f"{type(error).__name__}: {first_line(error):.{LONGEST}}"
    left_out.append(f"the {kind} {title!r} was left out ({cause})")
    return f"This {kind} was left out ({cause})."


def sentence(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]


def words(key: str) -> str:
    """Return a key as a label: 'max_weight' becomes 'Max weight'."""
    return sentence(str(key).replace("_", " ").replace("cagr", "CAGR"))


def years(value: float | None) -> str:
    """Return a number of years as text with one decimal; 'infinite' for inf, 'n/a' if it is undefined."""
    return "infinite" if value == math.inf else ratio(value, 1)


def estimate(value: float, measure: str, digits: int, is_difference: bool) -> str:
    """Return a value of a measure as text: Sharpe ratios with two digits, others in percent, differences signed."""
    text = ratio(value) if measure == "sharpe" else percent(value, digits)
    return f"+{text}" if is_difference and value > 0 and text.strip("0.%") else text


def duration(seconds: float) -> str:
    """Return a duration as text in its two largest units: 42 s, 3 min 20 s, 5 h 12 min, 3 d 4 h."""
    for unit, length, small, part in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit} {seconds % length // part:.0f} {small}"
    return f"{seconds:.0f} s"


_WRITERS = (figure, short_amount, plural, years, estimate, duration, sentence, words)
FILTERS: dict[str, Callable[..., Any]] = {
    **WRITE,
    **{write.__name__: write for write in _WRITERS},
    "moment": lambda seconds: f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M}",
    "share": lambda level: f"{100 * level:g} %",
    "bps": lambda fee: f"{fee:g} bps",
    "day": lambda when: f"{when:%Y-%m-%d}",
    "yearly_note": yearly_note,
    "short_note": short_note,
    "periods": describe,
    "anchor_name": anchor_name,
    "terms": lambda one: describe_terms(one.costs, one.fill, one.whole_shares, one.delisting_return),
    "benchmark_cover": benchmark_cover,
    "event": event_sentence,
    "finding": finding_sentence,
    "outcome": audit_outcome,
    "unchecked": lambda audit: "; ".join(unchecked(audit)),
}
"""Filters of the templates, by name."""


@cache
def _templates() -> Environment:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.loader = FileSystemLoader(Path(__file__).parent)
    environment.filters |= FILTERS
    environment.globals["turnover_note"] = TURNOVER
    environment.globals["made_with"] = versions("finpod", "numpy", "pandas", "torch", "matplotlib", "pyfolio-reloaded")
    return environment
