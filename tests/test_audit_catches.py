"""The audit catches each known way of looking ahead, and passes what is honest: one table of cheats, one of honest strategies."""

import copy
import os
import random
import socket
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, datetime
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from made_agents import tiny_train
from made_markets import make_market, random_market
from sklearn.datasets import load_iris
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import RobustScaler, StandardScaler

import finpod
from finpod.errors import StrategyError
from finpod.loading import load_strategy
from finpod.lookahead import isolation
from finpod.lookahead.audit import audit, audit_features
from finpod.market.extra import ExtraData
from finpod.records import Severity
from finpod.rules import RULES, Momentum
from finpod.strategy import MarketView, Strategy, equal_parts, top_k
from finpod.synthetic import simulate_market
from finpod.trading.execution import Execution

DAYS, TICKERS = 150, 8
LOOKS, CAN = Severity.LOOKS_AHEAD, Severity.CAN_LOOK_AHEAD


def made(days=DAYS):
    """Eight tickers with gaps, of which two are listed later."""
    market = random_market(days=days, names=TICKERS, gaps=0.02)
    tables = {name: getattr(market, name).copy() for name in ("close", "open", "factor")}
    for table in tables.values():
        table[:60, 0] = table[:110, 1] = np.nan
    benchmark = {"benchmark": market.benchmark_close, "benchmark_open": market.benchmark_open}
    return make_market(tables["close"], open=tables["open"], factor=tables["factor"], member=market.member, **benchmark)


MARKET = made()


def all_rows():
    """All closes, by way of a function so that no test holds them by accident."""
    return MARKET.close.copy()


class Ranks(Strategy):
    """Holds the three highest of a feature that it asks for in `decide`."""

    def __init__(self, feature):
        self.feature = feature

    def decide(self, view):
        return top_k(view.features(self.feature)[:, 0], 3, among=view.tradable)


class Declares(Momentum):
    """Declares a feature, and decides by something else."""

    def __init__(self, *features):
        super().__init__(lookback=20, k=3)
        self.features = features


class Acts(Momentum):
    """Does something on the side of each decision."""

    def __init__(self, act):
        super().__init__(lookback=20, k=3)
        self.act = act

    def decide(self, view):
        self.act()
        return super().decide(view)


class Holds(Momentum):
    """Holds something, and decides by something else."""

    def __init__(self, what, trained_until=None):
        super().__init__(lookback=20, k=3)
        self.what, self.trained_until = what, trained_until


def decides(function):
    """A strategy that decides by a function of the view."""
    return type("Decides", (Strategy,), {"decide": lambda self, view: function(view)})()


# --- features ---------------------------------------------------------------------------------------------------------


def shifted(market):
    """The return of the next session."""
    close = pd.DataFrame(market.close)
    return (close.shift(-1) / close - 1).to_numpy()


def scaled_on_all_rows(market):
    """Closes scaled by mean and deviation of all rows."""
    return (market.close - np.nanmean(market.close, axis=0)) / np.nanstd(market.close, axis=0)


def filled_backwards(market):
    """Distance from the mean of all closes, of which those before a listing have the first."""
    close = pd.DataFrame(market.close).ffill().bfill()
    return close.div(close.mean(axis=1), axis=0).sub(1).abs().mul(-1).to_numpy()


_PANEL = None


def kept_in_a_global(market):
    """The next close of the first market that it was ever given."""
    global _PANEL
    if _PANEL is None:
        _PANEL = market
    later = np.searchsorted(_PANEL.dates, market.dates) + 1
    return _PANEL.close[later.clip(max=len(_PANEL.dates) - 1)] / market.close


def days_to_live(market):
    """How long a ticker will still be there."""
    left = (market.last_bar - market.dates[:, None]).astype("timedelta64[D]").astype(float)
    return np.where(market.has_bar, left, np.nan)


def future_member(market):
    """Whether a ticker is in the universe five sessions on."""
    later = np.full(market.shape, np.nan)
    later[:-5] = market.member[5:]
    return later


def ranked_over_time(market):
    """The rank of each close among all of its ticker."""
    return pd.DataFrame(market.close).rank(pct=True).to_numpy()


LEAKS = [shifted, scaled_on_all_rows, filled_backwards, kept_in_a_global, days_to_live, future_member, ranked_over_time]


