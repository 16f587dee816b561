"""From tidy bars to `MarketData`: sessions, duplicates, impossible prices, adjustment; every repair is counted."""

from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from finpod.errors import DataError, InputError
from finpod.market.data import MarketData
from finpod.market.universe import Membership

Array = NDArray[Any]

FIELDS = ("open", "high", "low", "close", "adj_close", "volume")
"""Columns of numbers that a table of bars may have; only `close` is required."""
_PRICES = FIELDS[:5]
_ALIASES = {"adjclose": "adj_close", "adjusted_close": "adj_close", "symbol": "ticker"}
_PACKAGES = ("finpod", "numpy", "pandas", "pyarrow")


def tidy_bars(frame: pd.DataFrame, *, ticker: str | None = None, name: str = "the frame") -> pd.DataFrame:
    """One row a bar: `date` datetime64[ns], `ticker` categorical, float64 numbers, sorted by date and ticker.

    Takes flat tables with a `date` and a `ticker` column (or `ticker=` for one name with the dates as index), and
    tables with the dates as index and columns (field, ticker) or (ticker, field), in any order and spelling. Rows given
    twice are dropped; two different rows for one name and day are an error. Raises DataError for what cannot be used.
    """
    if frame.columns.nlevels == 2:
        frame = _stacked(frame)
    elif frame.index.names != [None] or isinstance(frame.index, pd.DatetimeIndex):
        frame = frame.rename_axis(index=lambda label: label or "date").reset_index()
    frame = frame.rename(columns=_canonical)
    if ticker is not None:
        frame = frame.assign(ticker=ticker)
    frame = frame.loc[:, [c for c in ("date", "ticker", *FIELDS) if c in frame.columns]]
    missing = [c for c in ("date", "ticker", "close") if c not in frame.columns]
    if missing:
        raise DataError(
            f"{name} has no column {missing[0]}; bars need date, ticker and close (open, high, low, "
            "adj_close and volume where known)"
        )
    if frame.columns.has_duplicates:
        raise DataError(f"{name} has two columns for {frame.columns[frame.columns.duplicated()][0]}; keep one")
    if frame.empty:
        raise DataError(f"{name} holds no bar; check the dates and the names that were asked for")
    tidy = pd.DataFrame({"date": session_dates(frame["date"], name), "ticker": _tickers(frame["ticker"], name)})
    for column in frame.columns[2:]:
        tidy[column] = _numbers(frame[column], column, name)
    return _without_duplicates(tidy.sort_values(["date", "ticker"], kind="stable", ignore_index=True), name)


def session_dates(dates: pd.Series, name: str = "the frame") -> Array:
    """[rows] datetime64[ns] midnights: the day each stamp shows on its own clock, whatever its unit or time zone.

    Text must start with YYYY-MM-DD. Raises DataError naming the first value that is no date.
    """
    if isinstance(dates.dtype, pd.DatetimeTZDtype):
        dates = dates.dt.tz_localize(None)
    if dates.dtype.kind == "M":
        parsed = dates
    elif dates.dtype.kind in "iuf":
        raise DataError(f"{name}: the date {dates.iloc[0]} is a number; write dates as YYYY-MM-DD")
    else:
        codes, unique = pd.factorize(dates, use_na_sentinel=False)
        days = pd.to_datetime(pd.Series(unique).astype(str).str[:10], format="%Y-%m-%d", errors="coerce")
        parsed = days.take(codes).reset_index(drop=True)
    if parsed.isna().any():
        wrong = dates.iloc[int(np.argmax(parsed.isna()))]
        raise DataError(f"{name}: {str(wrong)!r} is not a date; write dates as YYYY-MM-DD")
    return parsed.to_numpy().astype("datetime64[D]").astype("datetime64[ns]")


