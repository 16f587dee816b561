"""From the parts of a page to its HTML. A part that raises an error is left out: the rest of the page is still made."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from markupsafe import Markup

from finpod.errors import ReportWarning, first_line

if TYPE_CHECKING:
    from jinja2 import Environment

    from finpod.report.svg import Chart

T = TypeVar("T")
_LONGEST = 200
"""Characters of an error that are shown."""


class Section(NamedTuple):
    """A part of a page. The macro of the same name in the page's template of sections prints it."""

    name: str
    """Name of the macro, and anchor of the heading."""
    title: str
    """Heading."""
    content: Callable[[Any], Mapping[str, Any] | None]
    """From what the page is about to the values that the macro prints; None if the page has no such section."""
    style: str = ""
    """Class of the element."""


class Picture(NamedTuple):
    """A chart of a page."""

    name: str
    """As templates call it."""
    title: str
    """As it is called where it could not be drawn."""
    draw: Callable[[Any], Chart]
    """From what the page is about to the chart."""
    wide: bool = False
    """Whether it takes the whole width."""
    needed: Callable[[Any], bool] = lambda subject: True
    """Whether the page has such a chart."""


class Printed(NamedTuple):
    """A section as HTML."""

    name: str
    title: str
    style: str
    html: Markup


class Draft:
    """Makes the parts of a page, and notes those that raised an error. `title` is what warnings call the page."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._left_out: list[str] = []

    def make(
        self, kind: Literal["chart", "section"], title: str, make: Callable[[], T], instead: Callable[[str], T]
    ) -> T:
        """What `make` returns; if it raises an error, what `instead` makes of one line that says so."""
        try:
            return make()
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error):.{_LONGEST}}"
            self._left_out.append(f"the {kind} {title!r} was left out ({reason})")
            return instead(f"This {kind} was left out ({reason}).")

    def charts(self, pictures: Iterable[Picture], subject: Any) -> dict[str, Chart]:
        """The charts of the subject by name. They hold no text that a user could choose, so they are not escaped."""
        from finpod.report.svg import report_style

        made: dict[str, Chart | None] = {}
        with report_style():
            for picture in pictures:
                draw, instead = partial(_drawn, picture, subject), partial(_undrawn, picture)
                made[picture.name] = self.make("chart", picture.title, draw, instead)
        return {name: chart._replace(svg=Markup(chart.svg)) for name, chart in made.items() if chart is not None}

    def sections(self, template: str, sections: Iterable[Section], subject: Any, **shared: Any) -> list[Printed]:
        """The sections that the subject has. Each macro gets its own values, and second a mapping of the `shared` ones."""
        made: list[Printed | None] = []
        for section in sections:
            print_it, instead = partial(_printed, template, section, subject, shared), partial(_unprinted, section)
            made.append(self.make("section", section.title, print_it, instead))
        return [section for section in made if section is not None]

    def page(self, template: str, **content: Any) -> str:
        """The page as HTML; warns of each part that was left out."""
        html = _templates().get_template(template).render(**content)
        for line in self._left_out:
            warnings.warn(" ".join(f"{self._title}: {line}".split()), ReportWarning, stacklevel=2)  # one line
        return html


def _drawn(picture: Picture, subject: Any) -> Chart | None:
    return picture.draw(subject) if picture.needed(subject) else None


def _undrawn(picture: Picture, line: str) -> Chart | None:
    from finpod.report.svg import Chart

    return Chart(picture.title, line, "", wide=picture.wide)


def _printed(template: str, section: Section, subject: Any, shared: Mapping[str, Any]) -> Printed | None:
    if (content := section.content(subject)) is None:
        return None
    macro = getattr(_templates().get_template(template).module, section.name)
    return Printed(section.name, section.title, section.style, macro(content, shared))


def _unprinted(section: Section, line: str) -> Printed | None:
    return Printed(section.name, section.title, section.style, Markup('<p class="empty">{}</p>\n').format(line))


@cache
def _templates() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
