"""The audit passes honest strategies, and says so where it cannot tell."""

import copy
import os
import random
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

import numpy as np
import pandas as pd
import pytest
import torch
from made_agents import tiny_train
from made_strategies import DAYS, MARKET, TICKERS, Acts, Declares, Holds, Mixes, Ranks, decides, in_parts
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import finpod
from finpod.errors import StrategyError
from finpod.loading import load_strategy
from finpod.lookahead import isolation
from finpod.lookahead.audit import audit, audit_features
from finpod.market.extra import ExtraData
from finpod.rules import RULES
from finpod.strategy import Strategy, top_k
from finpod.synthetic import simulate_market


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


UNTIL = 100
PAST = pd.DataFrame(MARKET.close[:5], MARKET.dates[:5] - np.timedelta64(400, "D"))


def with_state():
    calendar = [MARKET.dates.copy(), pd.DatetimeIndex(MARKET.dates), list(range(DAYS))]
    lambdas = [decides(lambda view: in_parts(view)), decides(lambda view: in_parts(view) * slow(1)), after(PAST)]
    mild = [Measures(), ReadsAtFirst(), AsksForLittle(), CopiesTheView(), Acts(threading.active_count), Holds(calendar)]
    return Mixes(Remembers(), *lambdas, *mild)


def with_packages():
    """Random with generators of its own, models that are fitted on the way or before, and imports on the way."""
    fitted = StandardScaler().fit(MARKET.close[:20, 2:4])
    frame = pd.DataFrame(MARKET.close[: UNTIL + 1], MARKET.dates[: UNTIL + 1])
    parts = [OwnDice(), WalksForward(), Imports(), WithNetwork(), Holds([fitted, frame])]
    return Mixes(*parts, trained_until=f"{MARKET.dates[UNTIL]!s:.10}")


def with_features():
    several = decides(lambda view: top_k(view.features(["return_5", causal])[:, 1], 3))
    window = decides(lambda view: top_k(view.window(3, causal)[:, :, 0].sum(0), 3))
    return Mixes(Ranks(causal), Ranks(memoised), several, window)


HONEST = {
    "state": with_state,
    "packages": with_packages,
    "features": with_features,
    "a declared feature": lambda: Declares("return_5", causal),
    "memory of every third session": Remembers,
    "noise and threads": lambda: Mixes(Noisy(), Threads()),
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


def test_a_trained_ensemble_passes(tmp_path):
    simulated = simulate_market(names=6, days=130, seed=3)
    verdict = audit(tiny_train(simulated, tmp_path / "agent"), simulated, days=3)
    assert verdict.passed, str(verdict)


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


def test_a_guard_that_cannot_be_set_is_listed_as_unchecked(tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import ctypes\ndel ctypes.pythonapi\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    verdict = audit(Acts(datetime.now), MARKET, days=2)
    assert verdict.passed, str(verdict)
    assert verdict.unchecked[-1] == "clock"
    assert "datetime" in str(verdict)


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
