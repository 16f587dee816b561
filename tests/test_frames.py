"""Frames in every layout that pandas makes: read with and without names of their levels, or refused."""

from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from made_bars import DAYS, closes, frame, refuses
from numpy.testing import assert_array_equal

from finpod.market.load import load_market
from finpod.market.tidy import read_bars

LONG = pd.DataFrame(
    {"close": [1.0, 10, 2, 20, 3, 30], "open": [1.0, 11, 2, 22, 3, 33]},
    index=pd.MultiIndex.from_product([DAYS[:3], ["AAA", "BBB"]], names=["date", "ticker"]),
)
"""Three days of AAA and of BBB, which is ten times as dear."""
BOTH = {"AAA": [1, 2, 3], "BBB": [10, 20, 30]}
AAA = LONG.xs("AAA", level=1)
WIDE = LONG["close"].unstack()


def bare(table, levels=2):
    """The table without names of its levels."""
    return table.rename_axis([None] * levels if levels > 1 else None)


TABLES = {
    "rows by dt and firm": LONG.rename_axis(["dt", "firm"]),
    "rows by Symbol": LONG.reset_index("date").rename_axis("Symbol"),
    "stack": WIDE.stack(),
    "stack, index reset": bare(WIDE, 1).rename_axis(None, axis=1).stack().reset_index(),
    "concat": pd.concat({name: LONG.xs(name, level=1) for name in BOTH}),
    "concat, dates a column": pd.concat({name: LONG.xs(name, level=1).reset_index() for name in BOTH}),
    "columns called Ticker": WIDE.rename_axis("Ticker", axis=1),
    "categories in the header": WIDE.set_axis(pd.CategoricalIndex(["AAA", "BBB"], name="ticker"), axis=1),
    "categories in the index": LONG.set_index(LONG.index.set_levels(pd.CategoricalIndex(["AAA", "BBB"]), level=1)),
    "index set and kept": LONG.reset_index().set_index("date", drop=False),
}


@pytest.mark.filterwarnings("ignore:.*column names of mixed type:UserWarning")
@pytest.mark.parametrize("table", TABLES)
def test_g03_every_table_of_pandas(tmp_path, table):
    made = pd.DataFrame(TABLES[table])
    made.to_parquet(tmp_path / "bars.parquet")
    for bars in (read_bars(made), read_bars(tmp_path / "bars.parquet")):
        assert closes(bars) == BOTH
    assert load_market(TABLES[table], benchmark="BBB").tickers == ("AAA",)


@pytest.mark.parametrize("swapped", [False, True])
def test_g03_numbers_as_tickers_in_the_row_index(tmp_path, swapped):
    """A level called permno is read; one without a known name may hold row numbers, so it is asked about."""
    table = LONG.rename({"AAA": 10107, "BBB": 14593}, level=1).rename_axis(["date", "permno"])
    table = table.swaplevel().sort_index() if swapped else table
    table.to_parquet(tmp_path / "bars.parquet")
    for bars in (read_bars(table), read_bars(tmp_path / "bars.parquet")):
        assert closes(bars) == {"10107": [1, 2, 3], "14593": [10, 20, 30]}
    refuses(lambda: read_bars(bare(table)), argument="ticker_column")
    refuses(lambda: read_bars(table.rename_axis(index={"permno": "firm_id"})), "firm_id", argument="ticker_column")


@pytest.mark.parametrize(
    ("table", "word"),
    [
        (LONG.reset_index().melt(["date", "ticker"]), "two different bars"),
        (LONG.unstack().stack(0), "one value per row"),
        (LONG.rename({"AAA": 9, "BBB": 10}, level=1).rename_axis(["date", "hour"]), "date, hour"),
        (pd.concat({"x": LONG.unstack()}, axis=1), "3 levels"),
        (pd.DataFrame(), "no column of dates"),
        (LONG.reset_index().assign(Date=DAYS[0]), "date and Date"),
        (LONG.reset_index().assign(timestamp=DAYS[0]).set_index("timestamp"), "two columns for date"),
        (LONG.unstack().set_axis(["AAA", "AAA", "BBB", "BBB"], axis=1), "AAA"),
        (bare(LONG.assign(share="A").set_index("share", append=True), 3), "2 columns of text"),
        (pd.DataFrame({"No": range(1, 5), "Date": DAYS[:4], "AAA": 10.0}), "No"),
        (frame(tickers=("AAA", "BBB")).assign(symbol="X", Symbol="X").drop(columns="ticker"), "symbol"),
        (LONG.unstack().reset_index().assign(ticker="X"), "in its header"),
        (LONG.unstack().rename(columns={"BBB": "AAA"}), "AAA"),
        (LONG[["open"]].unstack(), "close"),
    ],
)
def test_tables_that_cannot_be_used(table, word):
    refuses(lambda: read_bars(table), word)


ARROW = [pa.date32(), pa.timestamp("us", tz="America/New_York"), pa.string()]


@pytest.mark.parametrize("kind", ARROW, ids=str)
@pytest.mark.parametrize("index", [False, True])
def test_g08_arrow_dtypes(tmp_path, kind, index):
    table = LONG.reset_index()
    stamps = table["date"].dt.tz_localize(kind.tz) if pa.types.is_timestamp(kind) and kind.tz else table["date"]
    table["date"] = pd.Series(pd.array(pa.array(stamps).cast(kind), dtype=pd.ArrowDtype(kind)))
    table["ticker"] = table["ticker"].astype(pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string())))
    table = table.astype({"close": "double[pyarrow]", "open": "int64[pyarrow]"})
    table = table.set_index(["date", "ticker"]) if index else table
    table.to_parquet(tmp_path / "bars.parquet")
    for bars in (read_bars(table), read_bars(tmp_path / "bars.parquet")):
        assert closes(bars) == BOTH
        assert_array_equal(bars["date"].to_numpy(), np.repeat(DAYS[:3].to_numpy(), 2))
        assert bars["open"].dtype == "float64"


def test_g08_other_dtypes_of_numbers():
    table = LONG.reset_index()
    decimals = pa.array(table["close"].map(Decimal), pa.decimal128(10, 2)).to_pandas(types_mapper=pd.ArrowDtype)
    for values in (table["close"].astype("Int64"), table["close"].map(Decimal), decimals):
        assert closes(read_bars(table.assign(close=values)))["BBB"] == [10, 20, 30]


@pytest.mark.parametrize("order", ["open high low close volume", "close high low open volume"])
def test_b15_layout_and_order_of_columns_change_nothing(order):
    flat = frame(tickers=("AAA",)).set_index("date").drop(columns="ticker")[order.split()].rename(columns=str.title)
    tables = [flat, *(pd.concat({"AAA": flat}, axis=1).swaplevel(*levels, axis=1) for levels in ((0, 1), (0, 0)))]
    for table in tables:
        pd.testing.assert_frame_equal(read_bars(table, ticker="AAA"), read_bars(frame(tickers=("AAA",))))


def test_assets_of_a_table_of_two_levels_may_lack_fields():
    bars = read_bars(pd.concat({"AAA": AAA, "BBB": AAA[["close"]] * 2}, axis=1))
    assert_array_equal(bars["open"], [1, np.nan, 2, np.nan, 3, np.nan])
    assert_array_equal(bars["close"], [1, 2, 2, 4, 3, 6])


@pytest.mark.parametrize("label", ["5. adjusted close", "Adj Close**", "ADJCLOSE", "adjClose", "Close (adj)"])
def test_spellings_of_the_adjusted_close(label):
    assert_array_equal(read_bars(frame().assign(**{label: 200.0}))["adj_close"], [200.0] * 15)
