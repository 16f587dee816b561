"""Anchors: the weights that a tilt is taken around, and that an agent has to beat; rules by name, or ready weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from finpod.errors import InputError, did_you_mean
from finpod.market.tape import MONTH, Tape, over_rows

EQUAL = "equal-weight"
"""The anchor unless another is named."""
QUARTER = 3 * MONTH
"""Sessions over which the dollar volume is measured."""
SUM = 1e-9
"""What ready weights may add up to above one."""


def equal_weight(dollars: Tensor | None, among: Tensor, rows: int) -> Tensor:
    """Return equal weights [T, N] among the names of each row; all zero for a row without any."""
    return among / among.sum(-1, keepdim=True).clamp(min=1).double()


def dollar_volume(dollars: Tensor | None, among: Tensor, rows: int) -> Tensor:
    """Return weights [T, N] in proportion to the square root of the mean of `dollars` over the last `rows` rows.

    `dollars` [T, N] are close * volume, NaN where not known, and `among` [T, N] bool the names of each row. The mean is
    over the rows that are known, the row itself being the last. A name without any counts as the least of the row's
    others; a row on which nothing was dealt in gets equal weights. Raises InputError for no volumes.
    """
    if dollars is None:
        raise InputError(
            f"anchor 'dollar-volume' needs volumes, and these data have none; choose {EQUAL!r}", argument="anchor"
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
"""Name -> weights [T, N] float64 out of dollar volumes [T, N], the members with a bar [T, N], and the rows of `QUARTER`."""


def anchor_weights(tape: Tape, anchor: str = EQUAL) -> Tensor:
    """Return the target weights [T, N] float64 of an anchor: zero but for members with a bar, row t known at the close of t.

    Raises InputError for an unknown name, and for 'dollar-volume' where there are no volumes.
    """
    if anchor not in ANCHORS:
        hint = did_you_mean(str(anchor), list(ANCHORS), f"choose from {', '.join(ANCHORS)}")
        raise InputError(f"unknown anchor {anchor!r}; {hint}", argument="anchor")
    among = tape.member & tape.has_bar
    dollars = None if tape.volume is None else (tape.mark * tape.volume).where(tape.has_bar, math.nan)
    if dollars is not None and not bool((dollars > 0).any()):
        dollars = None
    return ANCHORS[anchor](dollars, among, 3 * tape.month)


def anchor_of_view(view: Any, anchor: str) -> Tensor:
    """Return the row [N] of `anchor_weights` that a decision on a `MarketView` knows. Raises InputError as that does."""
    among, rows = torch.tensor(view.member & view.tradable)[None], 3 * view.rows_of(MONTH)
    dollars = torch.tensor(view.closes(rows) * view.volumes(rows)) if anchor != EQUAL and view.has_volumes else None
    return ANCHORS[anchor](dollars, among if dollars is None else among.expand(len(dollars), -1), rows)[-1]
