"""Records the files that the user's code reads in a process, and the network, processes and clocks that it uses.

`finpod.lookahead.child` installs these guards before it loads a strategy. They stay for the life of the process.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import date, datetime
from functools import wraps
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from finpod.pickling import PACKAGE_FOLDERS, is_installed

NETWORK, PROCESS = ("network", "uses the network"), ("process", "starts a process")
EVENTS: Mapping[str, tuple[str, str]] = {
    **dict.fromkeys(("open", "sqlite3.connect"), ("file", "reads the file")),
    **dict.fromkeys(("os.listdir", "os.scandir"), ("file", "lists the folder")),
    **dict.fromkeys(("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"), NETWORK),
    **dict.fromkeys(("subprocess.Popen", "os.system", "os.posix_spawn", "os.spawn", "os.exec", "os.fork"), PROCESS),
}
"""Audit event of Python -> kind and description of the access."""
NATIVE: Mapping[str, tuple[str, ...]] = {
    "pyarrow.lib": ("memory_map", "OSFile"),
    "pyarrow._csv": ("read_csv", "open_csv"),
    "pyarrow.parquet.core": ("read_table", "ParquetFile"),
    "pyarrow.dataset": ("dataset",),
    "pyarrow.feather": ("read_table",),
    "pyarrow.orc": ("read_table", "ORCFile"),
    "polars": ("read_", "scan_"),
    "curl_cffi.requests.session": ("Session.request",),
}
"""Module -> names (or prefixes) of functions that open files or connections in native code, without an audit event."""
CLOCKS = {"time": 0, "time_ns": 0, "clock_gettime": 1, "localtime": 0, "gmtime": 0, "ctime": 0, "strftime": 1}
"""Function of `time` -> number of arguments up to which it reads the clock. With more, it converts a given time."""
CODE = {".py", ".pyc", ".pyi", ".pyd", ".so", ".dll", ".dylib", ".pth"}
PRICES = {".csv", ".parquet", ".feather", ".npy", ".npz", ".h5", ".xlsx"}
"""Suffixes of files that may hold prices. Reading them is recorded even in package, cache and system folders."""
IMPORTING = ("importlib", "_frozen_importlib", "zipimport")
SYSTEM = ("/proc", "/sys", "/etc", "/usr/share", "/usr/lib", "/dev")
CACHES = {".cache", "Caches", "matplotlib"}
Access = tuple[str, str, str]
"""Kind ("file", "network", "process" or "clock"), description ("reads the file prices.csv") and place in the code."""
accesses: dict[tuple[str, str], Access] = {}
"""Accesses so far: (description without the file's name, place) -> the first such access."""


def install() -> None:
    """Install all guards for the life of the process."""
    for name, arguments in CLOCKS.items():
        if hasattr(time, name):
            setattr(time, name, _recorded(getattr(time, name), "clock", f"reads the clock (time.{name})", arguments))
    if sys.version_info < (3, 14):  # not tested with later versions of Python
        for kind, name in ((datetime, "now"), (datetime, "utcnow"), (date, "today")):
            _record_method(kind, name)
    sys.addaudithook(_heard)


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if event == "import" and args[0] in NATIVE and args[1] is None:  # the module is not loaded yet
        _record_readers(args[0])
    if event not in EVENTS:
        return
    kind, action, subject = *EVENTS[event], ""
    if kind == "file":
        written = event == "open" and args[2] & (os.O_WRONLY | os.O_TRUNC | os.O_EXCL)  # or created
        if written or isinstance(args[0], int) or args[0] == ":memory:":
            return
        subject = os.fsdecode(args[0] or ".")
        path = Path(os.path.abspath(subject))  # noqa: PTH100  # links are not followed
        known = path.suffix in CODE or is_installed(str(path)) or not CACHES.isdisjoint(path.parts)
        if PRICES.isdisjoint(path.suffixes) and (known or any(path.is_relative_to(folder) for folder in SYSTEM)):
            return
    _see(kind, action, subject, sys._getframe(1))


def _see(kind: str, action: str, subject: str, frame: FrameType | None) -> None:
    """Record an access, with its place in the code: the innermost frame of user code, searched from `frame` outwards.

    Not recorded: imports, processes that packages start, and clock reads by Python or by packages other than pandas.
    """
    while frame is not None and ((name := frame.f_code.co_filename)[:8] == "<frozen " or is_installed(name)):
        may = {"process": PACKAGE_FOLDERS & set(Path(name).parts), "clock": "pandas" not in Path(name).parts}
        module = frame.f_globals.get("__name__", "")
        if may.get(kind) or (module.startswith(IMPORTING) and not module.startswith("importlib.resources")):
            return
        frame = frame.f_back
    where = ""
    if frame is not None:
        name = frame.f_code.co_qualname.rpartition("<locals>.")[2]
        where = f"{name} ({os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno})"  # noqa: PTH119
    accesses.setdefault((action, where), (kind, f"{action} {subject}".rstrip(), where))


def _recorded(function: Callable[..., Any], kind: str, action: str, most: float = math.inf) -> Callable[..., Any]:
    """Return the function, wrapped so that each call with at most `most` arguments is recorded."""

    @wraps(function, updated=())
    def recorded(*args: Any, **options: Any) -> Any:
        if len(args) <= most:
            _see(kind, action, "", sys._getframe(1))
        return function(*args, **options)

    return recorded


def _record_method(kind: type, name: str) -> None:
    """Record the calls of a class method of a built-in type, for all code that uses the type."""
    original, (methods, *_) = kind.__dict__[name], gc.get_referents(kind.__dict__)

    def read(cls: type, *args: Any, **options: Any) -> Any:
        return original.__get__(None, cls)(*args, **options)

    methods[name] = classmethod(_recorded(read, "clock", f"reads the clock ({kind.__name__}.{name})"))
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))


def _record_readers(module: str) -> None:
    """Import a module and wrap its readers in `NATIVE`, so that their calls are recorded."""
    loaded = import_module(module)
    for known in NATIVE[module]:
        owner, _, name = known.rpartition(".")
        holder: Any = getattr(loaded, owner, None) if owner else loaded
        for reader in [one for one in dir(holder) if one == name or (name[-1] == "_" and one.startswith(name))]:
            original: Any = getattr(holder, reader)
            called = f"{module.replace('.core', '').replace('._', '.')}.{reader}"
            recorded = _recorded(original, *(NETWORK if owner else ("file", f"reads a file ({called})")))
            for place in (holder, sys.modules.get(original.__module__)):
                if getattr(place, reader, None) is original:
                    setattr(place, reader, recorded)
