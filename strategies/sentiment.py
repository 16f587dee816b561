"""An example with a table of your own: hold the assets with the best news sentiment.

finpod audit strategies/sentiment.py --extra strategies/sentiment.csv --start 2022-01-03      tests it for look-ahead bias
finpod backtest strategies/sentiment.py --extra strategies/sentiment.csv --start 2022-01-03   tests what it earns
"""

import finpod


class Sentiment(finpod.Strategy):
    """Hold the four assets with the highest positive sentiment, in equal parts."""

    every = 5  # sessions between decisions; nothing is traded in between

    def decide(self, view):  # view: finpod.MarketView, which ends at the decision day
        sentiment = view.extra("sentiment", 1)[-1]  # [N], the latest values known that day; NaN where there is none yet
        return finpod.top_k(sentiment, 4, among=view.tradable & view.member & (sentiment > 0))
