import logging
import socket
import threading
from datetime import datetime

import numpy as np
import pandas as pd
import pytest

from finpod.errors import DataError, InputError
from finpod.market import yahoo
from finpod.market.yahoo import NEW_YORK, Answer, download_yahoo, fetch_market

LIMIT = "YFRateLimitError('Too Many Requests. Rate limited. Try after a while.')"
EVENING = datetime(2024, 4, 30, 20, tzinfo=NEW_YORK)


def bars_of(names, first, stop):
    """Weekday bars in [first, stop) as yfinance lays them out, with a close of 100 and an adjusted close of 98."""
    days = pd.bdate_range(first, pd.Timestamp(stop) - pd.Timedelta(days=1), name="Date").as_unit("s")
    values = {
        "Adj Close": 98.0,
        "Close": 100.0,
        "Dividends": 0.0,
        "High": 101.0,
        "Low": 97.0,
        "Open": 99.0,
        "Stock Splits": 0.0,
        "Volume": 1000.0,
    }
    columns = pd.MultiIndex.from_product([values, names], names=["Price", "Ticker"])
    return pd.DataFrame(
        np.tile(np.repeat(list(values.values()), len(names)), (len(days), 1)), index=days, columns=columns
    )


class FakeYahoo:
    """Answers every name but those that `errors(name, how often it was asked)` gives a reason for."""

    def __init__(self, errors=lambda name, asked: None):
        self.errors, self.requests = errors, []

    def __call__(self, names, first, stop):
        self.requests.append((list(names), first, stop))
        asked = {name: sum(name in request[0] for request in self.requests) for name in names}
        reasons = {name: reason for name in names if (reason := self.errors(name, asked[name]))}
        return Answer(bars_of([name for name in names if name not in reasons], first, stop), reasons)


def fetched(source, universe=("AAA", "BBB", "CCC", "DDD"), start="2024-03-25", end="2024-03-28", **options):
    waits = []
    defaults = {"now": lambda: EVENING, "sleep": waits.append, "wait": 3.0}
    return fetch_market(universe, start, end, download=source, **{**defaults, **options}), waits


def test_prices_are_adjusted_and_the_choice_is_recorded():
    market, waits = fetched(FakeYahoo())
    assert market.tickers == ("AAA", "BBB", "CCC", "DDD")
    assert market.close == pytest.approx(98.0)
    assert market.open == pytest.approx(97.02)
    assert market.manifest["source"] == "yahoo"
    assert "auto_adjust=False" in market.manifest["download"]
    assert market.manifest["survivorship"] is True
    assert market.manifest["versions"]["yfinance"]
    assert market.manifest["failed"] == {}
    assert waits == []


def test_b13_rate_limited_names_are_asked_again_and_only_they():
    source = FakeYahoo(lambda name, asked: LIMIT if name in ("AAA", "BBB", "CCC") and asked == 1 else None)
    market, waits = fetched(source)
    assert market.tickers == ("AAA", "BBB", "CCC", "DDD")
    assert [request[0] for request in source.requests] == [["QQQ", "AAA", "BBB", "CCC", "DDD"], ["AAA", "BBB", "CCC"]]
    assert waits == [3.0]
    assert market.manifest["failed"] == {}
    assert market.manifest["missing"] == []


def test_b13_waits_grow_and_the_budget_ends_in_an_error():
    source = FakeYahoo(lambda name, asked: LIMIT if name == "CCC" else None)
    waits = []
    with pytest.raises(InputError, match=r"did not answer for CCC \(1 of 5 names: .*Rate limited"):
        fetched(source, sleep=waits.append)
    assert waits == [3.0, 6.0, 12.0]
    market, _ = fetched(FakeYahoo(source.errors), allow_missing=True)
    assert market.manifest["missing"] == ["CCC"]
    assert "Rate limited" in market.manifest["failed"]["CCC"]
    assert "delisted" not in str(dict(market.manifest))


def test_names_without_data_stop_a_list_and_are_named_for_an_index():
    gone = FakeYahoo(lambda name, asked: "possibly delisted; no price data found" if name == "CCC" else None)
    with pytest.raises(InputError, match=r"no prices for CCC \(1 of 4 names\)"):
        fetched(gone)
    without = FakeYahoo(lambda name, asked: "possibly delisted; no price data found" if name == "SPLK" else None)
    market, waits = fetched(without, universe="nasdaq100", start="2024-03-14", end="2024-03-20")
    assert market.manifest["missing"] == ["SPLK"]
    assert market.manifest["failed"] == {"SPLK": "possibly delisted; no price data found"}
    assert "META" in market.tickers
    assert "FB" not in market.tickers
    assert market.manifest["survivorship"] is False
    assert not market.member.all()
    assert len(without.requests) == 5  # 102 names and the benchmark in batches of 25
    assert waits == []


