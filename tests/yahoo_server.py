"""A server on 127.0.0.1 that answers as Yahoo's chart service does, with listings and faults of the test's choosing."""

import json
import threading
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from finpod.market import yahoo_client

CHART = "/v8/finance/chart/"
CRUMB = "k3Xz.pL0dQa"


def weekdays(first, last):
    return [f"{day:%Y-%m-%d}" for day in pd.bdate_range(first, last)]


@dataclass
class Listing:
    """What Yahoo has of one symbol. Prices are adjusted for splits, as Yahoo's are; None is a null."""

    days: list
    close: list
    open: list | None = None
    volume: list | None = None
    adjclose: list | None = None
    """Left out: the closes."""
    dividends: dict = field(default_factory=dict)
    splits: dict = field(default_factory=dict)
    """Day -> (numerator, denominator)."""
    live: bool = False
    """The last bar is that of a session under way: stamped with the minute of its last trade."""
    zone: str = "America/New_York"
    """Time zone of its exchange, which opens at half past nine."""

    def stamps(self):
        """Seconds since 1970 of the opens; those of a session under way, of its last trade."""
        opens = [self.stamp(day) for day in self.days]
        return [*opens[:-1], opens[-1] + 5400] if self.live else opens

    def stamp(self, day):
        opens = datetime.fromisoformat(day) + timedelta(hours=9, minutes=30)
        return int(opens.replace(tzinfo=ZoneInfo(self.zone)).timestamp())

    def chart(self, symbol, first, stop):
        """The JSON of a chart over [first, stop) seconds; None if there is nothing in the range."""
        close = pd.Series(self.close, self.stamps(), dtype=float)
        opens = (close * 0.99).round(4) if self.open is None else pd.Series(self.open, close.index)
        table = pd.DataFrame({"open": opens, "high": np.maximum(opens, close) + 1})
        table = table.assign(
            low=np.minimum(opens, close) * 0.98,
            close=close,
            volume=self.volume or close * 0 + 1000,
            adjclose=self.adjclose or close,
        )
        table = table[(table.index >= first) & (table.index < stop)].astype(object).where(table.notna(), None)
        if table.empty:
            return None
        dated = [("dividends", day, {"amount": amount}) for day, amount in self.dividends.items()]
        dated += [("splits", day, {"numerator": up, "denominator": down}) for day, (up, down) in self.splits.items()]
        events = {}
        for kind, day, event in dated:
            events.setdefault(kind, {})[str(self.stamp(day))] = {"date": self.stamp(day), **event}
        adjusted = table.pop("adjclose").tolist()
        return {
            "meta": meta(symbol, int(table.index[-1]), table["close"].iloc[-1], self.zone),
            "timestamp": table.index.tolist(),
            "indicators": {"quote": [table.to_dict("list")], "adjclose": [{"adjclose": adjusted}]},
            "events": events,
        }


def meta(symbol, stamp, price, zone):
    offset = int(datetime(2024, 1, 1, tzinfo=ZoneInfo(zone)).utcoffset().total_seconds())
    period = {"timezone": zone, "start": stamp, "end": stamp + 23400, "gmtoffset": offset}
    words = {"currency": "USD", "symbol": symbol, "instrumentType": "EQUITY", "dataGranularity": "1d", "range": ""}
    market = {"regularMarketPrice": price, "regularMarketTime": stamp, "exchangeTimezoneName": zone}
    periods = {"currentTradingPeriod": {"pre": period, "regular": period, "post": period}, "validRanges": ["1d", "max"]}
    return words | market | periods | {"priceHint": 2, "gmtoffset": offset}


class YahooServer(ThreadingHTTPServer):
    """Serves `listings` (symbol -> Listing, or a function of the symbol), and what `fault` has in their place."""

    daemon_threads = True

    def __init__(self, listings, *, limited=None, broken=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.listings = listings if callable(listings) else listings.get
        self.limited = Counter(limited or {})
        """Symbol -> how many more of its requests end in 429; yfinance repeats each at once, so two are one attempt."""
        self.broken = Counter(broken or {})
        """Symbol -> how many more of its requests end in 503."""
        self.asked = []
        """(symbol, first second, last second) of each request for bars, in order."""
        self.open = threading.Event()
        """While it is not set, requests for bars wait, once `before_closing` of them have been answered."""
        self.before_closing = 0
        self.open.set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def names(self):
        """Symbols in the order of their requests for bars."""
        return [symbol for symbol, *_ in self.asked]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for the client to acknowledge its head

    def do_GET(self):
        asked = urlsplit(self.path)
        if asked.path.startswith(CHART):
            self.chart(asked.path.removeprefix(CHART), parse_qs(asked.query))
        elif asked.path == "/v1/test/getcrumb":
            self.answer(200, CRUMB, kind="text/plain")
        elif asked.path == "/":  # fc.yahoo.com, which is asked for its cookie only
            self.answer(404, "", kind="text/html", cookie="A3=d=AQABBK; Max-Age=31557600; Path=/")
        else:
            self.answer(404, {"finance": {"result": None, "error": {"code": "Not Found", "description": "no page"}}})

    def chart(self, symbol, query):
        server = self.server
        first, stop = (int(query.get(name, [default])[0]) for name, default in (("period1", 0), ("period2", 2**40)))
        if "period1" in query:
            server.asked.append((symbol, first, stop))
            if len(server.asked) > server.before_closing:
                server.open.wait(60)
        for faults, status, text in (
            (server.limited, 429, "Too Many Requests\r\n"),
            (server.broken, 503, "<html>Service Unavailable</html>"),
        ):
            if faults[symbol] > 0:
                faults[symbol] -= 1
                return self.answer(status, text, kind="text/html")
        listing = server.listings(symbol)
        if listing is None:
            return self.error(404, "Not Found", "No data found, symbol may be delisted")
        if "period1" not in query:  # the range of a day: only its meta is read
            only_meta = {"meta": meta(symbol, 0, 1.0, listing.zone)}
            return self.answer(200, {"chart": {"result": [only_meta], "error": None}})
        chart = listing.chart(symbol, first, stop)
        if chart is None:
            return self.error(400, "Bad Request", f"Data doesn't exist for startDate = {first}, endDate = {stop}")
        return self.answer(200, {"chart": {"result": [chart], "error": None}})

    def error(self, status, code, description):
        self.answer(status, {"chart": {"result": None, "error": {"code": code, "description": description}}})

    def answer(self, status, content, *, kind="application/json", cookie=None):
        body = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if cookie:
            self.send_header("Set-Cookie", cookie)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@contextmanager
def serving(listings, **faults):
    """A running `YahooServer`, which finpod asks in place of Yahoo."""
    with YahooServer(listings, **faults) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yahoo_client.SERVER = server.url
        try:
            yield server
        finally:
            yahoo_client.SERVER = None
            server.open.set()
            server.shutdown()
            thread.join()