@pytest.mark.parametrize("leak", LEAKS)
def test_a_leaking_feature_is_named_however_it_is_used(leak):
    for verdict in (
        audit(Ranks(leak), MARKET, days=12),
        audit(Declares("return_5", leak), MARKET, days=12),
        audit_features(MARKET, ["return_5", leak], days=12),
    ):
        assert {finding.where for finding in verdict.findings} == {leak.__name__}
        assert {finding.severity for finding in verdict.findings} == {LOOKS}
        assert {finding.kind for finding in verdict.findings} <= {"cut", "noise"}
    assert _PANEL is None


def test_filling_backwards_shows_on_the_days_before_a_listing():
    verdict = audit_features(MARKET, [filled_backwards], days=4)
    assert {59, 109} & set(np.searchsorted(MARKET.dates, np.array(verdict.days, dtype="datetime64[ns]")))
    assert not verdict.passed


# --- cheats -----------------------------------------------------------------------------------------------------------


def next_close(view):
    return top_k(np.nan_to_num(view._market.close[view._row + 1]), 3, among=view.tradable)


def last_close(view):
    return top_k(np.nan_to_num(view._market.close[-1] / view.closes(1)[0]), 3, among=view.tradable)


def in_parts(view, among=None):
    return equal_parts(view.tradable if among is None else among)


class Waits(Strategy):
    """Looks ahead after 40 steps only."""

    every = 5

    def decide(self, view):
        return None if view.step < 40 else last_close(view)


class Counts(Strategy):
    """Looks ahead once it remembers thirty decisions."""

    def __init__(self):
        self.seen = 0

    def decide(self, view):
        self.seen += 1
        return last_close(view) if self.seen > 30 else None


class OnceInvested(Strategy):
    """Looks ahead when it holds something."""

    def decide(self, view):
        return last_close(view) if view.held.sum() > 0.5 else in_parts(view)


class CachesInItself(Strategy):
    def decide(self, view):
        if view.step == 0:
            self.panel = view._market
        row = int(np.searchsorted(self.panel.dates, view.date))
        return top_k(np.nan_to_num(self.panel.close[min(row + 1, len(self.panel.dates) - 1)]), 3, among=view.tradable)


class CachesInItsClass(Strategy):
    panel = None

    def decide(self, view):
        kind = type(self)
        kind.panel = view._market.close if kind.panel is None else kind.panel
        return top_k(np.nan_to_num(kind.panel[-1]), 3, among=view.tradable)


class KeepsViews(Strategy):
    """Reads later rows through its first view."""

    def decide(self, view):
        self.first = view if view.step == 0 else self.first
        return top_k(np.nan_to_num(self.first._market.close[-1]), 3, among=view.tradable)


class ScalesOnAllRows(Strategy):
    def decide(self, view):
        close = view._market.close
        return top_k((view.closes(1)[0] - np.nanmean(close, 0)) / np.nanstd(close, 0), 3, among=view.tradable)


class ThroughTheGarbage(Strategy):
    """Searches memory for the largest array of floats."""

    def decide(self, view):
        import gc

        arrays = [one for one in gc.get_objects() if type(one) is MarketView and one._row >= view._row]
        close = max((one._market.close for one in arrays), key=len)
        return top_k(np.nan_to_num(close[-1]), 3, among=view.tradable)


class UpTheStack(Strategy):
    """Looks for a market in the frames that called it."""

    def decide(self, view):
        frame = sys._getframe()
        while frame is not None and "window" not in frame.f_locals:
            frame = frame.f_back
        market = view._market if frame is None else frame.f_locals["window"].market
        return top_k(np.nan_to_num(market.close[-1]), 3, among=view.tradable)


class Patches(Strategy):
    """Makes the view of finpod look a session ahead."""

    def decide(self, view):
        honest = MarketView.closes
        MarketView.closes = lambda self, k: self._market.close[self._row + 1 :][:k]
        try:
            return top_k(np.nan_to_num(view.closes(1)[-1]), 3, among=view.tradable)
        finally:
            MarketView.closes = honest


class OnlyTheLength(Strategy):
    """Invests more, the more of the data is left."""

    def decide(self, view):
        return in_parts(view) * (1 - (view._row + 1) / len(view._market.dates) / 2)


class OwnPanel(Strategy):
    """Computes a panel on the whole market at its first decision."""

    def decide(self, view):
        if view.step == 0:
            self.panel = np.nan_to_num(shifted(view._market))
        return top_k(self.panel[min(view._row, len(self.panel) - 1)], 3, among=view.tradable)


