"""Loads strategies by name, file or folder (`load_strategy`), and tasks and feature functions from Python files."""

from __future__ import annotations

import hashlib
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from finpod.errors import FinpodError, InputError, StrategyError, did_you_mean, with_kind
from finpod.files import ENSEMBLE, WALK_FORWARD
from finpod.market.data import MarketData
from finpod.measures import Array
from finpod.rules import RULES
from finpod.strategy import Strategy

if TYPE_CHECKING:
    from finpod.rl.task import Task

StrategyLike = Strategy | str | PathLike[str]
"""A Strategy, the name of a built-in strategy, a .py file or the folder of a trained ensemble."""
STRATEGIES = Path("strategies")
"""Folder of strategies, relative to the current folder. Errors for unknown strategies suggest names in this folder."""
_KINDS = f"a .py file, the folder of a trained ensemble or one of {', '.join(RULES)}"


def load_strategy(spec: StrategyLike, features: Sequence[Callable[[MarketData], Array]] = ()) -> Strategy:
    """Return the strategy `spec`: a built-in name, `file.py`, `file.py:ClassName` or the folder of a trained ensemble.

    A Strategy is returned unchanged. `features` are the user's feature functions on which the agents of a folder were
    trained. A file runs as a separate module: it may import installed packages, but no other files of its folder. If
    the file defines several strategies, the class name is required. The class is called without arguments.

    Raises InputError for a strategy that does not exist, CheckpointError for a damaged folder or missing features, and
    StrategyError for a folder without agents that can trade and for a file without a usable Strategy.
    """
    if isinstance(spec, Strategy):
        return spec
    if not isinstance(spec, (str, PathLike)):
        raise InputError(f"{spec!r:.60} is not a strategy; give an instance of Strategy, {_KINDS}", argument="strategy")
    if str(spec) in RULES:
        return RULES[str(spec)]()
    path, wanted = file_and_class(spec)
    if path.is_dir():
        return _trained(path, features)
    if path.suffix == ".py" and path.is_file():
        return _made(path, wanted, Strategy)
    if path.exists():
        raise StrategyError(f"{path} is not a strategy; give {_KINDS}")
    entries = [entry for entry in sorted(STRATEGIES.glob("*")) if entry.suffix == ".py" or entry.is_dir()]
    spellings = {word: str(entry) for entry in entries for word in (entry.name, entry.stem)}
    spellings |= {rule: rule for rule in RULES}
    hint = did_you_mean(path.name, spellings, f"give {_KINDS}")
    raise InputError(f"there is no strategy {str(spec)!r}; {hint}", argument="strategy")


def _trained(folder: Path, features: Sequence[Callable[[MarketData], Array]]) -> Strategy:
    if (folder / WALK_FORWARD).is_file():
        from finpod.walkforward.strategy import load_walkforward

        return load_walkforward(folder, features)
    if not (folder / ENSEMBLE).is_file():
        text = (
            f"{folder} has no agents trained on a market (no {ENSEMBLE}); give a folder of stock agents, or a .py file"
        )
        raise StrategyError(text)
    from finpod.ensemble import load_ensemble

    return load_ensemble(folder, features)


def load_task(spec: str | PathLike[str]) -> Task:
    """Return the task of a file. `spec` is `file.py`, or `file.py:ClassName` if the file defines several tasks.

    The file runs as a separate module, and the class is called without arguments. If `spec` names no class, only
    classes that have all members in `finpod.rl.task.NEEDED` count as tasks. Raises InputError for a missing file or an
    incomplete task. Raises StrategyError if the file or the class fails, and if no class or several classes fit `spec`.
    """
    from finpod.rl.task import NEEDED, Task, require_task

    path, wanted = file_and_class(spec)
    if not (path.suffix == ".py" and path.is_file()):
        raise InputError(f"there is no task {str(spec)!r}; give a built-in task, or FILE.py:CLASS", argument="task")
    return require_task(_made(path, wanted, Task, NEEDED))


def load_features(path: Path) -> list[Callable[[MarketData], Array]]:
    """Return the feature functions of a Python file: its public functions, except those named like a built-in feature.

    Raises InputError if the file does not exist, and StrategyError if it cannot be run or has no feature function.
    """
    from finpod.features.panel import FEATURES

    if not (path.suffix == ".py" and path.is_file()):
        raise InputError(f"there is no Python file {path} to take features from; check the path", argument="features")
    module = _module(path)
    features: list[Callable[[MarketData], Array]] = [
        function
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and function.__name__ == name
        if not name.startswith("_") and name not in FEATURES
    ]
    if not features:
        raise StrategyError(
            f"{path} defines no feature function; add a public function that takes a market and has a name of its own"
        )
    return features


def _module(path: Path) -> ModuleType:
    """Run a file, and return it as a module with a unique name. Writes no bytecode, and leaves `sys.path` unchanged."""
    name = f"finpod_strategy_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    before = sys.modules.get(name)
    sys.modules[name] = module  # dataclasses and pickle look up the module of a class
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        raise StrategyError(f"{path} cannot be run: {_place(error, path)}") from error
    return module


def _place(error: BaseException, path: Path) -> str:
    """Return an error as 'line 3: NameError: ...'. The line is the last line of the file `path` in the traceback."""
    reason = f"{type(error).__name__}: {error.msg}" if isinstance(error, SyntaxError) else with_kind(error)
    reached = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == str(path) else (reached or [None])[-1]
    return reason if line is None else f"line {line}: {reason}"


def file_and_class(spec: str | PathLike[str]) -> tuple[Path, str]:
    """Return (path, class name) for `spec`, such as 'file.py:Class'. If `spec` has no class, the class name is ''."""
    file, _, wanted = str(spec).rpartition(":")
    return (Path(file), wanted) if file.endswith(".py") else (Path(spec), "")


def _made(path: Path, wanted: str, base: type, needed: Sequence[str] = ()) -> Any:
    """Return an instance of the class `wanted`, a subclass of `base` in the file `path`.

    If `wanted` is '', the class is the only subclass of `base` in the file that has all members in `needed`. Raises
    StrategyError if no class or several classes fit, and if the file or the class fails.
    """
    noun, module = base.__name__.lower(), _module(path)
    classes = [kind for kind in vars(module).values() if inspect.isclass(kind) and kind.__module__ == module.__name__]
    kinds = {kind.__name__: kind for kind in classes if issubclass(kind, base)}
    if wanted and wanted not in kinds:
        hint = did_you_mean(wanted, kinds.keys(), f"it defines {', '.join(kinds) or 'none'}")
        raise StrategyError(f"{path} defines no {noun} {wanted}; {hint}")
    names = [wanted] if wanted else [name for name, kind in kinds.items() if all(hasattr(kind, one) for one in needed)]
    if not names:
        home, members = "finpod" if base is Strategy else base.__module__, " with " * bool(needed) + ", ".join(needed)
        raise StrategyError(f"{path} defines no {noun}; write a subclass of {home}.{base.__name__}{members}")
    if len(names) > 1:
        raise StrategyError(f"{path} defines several classes: {', '.join(names)}; choose one with {path}:{names[0]}")
    try:
        return kinds[names[0]]()
    except FinpodError:
        raise
    except (Exception, SystemExit) as error:
        text = f"{path}: {names[0]}() failed; finpod creates the {noun} without arguments ({_place(error, path)})"
        raise StrategyError(text) from error
