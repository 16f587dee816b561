"""Anchors: portfolios that an agent tilts and has to beat, as a rule by name or as weights of the user's own."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from finpod.errors import InputError, did_you_mean
from finpod.market.data import MarketData
from finpod.market.extra import PREFIX, ExtraData, column_of
from finpod.measures import Array
from finpod.periods import dates_of
from finpod.trading.execution import MONTH, Execution, over_rows

if TYPE_CHECKING:
    import pandas as pd

EQUAL = "equal-weight"
"""Default anchor."""
QUARTER = 3 * MONTH
"""Sessions over which the dollar volume is averaged."""
SUM = 1e-9
"""Tolerance of a sum of weights above one."""
GIVEN = "anchor"
"""Name of the extra column that holds weights given as an array."""


def equal_weight(dollars: Tensor | None, among: Tensor, rows: int) -> Tensor:
    """Return equal weights [T, N] of the assets in `among` [T, N]; all zero for a row without any."""
    return among / among.sum(-1, keepdim=True).clamp(min=1).double()


def dollar_volume(dollars: Tensor | None, among: Tensor, rows: int) -> Tensor:
    """Return weights [T, N] in proportion to the square root of the mean dollar volume of the last `rows` rows.

    `dollars` [T, N] is close * volume, NaN where unknown; the mean is over the known rows. `among` [T, N] bool are the
    assets that may be held. An asset without any dollar volume counts like the smallest of the row's others. A row without
    any at all gets equal weights. Raises InputError if `dollars` is None.
    """
    if dollars is None:
        raise InputError(
            "anchor 'dollar-volume' needs volumes, and these data have none; give data with volumes, or train with anchor "
            f"{EQUAL!r}",
            argument="anchor",
        )
    days = over_rows(dollars.isfinite().double(), rows, 0.0)
    size = (over_rows(dollars.nan_to_num(nan=0.0), rows, 0.0) / days).sqrt()
    known = size.isfinite()
    least = size.where(among & known, math.inf).amin(-1, keepdim=True)
    size = size.where(known, least.where(least.isfinite(), 0.0)) * among
    total = size.sum(-1, keepdim=True)
    return (size / total.where(total > 0, 1.0)).where(total > 0, equal_weight(None, among, rows))


ANCHORS: dict[str, Callable[[Tensor | None, Tensor, int], Tensor]] = {
    EQUAL: equal_weight,
    "dollar-volume": dollar_volume,
}
"""Name -> function of dollar volumes [T, N], members with a bar [T, N] and the rows of `QUARTER` to weights [T, N] float64."""


def require_anchor(name: object) -> None:
    """Raise InputError unless `name` is in `ANCHORS` or is `extra:COLUMN`, a column of the user's own."""
    if column_of(name) == "":
        raise InputError(f"anchor {PREFIX} needs the name of a column, as {PREFIX}size", argument="anchor")
    if not (isinstance(name, str) and (name in ANCHORS or column_of(name))):
        hint = did_you_mean(str(name), list(ANCHORS), f"choose from {', '.join(ANCHORS)} and {PREFIX}COLUMN")
        raise InputError(f"unknown anchor {name!r}; {hint}", argument="anchor")


def anchor_weights(
    execution: Execution, anchor: str = EQUAL, market: MarketData | None = None, rows: slice = slice(None)
) -> Tensor:
    """Return the weights [T, N] float64 of an anchor. Row t is known at the close of t; zero except for members with a bar.

    'extra:COLUMN' takes them from a column of the `market`, whose `rows` are checked by `ready`. Raises InputError for an
    unknown name, for bad weights in such a column, and for 'dollar-volume' if the data have no volumes.
    """
    require_anchor(anchor)
    among = execution.member & execution.has_bar
    if market is not None and (column := column_of(anchor)) is not None:
        table = torch.tensor(market.extra[column]).to(among.device)
        return ready(table, among, anchor, market.dates, rows)
    dollars = (
        None if execution.volume is None else (execution.mark * execution.volume).where(execution.has_bar, math.nan)
    )
    if dollars is not None and not bool((dollars > 0).any()):
        dollars = None
    return ANCHORS[anchor](dollars, among, 3 * execution.month)


