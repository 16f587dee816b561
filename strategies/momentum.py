"""An example to copy: momentum across the members of an index, in ten lines.

finpod audit strategies/momentum.py                                   does it look ahead?
finpod backtest strategies/momentum.py --start 2015-01-02             does it earn anything?
"""

import finpod


class Momentum(finpod.Strategy):
    """Hold the ten strongest members of the past year in equal parts."""

    every = 21  # sessions from one decision to the next, so about once a month; in between nothing is traded

    def decide(self, view):  # view: finpod.MarketView; it ends at the day of the decision
        closes = view.closes(252)  # [252, N], oldest first, adjusted; NaN where there is no bar, never filled
        strength = closes[-1] / closes[0] - 1  # [N]; NaN for a name without a price a year ago
        # Weights [N] of the account: a tenth in each of the ten strongest. NaN ranks last; what is left stays in cash.
        return finpod.top_k(strength, 10, among=view.tradable & view.member)