def build_market(
    bars: pd.DataFrame,
    *,
    membership: Membership | None,
    benchmark: str,
    manifest: Mapping[str, Any],
    name: str = "the frame",
    allow_missing: bool = True,
) -> MarketData:
    """A validated market from tidy bars (see `tidy_bars`), adjusted for splits and dividends.

    adjusted price = price * adj_close / close, adjusted volume = volume / (adj_close / close); without `adj_close` the
    prices are taken as already adjusted. Bars with a price that is not positive are masked and counted. `membership`
    None takes every name as a member for all time. Raises InputError for a benchmark without rows, and for members
    without any unless `allow_missing`.
    """
    tickers = tuple(bars["ticker"].cat.categories)
    if benchmark not in tickers:
        raise InputError(
            f"{name} has no rows for the benchmark {benchmark}; choose one of its {len(tickers)} names "
            f"with benchmark=, such as {', '.join(tickers[:3])}"
        )
    membership = None if membership is None else membership.spelled_as(tickers)
    if membership is not None:
        _check_members(membership, bars, benchmark, name, allow_missing)
    if len(tickers) == 1:
        raise DataError(f"{name} holds the benchmark {benchmark} and no other name; a market needs at least one")
    bars, repairs = _mask_impossible(bars)
    dates, row = np.unique(bars["date"].to_numpy(), return_inverse=True)
    tables = _pivot(bars, row, len(dates), len(tickers))
    own = tickers.index(benchmark)
    names = tuple(t for t in tickers if t != benchmark)
    member, facts = _memberships(membership, dates, names, np.isfinite(np.delete(tables["close"], own, axis=1)))
    notes = [*manifest.get("notes", ()), *_notes("adj_close" in bars, name)]
    columns: dict[str, Any] = {key: np.delete(table, own, axis=1) for key, table in tables.items()}
    return MarketData(
        dates=dates,
        tickers=names,
        member=member,
        benchmark=benchmark,
        benchmark_close=tables["close"][:, own].copy(),
        benchmark_open=tables["open"][:, own].copy() if "open" in tables else None,
        manifest={
            "benchmark_kind": "total return",
            "versions": package_versions(),
            **manifest,
            **facts,
            "repairs": repairs,
            "notes": notes,
        },
        **columns,
    )


def package_versions(*more: str) -> dict[str, str]:
    """Versions of finpod and of the packages that shaped the data."""
    return {package: _version(package) for package in (*_PACKAGES, *more)}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a source tree on the path, not installed
        return "not installed"


def _stacked(frame: pd.DataFrame) -> pd.DataFrame:
    """Flat bars from columns (field, ticker) or (ticker, field)."""
    levels = [{_canonical(label) for label in frame.columns.get_level_values(level)} for level in (0, 1)]
    field = int("close" in levels[1])
    index_name = frame.index.name or "date"
    columns = frame.columns.set_names(["ticker", "field"] if field else ["field", "ticker"])
    long = frame.set_axis(columns, axis=1).rename_axis(index=index_name).stack("ticker", future_stack=True)
    return long.rename_axis(columns=None).reset_index()


def _canonical(column: Any) -> str:
    spelled = str(column).strip().lower().replace(" ", "_")
    return _ALIASES.get(spelled, spelled)


def _tickers(column: pd.Series, name: str) -> pd.Categorical:
    values = pd.Categorical(column)
    labels = np.array([*(str(label).strip() for label in values.categories), ""], dtype=object)
    order, position = np.unique(labels, return_inverse=True)  # the empty label stands first
    codes = position[values.codes] - 1  # and a missing value has the code -1, which is the last label
    if (codes < 0).any():
        raise DataError(f"{name}: row {int(np.argmax(codes < 0)) + 1} has no ticker; every bar must name its ticker")
    return pd.Categorical.from_codes(codes, categories=pd.Index(order[1:], dtype=object))


def _numbers(column: pd.Series, field: str, name: str) -> Array:
    values = pd.to_numeric(column, errors="coerce")
    wrong = values.isna() & column.notna()
    if wrong.any() and (wrong := wrong & (column.astype(str).str.strip() != "")).any():
        raise DataError(f"{name}: {field} {column.iloc[int(np.argmax(wrong))]!r} is not a number; write it as 1234.56")
    return values.to_numpy(dtype=np.float64, na_value=np.nan)


def _without_duplicates(bars: pd.DataFrame, name: str) -> pd.DataFrame:
    """Rows given twice once; the count goes along in `attrs`. `bars` is sorted by date and ticker."""
    date, code = bars["date"].to_numpy(), bars["ticker"].cat.codes.to_numpy()
    again = np.zeros(len(bars), dtype=bool)
    again[1:] = (date[1:] == date[:-1]) & (code[1:] == code[:-1])
    if not again.any():
        return bars
    values = bars.drop(columns=["date", "ticker"]).to_numpy()
    rows = np.flatnonzero(again)
    differs = ~((values[rows] == values[rows - 1]) | (np.isnan(values[rows]) & np.isnan(values[rows - 1]))).all(axis=1)
    if differs.any():
        row = rows[int(np.argmax(differs))]
        raise DataError(
            f"{name} has two different bars for {bars['ticker'].iloc[row]} on {date[row]!s:.10}; "
            "finpod needs one bar a name and session"
        )
    kept = bars[~again].reset_index(drop=True)
    kept.attrs["duplicates"] = int(again.sum())
    return kept


