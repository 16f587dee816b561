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
from made_strategies import DAYS, MARKET, TICKERS, Acts, Holds, Mixes, Ranks, does, in_parts
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import finpod
from finpod.errors import StrategyError
from finpod.loading import load_strategy
from finpod.lookahead import isolation
from finpod.lookahead.audit import audit
from finpod.market.extra import ExtraData
from finpod.rules import BASELINES, RULES
from finpod.strategy import Strategy, top_k


class Remembers(Strategy):
    """Remembers views, closes and decisions, and uses them."""

    every = 3

    def __init__(self):
        self.days, self.past, self.views, self.log = [], {}, [], np.zeros((DAYS, TICKERS))

    def decide(self, view):
        if view.step == 0:
            self.entered = view.closes(1)[0]
        weights = top_k(np.nan_to_num(view.closes(1)[0] / self.entered), 3, among=view.tradable)
        self.days.append(view.date)
        self.past[view.date] = weights
        self.views.append(view)
        self.log[view._row] = weights
        return weights * (0.5 + 0.5 / len(self.days)) * (self.views[0].closes(1) > 0).any()


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
    """Prints, logs, warns, writes a file, times itself, and spawns threads, of which one never ends.

    It read its settings from a file when it was made.
    """

    def __init__(self):
        self.lines, self.started = Path(__file__).read_text().splitlines(), datetime.now()

    def decide(self, view):
        import logging
        import warnings

        print("deciding", view.date, flush=True)
        Path(os.devnull).write_text(f"{time.perf_counter()} {time.monotonic()} {date(2020, 1, 1):%Y}")
        os.write(1, b"raw bytes")
        sys.stderr.write("on stderr")
        logging.getLogger(__name__).warning("a record has its time from the clock")
        warnings.warn("a warning", stacklevel=1)
        threading.Thread(target=threading.Event().wait).start()
        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(lambda part: in_parts(view) * part, (0.5, 0.25)))


class Copies(Strategy):
    """Copies its view, takes a part of the market so far, and reads what describes the market; holds a lock."""

    def __init__(self):
        self.lock = threading.RLock()

    def decide(self, view):
        with self.lock:
            part = view._market.rows(max(view._row - 20, 0), view._row + 1)
        known = len(view.feature_names) > 3 and view.begins_session and len(part.dates) > 0
        return in_parts(copy.deepcopy(view)) * known * (len(view.extra_names) + 0.5)


@lru_cache
def slow(number):
    return number / 10


def causal(market):
    return pd.DataFrame(market.close).pct_change(5, fill_method=None).to_numpy()


def memoised(market, tables={}):  # noqa: B006
    return tables.setdefault(market.content_hash, causal(market))


def with_state():
    past, dice = MARKET.close[:5], np.random.default_rng(0)
    calendar = [MARKET.dates.copy(), pd.DatetimeIndex(MARKET.dates), list(range(DAYS))]
    lambdas = [does(lambda view: in_parts(view) * slow(len(past))), does(lambda view: dice.dirichlet(np.ones(TICKERS)))]
    mild = [Copies(), Acts(threading.active_count), Holds(calendar), Noisy()]
    return Mixes(Remembers(), *lambdas, *mild)


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


@pytest.mark.parametrize(
    "name", [*(name for name in RULES if name not in BASELINES), *map(str, Path("strategies").glob("*.py"))]
)
def test_built_in_and_example_strategies_pass(name):
    extra = ExtraData({"sentiment": np.random.default_rng(0).normal(size=(DAYS, TICKERS))}, TICKERS)
    volume = np.where(MARKET.has_bar, 1e6, np.nan)
    market = replace(MARKET, extra=extra, volume=volume, high=MARKET.close, low=MARKET.close)
    verdict = audit(load_strategy(name), market, days=2, start=MARKET.dates[100])
    assert verdict.findings == ()


def after_20_steps(act):
    def decide(view):
        if view.step > 20:
            act()
        return in_parts(view)

    return does(decide)


def only_in_the_parent(parent=os.getpid()):  # noqa: B008
    if os.getpid() != parent:
        os._exit(3)


ENDS = {
    "over 1 seconds": lambda: time.sleep(60),
    "exit code 3": lambda: os._exit(3),
}


@pytest.mark.parametrize("match", ENDS)
def test_a_strategy_that_hangs_or_ends_its_process_is_one_clear_line(monkeypatch, match):
    monkeypatch.setattr(isolation, "LIMIT", 1)
    with pytest.raises(StrategyError, match=match) as error:
        audit(after_20_steps(ENDS[match]), MARKET, days=2)
    assert "\n" not in str(error.value)


def test_a_strategy_that_ends_its_process_or_cannot_be_pickled_is_not_audited_in_a_backtest():
    audited = finpod.backtest(after_20_steps(only_in_the_parent), MARKET).audit
    assert (audited.passed, audited.reason) == (None, "failed")
    assert "exit code 3" in audited.note
    with pytest.raises(StrategyError, match="cannot be pickled"):
        audit(Holds(sqlite3.connect(":memory:")), MARKET, days=2)


def dice(market):
    return np.random.default_rng().random(market.shape)


CHANCE = {
    "a generator": lambda view: np.random.default_rng().dirichlet(np.ones(TICKERS)),
    "the order of a set": lambda view: in_parts(view) * (hash("word") % 1000 / 1000),
    "a feature": lambda view: in_parts(view) * (view.features(dice) > -1).all(),
}


@pytest.mark.parametrize("by", CHANCE)
def test_chance_is_told_from_look_ahead(by):
    state = random.getstate()
    verdict = audit(does(CHANCE[by]), MARKET, days=3)
    assert (verdict.passed, verdict.reason, verdict.findings) == (None, "not_repeatable", ())
    assert random.getstate() == state


def test_processes_of_a_strategy_end_with_the_audit(tmp_path):
    file = tmp_path / "pid"

    class Spawns(Strategy):
        every = 100

        def decide(self, view):
            with file.open("a") as pids:
                pids.write(f"{subprocess.Popen(['sleep', '60']).pid}\n")
            return in_parts(view)

    assert {finding.kind for finding in audit(Spawns(), MARKET, days=2).findings} == {"process"}
    time.sleep(0.2)
    states = [Path(f"/proc/{pid}/stat") for pid in file.read_text().split()]
    assert [state for state in states if state.exists() and state.read_text().split()[2] != "Z"] == []


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
