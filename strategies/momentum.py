"""An example to copy: momentum across the members of an index.

finpod audit strategies/momentum.py                           tests it for look-ahead bias
finpod backtest strategies/momentum.py --start 2015-01-02     tests what it earns
"""

import finpod


class Momentum(finpod.Strategy):
    """Hold the ten members with the highest return over the past year, in equal parts."""

    every = 21  # sessions between decisions, about a month; nothing is traded in between

    def decide(self, view):  # view: finpod.MarketView, which ends at the decision day
        closes = view.closes(252)  # [252, N] adjusted closes, oldest first; NaN where an asset has no bar
        strength = closes[-1] / closes[0] - 1  # [N] returns; NaN for an asset without a price a year ago
        # Weights [N]: equal parts in the ten strongest. NaN is never chosen.
        return finpod.top_k(strength, 10, among=view.tradable & view.member)
