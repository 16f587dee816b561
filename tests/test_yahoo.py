"""`fetch_market` through the real yfinance, against the local server of `yahoo_server.py`; no traffic leaves 127.0.0.1."""

import subprocess
import sys
import time
from datetime import datetime
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
import yfinance
from made_bars import refuses, repairs
from made_commands import ENVIRONMENT
from made_errors import refused
from made_tournaments import wait_until
from yahoo_server import Listing, serving, weekdays

import finpod
from finpod.errors import DataError, FinpodError
from finpod.market.calendar import sessions_of
from finpod.market.load import save_snapshot
from finpod.market.universe import index_members
from finpod.market.yahoo import NEW_YORK, Missing, discard, fetch_market, gather
from finpod.market.yahoo_client import COLUMNS, Client

EVENING = datetime(2024, 4, 30, 20, tzinfo=NEW_YORK)
MARCH = weekdays("2024-03-01", "2024-03-28")
DAYS = MARCH[1:6]


@pytest.fixture(scope="module", autouse=True)
def private_cache(tmp_path_factory):
    """What yfinance remembers of time zones and cookies is kept in a folder of the test's own."""
    yfinance.set_tz_cache_location(str(tmp_path_factory.mktemp("yfinance")))


def flat(days=MARCH, close=100.0, **more):
    return Listing(days, [close] * len(days), **more)


def only(*names, **listings):
    """The named symbols with flat prices, and the given listings."""
    return {name: flat() for name in ("QQQ", *names)} | listings


WAITS = []
"""The waits of the last fetch."""


@pytest.fixture(autouse=True)
def no_waits(monkeypatch):
    monkeypatch.setattr("finpod.market.yahoo.ATTEMPTS", 4)
    monkeypatch.setattr("finpod.market.yahoo.WAIT", 3.0)
    monkeypatch.setattr("finpod.market.yahoo.sleep", WAITS.append)
    monkeypatch.setattr("finpod.market.yahoo_client.SECONDS", 120.0)  # an answer that a busy machine delays is no fault


def fetched(universe=("AAA", "BBB", "CCC", "DDD"), start="2024-03-25", end="2024-03-28", **options):
    """A market from the server, and the waits that it took."""
    WAITS.clear()
    options = {"now": lambda: EVENING, **options}
    return fetch_market(universe, start, end, **options), list(WAITS)


def test_b17_prices_are_adjusted_once_and_the_choice_is_recorded():
    days, paid = MARCH[-4:], [400.0, 402.0, 399.0, 404.0]
    listings = only(
        AAA=flat(open=[99.0] * len(MARCH), adjclose=[98.0] * len(MARCH)),
        DIV=Listing(days, paid, adjclose=[400 * 400 / 402, 400.0, 399.0, 404.0], dividends={days[2]: 2.0}),
        SPLIT=Listing(days, [100.0, 101.0, 101.0, 102.0], splits={days[2]: (4, 1)}),
    )
    with serving(listings):
        market, _ = fetched(["aaa", "DIV", "SPLIT"])
    assert market.open[0, 0] == pytest.approx(97.02)
    assert market.close[0, 0] == pytest.approx(98.0)
    assert market.factor[0, 0] == pytest.approx(0.98)
    assert (market.close * market.volume)[:, 0] == pytest.approx(100.0 * 1000)
    # 1.505 %, the dividend reinvested as Yahoo does
    assert market.close[-1, 1] / market.close[0, 1] - 1 == pytest.approx(404 * 402 / 400**2 - 1)
    assert market.close[:, 2].tolist() == [100.0, 101.0, 101.0, 102.0]
    assert market.volume[:, 2].tolist() == [1000.0] * 4
    manifest = market.manifest
    assert (manifest["source"], manifest["survivorship"], manifest["failed"]) == ("yahoo", True, {})
    assert "auto_adjust=False" in manifest["download"]
    days = {"start": "2024-03-25", "stop": "2024-03-29", "finished": "2024-03-28"}
    assert manifest["request"] == {"universe": ["AAA", "DIV", "SPLIT"], **days, "auto_adjust": False, "actions": True}
    assert manifest["fetch"] == {"asked": 4, "fetched": 4, "resumed": 0}


