"""A result for pyfolio, empyrical and quantstats: as series, or as files that pandas reads in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import pandas as pd

from finpod import files
from finpod.errors import InputError
from finpod.measures import simple_returns
from finpod.periods import session_dates
from finpod.records import records
from finpod.result import BacktestResult

Format = Literal["csv", "parquet"]

CLOCK = "sessions at midnight UTC, as pyfolio expects; for quantstats, which expects no time zone, append .tz_localize(None)"
"""Meaning of the dates of an export."""


class PyfolioInputs(NamedTuple):
    """Arguments of `pyfolio.create_full_tear_sheet`; dates are sessions at midnight UTC, since pyfolio needs a time zone.

    m is the number of sessions with a return; intraday results have one value a session.
    """

    returns: pd.Series
    """[m] simple returns of the account, named after the strategy."""
    positions: pd.DataFrame | None
    """[m, K + 1] currency in each of the K assets ever held, then `cash`; None if nothing was ever held at a close."""
    transactions: pd.DataFrame | None
    """One row a fill or delisting: `amount` (shares, sells negative), `price`, `symbol`; None if there were none.

    In adjusted units, `positions` changes only by returns and these transactions."""
    benchmark: pd.Series | None
    """Returns of the benchmark from each of its bars to the next; None if it has fewer than two."""
    equal_weight: pd.Series
    """[m] returns of the point-in-time equal weight."""
    notes: tuple[str, ...] = ()
    """Sentences on omissions and differences."""


def to_pyfolio(result: BacktestResult) -> PyfolioInputs:
    """Return the series of a result for pyfolio and empyrical. For quantstats, remove the time zone by `.tz_localize(None)`.

    `benchmark` and `equal_weight` are for the arguments `benchmark_rets` and `factor_returns`. Raises InputError for a
    ticker called 'cash', which pyfolio would take for the cash.
    """
    if "cash" in result.weights.columns:
        raise InputError("pyfolio takes a ticker called 'cash' for the cash; rename the ticker in the market data")
    daily = result.by_session()
    values = daily.weights.mul(daily.equity, axis=0).iloc[1:]
    positions = values.loc[:, (values != 0).any()]
    bars = daily.benchmark_equity.dropna()
    trades = result.trades[["date", "shares", "price", "ticker"]].set_axis(
        ["date", "amount", "price", "symbol"], axis=1
    )
    return PyfolioInputs(
        returns=_steps(daily.equity, result.strategy),
        positions=_dated(positions.assign(cash=daily.equity * daily.cash_weight)) if positions.size else None,
        transactions=_dated(trades.set_index("date")) if len(trades) else None,
        benchmark=_steps(bars, result.benchmark) if len(bars) > 1 else None,
        equal_weight=_steps(daily.equal_weight_equity.dropna(), "equal weight"),
        notes=tuple(_notes(result, positions.shape[1], len(bars), len(daily.equity))),
    )


def export(
    result: BacktestResult, folder: str | Path, *, format: Format = "csv", overwrite: bool = False
) -> tuple[str, ...]:
    """Write `to_pyfolio(result)` to `folder`, one file a series and export.json, all or nothing; return its notes.

    The same result gives the same bytes. Raises InputError for a format that is neither 'csv' nor 'parquet', for a
    folder that exists (with `overwrite`, only if it is no export) or cannot be written, and in the cases of `to_pyfolio`.
    """
    if format not in get_args(Format):
        raise InputError(f"format is {format!r}; choose {' or '.join(get_args(Format))}", argument="format")
    series = to_pyfolio(result)
    tables = {name: table for name, table in series._asdict().items() if name != "notes" and table is not None}
    with files.new_folder(Path(folder), overwrite=overwrite) as fresh:
        for name, table in tables.items():
            getattr(pd.DataFrame(table), f"to_{format}")(fresh / f"{name}.{format}")
        days = result.equity.index
        description = {
            "strategy": result.strategy,
            "benchmark": result.benchmark,
            "start": f"{days[0]:%Y-%m-%d}",
            "end": f"{days[-1]:%Y-%m-%d}",
            "data_hash": result.data_hash,
            "in_sample": result.in_sample,
            "periods_per_year": result.sessions_per_year,
            "warnings": records(result.warnings),
            "notes": series.notes,
            "dates": CLOCK,
            "files": {f"{name}.{format}": how_to_read(f"{name}.{format}") for name in tables},
        }
        files.write_text(fresh / files.EXPORT, files.to_json(description))
    return series.notes


def how_to_read(file: str) -> str:
    """Return the line of Python that reads one file of an export."""
    name, _, form = file.partition(".")
    line = f"pd.read_parquet({file!r})"
    if form == "csv":  # symbols such as 0700, NA and TRUE stay text
        symbols = ", dtype={'symbol': str}, keep_default_na=False" * (name == "transactions")
        line = f"pd.read_csv({file!r}, index_col=0, parse_dates=[0]{symbols})"
    return line if name in ("positions", "transactions") else f"{line}.squeeze('columns')"


def _steps(equity: pd.Series, name: str) -> pd.Series:
    return _dated(simple_returns(equity).rename(name))


def _dated(table: Any) -> Any:
    """The series or frame with its sessions dated at midnight UTC."""
    days = pd.DatetimeIndex(session_dates(table.index), name="date").as_unit("ns")
    return table.set_axis(days.tz_localize("UTC"))


def _notes(result: BacktestResult, assets: int, bars: int, closes: int) -> list[str]:
    amounts = result.trades["shares"]
    notes = {
        "no positions: nothing was held at any close": assets == 0,
        "no transactions: nothing was traded": len(result.trades) == 0,
        "no benchmark: the run has none": not result.has_benchmark,
        f"no benchmark: {result.benchmark} has fewer than two bars in the window": result.has_benchmark and bars < 2,
        f"the benchmark {result.benchmark} has {bars:,} of {closes:,} bars; its return after a missing one spans the gap": (
            2 <= bars < closes
        ),
        "session by session: intraday returns are compounded, and transactions carry the date of their session": (
            result.is_intraday
        ),
        "pyfolio, empyrical and quantstats count 252 returns a year unless told otherwise (annualization=, periods=), and these "
        f"data have {result.sessions_per_year:g}": result.sessions_per_year != 252,
        "pyfolio's round trips need whole shares, and these are fractional: leave round_trips out": bool(
            (amounts != amounts.round()).any()
        ),
    }
    return [note for note, holds in notes.items() if holds]
