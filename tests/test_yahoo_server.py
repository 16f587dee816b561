"""The local server against the raw shape of Yahoo's answers, yfinance's table from it, and a whole fetch that is killed."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

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


def asked(server, path):
    try:
        with urllib.request.urlopen(server.url + path, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def chart(server, symbol, first="2024-03-04", stop="2024-03-09"):
    seconds = [int(np.datetime64(day, "s").astype(int)) for day in (first, stop)]
    return asked(server, f"/v8/finance/chart/{symbol}?period1={seconds[0]}&period2={seconds[1]}&interval=1d")


def test_the_server_answers_in_yahoos_shape():
    listing = Listing(
        DAYS, [10.0, None, 12.0, 13.0, 14.0], dividends={DAYS[2]: 0.5}, splits={DAYS[3]: (4, 1)}, live=True
    )
    with serving({"AAA": listing}, limited={"LIM": 1}, empty={"NIL"}) as server:
        status, text = chart(server, "AAA")
        assert status == 200
        result = json.loads(text)["chart"]["result"][0]
        assert result["meta"]["exchangeTimezoneName"] == "America/New_York"
        assert result["timestamp"][0] == 1709562600  # 2024-03-04 09:30 in New York
        assert result["timestamp"][-1] == 1709908200 + 5400  # stamped with the last trade
        assert result["indicators"]["quote"][0]["close"] == [10.0, None, 12.0, 13.0, 14.0]
        assert set(result["indicators"]["quote"][0]) == {"open", "high", "low", "close", "volume"}
        assert result["events"]["dividends"] == {"1709735400": {"amount": 0.5, "date": 1709735400}}
        assert result["events"]["splits"]["1709821800"]["splitRatio"] == "4:1"
        status, text = chart(server, "NONE")
        assert status == 404
        assert json.loads(text)["chart"]["error"]["code"] == "Not Found"
        status, text = chart(server, "NIL")
        assert status == 400
        assert json.loads(text)["chart"]["error"]["description"].startswith("Data doesn't exist for startDate")
        assert chart(server, "AAA", "2023-01-01", "2023-02-01")[0] == 400
        assert [chart(server, "LIM")[0] for _ in range(2)] == [429, 404]
        assert asked(server, "/v1/test/getcrumb") == (200, yahoo_server.CRUMB)
        assert asked(server, "/")[0] == 404
        assert "csrfToken" in asked(server, "/consent")[1]


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