def test_b13_rate_limited_names_alone_are_asked_again_until_the_budget_ends():
    with serving(only("AAA", "BBB", "CCC", "DDD"), limited={"AAA": 2, "BBB": 2, "CCC": 2}) as server:
        market, waits = fetched()
        asked = server.names()
        assert (asked.count("QQQ"), asked.count("DDD"), waits) == (1, 1, [3.0])
        assert (market.tickers, market.manifest["failed"]) == (("AAA", "BBB", "CCC", "DDD"), {})
        server.limited["CCC"] = 10**6
        refused(r"CCC .*rate limited: HTTP 429", fetched)
        assert WAITS == [3.0, 6.0, 12.0]
        market, _ = fetched(allow_missing=True)
    assert market.manifest["missing"] == ["CCC"]
    assert market.manifest["failed"] == {"CCC": "rate limited: HTTP 429"}


def test_b11_each_failure_has_its_reason_and_stops_a_fetch_of_a_list_unless_allowed():
    late = flat(weekdays("2024-04-01", "2024-04-05"))
    with serving(only("SICK", "WELL", LATE=late), broken={"SICK": 10**6, "WELL": 2}):
        refused("GONE", fetched, ["LATE", "GONE"])
        market, waits = fetched(["GONE", "SICK", "WELL", "LATE"], allow_missing=True)
    assert market.tickers == ("WELL",)  # a 503 that yfinance would have repeated from its cache
    assert market.manifest["failed"] == {
        "GONE": "unknown symbol: HTTP 404",
        "LATE": "no data in the range: HTTP 400",
        "SICK": "no answer: HTTP 503 without a chart",
    }
    assert market.manifest["missing"] == ["GONE", "LATE", "SICK"]
    assert waits == [3.0, 6.0, 12.0]


def test_members_are_asked_for_as_they_were_under_the_newest_symbols(tmp_path):
    """Also: a symbol that has gone to another company since has no price on the days of the member."""
    members = tmp_path / "members.csv"
    spells = "FB,2020-01-01,\nOLD,2020-01-01,2024-03-12\nCAME,2024-03-18,\nWENT,2020-01-01,2024-03-13\nGONE,2019-01-01,2020-01-01"
    members.write_text(f"ticker,from,to_exclusive\n{spells}\n")
    with serving(only("META", "CAME", "WENT", OLD=flat(weekdays("2024-03-18", "2024-03-28")))) as server:
        market, _ = fetched(str(members), "2024-03-04", "2024-03-28")
        assert sorted(server.names()) == ["CAME", "META", "OLD", "QQQ", "WENT"]
    assert market.tickers == ("CAME", "META", "OLD", "WENT")
    assert market.member.sum(axis=0).tolist() == [9, 19, 6, 7]
    assert market.manifest["without_prices"] == {"OLD": [["2024-03-04", "2024-03-11"]]}


@pytest.mark.parametrize(("calendar", "zone"), [("XNYS", "America/New_York"), ("XSHG", "Asia/Shanghai")])
def test_b26_the_bar_of_an_unfinished_session_is_left_out(calendar, zone):
    at = {hour: datetime(2024, 3, 28, hour, tzinfo=ZoneInfo(zone)) for hour in (11, 17)}
    listings = {name: flat(live=True, zone=zone) for name in ("QQQ", "AAA")}
    with serving(listings):
        options = {"end": None, "calendar": calendar}
        early, _ = fetched(["AAA"], now=lambda: at[11], **options)
        late, _ = fetched(["AAA"], now=lambda: at[17], **options)
        refused("2024-03-28", fetched, ["AAA"], start="2024-03-28", now=lambda: at[11], **options)
    assert str(early.dates[-1])[:10] == early.manifest["request"]["finished"] == "2024-03-27"
    assert repairs(early) == {"rows dropped, session not over": 2}
    assert str(late.dates[-1])[:10] == "2024-03-28"
    assert repairs(late) == {}


