"""What a table says is read, or refused in one line: names, layouts, dates and numbers of awkward files."""

import numpy as np
import pandas as pd
import pytest
from made_bars import DAYS, frame
from numpy.testing import assert_array_equal

from finpod.errors import DataError
from finpod.market.sources import load_market
from finpod.market.tidy import tidy_bars
from finpod.market.universe import read_members


def spelled(**names):
    """Bars of AAA, ... under the given spellings, in turn by session."""
    parts = []
    for ticker, spellings in names.items():
        bars = frame(tickers=(ticker,))
        parts.append(bars.assign(ticker=[spellings[i % len(spellings)] for i in range(len(bars))]))
    return pd.concat(parts, ignore_index=True)


def test_g09_spellings_of_one_name_are_one_name():
    bars = tidy_bars(spelled(AAPL=["aapl", "Aapl", "AAPL"], BRKB=["BRK.B", "BRK-B", "brk/b"], VOD=["VOD.L"]))
    assert list(bars["ticker"].cat.categories) == ["AAPL", "BRK-B", "VOD.L"]
    assert_array_equal(bars["close"][bars["ticker"] == "BRK-B"], [100, 101, 102, 103, 104])
    assert bars.attrs["reading"] == [
        "names in one spelling: Aapl as AAPL, BRK.B as BRK-B, aapl as AAPL, brk/b as BRK-B"
    ]
    assert tidy_bars(frame()).attrs["reading"] == []


def test_g09_is_told_in_the_manifest():
    market = load_market(frame(tickers=("aaa", "bbb", "qqq")))
    assert market.tickers == ("AAA", "BBB")
    assert market.benchmark == "QQQ"
    assert market.manifest["reading"] == ["names in one spelling: aaa as AAA, bbb as BBB, qqq as QQQ"]


@pytest.mark.parametrize("equal", [True, False])
def test_g09_two_spellings_with_a_bar_on_one_day_are_refused(equal):
    bars = pd.concat([frame(tickers=("AAA", "BRK.B")), frame(tickers=("BRK-B", "AAA"))], ignore_index=True)
    if equal:
        bars["close"] = 100.0
    with pytest.raises(DataError, match=r"BRK-B and BRK\.B are one name, BRK-B, and both have a bar on 2024-01-02"):
        tidy_bars(bars[bars["ticker"].str.startswith("BRK")])


def test_g09_members_and_benchmark_are_found_under_any_spelling(tmp_path):
    bars = frame(tickers=("BRK.B", "aapl", "MKC.V", "qqq"))
    path = tmp_path / "members.csv"
    path.write_text("ticker,from,to_exclusive\nbrk-b,2020-01-01,\nAAPL,2020-01-01,2024-01-04\nMKC-V,2020-01-01,\n")
    assert list(read_members(path).tickers) == ["BRK-B", "AAPL", "MKC-V"]
    market = load_market(bars, members=path, benchmark="Qqq")
    assert market.tickers == ("AAPL", "BRK-B", "MKC.V")
    assert market.manifest["missing"] == []
    assert_array_equal(market.member[:, 0], [True, True, False, False, False])
    assert market.member[:, 1:].all()
    listed = load_market(bars, members=["BRK/B", "mkc-v", "BRK.B"], benchmark="QQQ")
    assert listed.tickers == ("BRK-B", "MKC.V")
    assert listed.manifest["membership"].startswith("static list of 2 names")
    assert listed.benchmark == "QQQ"
    assert np.isfinite(listed.benchmark_close).all()
    assert DAYS[0] == pd.Timestamp(listed.dates[0])
