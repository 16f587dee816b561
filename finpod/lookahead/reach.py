"""What a strategy can get at besides its view, and how to put it back: its attributes, and the globals, closures and class
attributes that its own code uses.
"""

from __future__ import annotations

import copy
import dis
import functools
import gc
import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from numbers import Number
from operator import is_
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import torch

from finpod.lookahead.watching import whose
from finpod.market.data import MarketData
from finpod.strategy import FeatureTable, MarketView, Strategy

MOST_OBJECTS, DEEPEST = 20_000, 12
"""Where the search ends."""
SMALL = 10_000_000
"""Entries of an array, tensor or table up to which its values are put back."""
ATOMS = (str, bytes, Number, np.generic, BuiltinFunctionType, CodeType, np.dtype, type(None), type(Ellipsis))
LEAVES = (MarketData, MarketView, FeatureTable, torch.Tensor)
METHODS = (FunctionType, staticmethod, classmethod, property)
LEFT_ALONE = {"logging", "threading", "_thread", "re", "pathlib", "datetime", "decimal", "fractions"}
"""Modules whose objects hold no data."""
_MISSING = object()


class Found(NamedTuple):
    """Something a strategy can get at."""

    path: str
    """How: 'self.panel', 'global PANEL', 'market of Mine.decide', with [key] and .name behind it."""
    value: Any


def reachable(root: Any, homes: tuple[str, ...] = (), *, numbers: bool = False) -> Iterator[Found]:
    """All that is found from a strategy, or from functions, nearest first, each once; `root` itself first.

    Of functions and classes only the user's (with `homes`, as for `whose`) are looked into, and there only the names that
    the code uses. Numbers and text are left out, with `numbers` all but single floats; markets, views, tensors, numeric
    arrays and pandas objects are not taken apart; caches of functools are left alone.
    """
    pending: deque[tuple[Found, int]] = deque([(Found("self", root), 0)])
    kept: dict[int, Any] = {}  # by identity, and kept alive for it
    while pending and len(kept) < MOST_OBJECTS:
        found, depth = pending.popleft()
        if isinstance(found.value, ATOMS):
            if numbers and isinstance(found.value, (float, np.floating)):
                yield found
            continue
        if id(found.value) in kept:
            continue
        kept[id(found.value)] = found.value
        yield found
        if depth < DEEPEST:
            try:
                inner = list(_children(found, homes))
            except Exception:  # an object of the user's that does not like to be looked into
                continue
            pending.extend((Found(path, value), depth + 1) for path, value in inner)


def is_numeric(value: Any) -> bool:
    """Whether a list, tuple, set or mapping holds nothing but numbers, as far as its first and last entries tell."""
    entries = list(value.values() if isinstance(value, Mapping) else value)
    return bool(entries) and all(isinstance(entry, (Number, np.number)) for entry in (*entries[:3], *entries[-3:]))