def _mask_impossible(bars: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, int]]:
    """The bars with impossible ones masked as a whole (NaN), and how many of each kind there were."""
    repairs = {"duplicate rows dropped": bars.attrs.get("duplicates", 0)}
    values = {column: bars[column].to_numpy() for column in FIELDS if column in bars}
    prices = np.stack([values[column] for column in _PRICES if column in values])
    volume = values.get("volume", np.zeros(len(bars)))
    impossible = ((prices <= 0) | np.isinf(prices)).any(axis=0)
    negative = (volume < 0) | np.isinf(volume)
    absent = np.isnan(values["close"])
    unadjusted = np.isnan(values.get("adj_close", values["close"])) & ~absent & ~impossible
    repairs["bars masked, a price was not positive"] = int(impossible.sum())
    repairs["bars masked, no adjusted close"] = int(unadjusted.sum())
    repairs["volumes masked, negative"] = int(negative.sum())
    masked = impossible | unadjusted | absent
    if masked.any() or negative.any():
        bars = bars.assign(
            **{
                column: np.where(masked | (negative & (column == "volume")), np.nan, table)
                for column, table in values.items()
            }
        )
    return bars, {kind: count for kind, count in repairs.items() if count}


def _pivot(bars: pd.DataFrame, row: Array, days: int, names: int) -> dict[str, Array]:
    """[T, N] adjusted tables, NaN where there is no bar."""
    column = bars["ticker"].cat.codes.to_numpy()
    values = {field: bars[field].to_numpy() for field in FIELDS if field in bars}
    if "adj_close" in values:
        adjusted = values.pop("adj_close")
        factor = adjusted / values["close"]
        for field in ("open", "high", "low"):
            if field in values:
                values[field] = values[field] * adjusted / values["close"]
        values["close"], values["factor"] = adjusted, factor
        if "volume" in values:
            values["volume"] = values["volume"] / factor
    tables = {}
    for field, series in values.items():
        tables[field] = np.full((days, names), np.nan)
        tables[field][row, column] = series
    return tables


def _check_members(membership: Membership, bars: pd.DataFrame, benchmark: str, name: str, allow_missing: bool) -> None:
    wanted = membership.during(bars["date"].iloc[0].to_datetime64(), bars["date"].iloc[-1].to_datetime64())
    if benchmark in wanted:
        raise InputError(
            f"{benchmark} cannot be the benchmark and a member as well; choose another benchmark, or leave it "
            "out of the members"
        )
    missing = [t for t in wanted if t not in bars["ticker"].cat.categories]
    if missing and not allow_missing:
        raise InputError(
            f"{name} has no prices for {', '.join(missing)} ({len(missing)} of {len(wanted)} names); leave "
            "them out, or allow missing names"
        )


def _memberships(
    membership: Membership | None, dates: Array, names: Sequence[str], has_bar: Array
) -> tuple[Array, dict[str, Any]]:
    """[T, N] membership, and what the manifest says of it."""
    if membership is None:
        member = np.ones((len(dates), len(names)), dtype=bool)
        sentence = f"static list of the {len(names)} names with prices on {dates[-1]!s:.10}"
        return member, {
            "membership": sentence,
            "survivorship": True,
            "missing": [],
            "coverage": _coverage(dates, member.sum(axis=1), has_bar.sum(axis=1)),
        }
    member = membership.grid(dates, names)
    missing = [t for t in membership.during(dates[0], dates[-1]) if t not in set(names)]
    members = member.sum(axis=1) + membership.grid(dates, missing).sum(axis=1)
    if not member.any():
        raise DataError(
            f"no name with prices is a member between {dates[0]!s:.10} and {dates[-1]!s:.10} "
            f"({membership.sentence}); check that both use the same symbols"
        )
    return member, {
        "membership": membership.sentence,
        "survivorship": membership.survivorship,
        "missing": missing,
        "coverage": _coverage(dates, members, (member & has_bar).sum(axis=1)),
    }


def _coverage(dates: Array, members: Array, covered: Array) -> dict[str, float]:
    """Year -> share of the member-days that have a bar."""
    years, index = np.unique(dates.astype("datetime64[Y]"), return_inverse=True)
    days, have = np.bincount(index, members), np.bincount(index, covered)
    return {
        str(year): round(float(part / whole), 6) for year, whole, part in zip(years, days, have, strict=True) if whole
    }


def _notes(has_adjusted: bool, name: str) -> list[str]:
    if has_adjusted:
        return []
    return [f"{name} has no adjusted close; its prices are taken as adjusted for splits and dividends"]
