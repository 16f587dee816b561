"""A small random market is written in every layout and read back unchanged; ambiguous tables are refused."""

import numpy as np
import pandas as pd
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from finpod.errors import DataError
from finpod.market.columns import field_of
from finpod.market.tidy import read_bars

NAMES = ["AAA", "BRK-B", "VOD.L", "7203.T", "10107", "^GSPC", "COIN", "T", "TRUE", "NA", "NAN", "OPEN", "LOW", "LAST"]
UNCLEAR = {"10107", "NA", "NAN", "OPEN", "LOW", "LAST"}
"""Tickers that are also words or numbers, so that a table with them may have two readings."""
LAYOUTS = ["long", "wide", "field first", "ticker first", "index", "index of tickers", "folder"]


@st.composite
def markets(draw):
    """A table with rows (date, ticker) and a close, perhaps an open and a volume; some names begin late."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True))
    days = pd.bdate_range("2024-01-02", periods=draw(st.integers(3, 6)), name="date")
    size = len(days) * len(names)
    cents = np.array(draw(st.lists(st.integers(100, 3_000_000), min_size=size, max_size=size)))
    close = pd.DataFrame(cents.reshape(len(days), -1) // 2 * 2 + 1, index=days, columns=names) / 100
    late = draw(st.lists(st.integers(0, len(days) - 1), min_size=len(names), max_size=len(names)))
    close = close.where(np.arange(len(days))[:, None] >= np.array(late))
    table = close.rename_axis("ticker", axis=1).stack(future_stack=True).to_frame("close").sort_index()
    fields = ["close", "open", "volume"][: draw(st.integers(1, 3))]
    return table.assign(open=table["close"] + 0.25, volume=table["close"] * 100).loc[:, fields]


def laid_out(market, layout, named, swapped):
    """The market as a frame of the layout; levels and columns of the index lose their names unless `named`."""
    if layout == "long":
        table = market.reset_index()
        return table.sample(frac=1, random_state=0) if swapped else table
    if layout == "index":
        table = market.swaplevel() if swapped else market
        return table if named else table.rename_axis([None, None])
    if layout == "index of tickers":
        return market.reset_index("date").rename_axis("ticker" if named else None)
    table = market["close"].unstack() if layout == "wide" else market.unstack()
    table = table.swaplevel(axis=1).sort_index(axis=1) if layout == "ticker first" else table
    called = ["ticker" if label == "ticker" else "field" for label in table.columns.names]
    if named:
        return table.rename_axis(called if len(called) > 1 else called[0], axis=1)
    return table.rename_axis([None] * len(called) if len(called) > 1 else None, axis=1).rename_axis(None)


def write(table, path):
    (table.to_parquet if path.suffix == ".parquet" else table.to_csv)(path)


@given(
    market=markets(),
    layout=st.sampled_from(LAYOUTS),
    kind=st.sampled_from(["csv", "parquet"]),
    named=st.booleans(),
    swapped=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_every_layout_is_read_back_as_it_was(tmp_path_factory, market, layout, kind, named, swapped):
    names = list(market.index.unique("ticker"))
    assume(layout != "wide" or not all(map(field_of, names)))  # Date,LAST is of one asset
    path = tmp_path_factory.mktemp("market")
    if layout == "folder":
        for ticker, bars in market.groupby("ticker"):
            write(bars.droplevel("ticker"), path / f"{ticker}.{kind}")
    else:
        path /= f"bars.{kind}"
        write(laid_out(market, layout, named, swapped), path)
    try:
        bars = read_bars(path)
    except DataError:
        assert UNCLEAR & set(names) or (kind == "csv" and layout in ("field first", "ticker first") and not named)
        return
    fields = ["close"] if layout == "wide" else list(market)
    read = bars.astype({"ticker": "str"}).set_index(["date", "ticker"])[fields].dropna(how="all").sort_index()
    expected = market[fields].dropna(how="all").sort_index()
    pd.testing.assert_frame_equal(read, expected, check_exact=False, rtol=1e-12, check_index_type=False)
    assert set(bars["ticker"].cat.categories) == set(names)
