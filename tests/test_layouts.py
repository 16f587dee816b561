"""A small random market is written in every layout and read back unchanged; ambiguous tables are refused."""

import numpy as np
import pandas as pd
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from finpod.errors import DataError
from finpod.market.columns import field_of
from finpod.market.tidy import read_bars

NAMES = ["AAA", "BRK-B", "VOD.L", "7203.T", "10107", "^GSPC", "COIN", "T", "TRUE", "NA", "NAN", "OPEN", "LOW", "LAST"]
FIELDS = ["close", "open", "volume"]
STYLES = {
    "plain": (",", "{:.2f}".format),
    "exponent": (",", "{:.6e}".format),
    "euro": (";", "€{:,.2f}".format),
    "comma": (";", lambda number: f"{number:,.2f}".replace(",", "\u00a0").replace(".", ",")),
}
BLANK = ["", "null", "N/A", "-", "nan", "None"]
LAYOUTS = ["long", "wide", "field first", "ticker first", "index", "index of tickers", "folder"]


@st.composite
def markets(draw):
    """A table with rows (date, ticker) and a close, perhaps an open and a volume; some names begin late."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True))
    days = pd.bdate_range("2024-01-02", periods=draw(st.integers(3, 6)), name="date")
    fields = FIELDS[: draw(st.integers(1, 3))]
    cents = draw(
        st.lists(st.integers(100, 3_000_000), min_size=len(days) * len(names), max_size=len(days) * len(names))
    )
    close = pd.DataFrame(np.reshape(cents, (len(days), len(names))) // 2 * 2 + 1, index=days, columns=names) / 100
    late = [draw(st.integers(0, len(days) - 1)) if draw(st.booleans()) else 0 for _ in names]
    if draw(st.booleans()):
        late = [max(first, 1) for first in late]  # the first row of all is empty
    close = close.where(np.arange(len(days))[:, None] >= np.array(late))
    table = close.rename_axis("ticker", axis=1).stack(future_stack=True).to_frame("close").sort_index()
    return table.assign(open=table["close"] + 0.25, volume=table["close"] * 100).loc[:, fields]


@st.composite
def writings(draw):
    """How a market is written: layout, kind of file, style of numbers, and what is named."""
    return {
        "layout": draw(st.sampled_from(LAYOUTS)),
        "kind": draw(st.sampled_from(["csv", "parquet"])),
        "style": draw(st.sampled_from([*STYLES])),
        "blank": draw(st.sampled_from(BLANK)),
        "named": draw(st.booleans()),
        "swapped": draw(st.booleans()),
    }


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
    if layout == "wide":
        table = market["close"].unstack()
    else:
        table = market.unstack()
        table = table.swaplevel(axis=1).sort_index(axis=1) if layout == "ticker first" else table
    levels = table.columns.nlevels
    called = ["ticker" if label == "ticker" else "field" for label in table.columns.names] if named else [None] * levels
    table = table.rename_axis(called if levels > 1 else called[0], axis=1)
    return table if named else table.rename_axis(None)


def may_be_refused(names, layout, kind, named, **_):
    """Return True if the table has two readings: by a ticker that is also a word or a number, or by levels without names."""
    unclear = {"OPEN", "LOW", "LAST", "NA", "NAN", "10107"} & set(names)
    return bool(unclear) or (kind == "csv" and layout in ("field first", "ticker first") and not named)


def write(table, path, style, blank, **_):
    """Write a frame: as numbers to parquet, in the style to a CSV."""
    if path.suffix == ".parquet":
        table.to_parquet(path)
        return
    separator, spell = STYLES[style]
    text = table.apply(lambda column: column.map(spell, na_action="ignore") if column.dtype.kind == "f" else column)
    text = text.astype(object).where(table.notna(), blank)
    text.to_csv(path, sep=separator)


@given(market=markets(), how=writings())
@settings(max_examples=60, deadline=None)
def test_every_layout_is_read_back_as_it_was(tmp_path_factory, market, how):
    names = list(market.index.unique("ticker"))
    assume(how["layout"] != "wide" or not all(map(field_of, names)))  # Date,LAST is of one asset
    folder = tmp_path_factory.mktemp("market")
    if how["layout"] == "folder":
        path = folder
        for ticker, bars in market.groupby("ticker"):
            write(bars.droplevel("ticker"), folder / f"{ticker}.{how['kind']}", **how)
    else:
        path = folder / f"bars.{how['kind']}"
        write(laid_out(market, how["layout"], how["named"], how["swapped"]), path, **how)
    try:
        bars = read_bars(path)
    except DataError:
        assert may_be_refused(names, **how)
        return
    fields = ["close"] if how["layout"] == "wide" else list(market)
    read = bars.astype({"ticker": "str"}).set_index(["date", "ticker"])[fields].dropna(how="all").sort_index()
    expected = market[fields].dropna(how="all").sort_index()
    pd.testing.assert_frame_equal(read, expected, check_exact=False, rtol=1e-12, check_index_type=False)
    assert set(bars["ticker"].cat.categories) == set(names)
