"""The audit passes honest strategies, and says so where it cannot tell."""

import copy
import logging
import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_errors import refused
from made_strategies import DAYS, MARKET, TICKERS, Acts, Holds, Mixes, Ranks, does, in_parts
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import finpod
from finpod import Strategy, StrategyError, load_strategy, top_k
from finpod.lookahead import isolation
from finpod.lookahead.audit import audit
from finpod.market.extra import ExtraData


class Remembers(Strategy):
    """Remembers a view, closes and decisions, and uses them; holds a lock, and copies its view."""

    every = 3

    def __init__(self):
        self.log, self.lock, self.dice = np.zeros((DAYS, TICKERS)), threading.RLock(), np.random.default_rng(0)

    def decide(self, view):
        if view.step == 0:
            self.first, self.entered = view, view.closes(1)[0]
        with self.lock:
            part = view._market.rows(max(view._row - 20, 0), view._row + 1)
        self.log[view._row] = top_k(np.nan_to_num(part.close[-1] / self.entered), 3, among=copy.deepcopy(view).tradable)
        known = len(view.feature_names) > 3 and len(self.first.closes(1)) > 0
        return self.log[view._row] * self.dice.random() * (0.5 + 0.5 / (self.log > 0).sum()) * known


class WalksForward(Strategy):
    """Fits a model on what it has seen whenever it decides, and imports packages on the way."""

    def __init__(self):
        self.model = make_pipeline(StandardScaler(), LinearRegression())

    def decide(self, view):
        import scipy.stats

        closes = np.nan_to_num(view.closes(10), nan=1.0)
        self.model.fit(closes[:-1].T, closes[-1])
        ranks = pd.Series(scipy.stats.rankdata(self.model.predict(closes[1:].T)), list(view.tickers))
        return (ranks / ranks.sum()).to_dict()


class Noisy(Strategy):
    """Prints, logs, warns, writes a file, times itself and starts threads; read its settings from a file when it was made."""

    def __init__(self):
        self.lines, self.started = Path(__file__).read_text().splitlines(), datetime.now()

    def decide(self, view):
        print("deciding", view.date, flush=True)
        Path(os.devnull).write_text(f"{time.perf_counter()} {time.monotonic()} {date(2020, 1, 1):%Y}")
        os.write(1, b"raw bytes")
        sys.stderr.write("on stderr")
        logging.getLogger(__name__).warning("a record has its time from the clock")
        warnings.warn("a warning", stacklevel=1)
        threading.Thread(target=threading.Event().wait).start()  # never ends
        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(lambda part: in_parts(view) * part, (0.5, 0.25)))


def causal(market):
    return pd.DataFrame(market.close).pct_change(5, fill_method=None).to_numpy()


def memoised(market, tables={}):  # noqa: B006
    return tables.setdefault(market.content_hash, causal(market))


def with_state():
    calendar = [MARKET.dates.copy(), pd.DatetimeIndex(MARKET.dates), list(range(DAYS)), MARKET.close[:5]]
    return Mixes(Remembers(), Acts(threading.active_count), Holds(calendar), Noisy())


def with_packages():
    fitted = StandardScaler().fit(MARKET.close[:20, 2:4])
    frame = pd.DataFrame(MARKET.close[:101], MARKET.dates[:101])
    return Mixes(WalksForward(), Holds([fitted, frame]), trained_until=f"{MARKET.dates[100]!s:.10}")


def with_features():
    window = does(lambda view: top_k(view.window(3, ["return_5", causal])[:, :, 1].sum(0), 3))
    return Mixes(Ranks(causal), Ranks(memoised), window)


@pytest.mark.parametrize("make", [with_state, with_packages, with_features])
def test_an_honest_strategy_passes(make):
    verdict = audit(make(), MARKET, days=3)
    assert verdict.passed, str(verdict)


@pytest.mark.parametrize("file", [str(file) for file in Path("strategies").glob("*.py")])
def test_example_strategies_pass(file):
    extra = ExtraData({"sentiment": np.random.default_rng(0).normal(size=(DAYS, TICKERS))}, TICKERS)
    assert audit(load_strategy(file), replace(MARKET, extra=extra), days=2, start=MARKET.dates[100]).passed


def after_20_steps(act):
    def decide(view):
        if view.step > 20:
            act()
        return in_parts(view)

    return does(decide)


def only_in_the_parent(parent=os.getpid()):  # noqa: B008
    if os.getpid() != parent:
        os._exit(3)


def test_a_strategy_that_hangs_or_ends_its_process_is_one_clear_line(monkeypatch):
    monkeypatch.setattr(isolation, "LIMIT", 1)
    for match, act in (("limit of 1 seconds", lambda: time.sleep(60)), ("exit code 3", lambda: os._exit(3))):
        refused(match, audit, after_20_steps(act), MARKET, days=2, error=StrategyError)
    refused("cannot be pickled", audit, Holds(sqlite3.connect(":memory:")), MARKET, days=2, error=StrategyError)
    audited = finpod.backtest(after_20_steps(only_in_the_parent), MARKET).audit
    assert (audited.passed, audited.reason) == (None, "failed")
    assert "exit code 3" in audited.note


def dice(market):
    return np.random.default_rng().random(market.shape)


@pytest.mark.parametrize(
    "chance", [lambda view: hash("word") % 1000 / 1000, lambda view: (view.features(dice) > -1).all()]
)
def test_chance_is_told_from_look_ahead(chance):
    verdict = audit(does(lambda view: in_parts(view) * chance(view)), MARKET, days=3)
    assert (verdict.passed, verdict.reason, verdict.findings) == (None, "not_repeatable", ())


def test_processes_of_a_strategy_end_with_the_audit(tmp_path):
    file = tmp_path / "pid"

    def spawn(view):
        file.write_text(str(subprocess.Popen(["sleep", "60"]).pid))
        return in_parts(view)

    assert {finding.kind for finding in audit(does(spawn, every=100), MARKET, days=2).findings} == {"process"}
    time.sleep(0.2)
    state = Path(f"/proc/{file.read_text()}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_strategy_of_main_or_of_a_cell_is_audited(tmp_path):
    (tmp_path / "helper.py").write_text("LOCKS = {}\ndef half(x):\n    return x / 2\n")
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
            def decide(self, view):
                return view.tradable * SCALE / len(view.tickers)
        ''', '<ipython-input-1>', 'exec'))
        print(finpod.audit(Cell(), market, days=2).passed)
        """)
    )
    search = {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(Path(finpod.__file__).parents[1])))}
    command = [sys.executable, "mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, **search})
    assert done.stdout.split() == ["True", "True", "True"], done.stderr
