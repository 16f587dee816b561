"""A market and strategies for the tests of the audit."""

import numpy as np
import pandas as pd
from made_markets import make_market, random_market

from finpod.rules import Momentum
from finpod.strategy import Strategy, equal_parts, top_k

DAYS, TICKERS = 150, 8


def made(days=DAYS):
    """Eight tickers with gaps, of which two are listed later."""
    market = random_market(days=days, names=TICKERS, gaps=0.02)
    tables = {name: getattr(market, name).copy() for name in ("close", "open", "factor")}
    for table in tables.values():
        table[:60, 0] = table[:110, 1] = np.nan
    benchmark = {"benchmark": market.benchmark_close, "benchmark_open": market.benchmark_open}
    return make_market(tables["close"], open=tables["open"], factor=tables["factor"], member=market.member, **benchmark)


MARKET = made()


def all_rows():
    """All closes, by way of a function so that no test holds them by accident."""
    return MARKET.close.copy()


class Ranks(Strategy):
    """Holds the three highest of a feature that it asks for in `decide`."""

    def __init__(self, feature):
        self.feature = feature

    def decide(self, view):
        return top_k(view.features(self.feature)[:, 0], 3, among=view.tradable)


class Acts(Momentum):
    """Does something on the side of each decision."""

    def __init__(self, act):
        super().__init__(lookback=20, k=3)
        self.act = act

    def decide(self, view):
        self.act()
        return super().decide(view)


class Holds(Momentum):
    """Holds something, and decides by something else."""

    def __init__(self, what, trained_until=None):
        super().__init__(lookback=20, k=3)
        self.what, self.trained_until = what, trained_until


class Mixes(Strategy):
    """Holds the mean of what several strategies decide."""

    def __init__(self, *parts, trained_until=None):
        self.parts, self.trained_until = parts, trained_until

    def decide(self, view):
        decided = [part.decide(view) for part in self.parts]
        return np.mean([[one[t] for t in view.tickers] if isinstance(one, dict) else one for one in decided], axis=0)


def in_parts(view, among=None):
    return equal_parts(view.tradable if among is None else among)


def shifted(market):
    """The return of the next session."""
    close = pd.DataFrame(market.close)
    return (close.shift(-1) / close - 1).to_numpy()


def does(rule, **attributes) -> Strategy:
    """Decides what a function of the view says."""
    decide = {"name": "does", "decide": lambda self, view: rule(view)}
    return type("Does", (Strategy,), {**decide, **attributes})()


def constant(*weights, **attributes) -> Strategy:
    return does(lambda view: np.array(weights, dtype=float), **attributes)


def plan(*rows) -> Strategy:
    """The weights of a table, one row per decision; None, and every decision after the last row, trades nothing."""
    return does(lambda view: rows[view.step] if view.step < len(rows) else None)


def strategy_of(weights, market) -> Strategy:
    """A strategy that decides the row of the weights [T, N] of the day that it sees."""
    row_of = {day: row for row, day in enumerate(market.dates)}
    return does(lambda view: weights[row_of[view.date]])


def kinds(verdict):
    """Kind and severity of the findings of an audit."""
    return {(finding.kind, finding.severity) for finding in verdict.findings}