def anchor_of_view(view: Any, anchor: str) -> Tensor:
    """Return the latest weights [N] of an anchor that a `MarketView` knows. Raises InputError as `anchor_weights` does."""
    among, rows = torch.tensor(view.member & view.tradable)[None], 3 * view.rows_of(MONTH)
    if (column := column_of(anchor)) is not None:
        return ready(torch.tensor(view.extra(column, 1)), among, anchor, np.array([view.date]))[0]
    dollars = torch.tensor(view.closes(rows) * view.volumes(rows)) if anchor != EQUAL and view.has_volumes else None
    return ANCHORS[anchor](dollars, among if dollars is None else among.expand(len(dollars), -1), rows)[-1]


def ready(table: Tensor, among: Tensor, anchor: str, dates: Array, rows: slice = slice(None)) -> Tensor:
    """Return the weights `table` [T, N], zero outside `among` [T, N].

    Raises InputError that names the first day among `rows` on which a weight is negative or not finite, their sum exceeds
    one by more than `SUM`, or all assets that may be held have weight zero.
    """
    weights = table.where(among, 0.0)
    total = weights.sum(-1)
    faults = {
        "a weight that is not finite": ~weights.isfinite().all(-1),
        "a weight below zero": (weights < 0).any(-1),
        "weights that sum to more than 1": total > 1 + SUM,
        "nothing to hold among the members": (total == 0) & among.any(-1),
    }
    for fault, where in faults.items():
        if where[rows].any():
            day = dates[rows][int(where[rows].to(torch.uint8).argmax())]
            raise InputError(
                f"the anchor {anchor} has {fault} on {day!s:.10}; give weights from 0 on with a sum above 0 and up to 1",
                argument="anchor",
            )
    return weights


def with_anchor(market: MarketData, weights: Array | pd.DataFrame) -> tuple[MarketData, str]:
    """Return the market with `weights` [T, N] as an extra column, and the name of that anchor.

    Row t is known at the close of t. A frame must have the market's dates and tickers; its columns are reordered. Raises
    InputError for another shape, values that are not numbers, and other dates or tickers.
    """
    if hasattr(weights, "columns"):
        weights = _in_order(weights, market)
    try:
        table = np.asarray(weights, dtype=np.float64)
        fault = "" if table.shape == market.shape else f"has shape {table.shape}"
    except (TypeError, ValueError):
        fault = "holds what is not a number"
    if fault:
        raise InputError(
            f"the anchor, of type {type(weights).__name__}, {fault}; ready weights must be [T, N] = {market.shape}, in the "
            "market's order",
            argument="anchor",
        )
    tables = {**market.extra.tables, GIVEN: table}
    return replace(market, extra=ExtraData(tables=tables, width=market.shape[1])), f"extra:{GIVEN}"


def _in_order(frame: pd.DataFrame, market: MarketData) -> pd.DataFrame:
    """Columns of a frame in the market's order. Raises InputError that names a date or ticker that differs."""
    days = dates_of(frame, "the anchor")
    odd = sorted(map(str, set(frame.columns) ^ set(market.tickers)))
    fault = f"{odd[0]} is a column of the anchor or a ticker of the market, and not both" if odd else ""
    if days is None:
        fault = "the index of the anchor is not of dates"
    elif (other := days[: len(market.dates)] != market.dates[: len(days)]).any():
        found, expected = (f"{dates[other.argmax()]!s:.16}".removesuffix("T00:00") for dates in (days, market.dates))
        fault = f"row {other.argmax()} of the anchor is {found}, where the market has {expected}"
    if fault:
        raise InputError(f"{fault}; give a frame with the market's dates and tickers", argument="anchor")
    return frame[list(market.tickers)]
