"""`Execution`: fill prices, closes and masks of a market, and the trades in a step from one close to the next."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from finpod.errors import InputError, require_choice
from finpod.features.rolling import delay, rolling_mean
from finpod.market.data import MarketData, forward_fill
from finpod.trading.caps import within_caps
from finpod.trading.ledger import Costs, Fill, cash_out, cost_of, settle

Row = int | Tensor
"""Number of a row (bar) of the market: an int for all accounts, or a tensor [E] with a number for each account."""

MONTH = 21
"""Number of sessions over which volatility and dollar volume are measured for market impact."""
UNSEEN = 0.03
"""Daily return that is assumed for a missing return, so that an asset without history counts as volatile."""


class Account(NamedTuple):
    """Cash [...] and shares [..., N] of accounts in N assets, float64. Shares are adjusted for splits and dividends."""

    cash: Tensor
    shares: Tensor


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Prices and masks of T bars and N assets of a market, as tensors on one device. Row t belongs to bar t."""

    fill: str
    """'open': orders fill at the next open after the last bar that the decision sees; 'close': at the next close."""
    price: Tensor
    """[T, N] float64 fill price. Assets that are not tradable have their last earlier close, or 1 if they have none."""
    tradable: Tensor
    """[T, N] bool mask of the assets with a close. With `fill` 'open', they must also have an open."""
    mark: Tensor
    """[T, N] float64 close, carried forward over missing bars; 1 before the asset's first bar."""
    has_bar: Tensor
    """[T, N] bool mask of the assets with a close."""
    member: Tensor
    """[T, N] bool mask of the members of the universe."""
    among: Tensor
    """[T, N] bool mask of the assets that a decision on the row may hold: members with a bar."""
    delisted: Tensor
    """[T, N] bool mask, True for an asset in the first row after the session of its last bar."""
    factor: Tensor | None
    """[T, N] float64 adjusted price / traded price, carried forward over missing bars. None means 1 everywhere."""
    volume: Tensor | None = None
    """[T, N] float64 adjusted volume in shares, NaN where unknown; None if the data have no volumes."""
    month: int = MONTH
    """Number of rows in `MONTH` sessions."""

    @property
    def lag(self) -> int:
        """Number of rows by which the last row that a decision sees precedes the close at which the step begins. It is
        0 with fills at the open, and 1 with fills at the close."""
        return 0 if self.fill == "open" else 1

    def fill_row(self, row: Row) -> Row:
        """Return the row of the fill in the step that begins at the close of `row`."""
        return row + 1 - self.lag

    @cached_property
    def impact(self) -> Tensor | None:
        """[T, N] sigma / sqrt(V), the relative price move of trading one unit of currency; None without volumes.

        sigma is the root mean square of the returns in the month up to the row. V is the mean of close * volume in that
        month over the bars with a volume. Both are per bar, but sigma / sqrt(V) does not depend on the bar length. An
        asset without volume gets the largest value among the members at the bar, or NaN if no member has volume.
        """
        if self.volume is None:
            return None
        month, close = self.month, self.mark.where(self.has_bar, math.nan)
        unseen = UNSEEN**2 * MONTH / month
        squares = (close / delay(close, 1) - 1).square().nan_to_num(nan=unseen)
        dollars = close * self.volume
        mean_dollars = over_rows(dollars.nan_to_num(nan=0.0), month, 0.0)
        days = over_rows(dollars.isfinite().double(), month, 0.0)
        impact = (over_rows(squares, month, unseen) * days / mean_dollars).sqrt()
        known = mean_dollars > 0
        worst = impact.where(known & self.member, -math.inf).amax(-1, keepdim=True)
        return impact.where(known, worst.where(worst >= 0, math.nan))

    def impact_for(self, costs: Costs) -> Tensor | None:
        """Return `impact` if the costs have market impact, else None. Raises InputError if the data have no volumes."""
        if costs.impact == 0:
            return None
        if self.impact is None:
            text = f"impact is {costs.impact:g}, but market impact needs volumes, which the data lack; set impact to 0"
            raise InputError(text, argument="impact")
        return self.impact

    def within(
        self, weights: Tensor, account: Account, row: Row, max_weight: float | None, max_turnover: float | None
    ) -> Tensor:
        """Return target weights [..., N] after applying the caps (see `within_caps`). The account's present weights are
        measured at the fill prices of the step that begins at the close of `row`."""
        if max_weight is None and max_turnover is None:
            return weights
        worth = account.shares * self.price[self.fill_row(row)]
        current = worth / (account.cash + worth.sum(-1)).clamp(min=1e-300).unsqueeze(-1)
        return within_caps(weights.double(), current, max_weight, max_turnover)

    def trade(
        self, account: Account, row: Row, orders: Tensor, costs: Costs, *, whole_shares: bool = False, smooth: float = 0
    ) -> Fill:
        """Return the fill of `orders` [..., N] in the step that begins at the close of `row`.

        Assets without a price at the fill are not traded. The decision sees rows up to `row` - `lag`, and only assets
        that are members in that row can be bought. With market impact, assets whose `impact` is NaN in that row are not
        traded. `smooth` is passed to `settle`.
        """
        at, seen = self.fill_row(row), row - self.lag
        tradable, impact = self.tradable[at], self.impact_for(costs)
        if impact is not None:
            impact = impact[seen]
            tradable, impact = tradable & impact.isfinite(), impact.nan_to_num(nan=0.0)
        masks, factor = (tradable, self.member[seen]), None if self.factor is None else self.factor[at]
        more: dict[str, Any] = {"factor": factor, "impact": impact, "whole_shares": whole_shares, "smooth": smooth}
        return settle(*account, orders, self.price[at], *masks, costs, **more)

    def cost(self, traded: Tensor, row: Row, costs: Costs) -> Tensor:
        """Return the costs [..., N], in currency, of shares `traded` in the step that begins at the close of `row`."""
        at, impact = self.fill_row(row), self.impact_for(costs)
        factor = None if self.factor is None else self.factor[at]
        impact = None if impact is None else impact[row - self.lag].nan_to_num(nan=0.0)
        return cost_of(traded, self.price[at], costs, factor=factor, impact=impact)

    def carry(self, account: Account, row: Row, delisting_return: float = 0.0) -> Account:
        """Return `account` after delistings at the close of `row + 1`: delisted positions become cash (`cash_out`)."""
        return Account(*cash_out(*account, self.mark[row], self.delisted[row + 1], delisting_return))