LOOKING = {
    "the next close through the view": lambda: decides(next_close),
    "the last close through the view": lambda: decides(last_close),
    "after 40 steps": lambda: Waits(),
    "once it remembers": lambda: Counts(),
    "once invested": OnceInvested,
    "a panel cached in itself": CachesInItself,
    "a panel cached in its class": CachesInItsClass,
    "a panel of features, cached": OwnPanel,
    "views that are kept": KeepsViews,
    "a scaler on all rows": ScalesOnAllRows,
    "the garbage collector": ThroughTheGarbage,
    "the stack": UpTheStack,
    "a patch of the view": Patches,
    "how many rows are left": OnlyTheLength,
}  # fmt: skip


@pytest.mark.parametrize("name", LOOKING)
def test_a_decision_that_needs_the_future_looks_ahead(name):
    market = made(260) if name == "after 40 steps" else MARKET
    verdict = audit(LOOKING[name](), market)
    assert verdict.passed is False, str(verdict)
    assert (verdict.findings[0].kind, verdict.findings[0].severity) == ("cut", LOOKS)
    assert CachesInItsClass.panel is None


CARRIED = {
    "the market": lambda: MARKET,
    "a view of the last day": lambda: MarketView(made(), DAYS - 1),
    "closes": all_rows,
    "closes as float32": lambda: all_rows().astype(np.float32),
    "a tensor": lambda: torch.tensor(all_rows()),
    "returns": lambda: all_rows()[1:] / all_rows()[:-1] - 1,
    "a frame by number": lambda: pd.DataFrame(all_rows()),
    "a frame by date": lambda: pd.DataFrame(all_rows()[-40:], MARKET.dates[-40:]),
    "a frame by dates as text": lambda: pd.DataFrame(all_rows(), MARKET.dates.astype("datetime64[D]").astype(str)),
    "a tidy frame": lambda: pd.DataFrame(all_rows(), MARKET.dates).rename_axis("day").stack().rename("close").reset_index(),
    "a Series of one ticker": lambda: pd.Series(all_rows()[:, 4], MARKET.dates),
    "a Series with a time zone": lambda: pd.Series(all_rows()[:, 4], pd.DatetimeIndex(MARKET.dates, tz="UTC")),
    "columns by date": lambda: pd.DataFrame(all_rows(), MARKET.dates).T,
    "newest first": lambda: all_rows()[::-1].copy(),
    "one ticker": lambda: all_rows()[:, 3].copy(),
    "who will be a member": lambda: MARKET.member.copy(),
    "in a dict of lists": lambda: {"deep": [SimpleNamespace(it=all_rows())]},
}  # fmt: skip


def test_later_data_that_are_carried_can_look_ahead():
    verdict = audit(Holds({name: make() for name, make in CARRIED.items()}), MARKET, days=2)
    assert {(finding.kind, finding.severity) for finding in verdict.findings} == {("held", CAN)}
    found = {finding.subject.removeprefix("self.what['").partition("']")[0] for finding in verdict.findings}
    assert (found, len(verdict.findings)) == (set(CARRIED), len(CARRIED)), str(verdict)


PANEL = MARKET.close.copy()


def by_closure(panel):
    def decide(view):
        return in_parts(view, panel[-1] > panel[0])

    return decides(decide)


HELD_ELSEWHERE = {
    "global PANEL": lambda: decides(lambda view: in_parts(view, PANEL[-1] > 0)),
    "panel of decide": lambda: by_closure(all_rows()),
    "Decides.panel": lambda: type("Decides", (Momentum,), {"panel": all_rows()})(20, 3),
}


@pytest.mark.parametrize("subject", HELD_ELSEWHERE)
def test_later_data_in_globals_closures_and_classes_can_look_ahead(subject):
    (finding,) = audit(HELD_ELSEWHERE[subject](), MARKET, days=2).findings
    assert (finding.kind, finding.severity) == ("held", CAN)
    assert finding.subject == subject


