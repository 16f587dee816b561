"""Where markets come from: `load_market` for files, snapshots and the sample, `sample_market`, `fetch_market`."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

import pandas as pd

from finpod.errors import DataError, InputError
from finpod.market.clean import build_market, tidy_bars
from finpod.market.data import MarketData
from finpod.market.sample import sample_market
from finpod.market.store import load_snapshot
from finpod.market.universe import Membership, index_members, read_members, static_members
from finpod.market.yahoo import fetch_market

__all__ = ["fetch_market", "load_market", "sample_market"]

Members = str | PathLike[str] | Sequence[str] | None

SAMPLE = "sample"
"""The name under which `load_market` returns `sample_market()`."""


def load_market(
    path: str | PathLike[str] | pd.DataFrame,
    *,
    members: Members = None,
    benchmark: str = "QQQ",
    allow_missing: bool = False,
) -> MarketData:
    """Bars from a tidy parquet or CSV file (or such a frame), a snapshot folder, or the word "sample".

    A tidy file has the columns date, ticker, close and, where known, open, high, low, adj_close, volume; prices are
    adjusted by adj_close / close, and taken as already adjusted where there is no adj_close. The rows of the ticker
    `benchmark` become the benchmark. `members` is a CSV with the columns ticker, from, to_exclusive;
    or "nasdaq100"; or a list of tickers; or None, which takes every name for all time (survivorship!). Members of an
    index without prices are left out and named in `manifest["missing"]`; a name of a list without prices is an error
    unless `allow_missing`.
    Raises InputError for what cannot be found and DataError for content that cannot be used.
    """
    if isinstance(path, pd.DataFrame):
        return _from_bars(path, "the frame", members, benchmark, allow_missing)
    source = Path(path)
    if str(path) == SAMPLE or source.is_dir():
        return _whole(str(path), members, benchmark)
    if not source.is_file():
        raise InputError(f"there is no market {source}; give a parquet or CSV file, a snapshot folder or {SAMPLE!r}")
    return _from_bars(_read(source), source.name, members, benchmark, allow_missing)


def _from_bars(frame: pd.DataFrame, name: str, members: Members, benchmark: str, allow_missing: bool) -> MarketData:
    listed = members is not None and not isinstance(members, str) and isinstance(members, Sequence)
    membership = _membership(members, name)
    bars = tidy_bars(frame, name=name)
    if listed and membership is not None:
        wanted = {benchmark, *membership.spelled_as(bars["ticker"].cat.categories).tickers}
        bars = bars[bars["ticker"].isin(list(wanted))]
        bars = bars.assign(ticker=bars["ticker"].cat.remove_unused_categories())
    manifest = {"source": "file", "title": name, "path": name}
    return build_market(
        bars,
        membership=membership,
        benchmark=benchmark,
        manifest=manifest,
        name=name,
        allow_missing=allow_missing or not listed,
    )


def _membership(members: Members, name: str) -> Membership | None:
    if members is None:
        return None
    if isinstance(members, str) and "." not in members and not Path(members).exists():
        return index_members(members)
    if isinstance(members, Sequence) and not isinstance(members, str):
        return static_members(members, sentence=f"static list of {len(set(members))} names chosen from {name}")
    return read_members(members)


def _whole(path: str, members: object, benchmark: str) -> MarketData:
    """The sample or a snapshot: a market that already knows its members and its benchmark."""
    if members is not None:
        raise InputError(f"{path} carries its own members; leave members out")
    market = sample_market() if path == SAMPLE else load_snapshot(path)
    if benchmark not in ("QQQ", market.benchmark):
        raise InputError(f"{path} has the benchmark {market.benchmark}, not {benchmark}; leave benchmark out")
    return market


def _read(source: Path) -> pd.DataFrame:
    kind = source.suffix.lower()
    if kind not in (".parquet", ".csv"):
        raise InputError(f"{source.name} is neither .parquet nor .csv; convert it to one of them, one row a bar")
    try:
        frame = (
            pd.read_parquet(source)
            if kind == ".parquet"
            else pd.read_csv(
                source,
                dtype={"ticker": str},
                keep_default_na=False,
                na_values=["", "NaN", "nan", "null"],
                float_precision="round_trip",
            )
        )
    except (OSError, ValueError, UnicodeDecodeError, pd.errors.ParserError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"{source.name} cannot be read ({reason}); fetch or export it again") from error
    return frame
