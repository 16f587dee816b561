"""Export of a result to pyfolio, empyrical and quantstats: as series, or as files that pandas reads in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import pandas as pd

from finpod import files
from finpod.errors import InputError, require_choice
from finpod.measures import simple_returns
from finpod.periods import session_dates
from finpod.records import records
from finpod.result import BacktestResult

Format = Literal["csv", "parquet"]


class PyfolioInputs(NamedTuple):
    """Arguments of `pyfolio.create_full_tear_sheet`. Dates are sessions at midnight UTC, as pyfolio needs a time zone.

    m is the number of sessions with a return. Intraday results have one value per session.
    """

    returns: pd.Series
    """[m] simple returns of the account, named after the strategy."""
    positions: pd.DataFrame | None
    """[m, K + 1] value in currency of the K assets held at any close, then of `cash`. None if no asset was held."""
    transactions: pd.DataFrame | None
    """A row for each fill and delisting: `amount` (shares, negative for sells), `price`, `symbol`. None without trades.

    Shares and prices are adjusted, so `positions` change only by returns and by these transactions."""
    benchmark: pd.Series | None
    """Benchmark returns from its first to its last bar; 0 in a session without a bar. None for fewer than two bars."""
    equal_weight: pd.Series
    """[m] returns of the point-in-time equal-weight portfolio."""
    notes: tuple[str, ...] = ()
    """Sentences on series that are None, and on data that differ from what pyfolio expects."""


def to_pyfolio(result: BacktestResult) -> PyfolioInputs:
    """Return the series of a result for pyfolio and empyrical. For quantstats, apply `.tz_localize(None)` to each.

    Pass `benchmark` or `equal_weight` as `benchmark_rets` (pyfolio) or `factor_returns` (empyrical). Raises
    InputError if a ticker is 'cash'.
    """
    if "cash" in result.weights.columns:
        raise InputError("the market has a ticker 'cash', which pyfolio treats as cash; rename this ticker")
    daily = result.by_session()
    values = daily.weights.mul(daily.equity, axis=0).iloc[1:]
    positions = values.loc[:, (values != 0).any()]
    bars = daily.benchmark_equity.ffill(limit_area="inside").dropna()
    trades = result.trades.rename(columns={"shares": "amount", "ticker": "symbol"})
    return PyfolioInputs(
        returns=_steps(daily.equity, result.strategy),
        positions=_dated(positions.assign(cash=daily.equity * daily.cash_weight)) if positions.size else None,
        transactions=_dated(trades.set_index("date")[["amount", "price", "symbol"]]) if len(trades) else None,
        benchmark=_steps(bars, result.benchmark) if len(bars) > 1 else None,
        equal_weight=_steps(daily.equal_weight_equity.dropna(), "equal weight"),
        notes=tuple(_notes(result, positions.shape[1], len(bars))),
    )


def export(
    result: BacktestResult, folder: str | Path, *, format: Format = "csv", overwrite: bool = False
) -> tuple[str, ...]:
    """Write the series of `to_pyfolio(result)`, one file each, and export.json to `folder`. Return the notes.

    Either all files are written, or none. Equal results give equal bytes. With `overwrite`, an older export is
    replaced. Raises InputError for a ticker 'cash', an unknown format, and a folder that cannot be written.
    """
    require_choice("format", format, get_args(Format))
    series = to_pyfolio(result)
    tables = {name: table for name, table in series._asdict().items() if name != "notes" and table is not None}
    with files.new_folder(Path(folder), overwrite=overwrite) as fresh:
        for name, table in tables.items():
            getattr(pd.DataFrame(table), f"to_{format}")(fresh / f"{name}.{format}")
        description = {
            "strategy": result.strategy,
            "data_hash": result.data_hash,
            "periods_per_year": result.sessions_per_year,
            "warnings": records(result.warnings),
            "notes": series.notes,
            "files": {f"{name}.{format}": how_to_read(f"{name}.{format}") for name in tables},
        }
        files.write_text(fresh / files.EXPORT, files.to_json(description))
    return series.notes


def how_to_read(file: str) -> str:
    """Return a line of Python that reads one file of an export."""
    name, _, form = file.partition(".")
    line = f"pd.read_parquet({file!r})"
    if form == "csv":  # symbols such as 0700, NA and TRUE stay text
        symbols = ", dtype={'symbol': str}, keep_default_na=False" * (name == "transactions")
        line = f"pd.read_csv({file!r}, index_col=0, parse_dates=[0]{symbols})"
    return line if name in ("positions", "transactions") else f"{line}.squeeze('columns')"


def _steps(equity: pd.Series, name: str) -> pd.Series:
    return _dated(simple_returns(equity).rename(name))


def _dated(table: Any) -> Any:
    """Return the series or frame with its sessions at midnight UTC."""
    return table.set_axis(pd.DatetimeIndex(session_dates(table.index), name="date").as_unit("ns").tz_localize("UTC"))


def _notes(result: BacktestResult, assets: int, bars: int) -> list[str]:
    notes = {
        "no positions: no asset was held at any close": assets == 0,
        "no transactions: there were no trades": len(result.trades) == 0,
        "no benchmark: the benchmark has fewer than two bars in the window": bars < 2,
        "in sessions without a bar, the benchmark keeps its last price": result.by_session().benchmark_equity.count()
        < bars,
        "intraday returns are compounded to sessions, and transactions are dated by session": result.is_intraday,
        f"the data have {result.sessions_per_year:g} sessions per year; pass this number to empyrical "
        "(annualization=) and quantstats (periods=); pyfolio always assumes 252": result.sessions_per_year != 252,
        "the shares are fractional, but pyfolio's round trips need whole shares: do not pass round_trips": bool(
            (result.trades["shares"] % 1 != 0).any()
        ),
    }
    return [note for note, holds in notes.items() if holds]
