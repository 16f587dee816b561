"""Anchors: portfolios that an agent tilts and must beat. A rule or the user's own weights define an anchor."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from finpod.errors import InputError, require_choice
from finpod.market.data import MarketData
from finpod.market.extra import PREFIX, ExtraData, column_of
from finpod.measures import Array
from finpod.periods import dates_of, session_dates
from finpod.trading.execution import MONTH, Execution, over_rows

if TYPE_CHECKING:
    import pandas as pd

EQUAL = "equal-weight"
"""Name of the default anchor."""
ANCHORS = (EQUAL, "dollar-volume")
"""Names of the rules, see `rule_weights`."""
SUM = 1e-9
"""Tolerance for rounding errors: weights may sum to at most 1 plus this value."""
GIVEN = "anchor"
"""Name of the extra column that holds weights given as an array."""


def rule_weights(anchor: str, dollars: Tensor | None, among: Tensor, rows: int) -> Tensor:
    """Return the weights [T, N] float64 of the rule `anchor` at each of T bars, for N assets.

    The bool mask `among` [T, N] marks the assets that may be held; other assets get zero. 'equal-weight' gives equal
    weights. 'dollar-volume' gives weights in proportion to the square root of the mean dollar volume of the last `rows`
    bars. `dollars` [T, N] is close * volume, NaN where unknown; the mean leaves out NaN. An asset without a known
    dollar volume in these bars gets the smallest weight of the others at the bar. If no asset has dollar volume, all
    get equal weights. Raises InputError for 'dollar-volume' if `dollars` is None.
    """
    equal = among / among.sum(-1, keepdim=True).clamp(min=1).double()
    if anchor == EQUAL:
        return equal
    if dollars is None:
        text = f"anchor 'dollar-volume' needs volumes, and these data have none; choose anchor {EQUAL!r}"
        raise InputError(text, argument="anchor")
    days = over_rows(dollars.isfinite().double(), rows, 0.0)
    size = (over_rows(dollars.nan_to_num(nan=0.0), rows, 0.0) / days).sqrt()
    known = size.isfinite()
    least = size.where(among & known, math.inf).amin(-1, keepdim=True)
    size = size.where(known, least.where(least.isfinite(), 0.0)) * among
    total = size.sum(-1, keepdim=True)
    return (size / total.where(total > 0, 1.0)).where(total > 0, equal)


def require_anchor(name: object) -> None:
    """Raise InputError unless `name` is in `ANCHORS` or has the form `extra:COLUMN`."""
    if column_of(name) == "":
        raise InputError(f"anchor {PREFIX} needs the name of a column, such as {PREFIX}size", argument="anchor")
    if not column_of(name):
        require_choice("anchor", name, ANCHORS, f" and {PREFIX}COLUMN")


def anchor_weights(
    execution: Execution, anchor: str = EQUAL, market: MarketData | None = None, rows: slice = slice(None)
) -> Tensor:
    """Return the weights [T, N] float64 of an anchor at each of T bars, for N assets. Row t uses only data up to bar t.

    Assets that are not members or have no bar get zero. The weights of 'extra:COLUMN' come from a column of `market`.
    These weights are checked in the rows `rows` (see `checked`). Other anchors do not need `market`. Raises InputError
    for an unknown name, for bad weights in the column, and for 'dollar-volume' if the data have no volumes.
    """
    require_anchor(anchor)
    among = execution.among
    if (column := column_of(anchor)) is not None:
        assert market is not None, f"anchor {anchor} needs the argument market"
        table = torch.tensor(market.extra[column]).to(among.device)
        return checked(table, among, anchor, market.dates, rows)
    dollars = None
    if execution.volume is not None and bool((execution.volume > 0).any()):
        dollars = (execution.mark * execution.volume).where(execution.has_bar, math.nan)
    return rule_weights(anchor, dollars, among, 3 * execution.month)


def anchor_of_view(view: Any, anchor: str) -> Tensor:
    """Return the weights [N] of an anchor at the last bar of a `MarketView`. The name `anchor` must be valid. Raises
    InputError for bad weights in a column of the user, and for 'dollar-volume' if the data have no volumes."""
    among, rows = torch.tensor(view.member & view.tradable)[None], 3 * view.rows_of(MONTH)
    if (column := column_of(anchor)) is not None:
        return checked(torch.tensor(view.extra(column, 1)), among, anchor, np.array([view.date]))[0]
    dollars = torch.tensor(view.closes(rows) * view.volumes(rows)) if anchor != EQUAL and view.has_volumes else None
    return rule_weights(anchor, dollars, among if dollars is None else among.expand(len(dollars), -1), rows)[-1]


def checked(table: Tensor, among: Tensor, anchor: str, dates: Array, rows: slice = slice(None)) -> Tensor:
    """Return the user's weights `table` [T, N], set to zero outside the mask `among` [T, N] of assets that may be held.

    Then, only the rows `rows` are checked. Raises InputError, with the date, for a weight that is negative or not
    finite, for weights that sum to more than 1 + `SUM`, and if all weights are zero although an asset may be held.
    """
    weights = table.where(among, 0.0)
    total = weights.sum(-1)
    faults = {
        "a weight that is not finite": ~weights.isfinite().all(-1),
        "a weight below zero": (weights < 0).any(-1),
        "weights that sum to more than 1": total > 1 + SUM,
        "a weight of zero for every member": (total == 0) & among.any(-1),
    }
    for fault, where in faults.items():
        if where[rows].any():
            day = dates[rows][int(where[rows].to(torch.uint8).argmax())]
            text = f"the anchor {anchor} has {fault} on {day!s:.10}; pass finite weights >= 0, with a sum in (0, 1]"
            raise InputError(text, argument="anchor")
    return weights


def with_anchor(market: MarketData | None, weights: str | Array | pd.DataFrame) -> tuple[MarketData, str]:
    """Return the market with `weights` [T, N] as an extra column, and the name of the anchor, 'extra:anchor'.

    Row t of `weights` is used from the close of bar t on. A frame must have the market's dates and tickers; its columns
    are reordered. If `weights` is the name of an anchor, both arguments are returned unchanged. Raises InputError for
    another shape, values that are not numbers, other dates or tickers, and a `market` that is not a MarketData.
    """
    if not isinstance(market, MarketData):
        raise InputError(f"market is {market!r:.40}; pass market=finpod.load_market(...)", argument="market")
    if isinstance(weights, str):
        return market, weights
    if hasattr(weights, "columns"):
        weights = in_market_order(weights, market, "the anchor", "anchor")
    try:
        table = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError) as error:
        text = "the anchor has values that are not numbers; pass a table of weights"
        raise InputError(text, argument="anchor") from error
    if table.shape != market.shape:
        text = f"the anchor has shape {table.shape}; pass weights (dates, tickers) of the market's shape {market.shape}"
        raise InputError(text, argument="anchor")
    tables = {**market.extra.tables, GIVEN: table}
    return replace(market, extra=ExtraData(tables=tables, width=market.shape[1])), f"extra:{GIVEN}"


def in_market_order(frame: pd.DataFrame, market: MarketData, what: str, argument: str) -> pd.DataFrame:
    """Return a frame [T dates, N tickers] with its columns in the order of the market's tickers.

    The dates of daily bars may have any time and time zone. Intraday dates with a time zone are converted to the time
    zone of the market. Raises InputError if the frame has no dates, or if its dates or tickers differ from those of the
    market. The message calls the frame `what`.
    """
    daily = market.bars_per_session == 1
    if not daily and getattr(frame.index, "tz", None) is not None:
        from finpod.market.calendar import Timeline  # loads pandas
        from finpod.market.cleaning import NO_CALENDAR

        calendar = market.manifest.get("calendar", NO_CALENDAR)
        frame = frame.tz_convert(Timeline(market.dates, None if calendar == NO_CALENDAR else calendar).zone)
    days = dates_of(frame, what)
    if days is None:
        raise InputError(f"the index of {what} has no dates; pass a frame with dates", argument=argument)
    pair = map(session_dates, (days, market.dates)) if daily else (days, market.dates)
    given, known, how = set(frame.columns), set(market.tickers), "columns=market.tickers, fill_value=0.0"
    if given == known:
        (given, known), how = map(set, pair), "index=market.dates"
    if odd := known - given or given - known:
        sides = f"the market, not in {what}" if known - given else f"{what}, not in the market"
        one = min(map(str, odd)).removesuffix(":00.000000000")
        raise InputError(f"{one} is only in {sides}; reindex the frame: frame.reindex({how})", argument=argument)
    return frame[list(market.tickers)]
