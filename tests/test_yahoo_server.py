"""The table that yfinance makes of the local server's answers, and a whole fetch that is killed."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import yahoo_server
from made_bars import refuses
from made_commands import ENVIRONMENT
from made_tournaments import wait_until
from yahoo_server import Listing, serving, weekdays

from finpod.market.calendar import sessions_of
from finpod.market.universe import index_members
from finpod.market.yahoo import Missing, PartialFetch, fetch_market, gather

DAYS = weekdays("2024-03-04", "2024-03-08")


@pytest.fixture(scope="module", autouse=True)
def private_cache(tmp_path_factory):
    yahoo_server.use_cache(tmp_path_factory.mktemp("yfinance"))


def test_the_table_of_yfinance_is_the_one_finpod_reads():
    """An upgrade of yfinance that changes its table fails here."""
    from curl_cffi.requests import Session
    from yfinance.data import YfData

    from finpod.market.yahoo_client import COLUMNS, Client

    closes, paid = [10.0, 11.0, 12.0, 13.0, 14.0], 1 - 0.5 / 11
    adjusted = [10 * paid, 11 * paid, 12, 13, 14]
    listings = {
        "AAA": Listing(DAYS, closes, adjclose=adjusted, dividends={DAYS[2]: 0.5}, volume=[5, 6, 7, 8, 0]),
        "ETF": Listing(DAYS[1:], [20.0, None, 20.0, 20.0], splits={DAYS[4]: (3, 2)}),
    }
    with serving(listings) as server:
        client = Client("2024-03-04", "2024-03-09", deadline=20, base_url=server.url)
        bars, failed = client.ask(["AAA", "ETF", "NONE"])
        assert type(YfData()._session) is Session  # others who use yfinance do not ask this server
    assert {name: str(reason) for name, reason in failed.items()} == {"NONE": "unknown symbol: HTTP 404"}
    own = bars["AAA"]
    assert list(own.columns) == ["date", *COLUMNS]
    assert own["date"].dtype == "datetime64[ns]"
    assert {str(dtype) for dtype in own.dtypes[1:]} == {"float64"}
    assert own["date"].astype(str).tolist() == DAYS
    for column, expected in {
        "Open": [9.9, 10.89, 11.88, 12.87, 13.86],
        "High": [11, 12, 13, 14, 15],
        "Low": [9.702, 10.6722, 11.6424, 12.6126, 13.5828],
        "Close": closes,
        "Adj Close": adjusted,
        "Volume": [5, 6, 7, 8, 0],
        "Dividends": [0, 0, 0.5, 0, 0],
    }.items():
        assert own[column].tolist() == pytest.approx(expected)
    assert bars["ETF"]["date"].astype(str).tolist() == [DAYS[1], DAYS[3], DAYS[4]]
    assert bars["ETF"]["Stock Splits"].tolist() == [0, 0, 1.5]


def test_another_table_of_yfinance_is_one_clear_line(monkeypatch):
    from finpod.market.yahoo_client import COLUMNS, Client

    days, lacking = pd.DatetimeIndex(DAYS), [["AAA"], [name for name in COLUMNS if name != "Adj Close"]]
    with serving({}) as server:
        client = Client("2024-03-04", "2024-03-09", deadline=20, base_url=server.url)
    for columns, fault in ((pd.MultiIndex.from_product(lacking), "Adj Close"), ([*COLUMNS], "ticker")):
        table = pd.DataFrame(1.0, days, columns)
        monkeypatch.setattr("yfinance.download", lambda tickers, table=table, **options: table)
        refuses(lambda: client.ask(["AAA"]), fault)
    monkeypatch.setattr("yfinance.download", lambda tickers, **options: 1 / 0)
    refuses(lambda: client.ask(["AAA"]), "division by zero")


def test_a_fetch_that_is_refused_altogether_is_given_up(monkeypatch):
    waits = []
    for name, value in {"sleep": waits.append, "WAIT": 1.0, "BATCH": 2, "ATTEMPTS": 3}.items():
        monkeypatch.setattr(f"finpod.market.yahoo.{name}", value)
    refused = dict.fromkeys("ABCDEFGH", Missing("rate limited", "HTTP 429", passes=True))
    options = {"ends": 1e18, "report": lambda doing, share: None}
    failed = gather(
        "ABCDEFGH", lambda names: ({}, {name: refused[name] for name in names}), PartialFetch(None, {}), **options
    )
    assert waits == [1.0, 2.0]
    assert [str(failed[name]) for name in "AF"] == ["rate limited: HTTP 429"] * 2
    assert [str(failed[name]) for name in "GH"] == ["no answer: not asked after 3 requests without any bars"] * 2


START, END = "2015-01-01", "2020-12-31"
GONE, LIMITED = ("DD", "WBA"), ("AAPL", "MSFT", "V")
SCRIPT = (
    f"import sys, finpod; finpod.fetch_market('dow30', '{START}', '{END}', partial='partial', base_url=sys.argv[1])"
)


def test_a_fetch_of_the_index_is_killed_half_way_and_goes_on(tmp_path, monkeypatch):
    """Every member since 2015, 2 of them unknown to Yahoo and 3 rate limited; the process is killed, and another ends it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("finpod.market.yahoo.WAIT", 0.05)
    within = np.datetime64(START, "ns"), np.datetime64(END, "ns")
    sessions = [f"{day!s:.10}" for day in sessions_of("XNYS", *within).dates[::10]]
    listing = Listing(sessions, [100.0] * len(sessions))
    members = index_members("dow30").renamed_to_newest().during(*within)
    with serving(lambda symbol: None if symbol in GONE else listing, limited=dict.fromkeys(LIMITED, 2)) as server:
        server.before_closing = 28
        server.open.clear()
        with subprocess.Popen(
            [sys.executable, "-c", SCRIPT, server.url], env=ENVIRONMENT | {"XDG_CACHE_HOME": str(tmp_path)}
        ) as child:
            wait_until(lambda: len(server.asked) > 28, 60)
            child.kill()
        kept = {path.stem.split("_")[1] for path in (tmp_path / "partial").glob("bars_*.parquet")}
        assert 15 <= len(kept) < 28
        server.open.set()
        server.asked.clear()
        market = fetch_market("dow30", START, END, partial="partial", base_url=server.url)
        names = set(server.names())
    assert not names & kept
    assert names | kept == {"DIA", *members} - set(GONE)
    counts = {"asked": len(members) + 1, "fetched": len(members) - 1, "resumed": len(kept)}
    assert market.manifest["fetch"] == counts
    assert market.manifest["failed"] == dict.fromkeys(GONE, "unknown symbol: HTTP 404")
    assert market.shape == (len(sessions), len(members) - 2)