def test_the_panel_of_an_own_module_is_caught(tmp_path, monkeypatch):
    """At hand in a module that is loaded, read from a file when it is loaded by `decide`."""
    monkeypatch.syspath_prepend(tmp_path)
    np.save(tmp_path / "closes.npy", MARKET.close)
    (tmp_path / "own_panel.py").write_text(f"import numpy as np\nCLOSES = np.load({str(tmp_path / 'closes.npy')!r})\n")
    body = "class Mine(finpod.Strategy):\n    def decide(self, view):\n        {}\n        "
    body += "return finpod.top_k(own_panel.CLOSES[-1], 3)\n"
    expected = {"import own_panel": {"file"}, "pass": {"held"}}
    for line, kinds in expected.items():
        (tmp_path / "mine.py").write_text("import finpod\nimport own_panel\n" + body.format(line))
        assert {
            finding.kind for finding in audit(load_strategy(tmp_path / "mine.py"), MARKET, days=2).findings
        } == kinds
    monkeypatch.delitem(sys.modules, "own_panel")
    (tmp_path / "mine.py").write_text("import finpod\n" + body.format("import own_panel"))
    (finding,) = audit(load_strategy(tmp_path / "mine.py"), MARKET, days=2).findings
    assert (finding.kind, finding.severity) == ("file", CAN)
    assert "closes.npy" in finding.note
    monkeypatch.delitem(sys.modules, "own_panel", raising=False)


@pytest.mark.parametrize("fill", ["open", "close"])
def test_fills_at_the_seen_close_are_caught(monkeypatch, fill):
    honest = Execution.fill_row
    monkeypatch.setattr(
        Execution, "fill_row", lambda tape, row: tape.decision_row(row) if tape.fill == fill else honest(tape, row)
    )
    (finding,) = audit(load_strategy("equal-weight"), MARKET).findings
    assert (finding.kind, finding.severity, finding.data["fill"]) == ("fill", LOOKS, fill)


def test_back_filled_prices_are_caught():
    close = np.where(np.isnan(MARKET.close), np.nan, MARKET.close)
    close[:60, 0] = close[60, 0]
    verdict = audit(load_strategy("equal-weight"), make_market(close), days=2)
    assert ("backfilled", LOOKS) in {(finding.kind, finding.severity) for finding in verdict.findings}


# --- what is read from elsewhere --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same prices in files of many kinds."""
    import pyarrow as pa
    from pyarrow import csv, feather, orc

    folder = tmp_path_factory.mktemp("prices")
    frame = pd.DataFrame(np.nan_to_num(MARKET.close), columns=list(MARKET.tickers))
    frame.to_csv(folder / "a.csv")
    frame.to_parquet(folder / "a.parquet")
    np.save(folder / "a.npy", frame.to_numpy())
    feather.write_feather(frame, folder / "a.feather")
    orc.write_table(pa.Table.from_pandas(frame), folder / "a.orc")
    csv.write_csv(pa.Table.from_pandas(frame), folder / "b.csv")
    return folder


def by_arrow(path):
    import pyarrow.parquet as pq

    return pq.read_table(path)


def by_dataset(path):
    import pyarrow.dataset as ds

    return ds.dataset(path).to_table()


def by_orc(path):
    from pyarrow import orc

    return orc.read_table(path)


def by_arrow_csv(path):
    from pyarrow.csv import read_csv

    return read_csv(path)


def by_map(path):
    import pyarrow as pa

    return pa.memory_map(str(path)).read(10)


def by_os_file(path):
    import pyarrow as pa

    return pa.OSFile(str(path)).read(10)


def by_polars(path):
    polars = pytest.importorskip("polars")
    return polars.read_parquet(path)


def in_a_thread(path):
    thread = threading.Thread(target=pd.read_csv, args=(path,))
    thread.start()
    thread.join()


READERS = [
    ("a.csv", pd.read_csv),
    ("a.csv", lambda path: path.read_text()),
    ("a.csv", lambda path: os.listdir(path.parent)),  # noqa: PTH208
    ("a.csv", lambda path: list(path.parent.glob("*"))),
    ("a.csv", in_a_thread),
    ("a.parquet", pd.read_parquet),
    ("a.parquet", by_arrow),
    ("a.parquet", by_dataset),
    ("a.parquet", by_os_file),
    ("a.feather", pd.read_feather),
    ("a.orc", by_orc),
    ("b.csv", by_arrow_csv),
    ("a.npy", by_map),
    ("a.npy", np.load),
    ("a.npy", lambda path: np.fromfile(path)),
    ("a.npy", lambda path: np.load(path, mmap_mode="r")),
    ("a.csv", lambda path: load_iris()),  # prices that ship with a package
]


