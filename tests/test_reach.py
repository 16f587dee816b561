"""What a strategy can get at, by which path, and that it can be put back."""

import functools
import random
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from made_markets import random_market

from finpod.lookahead.reach import DEEPEST, Kept, global_names, reachable
from finpod.rules import RULES, Momentum
from finpod.strategy import Strategy

TABLE = np.arange(3.0)
SHELF = {"rows": [np.arange(4.0)]}
NAMED_ONLY = np.arange(5.0)
COUNT = 0


def helper():
    return SHELF


def paths(root):
    """Path of every array that is reached, by its length."""
    return {len(value): path for path, value in reachable(root) if isinstance(value, np.ndarray)}


# --- what is reached ------------------------------------------------------------------------------------------------


def test_attributes_containers_and_other_objects_are_reached():
    class Mine(Strategy):
        tables = (np.arange(1.0),)

        def __init__(self):
            self.parts = [{"deep": np.arange(2.0)}, deque([np.arange(3.0)]), {1, 2}]
            self.other = SimpleNamespace(inner=np.array([np.arange(4.0), None], dtype=object))
            self.later = functools.partial(max, np.arange(5.0))
            self.rows = iter([np.arange(6.0)])
            self.me = self

        def decide(self, view):
            return None

    found = paths(Mine())
    assert found[1] == "Mine.tables[0]"
    assert found[2] == "self.parts[0]['deep']"
    assert found[3] == "self.parts[1][0]"
    assert found[4] == "self.other.inner[0]"
    assert set(found) == {1, 2, 3, 4, 5, 6}


def test_globals_closures_and_defaults_of_the_code_that_decides_are_reached():
    closed, unused = np.arange(7.0), np.arange(8.0)

    class Mine(Strategy):
        def __init__(self):
            self.size = len(unused)

        def decide(self, view, ready=np.arange(9.0)):  # noqa: B008
            return self.weights(view.NAMED_ONLY) * closed

        def weights(self, view):
            return helper()["rows"], TABLE

        def never(self):
            return NAMED_ONLY

    found = paths(Mine())
    assert found[3] == "global TABLE"
    assert found[4] == "global SHELF['rows'][0]"
    assert found[7] == "closed of Mine.decide"
    assert found[9] == "a default of Mine.decide"
    assert set(found) == {3, 4, 7, 9}  # neither what __init__ saw, nor what is an attribute by the same name


def test_what_a_strategy_of_finpods_calls_is_reached():
    closed = np.arange(7.0)

    class Base(Strategy):
        def decide(self, view):
            return self.signal(view)

    class Mine(Base):
        def signal(self, view):
            return closed

    class Other(Mine):
        def decide(self, view):
            return super().decide(view)

    Base.__module__ = "finpod.strategy"
    assert paths(Mine()) == paths(Other()) == {7: "closed of Mine.signal"}


def test_own_modules_are_reached_by_the_names_that_are_used(tmp_path, monkeypatch):
    (tmp_path / "own_prices.py").write_text("import numpy as np\nUSED, OTHER = np.arange(11.0), np.arange(12.0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    import own_prices

    class Mine(Strategy):
        def decide(self, view):
            return own_prices.USED

    assert set(paths(Mine())) == {11}


def test_slots_and_methods_are_reached():
    class Slotted:
        __slots__ = ("rows",)

        def __init__(self):
            self.rows = np.arange(2.0)

        def act(self):
            return self.rows

    class Mine(Strategy):
        def __init__(self):
            self.act = Slotted().act

        def decide(self, view):
            return self.act()

    assert set(paths(Mine())) == {2}


def test_each_thing_is_reached_once_and_the_search_ends():
    inner = np.arange(2.0)
    deep = inner
    for _ in range(DEEPEST + 5):
        deep = [deep, "x"]
    loop = []
    loop.append(loop)
    holder = SimpleNamespace(one=[inner, "x"], two=[inner, "x"], loop=loop)
    assert sum(value is inner for _, value in reachable(holder)) == 1
    assert paths(SimpleNamespace(deep=deep)) == {}


def test_an_object_that_does_not_like_it_is_passed_over():
    class Prickly:
        @property
        def __dict__(self):
            raise RuntimeError("no")

    assert set(paths(SimpleNamespace(a=Prickly(), b=np.arange(2.0)))) == {2}


def test_of_finpods_own_strategies_only_their_values_are_reached():
    for kind in list(RULES.values())[:4]:
        assert [path for path, _ in reachable(kind())] == ["self"]


def test_names_of_inner_functions_count():
    def outer():
        return [TABLE for _ in range(3)] + (lambda: SHELF)()

    assert {"TABLE", "SHELF", "range"} <= global_names(outer.__code__)
    assert "append" not in global_names((lambda: [].append(1)).__code__)


# --- what is put back -----------------------------------------------------------------------------------------------


class Keeps(Strategy):
    """Leaves its marks wherever it can."""

    seen: object = None
    notes: list = []  # noqa: RUF012
    random = np.random.default_rng(0)

    def decide(self, view):
        global COUNT, FRESH
        COUNT += 1
        FRESH = view
        Keeps.seen = view
        type(self).fresh = view
        SHELF["view"] = view
        SHELF["rows"].append(view)
        self.notes.append(view)
        TABLE[0] = 9
        expensive(3)
        return self.random.random()


@functools.lru_cache
def expensive(value):
    return value


def test_what_copies_share_is_put_back():
    market = random_market(days=5)
    kept = Kept(Keeps())
    drawn = Keeps().decide(market)
    assert COUNT == 1
    assert FRESH is Keeps.seen is SHELF["view"] is Keeps.notes[0] is market
    kept.put_back()
    assert COUNT == 0
    assert "FRESH" not in globals()
    assert Keeps.seen is None
    assert not hasattr(Keeps, "fresh")
    assert list(SHELF) == ["rows"]
    assert len(SHELF["rows"]) == 1
    assert Keeps.notes == []
    assert TABLE[0] == 0
    assert expensive.cache_info().currsize == 0
    assert Keeps().decide(market) == drawn
    kept.put_back()


def test_closures_are_put_back():
    last, many, few = None, {1}, [1, 2]

    def feature(market):
        nonlocal last
        last = market
        many.add(2)
        few.remove(1)
        feature.calls = 1

    kept = Kept([feature])
    feature("market")
    assert last == "market"
    kept.put_back()
    assert last is None
    assert (many, few) == ({1}, [1, 2])
    assert not hasattr(feature, "calls")


def test_global_generators_are_put_back():
    kept = Kept(Momentum())
    drawn = random.random(), np.random.rand(), torch.rand(1)
    kept.put_back()
    assert (random.random(), np.random.rand(), torch.rand(1)) == drawn
    kept.put_back()


@pytest.mark.parametrize("logs", [False, True])
def test_a_log_may_be_left(logs):
    notes, markets = ["first"], []

    def feature(market):
        notes.extend(["second", (3, 4.0)])
        markets.append(market)

    kept = Kept([feature], logs=logs)
    feature(random_market(days=5))
    kept.put_back()
    assert notes == (["first", "second", (3, 4.0)] if logs else ["first"])
    assert markets == []


def test_what_is_unchanged_is_left_alone():
    class Counted(dict):
        cleared = 0

        def clear(self):
            Counted.cleared += 1
            super().clear()

    held = Counted(a=1)
    kept = Kept(SimpleNamespace(held=held))
    kept.put_back()
    assert Counted.cleared == 0
    held["b"] = 2
    kept.put_back()
    assert held == {"a": 1}
