"""`dumps_by_value`: pickles for processes that cannot import the user's modules."""

from __future__ import annotations

import io
import sys
import sysconfig
import threading
from collections import ChainMap
from functools import cache, lru_cache
from pathlib import Path
from types import CodeType
from typing import Any, ClassVar

import cloudpickle

PACKAGE_FOLDERS = {"site-packages", "dist-packages"}
LOCKS = type(threading.Lock()), type(threading.RLock())


class ByValue(cloudpickle.Pickler):
    """Pickler that stores the code and file names of the user's modules, but not the values cached by `lru_cache`."""

    dispatch_table: ClassVar[Any] = ChainMap({CodeType: lambda code: _named(code)}, cloudpickle.Pickler.dispatch_table)

    def dump(self, value: Any) -> None:
        """Write the pickle of a value."""
        known = cloudpickle.list_registry_pickle_by_value()
        files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
        names = [name for name, file in files.items() if isinstance(file, str) and file[-3:] == ".py"]
        names = [name for name in names if not is_installed(files[name]) and name not in {*known, "__main__"}]
        names = [name for name in names if getattr(sys.modules.get(name), "__name__", None) == name]
        for name in names:
            cloudpickle.register_pickle_by_value(sys.modules[name])
        try:
            super().dump(value)
        finally:
            for name in names:
                cloudpickle.unregister_pickle_by_value(sys.modules[name])

    def reducer_override(self, value: Any) -> Any:
        """Pickle a lock as a new lock, and a cached function without its cache. Leave other values to cloudpickle."""
        if isinstance(value, LOCKS):
            return (threading.Lock if isinstance(value, LOCKS[0]) else threading.RLock), ()
        if isinstance(value, type(is_installed)) and not is_installed(value.__wrapped__.__code__.co_filename):
            return _with_cache, (value.__wrapped__, value.cache_parameters())
        return super().reducer_override(value)


def dumps_by_value(value: Any) -> bytes:
    """Return a pickle that includes the code of the user's modules, such as a script or a notebook.

    Code of finpod, the standard library and installed packages is stored by name only. It must be installed where the
    pickle is loaded.
    """
    ByValue(buffer := io.BytesIO()).dump(value)
    return buffer.getvalue()


@lru_cache(maxsize=4096)
def is_installed(file: str) -> bool:
    """Return True for a file of finpod, the standard library or an installed package."""
    path = Path(file).absolute()
    return bool(PACKAGE_FOLDERS & set(path.parts)) or any(path.is_relative_to(folder) for folder in _installed())


def _named(code: CodeType) -> tuple[Any, ...]:
    make, values = cloudpickle.Pickler.dispatch_table[CodeType](code)
    return make, tuple(code.co_filename if value == "<dynamic-code>" else value for value in values)


def _with_cache(function: Any, parameters: dict[str, Any]) -> Any:
    return lru_cache(**parameters)(function)


@cache
def _installed() -> frozenset[Path]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [Path(sysconfig.get_path(name)) for name in names] + [Path(__file__).parent]
    return frozenset(path for folder in folders for path in (folder.absolute(), folder.resolve()))
