"""From a template of this folder and its content to a page."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment

    from finpod.report.drawing import Chart


def fill(template: str, charts: Mapping[str, Chart], **content: Any) -> str:
    """The template as HTML; text is escaped, charts are not: they hold no names a user could choose."""
    drawn = {name: chart._replace(svg=Markup(chart.svg)) for name, chart in charts.items()}
    return _templates().get_template(template).render(charts=drawn, **content)


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