def test_files_that_are_read_can_look_ahead(files):
    readers = [(files / name, read) for name, read in READERS]

    def read_all():
        for path, read in readers:
            read(path)

    findings = audit(Acts(read_all), MARKET, days=2).findings
    assert {(finding.kind, finding.severity) for finding in findings} == {("file", CAN)}
    where = "\n".join(f"{finding.subject} {finding.note}" for finding in findings)
    for read in {read for _, read in READERS}:
        code = getattr(read, "__code__", None)
        line = code.co_firstlineno if code and "test_audit" in code.co_filename else 0
        assert not line or read is in_a_thread or any(f"line {line + i})" in where for i in range(6)), read
    for name in ("read_csv", "read_table", "dataset", "OSFile", "memory_map"):
        assert f"pyarrow.{name}" in where or f".{name})" in where, name
    assert any(not finding.subject for finding in findings)  # in a thread


def test_polars_readers_are_recorded(files):
    pytest.importorskip("polars")
    path = files / "a.parquet"
    assert audit(Acts(lambda: by_polars(path)), MARKET, days=2).findings[0].kind == "file"


def read_clock():
    from time import time as now

    return now()


DEEDS = [
    ("clock", lambda: datetime.now()),
    ("clock", lambda: datetime.today()),
    ("clock", lambda: date.today()),
    ("clock", lambda: time.time()),
    ("clock", lambda: time.strftime("%Y")),
    ("clock", lambda: pd.Timestamp.now()),
    ("clock", lambda: pd.Timestamp("now")),
    ("clock", lambda: pd.to_datetime("now")),
    ("clock", read_clock),
    ("environment", lambda: os.environ["HOME"]),
    ("environment", lambda: os.environ.get("PRICES")),
    ("environment", lambda: os.getenv("PRICES")),
    ("environment", lambda: dict(os.environ)),
    ("process", lambda: subprocess.run(["true"], check=True)),
    ("process", lambda: os.system("true")),
    ("network", lambda: socket.getaddrinfo("localhost", 80)),
    ("network", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", ("127.0.0.1", 9))),
]


def test_what_is_read_besides_the_view_is_told():
    acts = [act for _, act in DEEDS]
    findings = audit(Acts(lambda: [act() for act in acts]), MARKET, days=2).findings
    found = {(finding.kind, int(finding.subject.rpartition("line ")[2].rstrip(")"))) for finding in findings}
    expected = {(kind, act.__code__.co_firstlineno + 3 * (act is read_clock)) for kind, act in DEEDS}
    assert found == expected
    assert {finding.severity for finding in findings} == {CAN}


class ReadWhenLoaded:
    """Reads a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return pd.read_csv, (self.path,)


def test_a_file_that_is_read_while_it_is_loaded_can_look_ahead(files):
    assert {finding.kind for finding in audit(Holds(ReadWhenLoaded(files / "a.csv")), MARKET, days=2).findings} == {
        "file"
    }


def test_a_feature_that_reads_a_file_is_told(files):
    path = files / "a.csv"

    def from_file(on):
        return on.close * len(path.read_text())

    for verdict in (audit(Ranks(from_file), MARKET, days=2), audit_features(MARKET, [from_file], days=2)):
        (finding,) = verdict.findings
        assert (finding.kind, finding.where) == ("file", "features")


# --- models -----------------------------------------------------------------------------------------------------------


def fitted(model):
    rows = np.random.default_rng(0).normal(size=(20, 2))
    return model.fit(rows, rows[:, 0])


MODELS = {
    "LinearRegression": lambda: fitted(LinearRegression()),
    "StandardScaler": lambda: ["x", fitted(StandardScaler())],
    "RobustScaler": lambda: fitted(RobustScaler()),
    "Linear": lambda: torch.nn.Linear(2, 1),
    "Sequential": lambda: SimpleNamespace(net=torch.nn.Sequential(torch.nn.Linear(2, 1))),
}


def test_fitted_models_without_a_day_can_look_ahead():
    models = {name: make() for name, make in MODELS.items()}
    unfitted = [LinearRegression(), LinearRegression, torch.nn.ReLU(), SimpleNamespace(beta_=1)]
    findings = audit(Holds([models, unfitted]), MARKET, days=2).findings
    assert {(finding.kind, finding.severity) for finding in findings} == {("model", CAN)}
    assert sorted(finding.note.rpartition(" ")[2] for finding in findings) == sorted(MODELS)
    assert audit(Holds(models, "2023-12-29"), MARKET, days=2).passed


# --- what must pass ---------------------------------------------------------------------------------------------------


class Remembers(Strategy):
    """Remembers views, closes and decisions, and uses them."""

    every = 3

    def __init__(self):
        self.days, self.past, self.views, self.log = [], {}, [], np.zeros(MARKET.shape)

    def decide(self, view):
        if view.step == 0:
            self.entered = view.closes(1)[0]
        weights = top_k(np.nan_to_num(view.closes(1)[0] / self.entered), 3, among=view.tradable)
        self.days.append(view.date)
        self.past[view.date] = weights
        self.views.append(view)
        self.log[view._row] = weights
        return weights * (0.5 + 0.5 / len(self.days)) * (self.views[0].closes(1) > 0).any()


class OwnDice(Strategy):
    def __init__(self):
        self.numpy, self.python = np.random.default_rng(0), random.Random(0)
        self.torch = torch.Generator().manual_seed(0)

    def decide(self, view):
        drawn = self.numpy.dirichlet(np.ones(TICKERS)) * self.python.random()
        return drawn * torch.rand(1, generator=self.torch).item()


class WalksForward(Strategy):
    """Fits a model on what it has seen whenever it decides."""

    every = 5

    def __init__(self):
        self.model = make_pipeline(StandardScaler(), LinearRegression())

    def decide(self, view):
        closes = np.nan_to_num(view.closes(10), nan=1.0)
        self.model.fit(closes[:-1].T, closes[-1])
        return top_k(self.model.predict(closes[1:].T), 3, among=view.tradable)


class Noisy(Strategy):
    """Prints, logs and warns."""

    def decide(self, view):
        import logging
        import warnings

        print("deciding", view.date, flush=True)
        os.write(1, b"raw bytes")
        sys.stderr.write("on stderr")
        logging.getLogger(__name__).warning("a record has its time from the clock")
        warnings.warn("a warning", stacklevel=1)
        return in_parts(view)


class Threads(Strategy):
    """Spawns threads, one of which never ends."""

    def decide(self, view):
        threading.Thread(target=threading.Event().wait).start()
        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(lambda part: in_parts(view) * part, (0.5, 0.25)))


class Measures(Strategy):
    """Measures how long it takes, and writes it down."""

    def decide(self, view):
        begun = time.perf_counter()
        weights = in_parts(view)
        Path(os.devnull).write_text(f"{time.perf_counter() - begun} {time.monotonic()} {date(2020, 1, 1):%Y}")
        return weights


class ReadsAtFirst(Strategy):
    """Reads its settings from a file before it is audited."""

    def __init__(self):
        self.names = len(Path(__file__).read_text().splitlines())
        self.started = datetime.now()

    def decide(self, view):
        return in_parts(view) * min(self.names, 1)


class Imports(Strategy):
    """Imports packages while it decides."""

    def decide(self, view):
        import pandas
        import scipy.stats

        ranks = pandas.Series(scipy.stats.rankdata(np.nan_to_num(view.closes(1)[0])), list(view.tickers))
        return (ranks / ranks.sum()).to_dict()


class WithNetwork(Strategy):
    trained_until = "2023-12-29"

    def __init__(self):
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(torch.nn.Linear(5, DAYS), torch.nn.ReLU(), torch.nn.Linear(DAYS, 1))

    def decide(self, view):
        closes = torch.tensor(np.nan_to_num(view.closes(5)), dtype=torch.float32)
        with torch.no_grad():
            return torch.softmax(self.net(closes.T / 100).squeeze(-1), 0)


class CopiesTheView(Strategy):
    """Copies its view, and takes a part of the market so far; holds a lock."""

    def __init__(self):
        self.lock = threading.RLock()

    def decide(self, view):
        with self.lock:
            part = view._market.rows(max(view._row - 20, 0), view._row + 1)
        return in_parts(copy.deepcopy(view)) * (len(part.dates) > 0)


class AsksForLittle(Strategy):
    """Reads what describes the market."""

    def decide(self, view):
        rows = view.rows_of(2)
        known = len(view.feature_names) > 3 and view.left_out(["return_5", "log_dollar_volume_63"]) == (
            "log_dollar_volume_63",
        )
        return in_parts(view) * known * (rows == 2) * view.begins_session * (len(view.extra_names) + 0.5)


@lru_cache
def slow(number):
    return number / 2


def causal(market):
    close = pd.DataFrame(market.close)
    return close.pct_change(5, fill_method=None).to_numpy()


def memoised(market, tables={}):  # noqa: B006
    return tables.setdefault(market.content_hash, causal(market))


def after(panel):
    """A strategy that closes over a frame of the past."""
    return decides(lambda view: in_parts(view) * (len(panel) > 0))


PAST = pd.DataFrame(MARKET.close[:5], MARKET.dates[:5] - np.timedelta64(400, "D"))
HONEST = {
    "memory": Remembers,
    "random with its own seed": OwnDice,
    "fits while it decides": WalksForward,
    "prints": Noisy,
    "threads": Threads,
    "measures time": Measures,
    "reads a file in __init__": ReadsAtFirst,
    "imports while it decides": Imports,
    "a network with a day": WithNetwork,
    "a lambda": lambda: decides(lambda view: in_parts(view)),
    "a closure over a frame of the past": lambda: after(PAST),
    "a cached function": lambda: decides(lambda view: in_parts(view) * slow(1)),
    "a causal feature": lambda: Ranks(causal),
    "several features": lambda: decides(lambda view: top_k(view.features(["return_5", causal])[:, 1], 3)),
    "a window of features": lambda: decides(lambda view: top_k(view.window(3, causal)[:, :, 0].sum(0), 3)),
    "a memoised feature": lambda: Ranks(memoised),
    "a declared feature": lambda: Declares("return_5", causal),
    "describes the market": AsksForLittle,
    "copies its view": CopiesTheView,
    "a calendar": lambda: Holds([MARKET.dates.copy(), pd.DatetimeIndex(MARKET.dates), list(range(DAYS))]),
    "a partial": lambda: Acts(threading.active_count),
}


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_strategy_passes(name):
    verdict = audit(HONEST[name](), MARKET, days=3)
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize("name", [*RULES, *(str(path) for path in Path("strategies").glob("*.py"))])
def test_built_in_baseline_and_example_strategies_pass(name):
    if name == "minimum-variance":
        pytest.importorskip("cvxpy")
    extra = ExtraData({"sentiment": np.random.default_rng(0).normal(size=(DAYS, TICKERS))}, TICKERS)
    volume = np.where(MARKET.has_bar, 1e6, np.nan)
    market = replace(MARKET, extra=extra, volume=volume, high=MARKET.close, low=MARKET.close)
    verdict = audit(load_strategy(name), market, days=2, start=MARKET.dates[100])
    assert verdict.findings == ()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    simulated = simulate_market(names=6, days=130, seed=3)
    return simulated, tiny_train(simulated, tmp_path_factory.mktemp("trained") / "agent")


def test_a_trained_ensemble_passes(trained):
    simulated, agent = trained
    verdict = audit(agent, simulated, days=3)
    assert verdict.passed, str(verdict)


def test_a_trained_agent_on_a_leaking_feature_is_caught(trained, tmp_path):
    agent = tiny_train(trained[0], tmp_path / "agent", features=("return_5", shifted))
    assert {finding.where for finding in audit(agent, trained[0], days=3).findings} == {"shifted"}


def test_what_it_was_trained_on_it_may_hold():
    until = f"{MARKET.dates[100]!s:.10}"
    frames = [pd.DataFrame(MARKET.close[:rows], MARKET.dates[:rows]) for rows in (101, 102)]
    assert audit(Holds(frames[0], until), MARKET, days=2).passed
    assert audit(Holds(frames[1], until), MARKET, days=2).findings[0].kind == "held"


# --- what cannot be told ----------------------------------------------------------------------------------------------


class Hangs(Strategy):
    def decide(self, view):
        while view.step > 20:
            time.sleep(0.1)
        return in_parts(view)


def dies(view):
    if view.step > 20:
        os.kill(os.getpid(), 9)
    return in_parts(view)


def exits(view):
    if view.step > 20:
        os._exit(3)
    return in_parts(view)


def only_in_the_parent(view, parent=os.getpid()):  # noqa: B008
    if os.getpid() != parent and view.step > 20:
        os._exit(3)
    return in_parts(view)


@pytest.mark.parametrize(
    ("strategy", "match"),
    [(Hangs(), "more than 1 seconds"), (decides(dies), "signal 9"), (decides(exits), "exit code 3")],
)
def test_a_child_that_hangs_or_ends_is_one_clear_line(monkeypatch, strategy, match):
    monkeypatch.setattr(isolation, "LIMIT", 1)
    with pytest.raises(StrategyError, match=match) as error:
        audit(strategy, MARKET, days=2)
    assert "\n" not in str(error.value)


def test_a_child_that_ends_leaves_a_backtest_unaudited():
    result = finpod.backtest(decides(only_in_the_parent), MARKET)
    assert (result.audit.passed, result.audit.reason) == (None, "failed")
    assert "exit code 3" in result.audit.note


def handle():
    with open(__file__) as file:  # noqa: PTH123
        return file


@pytest.mark.parametrize("what", [handle, lambda: (i for i in range(3)), lambda: sqlite3.connect(":memory:")])
def test_what_cannot_be_pickled_is_not_audited(what):
    with pytest.raises(StrategyError, match="cannot be pickled"):
        audit(Holds(what()), MARKET, days=2)
    audited = finpod.backtest(Holds(what()), MARKET).audit
    assert (audited.passed, audited.reason) == (None, "failed")


@pytest.mark.parametrize(
    "decide",
    [
        lambda view: np.random.default_rng().dirichlet(np.ones(TICKERS)),
        lambda view: in_parts(view) * random.random(),
        lambda view: in_parts(view) * (hash("word") % 1000 / 1000),
        lambda view: in_parts(view) * (os.getpid() % 1000 / 1000),
    ],
)
def test_chance_is_told_from_look_ahead(decide):
    before = random.getstate()
    verdict = audit(decides(decide), MARKET, days=3)
    assert (verdict.passed, verdict.reason, verdict.findings) == (None, "not_repeatable", ())
    assert random.getstate() == before


def test_a_feature_that_rolls_dice_is_not_taken_for_look_ahead():
    def dice(on):
        return np.random.default_rng().random(on.shape)

    verdict = audit_features(MARKET, [dice], days=3)
    assert (verdict.reason, verdict.findings) == ("not_repeatable", ())


def test_processes_of_a_strategy_end_with_the_audit(tmp_path):
    """A fork of the user's that goes on deciding answers nothing; a process that is left is ended."""
    file = tmp_path / "pid"

    class Spawns(Strategy):
        every = 100

        def decide(self, view):
            os.fork()
            with file.open("a") as pids:
                pids.write(f"{subprocess.Popen(['sleep', '60']).pid}\n")
            return in_parts(view)

    verdict = audit(Spawns(), MARKET, days=2)
    assert {finding.kind for finding in verdict.findings} == {"process"}
    time.sleep(0.2)
    states = [Path(f"/proc/{pid}/stat") for pid in file.read_text().split()]
    assert [state for state in states if state.exists() and state.read_text().split()[2] != "Z"] == []


@pytest.mark.parametrize("run", [["mine.py"], ["-c", "import runpy; runpy.run_path('mine.py', run_name='__main__')"]])
def test_a_strategy_of_main_or_of_a_cell_is_audited(tmp_path, run):
    (tmp_path / "helper.py").write_text("import threading\nLOCKS = {}\ndef half(x):\n    return x / 2\n")

    (tmp_path / "mine.py").write_text(
        textwrap.dedent("""
        import finpod, helper
        SCALE = 1.0
        class Mine(finpod.Strategy):
            def decide(self, view):
                return view.tradable * helper.half(SCALE) / len(view.tickers)
        market = finpod.simulate_market(names=4, days=60)
        print(finpod.audit(Mine(), market, days=2).passed, finpod.backtest(Mine(), market).audit.passed)
        exec(compile('''
        class Cell(finpod.Strategy):
            every = 5
            def decide(self, view):
                return view.tradable * SCALE / len(view.tickers)
        ''', '<ipython-input-1>', 'exec'))
        print(finpod.audit(Cell(), market, days=2).passed)
        """)
    )
    search = os.pathsep.join((str(tmp_path), str(Path(finpod.__file__).parents[1])))
    done = subprocess.run(
        [sys.executable, *run], cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": search}
    )
    assert done.stdout.split() == ["True", "True", "True"], done.stderr