def test_b26_the_bar_of_an_unfinished_session_is_left_out():
    morning, evening = (datetime(2024, 3, 28, hour, tzinfo=NEW_YORK) for hour in (11, 17))
    market, _ = fetched(FakeYahoo(), now=lambda: morning)
    assert str(market.dates[-1])[:10] == "2024-03-27"
    assert any("unfinished session" in note for note in market.manifest["notes"])
    market, _ = fetched(FakeYahoo(), now=lambda: evening)
    assert str(market.dates[-1])[:10] == "2024-03-28"
    assert not any("unfinished session" in note for note in market.manifest["notes"])


def test_b27_both_ends_are_included():
    source = FakeYahoo()
    market, _ = fetched(source, start="2024-03-25", end="2024-03-28")
    assert [str(day)[:10] for day in market.dates] == ["2024-03-25", "2024-03-26", "2024-03-27", "2024-03-28"]
    assert source.requests[0][1:] == ("2024-03-25", "2024-03-29")


def test_the_end_defaults_to_today_in_new_york():
    market, _ = fetched(FakeYahoo(), start="2024-04-25", end=None)
    assert str(market.dates[-1])[:10] == "2024-04-30"


def test_impossible_requests():
    with pytest.raises(InputError, match="ends on 2024-01-01, before it starts on 2024-02-01"):
        fetched(FakeYahoo(), start="2024-02-01", end="2024-01-01")
    with pytest.raises(InputError, match="unknown universe 'sp500'"):
        fetched(FakeYahoo(), universe="sp500")
    with pytest.raises(DataError, match="no bar for any of 5 names"):
        fetched(FakeYahoo(lambda name, asked: "no price data found"))
    with pytest.raises(InputError, match="no rows for the benchmark QQQ"):
        fetched(FakeYahoo(lambda name, asked: "no price data found" if name == "QQQ" else None))


def test_a_network_that_swallows_packets_ends_at_the_deadline():
    released = threading.Event()

    def silent(names, first, stop):
        released.wait(30)
        return Answer(pd.DataFrame(), {})

    with pytest.raises(DataError, match="within the deadline"):
        fetched(silent, deadline=0.05)
    released.set()


def test_an_exception_of_the_source_is_one_line():
    def broken(names, first, stop):
        raise ValueError("first line\nsecond line")

    with pytest.raises(DataError, match=r"failed \(first line\)"):
        fetched(broken)


def test_no_network_is_one_clear_line(monkeypatch):
    def refuse(address, timeout):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(DataError, match=r"cannot reach .*Network is unreachable.*sample"):
        fetch_market(["AAA"], "2024-01-02", "2024-01-05")


def test_the_connection_test_goes_to_the_proxy_where_there_is_one(monkeypatch):
    reached = []

    class Connection:
        def close(self):
            pass

    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setattr(socket, "create_connection", lambda address, timeout: reached.append(address) or Connection())
    monkeypatch.setattr(yahoo, "download_yahoo", FakeYahoo())
    fetch_market(["AAA"], "2024-01-02", "2024-01-05", now=lambda: EVENING)
    assert reached == [("proxy.example", 3128)]


def test_yfinance_is_asked_explicitly_and_its_log_is_read(monkeypatch):
    import yfinance

    seen = {}

    def download(tickers, **options):
        seen.update(options)
        logging.getLogger("yfinance").error("\n2 Failed downloads:")
        logging.getLogger("yfinance").error(f"['AAA', 'BBB']: {LIMIT}")
        return bars_of(["CCC"], "2024-01-02", "2024-01-05")

    monkeypatch.setattr(yfinance, "download", download)
    answer = download_yahoo(["AAA", "BBB", "CCC"], "2024-01-02", "2024-01-05")
    assert answer.errors == {"AAA": LIMIT, "BBB": LIMIT}
    assert seen["auto_adjust"] is False
    assert seen["actions"] is True
    assert (seen["start"], seen["end"]) == ("2024-01-02", "2024-01-05")