def test_b27_both_ends_are_included_and_the_end_is_at_most_today():
    listings = {name: flat(weekdays("2024-03-01", "2024-04-30")) for name in ("QQQ", "AAA")}
    with serving(listings) as server:
        market, _ = fetched(["AAA"], start="2024-03-25", end="2024-03-28")
        days = [datetime.fromtimestamp(second, NEW_YORK) for second in server.asked[0][1:]]
        today, _ = fetched(["AAA"], start="2024-04-25", end=None)
        sunday = datetime(2024, 4, 28, 12, tzinfo=NEW_YORK)
        friday, _ = fetched(["AAA"], start="2024-04-25", end=None, now=lambda: sunday)
    assert [str(day)[:10] for day in market.dates] == ["2024-03-25", "2024-03-26", "2024-03-27", "2024-03-28"]
    assert [f"{day:%Y-%m-%d %H:%M}" for day in days] == ["2024-03-25 00:00", "2024-03-29 00:00"]
    assert [str(market.dates[-1])[:10] for market in (today, friday)] == ["2024-04-30", "2024-04-26"]


def test_what_was_kept_is_used_only_if_it_is_whole_and_of_the_same_request(tmp_path):
    names, partial = ["AAA", "BBB", "CCC", "DDD"], tmp_path / "partial"

    def asked(server, names=names, **options):
        server.asked.clear()
        market, _ = fetched(names, partial=partial, **options)
        return market, sorted(server.names())

    with serving(only(*names), limited={"DDD": 6}) as server:
        whole, _ = fetched(names)
        server.limited["DDD"] = 14
        refused(r"DDD.*4 tickers are kept", fetched, names, partial=partial)
        market, symbols = asked(server)
        assert set(symbols) == {"DDD"}
        assert market.content_hash == whole.content_hash
        assert market.manifest["fetch"] == {"asked": 5, "fetched": 5, "resumed": 4}
        damaged = partial / "bars_AAA.parquet"
        damaged.write_bytes(damaged.read_bytes()[:-10])
        (partial / ".bars_CCC.parquet.x1").write_bytes(b"half")  # of a process that was killed while writing
        assert asked(server)[1] == ["AAA"]
        assert asked(server)[1] == []
        assert asked(server, start="2024-03-20")[1] == [*names, "QQQ"]
        (partial / "request.json").write_text("{")
        assert asked(server, start="2024-03-20")[1] == [*names, "QQQ"]
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "notes.txt").write_text("keep me")
        refused("mine", fetched, names, partial=tmp_path / "mine")
    discard(partial)
    assert not partial.exists()
    discard(tmp_path / "mine")
    assert (tmp_path / "mine" / "notes.txt").read_text() == "keep me"


def test_the_deadline_ends_a_fetch_from_a_server_that_is_silent(tmp_path, monkeypatch):
    monkeypatch.setattr("finpod.market.yahoo.BATCH", 1)
    with serving(only("AAA", "BBB")) as server:
        server.open.clear()
        refused(r"no answer: .*tim", fetched, ["AAA"], deadline=0.4, error=DataError)
        server.open.set()

        def dawdle(doing, share):
            time.sleep(0.4)

        options = {"deadline": 0.3, "partial": tmp_path / "partial", "report": dawdle}
        refused("AAA, BBB .*not asked before the deadline", fetched, ["AAA", "BBB"], **options)
    assert len(list((tmp_path / "partial").glob("bars_QQQ.*"))) == 1


def test_impossible_requests(monkeypatch):
    with serving(only("AAA")) as server:
        for options, word in (
            ({"start": "2024-02-01", "end": "2024-01-01"}, "2024-02-01"),
            ({"universe": None}, "universe"),
            ({"universe": ["AAA", "../../ETC"]}, "'../../ETC'"),
            ({"benchmark": "Q Q"}, "'Q Q'"),
            ({"universe": ["AAA"], "benchmark": "BBB"}, "BBB"),
            ({"calendar": None}, "calendar"),
            ({"deadline": -1}, "deadline is -1"),
        ):
            refuses(lambda options=options: fetched(**{"universe": ["AAA"], **options}), word, error=FinpodError)
        url = server.url
    monkeypatch.setattr("finpod.market.yahoo_client.SERVER", url)  # which has ended
    refuses(lambda: fetch_market(["AAA"], "2024-01-02", "2024-01-05"), url)


def test_b31_stored_data_need_no_network(tmp_path, monkeypatch):
    with serving(only("AAA")):
        market, _ = fetched(["AAA"], MARCH[0], MARCH[-1])
    save_snapshot(market, tmp_path / "stored")
    for function in ("socket.socket.connect", "socket.create_connection", "finpod.market.yahoo.fetch_market"):
        monkeypatch.setattr(function, lambda *args, **options: pytest.fail("the network is blocked"))
    stored = finpod.load_market(tmp_path / "stored")
    assert finpod.backtest("equal-weight", stored, examine=False).data_hash == market.content_hash


