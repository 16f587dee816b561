"""`BacktestResult`: the outcome of a backtest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from finpod.measures import Metrics, Relative, metrics, relative, returns_per_year, simple_returns
from finpod.records import Audit, Event, ResultWarning
from finpod.trading.ledger import Costs

SPREAD = ("total_return", "cagr", "volatility", "sharpe", "max_drawdown", "calmar")
"""Names of the metrics in `spread` and `agent_spread`. Both have 'excess_over_equal_weight' too."""
SHORT_HISTORY = 20
"""Annualised figures are marked as unreliable if the returns cover fewer sessions than this."""
Sweep = Mapping[float, Mapping[str, Mapping[str, float]]]
"""Fee in bps or initial cash -> strategy -> metric -> value."""
UNDEFINED = Metrics(math.nan, math.nan, math.nan, math.nan, math.nan, math.nan, math.nan, 0)
"""Metrics of a curve without returns."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BacktestResult:
    """Equity, trades and provenance of one strategy over one window; `print` shows it as a table.

    `strategy` and `benchmark` are names. A curve has n + 1 points for n returns. The first point is the initial cash,
    at the close of the first bar. N is the number of assets.
    """

    strategy: str
    equity: pd.Series
    """[n + 1] value of the account at each close, in the currency of the cash."""
    benchmark: str
    benchmark_equity: pd.Series
    """[n + 1] value of the benchmark, bought at its first close without cost; NaN where it has no bar."""
    equal_weight_equity: pd.Series
    """[n + 1] value of equal weights of the universe's members, rebalanced every session at the same costs."""
    anchor_equity: pd.Series
    """[n + 1] value of an account that holds the anchor, the portfolio to beat, on the same dates at the same costs."""
    weights: pd.DataFrame
    """[n + 1, N] weight of each asset at each close, as a fraction of the account; the rest is cash."""
    trades: pd.DataFrame
    """One row for each fill: date, ticker, shares (sells are < 0), price, notional, cost, kind ('fill' or 'delisted').

    Shares and prices are adjusted, so a position is the running sum of its shares."""
    turnover: pd.Series
    """[n] notional bought plus notional sold in each bar, as a fraction of the equity at the fill."""
    costs: Costs
    fill: str
    """Price at which decisions are filled: 'open' or 'close'."""
    anchor: str = "equal-weight"
    """Name of the anchor, the portfolio to beat (see `finpod.trading.anchors`)."""
    anchor_every: int = 1
    """`every` of the strategy. The anchor is rebalanced every `anchor_every` bars or, if this is 1, every session."""
    whole_shares: bool = False
    """True if only whole shares were bought and sold, counted before adjustment for splits."""
    delisting_return: float = 0.0
    """Return on delisting: from the last price of a delisted asset to the cash that was paid for it."""
    risk_free: float = 0.0
    """Yearly risk-free rate, used in the Sharpe ratio."""
    periods_per_year: float = 252
    """Bars per year, from the market: given by the user, or measured from the dates."""
    sessions_per_year: float = 252
    """Sessions per year, to annualise returns of sessions. Equal to `periods_per_year` unless bars are intraday."""
    trained_until: str | None = None
    """Last day of the data on which the strategy was trained or selected."""
    trials: int = 1
    """Number of candidates tried before the strategy was selected, such as agents after each round of training."""
    opened: int = 1
    """Number of results of this window that the user has seen, including this one."""
    windows: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """'train' and 'validation' ('train 1', ... in a walk-forward) -> first and last day of the window."""
    agent: Mapping[str, Any] = field(default_factory=dict)
    """Origin of a trained strategy: learner, seeds, settings, scores, device, versions."""
    in_sample: bool = False
    """True if the window starts on or before `trained_until`."""
    variants: Mapping[str, pd.Series] = field(default_factory=dict)
    """Name -> equity [n + 1] of the variants: strategies from the same training run, of the kind `variant_kind`."""
    variant_kind: str = ""
    """Kind of the variants: "seed" (all agents of one seed), "member" (one agent) or "" (there are no variants)."""
    agents: Mapping[str, pd.Series] = field(default_factory=dict)
    """Name -> equity [n + 1] of the single agents of an ensemble. The best agent on validation is first."""
    baselines: Mapping[str, pd.Series] = field(default_factory=dict)
    """Name -> equity [n + 1] of the baseline strategies, on the same dates and at the same costs."""
    fan: pd.DataFrame = field(default_factory=pd.DataFrame)
    """[n + 1, R] equity of R random portfolios with the turnover of the strategy; empty if none were run."""
    cost_sweep: Sweep = field(default_factory=dict)
    """Metrics of the same decisions: fee in bps -> strategy -> 'total_return', 'cagr', 'sharpe' and 'rank'."""
    capacity: Sweep = field(default_factory=dict)
    """Initial cash -> strategy -> metrics of `cost_sweep` and 'costs' (a fraction per year), with market impact."""
    audit: Audit | None = None
    """Outcome of the look-ahead audit; None if none was run."""
    search: Mapping[str, Any] = field(default_factory=dict)
    """Trials from which the strategy was selected: their number, and figures of their validation returns; see
    `finpod.evidence.skill.search_of`."""
    warnings: tuple[ResultWarning, ...] = ()
    """Reasons to doubt the figures."""
    events: tuple[Event, ...] = ()
    """Delistings, a skipped first decision, and unfilled orders to buy an asset not yet held, in order of date."""
    data_hash: str = ""
    manifest: Mapping[str, Any] = field(default_factory=dict)
    """Provenance of the market data. `data_hash` is the hash of their content."""

    @cached_property
    def returns(self) -> pd.Series:
        """[n] simple returns of the account."""
        return simple_returns(self.equity).rename("return")

    @cached_property
    def metrics(self) -> Metrics:
        """Metrics of the strategy."""
        return self.metrics_of(self.equity)

    @cached_property
    def benchmark_metrics(self) -> Metrics:
        """Metrics of the benchmark over the bars that it has; `UNDEFINED` if it has fewer than two bars."""
        return self.metrics_of(self.benchmark_equity)

    @cached_property
    def equal_weight_metrics(self) -> Metrics:
        """Metrics of the equal-weight portfolio."""
        return self.metrics_of(self.equal_weight_equity)

    @cached_property
    def relative(self) -> Relative:
        """Metrics of the strategy relative to the benchmark, on common dates."""
        return self._relative(self.equity, self.benchmark_equity)

    @cached_property
    def relative_to_equal_weight(self) -> Relative:
        """Metrics of the strategy relative to the equal-weight portfolio."""
        return self._relative(self.equity, self.equal_weight_equity)

    @cached_property
    def relative_to_anchor(self) -> Relative:
        """Metrics of the strategy relative to its anchor."""
        return self._relative(self.equity, self.anchor_equity)

    def metrics_of(self, equity: pd.Series) -> Metrics:
        """Return the metrics of a curve [n + 1] on the days of this result, with its `risk_free`. NaN are skipped."""
        bars, periods = equity.dropna().to_numpy(), returns_per_year(equity.notna(), self.periods_per_year)
        return metrics(bars, risk_free=self.risk_free, periods_per_year=periods) if len(bars) > 1 else UNDEFINED

    def _relative(self, equity: pd.Series, other: pd.Series) -> Relative:
        periods = returns_per_year(equity.notna() & other.notna(), self.periods_per_year)
        return relative(equity.to_numpy(), other.to_numpy(), periods_per_year=periods)

    @property
    def has_benchmark(self) -> bool:
        """True if the benchmark has a bar in the window."""
        return bool(self.benchmark_equity.notna().any())

    @property
    def candidates(self) -> int:
        """Number of results of this window from which this result may have been selected.

        It is `opened` * `trials` if the trials were compared on this window (in sample, or no training), else `opened`.
        """
        return self.opened * (self.trials if self.in_sample or self.trained_until is None else 1)

    @property
    def has_own_anchor(self) -> bool:
        """True if the anchor differs from equal weight rebalanced every session."""
        return not self.anchor_equity.equals(self.equal_weight_equity)

    @property
    def is_short(self) -> bool:
        """True if the returns cover too few sessions (`SHORT_HISTORY`) for meaningful yearly figures."""
        return len(self.returns) < SHORT_HISTORY * self.periods_per_year / self.sessions_per_year

    @property
    def is_intraday(self) -> bool:
        """True if a session has several bars."""
        return self.periods_per_year > self.sessions_per_year

    def by_session(self) -> BacktestResult:
        """Return the result with the last point and the summed turnover of each session. A daily result is unchanged.

        The first point is kept too. If its session has more points, the first point is dated a weekday earlier.
        """
        if not self.is_intraday:
            return self
        series = ("equity", "benchmark_equity", "equal_weight_equity", "anchor_equity", "weights", "fan")
        cut: dict[str, Any] = {name: self.sessions_of(getattr(self, name)) for name in series}
        for name in ("variants", "agents", "baselines"):
            cut[name] = {label: self.sessions_of(curve) for label, curve in getattr(self, name).items()}
        cut["turnover"] = self.turnover.groupby(self.turnover.index.normalize()).sum()
        return replace(self, **cut, periods_per_year=self.sessions_per_year)

    def sessions_of(self, curve: Any) -> Any:
        """Return the rows of a curve or frame that `by_session` keeps. Empty and daily curves are unchanged."""
        if not self.is_intraday or not len(curve):
            return curve
        days = curve.index.normalize()
        closes = curve.groupby(days).last()
        opening = curve[days == days[0]]
        if len(opening) == 1:
            return closes
        first = opening.bfill().iloc[:1].set_axis(closes.index[:1] - pd.offsets.BDay(1))
        return pd.concat([first, closes]).rename_axis(closes.index.name)

    @property
    def cash_weight(self) -> pd.Series:
        """[n + 1] cash at each close, as a fraction of the account; 1 once the account has fallen to zero."""
        return (1 - self.weights.sum(axis=1)).clip(lower=0)

    @property
    def fees(self) -> float:
        """Sum of all costs paid, in currency."""
        return float(self.trades["cost"].sum())

    @cached_property
    def table(self) -> dict[str, dict[str, float]]:
        """All metrics: 'strategy', 'benchmark' or 'equal_weight' -> metric -> value; NaN if undefined."""
        strategy = asdict(self.metrics) | asdict(self.relative)
        over = self._relative(self.equal_weight_equity, self.benchmark_equity)
        equal = asdict(self.equal_weight_metrics) | asdict(over)
        bench = asdict(self.benchmark_metrics) | asdict(self._relative(self.benchmark_equity, self.benchmark_equity))
        fills = self.trades[self.trades["kind"] == "fill"]
        strategy |= {
            "turnover": float(self.turnover.sum()),
            "yearly_turnover": float(self.turnover.mean() * self.periods_per_year),
            "costs": self.fees,
            "cash": float(self.cash_weight.iloc[1:].mean()),
            "buys": int((fills["shares"] > 0).sum()),
            "sells": int((fills["shares"] < 0).sum()),
            "excess_over_equal_weight": self.relative_to_equal_weight.excess,
        }
        return {"strategy": strategy, "benchmark": bench, "equal_weight": equal}

    @cached_property
    def spread(self) -> dict[str, dict[str, float]]:
        """Variant -> metrics. The keys 'mean', 'sd' (ddof=1) and 'count' have statistics over the variants."""
        return self._spread_of(self.variants)

    @cached_property
    def agent_spread(self) -> dict[str, dict[str, float]]:
        """Metrics of the single agents, in the form of `spread`."""
        return self._spread_of(self.agents)

    def _spread_of(self, curves: Mapping[str, pd.Series]) -> dict[str, dict[str, float]]:
        rows = {}
        for name, equity in curves.items():
            figures = self.metrics_of(equity)
            rows[name] = {key: getattr(figures, key) for key in SPREAD}
            rows[name]["excess_over_equal_weight"] = self._relative(equity, self.equal_weight_equity).excess
        if not rows:
            return {}
        table = pd.DataFrame(rows)
        closing = {"mean": table.mean(axis=1), "sd": table.std(axis=1), "count": table.count(axis=1).astype(float)}
        return rows | {name: column.to_dict() for name, column in closing.items()}

    @property
    def ruined_on(self) -> str | None:
        """Session on which the account fell to zero, YYYY-MM-DD; None if it did not."""
        gone = self.equity.to_numpy() <= 0
        return f"{self.equity.index[int(gone.argmax())]:%Y-%m-%d}" if gone.any() else None

    def to_json(self) -> str:
        """Return the result without its series as JSON. Equal results give equal text. Undefined figures are null."""
        from finpod.backtesting.result_io import to_json

        return to_json(self)

    def save(self, folder: str | Path, *, overwrite: bool = False, run: Mapping[str, Any] | None = None) -> Path:
        """Write the result to a folder and return its path. `run` holds the clock times and the command of the run.

        Raises InputError if the folder cannot be written, or if it exists and `overwrite` is False.
        """
        from finpod.backtesting.result_io import save

        return save(self, Path(folder), overwrite=overwrite, run=run)

    def report(self, path: str | Path, *, overwrite: bool = True) -> Path:
        """Write the self-contained HTML report and return its path.

        Equal results give equal bytes. If a chart or section fails, a line in its place says so, and a ReportWarning is
        issued. Raises InputError if the file cannot be written, or if it exists and `overwrite` is False.
        """
        from finpod.report.pages import write_page
        from finpod.report.sections import render

        return write_page(lambda: render(self), path, overwrite=overwrite)

    def __str__(self) -> str:
        from finpod.backtesting.text import format_result

        return format_result(self)
