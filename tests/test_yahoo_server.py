"""The table that yfinance makes of the local server's answers, and a whole fetch that is killed."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import yahoo_server
from yahoo_server import Listing, serving, weekdays

import finpod
from finpod.errors import DataError
from finpod.market.calendar import sessions_of
from finpod.market.universe import index_members

DAYS = weekdays("2024-03-04", "2024-03-08")


@pytest.fixture(scope="module", autouse=True)
def private_cache(tmp_path_factory):
    yahoo_server.use_cache(tmp_path_factory.mktemp("yfinance"))


def test_the_table_of_yfinance_is_the_one_finpod_reads():
    """An upgrade of yfinance that changes its table fails here."""
    from curl_cffi.requests import Session
    from yfinance.data import YfData

    from finpod.market.yahoo_client import COLUMNS, Client

    listings = {
        "AAA": Listing(DAYS, [10.0, 11.0, 12.0, 13.0, 14.0], dividends={DAYS[2]: 0.5}, volume=[5, 6, 7, 8, 0]),
        "ETF": Listing(DAYS[1:], [20.0, None, 20.0, 20.0], splits={DAYS[4]: (3, 2)}, kind="ETF"),
    }
    with serving(listings) as server:
        client = Client("2024-03-04", "2024-03-09", ends=time.monotonic() + 20, base_url=server.url)
        bars, failed = client.ask(["AAA", "ETF", "NONE"])
        assert type(YfData()._session) is Session  # others who use yfinance do not ask this server
    assert {name: str(reason) for name, reason in failed.items()} == {"NONE": "unknown symbol: HTTP 404"}
    own = bars["AAA"]
    assert list(own.columns) == ["date", *COLUMNS.values()]
    assert own["date"].dtype == "datetime64[ns]"
    assert {str(dtype) for dtype in own.dtypes[1:]} == {"float64"}
    assert own["date"].astype(str).tolist() == DAYS
    assert own["close"].tolist() == [10.0, 11.0, 12.0, 13.0, 14.0]
    assert own["open"].tolist() == pytest.approx([9.9, 10.89, 11.88, 12.87, 13.86])
    assert own["high"].tolist() == [11.0, 12.0, 13.0, 14.0, 15.0]
    assert own["low"].tolist() == pytest.approx([9.702, 10.6722, 11.6424, 12.6126, 13.5828])
    assert own["adj_close"].tolist() == pytest.approx([10 * (1 - 0.5 / 11), 11 * (1 - 0.5 / 11), 12, 13, 14])
    assert own["volume"].tolist() == [5, 6, 7, 8, 0]
    assert own["dividend"].tolist() == [0, 0, 0.5, 0, 0]
    assert own["split"].tolist() == [0] * 5
    assert bars["ETF"]["date"].astype(str).tolist() == [DAYS[1], DAYS[3], DAYS[4]]
    assert bars["ETF"]["split"].tolist() == [0, 0, 1.5]


def test_another_table_of_yfinance_is_one_clear_line(monkeypatch):
    from finpod.market import yahoo_client

    client = yahoo_client.Client("2024-03-04", "2024-03-09", ends=time.monotonic() + 20)
    days = pd.DatetimeIndex(DAYS)
    columns = pd.MultiIndex.from_product(
        [["AAA"], ["Open", "High", "Low", "Close", "Volume", "Dividends", "Stock Splits"]]
    )
    for table, fault in (
        (pd.DataFrame(1.0, days, columns), "no Adj Close in its columns"),
        (pd.DataFrame(1.0, days, list(yahoo_client.COLUMNS)), "no ticker in its columns"),
    ):
        monkeypatch.setattr("yfinance.download", lambda names, table=table, **options: table)
        with pytest.raises(DataError, match=fault):
            client.ask(["AAA"])
    monkeypatch.setattr("yfinance.download", lambda names, **options: 1 / 0)
    with pytest.raises(DataError, match=r"yfinance 1\..* failed \(division by zero\)"):
        client.ask(["AAA"])


START, END = "2015-01-01", "2020-12-31"
GONE, LIMITED = ("BRCM", "YHOO"), ("AAPL", "MSFT", "SBUX", "TSLA", "XLNX")


def command(server, folder, *more):
    words = (
        f"data fetch --universe nasdaq100 --start {START} --end {END} --name n100 --wait 0.05 --base-url {server.url}"
    )
    return subprocess.Popen(
        [sys.executable, "-m", "finpod.cli", *words.split(), *more],
        cwd=folder,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_fetch_of_the_index_is_killed_half_way_and_goes_on(tmp_path):
    """Every member since 2015, 2 of them unknown to Yahoo and 5 rate limited; the process is killed, and another ends it."""
    within = np.datetime64(START, "ns"), np.datetime64(END, "ns")
    sessions = [f"{day!s:.10}" for day in sessions_of("XNYS", *within).dates[::10]]
    listing = Listing(sessions, [100.0] * len(sessions))
    members = index_members("nasdaq100").renamed_to_newest().during(*within)
    assert 160 <= len(members) <= 175
    assert {"META", *GONE, *LIMITED} <= set(members)
    assert not {"FB", "PCLN", "CTRP", "SYMC"} & set(members)
    partial = tmp_path / "data" / ".n100.partial"
    with serving(lambda symbol: None if symbol in GONE else listing, limited=dict.fromkeys(LIMITED, 2)) as server:
        server.before_closing = 80
        server.open.clear()
        killed = command(server, tmp_path)
        ends = time.monotonic() + 30
        while len(server.asked) <= 80 and time.monotonic() < ends:
            time.sleep(0.02)
        killed.kill()
        killed.communicate()
        kept = {path.stem.split("_")[1] for path in partial.glob("bars_*.parquet")}
        assert 50 <= len(kept) < 80
        assert not (tmp_path / "data" / "n100").exists()
        assert {"/", "/v1/test/getcrumb"} <= set(server.paths)
        server.open.set()
        server.asked.clear()
        resumed = command(server, tmp_path, "--json")
        out, err = resumed.communicate(timeout=60)
        assert resumed.returncode == 0, err
        names = set(server.names())
    assert not names & kept
    assert names | kept == {"QQQ", *members} - set(GONE)
    said = json.loads(out)
    assert (said["asked"], said["fetched"], said["resumed"]) == (len(members) + 1, len(members) - 1, len(kept))
    assert said["failed"] == dict.fromkeys(GONE, "unknown symbol: HTTP 404")
    assert said["limited"] == sorted(LIMITED)
    assert said["missing"] == sorted(GONE)
    assert set(said["suspicions"]) == {"closes that stay the same to the end"}  # no price moves here
    assert f"{len(members) - 1} of {len(members) + 1} names; missing BRCM, YHOO" in err
    assert not partial.exists()
    market = finpod.load_market(tmp_path / "data" / "n100")
    assert market.content_hash == said["hash"]
    assert market.shape == (len(sessions), len(members) - 2)
