"""Records what a process reads besides what it is given: files, network, processes, the clock and the environment.

The guards stay for the life of the process. `finpod.lookahead.child` sets them before it loads a strategy.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import sysconfig
import time
from collections.abc import Callable, Mapping
from datetime import date, datetime
from functools import wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NamedTuple

from finpod.pickling import PACKAGE_FOLDERS, is_installed

CODE = {".py", ".pyc", ".pyi", ".pyd", ".so", ".dll", ".dylib", ".pth"}
PRICES = {".csv", ".parquet", ".feather", ".npy", ".npz", ".h5", ".xlsx"}
"""Files that may hold prices even where a package ships or caches them."""
SYSTEM = tuple(
    map(Path, ["/proc", "/sys", "/etc", "/usr/share", "/usr/lib", "/dev/null", "/dev/urandom", "/dev/tty", "/dev/shm"])
)
CACHES = {".cache", "Caches", "matplotlib"}
LISTING = {"os.listdir", "os.scandir"}
NETWORK = {"socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"}
PROCESSES = {"subprocess.Popen", "os.system", "os.posix_spawn", "os.spawn", "os.exec", "os.fork", "os.forkpty"}
NATIVE: Mapping[str, tuple[str, ...]] = {
    "pyarrow.lib": ("memory_map", "OSFile"),
    "pyarrow._csv": ("read_csv", "open_csv"),
    "pyarrow._json": ("read_json", "open_json"),
    "pyarrow.parquet.core": ("read_table", "ParquetFile"),
    "pyarrow.dataset": ("dataset",),
    "pyarrow.feather": ("read_table",),
    "pyarrow.orc": ("read_table", "ORCFile"),
    "polars": (),
    "curl_cffi.requests.session": ("Session.request",),
}
"""Module -> functions that open files or connections in native code, of which Python's audit hooks hear nothing. Of polars
all that read or scan."""
CLOCKS = {"time": 0, "time_ns": 0, "clock_gettime": 1, "localtime": 0, "gmtime": 0, "ctime": 0, "strftime": 1}
"""Functions of `time` that read the clock when they are called with at most so many arguments."""
IMPORTING = {"importlib", "_frozen_importlib", "_frozen_importlib_external", "zipimport", "pkgutil", "linecache"}
"""Modules that read code, and look for it in the folders that code may be in."""


class Sight(NamedTuple):
    """Something that was read from elsewhere."""

    kind: str
    """"file", "network", "process", "clock" or "environment"."""
    note: str
    """'reads the file prices.csv', 'reads the clock (datetime.now)'."""
    where: str
    """Function, file and line of the user's code: 'Mine.decide (mine.py, line 12)'."""


_sights: dict[tuple[str, str], Sight] = {}
_new: list[Sight] = []
_homes: list[Path] = []
lacking: set[str] = set()
"""Guards that could not be set: "clock" for those of `datetime`, "readers" for those of native readers."""


def install() -> None:
    """Set all guards, and keep them; those that cannot be set are added to `lacking`."""
    is_installed(__file__)  # it asks sysconfig once, which reads the environment in Python 3.13
    for name, arguments in CLOCKS.items():
        if hasattr(time, name):
            setattr(time, name, _clock(getattr(time, name), f"time.{name}", arguments))
    for kind, name in ((datetime, "now"), (datetime, "utcnow"), (date, "today")):
        _try("clock", _record_method, kind, name)
    for name in ("__getitem__", "__iter__"):
        setattr(type(os.environ), name, _environment(getattr(type(os.environ), name)))
    for module in filter(None, map(sys.modules.get, NATIVE)):
        _record_readers(module)
    sys.meta_path.insert(0, _Finder())
    sys.addaudithook(_heard)


def _try(kind: str, guard: Callable[..., None], *arguments: Any) -> None:
    try:
        guard(*arguments)
    except Exception:  # they reach into Python and packages, which differ between versions
        lacking.add(kind)


def add_home(file: str) -> None:
    """Count an installed package as the user's: the one that defines the strategy."""
    path = Path(file)
    _homes.append(path.parent if path.name == "__init__.py" else path)


def take() -> list[Sight]:
    """The sights since the last call: of what one place in the code does, the first."""
    taken = _new[:]
    del _new[: len(taken)]
    return taken


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if event in NETWORK:
        _see("network", "reaches for the network", "", sys._getframe(1))
    elif event in PROCESSES:
        _see("process", "starts a process", "", sys._getframe(1), packages=False)
    elif event in LISTING or event in ("open", "sqlite3.connect"):
        subject = args[0] if args and args[0] is not None else "."
        if isinstance(subject, int) or (event == "open" and _writes(args[2])):
            return
        path = Path(os.path.abspath(os.fsdecode(subject)))  # noqa: PTH100  # a link's own name counts
        if not (_is_harmless(path) or path.name == ":memory:" or (event == "open" and path.is_dir())):
            doing = "lists the folder" if event in LISTING else "reads the file"
            _see("file", doing, os.fsdecode(subject), sys._getframe(1))


def _writes(flags: Any) -> bool:
    """Whether a file is opened to write it, or is new: there is nothing to read in it."""
    fresh = os.O_CREAT | os.O_EXCL
    return isinstance(flags, int) and bool(
        flags & fresh == fresh or flags & os.O_WRONLY or (flags & os.O_RDWR and flags & os.O_TRUNC)
    )


