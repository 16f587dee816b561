"""The audit catches each known way of looking ahead."""

import os
import socket
import subprocess
import sys
import threading
import time
from datetime import date, datetime
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from made_agents import tiny_train
from made_markets import make_market
from made_strategies import (
    DAYS,
    MARKET,
    Acts,
    Declares,
    Holds,
    Mixes,
    Ranks,
    all_rows,
    decides,
    in_parts,
    made,
    shifted,
)
from sklearn.datasets import load_iris
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import RobustScaler, StandardScaler

from finpod.loading import load_strategy
from finpod.lookahead.audit import audit, audit_features
from finpod.records import Severity
from finpod.rules import Momentum
from finpod.strategy import MarketView, Strategy, top_k
from finpod.synthetic import simulate_market
from finpod.trading.execution import Execution

LOOKS, CAN = Severity.LOOKS_AHEAD, Severity.CAN_LOOK_AHEAD


# --- features ---------------------------------------------------------------------------------------------------------


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


def test_leaking_features_are_named_however_they_are_used():
    for verdict in (
        audit(Mixes(*map(Ranks, LEAKS)), MARKET, days=12),
        audit(Declares("return_5", *LEAKS), MARKET, days=12),
        audit_features(MARKET, ["return_5", *LEAKS], days=12),
    ):
        assert {finding.where for finding in verdict.findings} == {leak.__name__ for leak in LEAKS}
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


def test_later_data_in_globals_closures_and_classes_can_look_ahead():
    of_class = type("Decides", (Momentum,), {"panel": all_rows()})(20, 3)
    mixed = Mixes(decides(lambda view: in_parts(view, PANEL[-1] > 0)), by_closure(all_rows()), of_class)
    findings = audit(mixed, MARKET, days=2).findings
    assert {(finding.kind, finding.severity) for finding in findings} == {("held", CAN)}
    assert {finding.subject for finding in findings} == {"global PANEL", "panel of decide", "Decides.panel"}


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


def test_what_lies_after_its_training_it_may_not_hold():
    rows = 102
    until = f"{MARKET.dates[rows - 2]!s:.10}"
    frame = pd.DataFrame(MARKET.close[:rows], MARKET.dates[:rows])
    assert audit(Holds(frame, until), MARKET, days=2).findings[0].kind == "held"


def test_a_trained_agent_on_a_leaking_feature_is_caught(tmp_path):
    simulated = simulate_market(names=6, days=130, seed=3)
    agent = tiny_train(simulated, tmp_path / "agent", features=("return_5", shifted))
    assert {finding.where for finding in audit(agent, simulated, days=3).findings} == {"shifted"}
