"""An example with a table of one's own: hold what the news speaks well of.

finpod audit strategies/sentiment.py --extra strategies/sentiment.csv --start 2022-01-03      does it look ahead?
finpod backtest strategies/sentiment.py --extra strategies/sentiment.csv --start 2022-01-03   does it earn anything?
"""

import finpod


class Sentiment(finpod.Strategy):
    """Hold the four tickers with the best positive sentiment in equal parts."""

    every = 5  # sessions from one decision to the next; in between nothing is traded

    def decide(self, view):  # view: finpod.MarketView; it ends at the day of the decision
        sentiment = view.extra("sentiment", 1)[-1]  # [N], the latest value known that day; NaN where there is none yet
        return finpod.top_k(sentiment, 4, among=view.tradable & view.member & (sentiment > 0))