def _is_harmless(path: Path) -> bool:
    """Whether a file belongs to Python, a package, a cache or the system and holds no prices."""
    kept = path.suffix in CODE or is_installed(str(path)) or bool(CACHES & set(path.parts))
    return PRICES.isdisjoint(path.suffixes) and (kept or any(path.is_relative_to(folder) for folder in SYSTEM))


def _owner(frame: FrameType) -> str:
    """Whose code a frame runs: "user", "package" (the library's too) or "import"."""
    top, *inner = frame.f_globals.get("__name__", "").split(".")
    if top in IMPORTING and inner[:1] != ["resources"]:
        return "import"
    name = frame.f_code.co_filename
    if any(Path(name).is_relative_to(home) for home in _homes):
        return "user"
    return "package" if name[:8] == "<frozen " or is_installed(name) else "user"


def _see(kind: str, deed: str, subject: str, frame: FrameType | None, *, packages: bool = True) -> None:
    """Record what happens at a frame, unless the import system does it; without `packages`, unless a package does."""
    while frame is not None and (owner := _owner(frame)) != "user":
        if owner == "import" or not (packages or PACKAGE_FOLDERS.isdisjoint(Path(frame.f_code.co_filename).parts)):
            return
        frame = frame.f_back
    where = ""
    if frame is not None:
        name = frame.f_code.co_qualname.rpartition("<locals>.")[2]
        where = f"{name} ({os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno})"  # noqa: PTH119
    if (deed, where) not in _sights:
        _sights[deed, where] = sight = Sight(kind, f"{deed} {subject}".rstrip(), where)
        _new.append(sight)


def _see_if_called(kind: str, deed: str, subject: str = "", through: tuple[str, ...] = ()) -> None:
    """Record a call of the user's own, direct or through modules that only pass it on."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in through:
        if frame.f_code.co_name == "setdefault":  # a default that is set is written, not read
            return
        frame = frame.f_back
    if frame is not None and _owner(frame) == "user":
        _see(kind, deed, subject, frame)


def _clock(function: Callable[..., Any], name: str, most: int) -> Callable[..., Any]:
    @wraps(function)
    def recorded(*args: Any) -> Any:
        if len(args) <= most:
            _see_if_called("clock", f"reads the clock ({name})")
        return function(*args)

    return recorded


def _record_method(kind: type, name: str) -> None:
    """Record a class method of a built-in type in the type itself, so that every reference to it is covered.

    Raises NotImplementedError for a Python that this was not tried with, and where the type does not change.
    """
    original, modified = kind.__dict__[name], ctypes.pythonapi.PyType_Modified
    threaded = sysconfig.get_config_var("Py_GIL_DISABLED")
    if threaded or sys.implementation.name != "cpython" or sys.version_info >= (3, 14):
        raise NotImplementedError

    def recorded(cls: type, *args: Any, **options: Any) -> Any:
        _see_if_called("clock", f"reads the clock ({cls.__name__}.{name})", through=("pandas",))
        return original.__get__(None, cls)(*args, **options)

    (methods, *_) = gc.get_referents(kind.__dict__)
    methods[name] = classmethod(recorded)
    modified(ctypes.py_object(kind))
    if kind.__dict__[name] is original:
        raise NotImplementedError


def _environment(method: Callable[..., Any]) -> Callable[..., Any]:
    def recorded(environ: Any, *key: str) -> Any:
        subject = f"variable {key[0]}" if key else ""
        _see_if_called("environment", "reads the environment", subject, ("os", "_collections_abc", "collections"))
        return method(environ, *key)

    return recorded


class _Finder:
    """Records the native readers of a module as soon as it is imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec that other finders give, with a loader that records."""
        others = (finder for finder in sys.meta_path if finder is not self and name in NATIVE)
        spec = next((spec for finder in others if (spec := finder.find_spec(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                _record_readers(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _record_readers(module: ModuleType) -> None:
    names = NATIVE[module.__name__] or [name for name in dir(module) if name.startswith(("read_", "scan_"))]
    for dotted in names:
        _try("readers", _record_reader, module, dotted)


def _record_reader(module: ModuleType, dotted: str) -> None:
    owner, _, name = dotted.rpartition(".")
    holder = getattr(module, owner) if owner else module
    original = getattr(holder, name)
    reader = _reader(original, f"{module.__name__.replace('.core', '').replace('._', '.')}.{name}")
    for place in (holder, sys.modules.get(getattr(original, "__module__", ""))):
        if getattr(place, name, None) is original:
            setattr(place, name, reader)


def _reader(original: Any, name: str) -> Any:
    package = name.partition(".")[0]
    deed = ("network", "reaches for the network") if package == "curl_cffi" else ("file", f"reads a file ({name})")

    def recorded(*args: Any, **options: Any) -> Any:
        _see(*deed, "", sys._getframe(1))
        return original(*args, **options)

    if not isinstance(original, type):
        return wraps(original)(recorded)
    made = {"__new__": lambda cls, *args, **options: recorded(*args, **options), "__module__": original.__module__}
    return type(original.__name__, (original,), made)