def require_market(market: Any) -> None:
    """Raise InputError unless `market` is a MarketData."""
    if not isinstance(market, MarketData):
        text = f"market is a {type(market).__name__}; it must be a market from load_market(...) or sample_market()"
        raise InputError(text, argument="market")


def build_execution(market: MarketData, fill: str | None = None, device: str | torch.device = "cpu") -> Execution:
    """Return the `Execution` of a market. If `fill` is None, 'open' is used for data with opens, else 'close'.

    Raises InputError for an unknown fill, and for 'open' if the data have no opens.
    """
    if fill is None:
        fill = "close" if market.open is None else "open"
    require_choice("fill", fill, ("open", "close"))
    if fill == "open" and market.open is None:
        raise InputError("fill is 'open', but the data have no opens; choose fill='close'", argument="fill")
    mark = forward_fill(market.close, before=1.0)
    price, tradable = mark, market.has_bar
    if fill == "open" and market.open is not None:
        before = np.vstack([np.ones_like(mark[:1]), mark[:-1]])
        tradable = market.has_bar & np.isfinite(market.open)
        price = np.where(tradable, market.open, before)
    after = market.sessions[:, None] > market.last_bar.astype("datetime64[D]")  # gaps late in a day are no delistings
    delisted = after & ~np.vstack([after[:1], after[:-1]])
    delisted[0] = False
    factor = None if market.factor is None else forward_fill(market.factor, before=1.0)
    tables: dict[str, Any] = {"price": price, "tradable": tradable, "mark": mark, "delisted": delisted}
    tables |= {"has_bar": market.has_bar, "member": market.member, "among": market.member & market.has_bar}
    tables |= {"factor": factor, "volume": market.volume}
    tensors: Any = {name: None if x is None else torch.tensor(x, device=device) for name, x in tables.items()}
    return Execution(fill=fill, month=max(round(MONTH * market.bars_per_session), 1), **tensors)


def over_rows(table: Tensor, rows: int, before: float) -> Tensor:
    """Return, for each row of `table` [T, N], the mean of the last `rows` rows. Rows before row 0 count as `before`."""
    return rolling_mean(torch.cat([table.new_full((rows, table.shape[1]), before), table]), rows)[rows:]