def _children(found: Found, homes: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    path, value = found
    if isinstance(value, LEAVES) or type(value).__module__.partition(".")[0] in LEFT_ALONE | {"pandas"}:
        return
    if isinstance(value, np.ndarray):
        if value.dtype == object:
            yield from ((f"{path}[{i}]", entry) for i, entry in enumerate(value.flat))
    elif isinstance(value, Mapping):
        if not is_numeric(value):
            yield from ((f"{path}[{key!r:.40}]", entry) for key, entry in value.items())
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        if not is_numeric(value):
            names = getattr(value, "_fields", range(len(value)))
            yield from ((f"{path}[{name!r}]", entry) for name, entry in zip(names, value, strict=False))
    elif isinstance(value, FunctionType):
        if whose(value.__code__.co_filename, homes) == "user":
            yield from _of_function(value, homes)
    elif isinstance(value, MethodType):
        yield from ((path, value.__func__), (path, value.__self__))
    elif isinstance(value, type):
        if _is_users_class(value, homes):
            used = _used_methods(value) if issubclass(value, Strategy) else None
            for name, entry in list(vars(value).items()):
                if used is None or name in used or not isinstance(entry, METHODS):
                    yield f"{value.__name__}.{name}", entry
    elif not isinstance(value, ModuleType):
        yield from _of_instance(path, value, homes)


def _of_function(function: FunctionType, homes: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Globals, closed-over names, defaults and attributes of a function; what it uses of the user's own modules."""
    name, code = function.__qualname__.rpartition("<locals>.")[2], function.__code__
    held = {f"global {used}": function.__globals__.get(used, _MISSING) for used in global_names(code)}
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    held |= {f"{closed} of {name}": _contents(cell) for closed, cell in cells}
    held |= {f"import {module.__name__}": module for module in _imported_by(code, function.__globals__)}
    for path, value in held.items():
        if isinstance(value, ModuleType):
            if whose(getattr(value, "__file__", None) or "<frozen >", homes) == "user":
                attributes = sorted(_all_names(code) & set(vars(value)))
                yield from ((f"{value.__name__}.{attribute}", vars(value)[attribute]) for attribute in attributes)
        elif value is not _MISSING:
            yield path, value
    yield from ((f"a default of {name}", value) for value in function.__defaults__ or ())
    yield from ((f"{name}'s {key}", value) for key, value in (function.__kwdefaults__ or {}).items())
    yield from ((f"{name}.{key}", value) for key, value in vars(function).items())


def _imported_by(code: CodeType, names: Mapping[str, Any]) -> Iterator[ModuleType]:
    """Modules that a function imports itself, as far as they are loaded."""
    package = names.get("__package__") or ""
    for name in imports(code):
        for full in (name, f"{package}.{name}"):
            if isinstance(module := sys.modules.get(full), ModuleType):
                yield module


def _of_instance(path: str, value: Any, homes: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, partial):
        yield from ((path, value.func), (f"an argument of {path}", (*value.args, value.keywords)))
    if isinstance(value, (staticmethod, classmethod)):
        yield path, value.__func__
    if isinstance(value, property):
        yield from ((path, function) for function in (value.fget, value.fset) if function)
    yield from ((path, kind) for kind in type(value).__mro__ if _is_users_class(kind, homes))
    slots = [name for kind in type(value).__mro__ for name in _slots(kind) if hasattr(value, name)]
    yield from ((f"{path}.{name}", getattr(value, name)) for name in slots)
    if hasattr(value, "__dict__"):
        yield from ((f"{path}.{name}", entry) for name, entry in list(vars(value).items()))
    elif not slots and gc.is_tracked(
        value
    ):  # generators, iterators and other things that keep what they hold to themselves
        held = gc.get_referents(value)
        yield from ((f"what {path} holds", entry) for entry in held if not isinstance(entry, (type, ModuleType)))


def _slots(kind: type) -> Sequence[str]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(name for name in slots if not name.startswith("__"))


def _is_users_class(kind: type, homes: tuple[str, ...]) -> bool:
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or (file is not None and whose(file, homes) == "user")


def _used_methods(kind: type) -> set[str]:
    """Names of what `decide` uses, and what that uses: a market that only `__init__` sees is not at hand when it decides."""
    codes: dict[str, list[CodeType]] = {}
    for name, entry in (item for base in kind.__mro__ for item in vars(base).items()):
        function = getattr(entry, "fget", getattr(entry, "__func__", entry))
        if isinstance(function, FunctionType):
            codes.setdefault(name, []).append(function.__code__)
    used, pending = {"decide"}, ["decide"]
    while pending:
        new = {name for code in codes.get(pending.pop(), ()) for name in _all_names(code)} - used
        used |= new
        pending.extend(new)
    return used


@lru_cache(maxsize=4096)
def _all_names(code: CodeType) -> frozenset[str]:
    """Globals and attributes that a code object, and those within it, name."""
    inner = (_all_names(inner) for inner in code.co_consts if isinstance(inner, CodeType))
    return frozenset(code.co_names).union(*inner)


@lru_cache(maxsize=4096)
def global_names(code: CodeType) -> frozenset[str]:
    """The globals that a code object, and those within it, read or set."""
    own = {step.argval for step in dis.get_instructions(code) if step.opname.endswith(("_GLOBAL", "_NAME"))}
    return frozenset(own).union(*(global_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


@lru_cache(maxsize=4096)
def imports(code: CodeType) -> frozenset[str]:
    """Names of modules that a code object, and those within it, import."""
    own = {step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME"}
    return frozenset(own).union(*(imports(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _MISSING


class Kept:
    """What `root` and its copies share, as it was when this was made: `put_back` makes it so again.

    That is what `reachable` finds: globals, closures, class attributes, containers, small arrays and generators of random
    numbers, and besides the global generators of Python, numpy and torch. Caches that functions keep are emptied. So no
    market that a strategy was shown is still there when it is shown another, and nothing is left behind; but with `logs`
    the numbers and texts that were appended to lists are.
    """

    def __init__(self, root: Any, homes: tuple[str, ...] = (), *, logs: bool = False) -> None:
        self._undo: list[Callable[[], object]] = [
            partial(random.setstate, random.getstate()),
            partial(np.random.set_state, np.random.get_state()),
            partial(torch.set_rng_state, torch.get_rng_state()),
        ]
        for _, value in reachable(root, homes):
            with suppress(Exception):  # an object of the user's that cannot be copied or set
                self._undo.extend(_undo(value, homes, logs))

    def put_back(self) -> None:
        """Make it so again."""
        for undo in self._undo:
            with suppress(Exception):
                undo()


def _undo(value: Any, homes: tuple[str, ...], logs: bool) -> Iterator[Callable[[], object]]:
    """What puts one object back into its present state, as far as it can be changed."""
    if isinstance(value, FunctionType):
        if whose(value.__code__.co_filename, homes) == "user":
            names = {name: value.__globals__.get(name, _MISSING) for name in global_names(value.__code__)}
            yield partial(_put_names, value.__globals__, names)
            yield from (partial(_put_cell, cell, _contents(cell)) for cell in value.__closure__ or ())
    elif isinstance(value, type):
        if _is_users_class(value, homes):
            yield partial(_put_attributes, value, dict(vars(value)))
    elif isinstance(value, functools._lru_cache_wrapper):
        yield value.cache_clear
    elif isinstance(value, np.random.Generator):
        yield partial(setattr, value.bit_generator, "state", value.bit_generator.state)
    elif isinstance(value, (np.random.RandomState, torch.Generator)):
        generator: Any = value
        yield partial(generator.set_state, generator.get_state())
    elif isinstance(value, random.Random):
        yield partial(value.setstate, value.getstate())
    elif isinstance(value, np.ndarray):
        if value.flags.writeable and value.size <= SMALL:
            yield partial(np.copyto, value, value.copy())
    elif isinstance(value, torch.Tensor):
        if value.numel() <= SMALL:
            yield partial(_put_tensor, value, value.detach().clone())
    elif hasattr(value, "_update_inplace"):  # what pandas itself calls where a table is changed in place
        if value.size <= SMALL:
            yield partial(value._update_inplace, value.copy())
    elif isinstance(value, dict):
        yield partial(_put_names, value, dict(value), whole=True)
    elif isinstance(value, (list, deque)):
        yield partial(_put_list, value, list(value), logs)
    elif isinstance(value, set):
        yield partial(_put_set, value, copy.copy(value))
    if hasattr(value, "__dict__") and not isinstance(value, (*LEAVES, type, ModuleType)) and not _is_of_pandas(value):
        yield partial(_put_names, vars(value), dict(vars(value)), whole=True)


def _put_names(names: dict[Any, Any], before: dict[Any, Any], *, whole: bool = False) -> None:
    """Give names their former values; if `whole`, there are no others."""
    if whole and (len(names) != len(before) or any(names.get(key, _MISSING) is not before[key] for key in before)):
        names.clear()
        names.update(before)
    elif not whole:
        for name, value in before.items():
            if value is _MISSING:
                names.pop(name, None)
            elif names.get(name, _MISSING) is not value:
                names[name] = value


@torch.no_grad()
def _put_tensor(tensor: torch.Tensor, before: torch.Tensor) -> None:
    tensor.copy_(before)


def _put_attributes(kind: type, before: dict[str, Any]) -> None:
    for name in set(vars(kind)) - set(before):
        delattr(kind, name)
    for name, value in before.items():
        if vars(kind).get(name, _MISSING) is not value:
            setattr(kind, name, value)


def _put_cell(cell: CellType, value: Any) -> None:
    if value is _MISSING:
        del cell.cell_contents
    elif _contents(cell) is not value:
        cell.cell_contents = value


def _put_list(entries: Any, before: list[Any], logs: bool) -> None:
    if len(entries) == len(before) and all(map(is_, entries, before)):
        return
    added = list(entries)[len(before) :]
    if logs and all(map(is_, entries, before)) and all(map(_is_plain, added)):
        return
    entries.clear()
    entries.extend(before)


def _is_plain(entry: Any) -> bool:
    """Whether it is a number or text, or a tuple of them."""
    return isinstance(entry, ATOMS) or (isinstance(entry, tuple) and all(isinstance(part, ATOMS) for part in entry))


def _is_of_pandas(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "pandas"


def _put_set(entries: set[Any], before: set[Any]) -> None:
    entries.clear()
    entries.update(before)