def test_the_table_of_yfinance_is_the_one_finpod_reads():
    """An upgrade of yfinance that changes its table fails here."""
    from curl_cffi.requests import Session
    from yfinance.data import YfData

    closes, paid = [10.0, 11.0, 12.0, 13.0, 14.0], 1 - 0.5 / 11
    adjusted = [10 * paid, 11 * paid, 12, 13, 14]
    listings = {
        "AAA": Listing(DAYS, closes, adjclose=adjusted, dividends={DAYS[2]: 0.5}, volume=[5, 6, 7, 8, 0]),
        "ETF": Listing(DAYS[1:], [20.0, None, 20.0, 20.0], splits={DAYS[4]: (3, 2)}),
    }
    with serving(listings):
        client = Client("2024-03-04", "2024-03-09", deadline=20)
        bars, failed = client.ask(["AAA", "ETF", "NONE"])
        assert type(YfData()._session) is Session  # others who use yfinance do not ask this server
    assert failed == {"NONE": Missing("unknown symbol: HTTP 404")}
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
    days, lacking = pd.DatetimeIndex(DAYS), [["AAA"], [name for name in COLUMNS if name != "Adj Close"]]
    with serving({}):
        client = Client("2024-03-04", "2024-03-09", deadline=20)
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
    failing = dict.fromkeys("ABCDEFGH", Missing("rate limited: HTTP 429", passes=True))
    client = SimpleNamespace(ends=1e18, ask=lambda names: ({}, {name: failing[name] for name in names}))
    monkeypatch.setattr("finpod.market.yahoo.Client", lambda *days, deadline: client)
    days = {"start": "2024-03-04", "stop": "2024-03-09"}
    failed = gather("ABCDEFGH", days, {}, None, 20.0, lambda doing, share: None)
    assert waits == [1.0, 2.0]
    assert [failed[name].reason for name in "AF"] == ["rate limited: HTTP 429"] * 2
    assert [failed[name].reason for name in "GH"] == ["no answer: not asked after 3 requests without any bars"] * 2


START, END = "2015-01-01", "2020-12-31"
GONE, LIMITED = ("DD", "WBA"), ("AAPL", "MSFT", "V")
SCRIPT = f"""import sys, finpod, finpod.market.yahoo_client
finpod.market.yahoo_client.SERVER = sys.argv[1]
finpod.fetch_market("dow30", "{START}", "{END}", partial="partial")
"""


def test_a_fetch_of_the_index_is_killed_half_way_and_goes_on(apart):
    """Every member since 2015, 2 of them unknown to Yahoo and 3 rate limited; the process is killed, and another ends it."""
    within = np.datetime64(START, "ns"), np.datetime64(END, "ns")
    sessions = [f"{day!s:.10}" for day in sessions_of("XNYS", *within).dates[::10]]
    listing = Listing(sessions, [100.0] * len(sessions))
    members = index_members("dow30").renamed_to_newest().during(*within)
    with serving(lambda symbol: None if symbol in GONE else listing, limited=dict.fromkeys(LIMITED, 2)) as server:
        server.before_closing = 28
        server.open.clear()
        line, cache = [sys.executable, "-c", SCRIPT, server.url], {"XDG_CACHE_HOME": str(apart)}
        with subprocess.Popen(line, env=ENVIRONMENT | cache) as child:
            wait_until(lambda: len(server.asked) > 28, 60)
            child.kill()
        kept = {path.stem.split("_")[1] for path in (apart / "partial").glob("bars_*.parquet")}
        assert 15 <= len(kept) < 28
        server.open.set()
        server.asked.clear()
        market = fetch_market("dow30", START, END, partial="partial")
        names = set(server.names())
    assert not names & kept
    assert names | kept == {"DIA", *members} - set(GONE)
    counts = {"asked": len(members) + 1, "fetched": len(members) - 1, "resumed": len(kept)}
    assert market.manifest["fetch"] == counts
    assert market.manifest["failed"] == dict.fromkeys(GONE, "unknown symbol: HTTP 404")
    assert market.shape == (len(sessions), len(members) - 2)
