"""What is watched while a strategy decides: the files it reads or asks for, the variables of its environment, the processes
it starts, the network and the clock.

Python tells of files that are read, processes and the network itself (PEP 578), and of calls to builtin functions, as the
clock and those that ask for a file, through `sys.setprofile`. Nobody tells of what native code does by itself, and nothing
is watched in other threads.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple

from finpod.lookahead.bytecode import CLOCK_NAMES, clock_in, clock_of, is_dropped, named_in
from finpod.strategy import Strategy

Owner = Literal["user", "package", "library", "import"]
"""Whose code a file holds: the user's, an installed package's (finpod too), the standard library's, or the import system's."""

FINPOD = Path(__file__).parents[1]
LIBRARY = tuple(Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))
PACKAGES = tuple(Path(sysconfig.get_path(name)) for name in ("purelib", "platlib"))
PACKAGE_FOLDERS = {"site-packages", "dist-packages"}
CODE = {".py", ".pyc", ".pyi", ".pyd", ".so", ".dll", ".dylib", ".pth"}
"""Files that are code: reading them is importing, or showing a line of it."""
PRICES = {".csv", ".parquet", ".feather", ".npy", ".npz", ".h5", ".xlsx"}
"""Files that may hold prices even where they belong to a package, as a data set that ships with it."""
SYSTEM = tuple(map(Path, ("/proc", "/sys", "/etc", "/usr/share", "/usr/lib", "/dev/null", "/dev/urandom", "/dev/tty")))
"""How many processors there are, time zones, fonts: nothing about a market."""
CACHES = {".cache", "Caches", "matplotlib"}
"""What packages keep for themselves."""

MAKING = os.O_CREAT | os.O_EXCL
TEMPORARY = getattr(os, "O_TMPFILE", MAKING)
"""Flags of a file that was not there before: there is nothing to read in it."""
IN_MEMORY = ("", ":memory:")
"""Names by which sqlite opens no file."""

LISTING = {"os.listdir", "os.scandir"}
NETWORK = {"socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"}
PROCESSES = {"subprocess.Popen", "os.system", "os.posix_spawn", "os.spawn", "os.exec", "os.fork", "os.forkpty"}
EVENTS = {"open", "sqlite3.connect"} | LISTING | NETWORK | PROCESSES
NATIVE = {
    ("pyarrow.parquet.core", "read_table"): ("file", "reads a file (pyarrow.parquet.read_table)"),
    ("pyarrow.parquet.core", "ParquetFile.__init__"): ("file", "reads a file (pyarrow.parquet.ParquetFile)"),
    ("pyarrow.feather", "read_table"): ("file", "reads a file (pyarrow.feather.read_table)"),
    ("pyarrow.orc", "read_table"): ("file", "reads a file (pyarrow.orc.read_table)"),
    ("pyarrow.orc", "ORCFile.__init__"): ("file", "reads a file (pyarrow.orc.ORCFile)"),
    ("pyarrow.dataset", "dataset"): ("file", "reads a file (pyarrow.dataset.dataset)"),
    ("curl_cffi.requests.session", "Session.request"): ("network", "reaches for the network (curl_cffi)"),
}
"""Functions that hand a file or an address to native code, of which Python does not tell."""
_NATIVE_NAMES = {name.rpartition(".")[2] for _, name in NATIVE}
ASKING = {"stat", "lstat", "access", "readlink"}
"""Functions of the system that tell whether a file is there, how old and how large it is, and what it links to."""
ASKERS = {"os", "os.path", "posixpath", "ntpath", "genericpath", "pathlib", "pathlib._local", "pathlib._abc"}
"""Modules whose functions ask for a file in the name of who calls them."""
BY_THE_WAY = {"realpath", "resolve", "mkdir", "makedirs", "touch", "glob", "rglob", "walk"}
"""Functions that ask for files to follow links, to write, or for a listing that is told anyway."""
WHETHER_THERE = {"exists", "lexists", "isdir", "isfile", "is_dir", "is_file"}
"""Functions whose answer says nothing of a market where it is of a folder, or of nothing, as before output is written."""
ENVIRON = {getattr(type(os.environ), name).__code__ for name in ("__getitem__", "__iter__")}
_ENVIRON_NAMES = {"__getitem__", "__iter__"}
_OF_ENVIRON = {"os", "collections.abc", "posixpath", "ntpath"}


class Sight(NamedTuple):
    """Something that a strategy took from elsewhere than its view."""

    kind: str
    """"file", "network", "process", "clock" or "environment"."""
    what: str
    """'reads the file prices.csv', 'reads the clock (datetime.now)'."""
    where: str
    """The function, file and line: 'Mine.decide (mine.py, line 12)'."""


class Watch:
    """While it is entered, collects in `sights` what user's functions called in its block do in this thread, once each.

    `homes` are folders whose code counts as the user's even if it is installed. Files of Python and of packages, and what
    is read while importing them, are left alone; so are clocks that packages read and processes that they start. Of
    `pandas.Timestamp.now`, `numpy.datetime64('now')` and their like Python does not tell: a function of the user's that
    holds such a call, under whatever name, is taken to make it. It puts an earlier profile function back.
    """

    def __init__(self, homes: Sequence[str] = ()) -> None:
        self.homes = tuple(homes)
        self._sights: dict[Sight, Sight] = {}
        self._whole: set[CodeType] = set()
        self._named: set[CodeType] = set()

    @property
    def sights(self) -> list[Sight]:
        """What was seen so far: of the files read, or variables, at one place in the code, the first."""
        return list(self._sights.values())

    def __enter__(self) -> Watch:
        _install()
        self._boundary: FrameType | None = sys._getframe(1)
        self._outer = getattr(_LOCAL, "watch", None)
        self._profile = sys.getprofile()
        _LOCAL.watch = self
        sys.setprofile(self._called)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self._profile)
        _LOCAL.watch = self._outer
        self._boundary = None

    def _told(self, event: str, args: tuple[Any, ...]) -> None:
        """What the audit hook hears of."""
        caller = sys._getframe(2)
        frame, packages = self._user(caller)
        if frame is None or (packages and event in PROCESSES) or _is_of_temporary_files(caller):
            return
        if deed := _deed(event, args, packages):
            self._add(*deed, frame)

    def _called(self, frame: FrameType, event: str, arg: Any) -> None:
        """What the profile function hears of."""
        if event == "c_call":
            name = getattr(arg, "__name__", "")
            if name in CLOCK_NAMES and self._is_users(frame) and (clock := clock_of(arg, name, frame)):
                self._add("clock", f"reads the clock ({clock})", "", frame)
            elif name in ASKING and getattr(arg, "__module__", "") == os.stat.__module__:
                self._asked(frame, name)
        elif event == "call":
            code = frame.f_code
            if code.co_name in _NATIVE_NAMES:
                deed = NATIVE.get((frame.f_globals.get("__name__", ""), code.co_qualname))
                user = self._user(frame)[0] if deed else None
                if deed and user:
                    self._add(*deed, "", user)
            elif code.co_name.startswith(("read_", "scan_")) and frame.f_globals.get("__name__", "").startswith(
                "polars."
            ):
                if user := self._user(frame)[0]:
                    self._add("file", f"reads a file (polars.{code.co_name})", "", user)
            elif code.co_name in _ENVIRON_NAMES and code in ENVIRON:
                self._environment(frame)
            elif self._is_users(frame) and (clock := clock_in(code)):
                self._add("clock", f"reads the clock ({clock})", "", frame)
        elif event == "return" and frame.f_code not in self._named and self._is_users(frame):
            self._named.add(frame.f_code)  # when it returns, what it imports is there
            for deed in named_in(frame):
                self._add(*deed, "", frame, frame.f_code.co_firstlineno)

    def _environment(self, frame: FrameType) -> None:
        """Tells of a variable that is read, or of all: what goes through all of them is not told of each.

        A home folder is no variable, and a default that is set, and not asked back, is written.
        """
        user, between = self._caller(frame, _OF_ENVIRON)
        names = {inner.f_code.co_name for inner in between}
        if user is None or user.f_code in self._whole or "expanduser" in names:
            return
        if "setdefault" in names and is_dropped(user):
            return
        if frame.f_code.co_name == "__iter__":
            self._whole.add(user.f_code)
            self._add("environment", "reads the environment", "", user)
        else:
            self._add("environment", "reads the environment", f"variable {frame.f_locals['key']}", user)

    def _is_users(self, frame: FrameType) -> bool:
        return whose(frame.f_code.co_filename, self.homes) == "user"

    def _user(self, frame: FrameType | None) -> tuple[FrameType | None, bool]:
        """The frame of the user's code that the call came from, if it is no import, and whether a package lies between."""
        packages = False
        while frame is not None and frame is not self._boundary:
            owner = whose(frame.f_code.co_filename, self.homes)
            if owner == "user":
                return frame, packages
            if owner == "import":
                return None, packages
            packages |= owner == "package"
            frame = frame.f_back
        return None, packages

    def _asked(self, frame: FrameType, name: str) -> None:
        """A builtin is about to tell a frame of a file: told if the frame is the user's, or of a function that the user called."""
        user, between = self._caller(frame, ASKERS)
        if user is None or BY_THE_WAY & {inner.f_code.co_name for inner in between}:
            return
        path = next((value for value in map(_first_argument, reversed(between)) if value is not None), None)
        if path is None:
            self._add("file", f"asks for a file (os.{name})", "", user)
        elif not (between[-1].f_code.co_name in WHETHER_THERE and _is_no_file(path)) and not _is_pythons(path, False):
            self._add("file", "asks for the file", path, user)

    def _caller(self, frame: FrameType | None, modules: set[str]) -> tuple[FrameType | None, list[FrameType]]:
        """The frame of the user's code that is behind a frame, and those between, if they are all of some modules."""
        between: list[FrameType] = []
        while frame is not None and frame is not self._boundary:
            if self._is_users(frame):
                return frame, between
            if frame.f_globals.get("__name__") not in modules:
                return None, between
            between.append(frame)
            frame = frame.f_back
        return None, between

    def _add(self, kind: str, deed: str, subject: object, frame: FrameType, line: int | None = None) -> None:
        """Keeps the first subject of a deed at a place: what a loop reads by many names is one sight."""
        code = frame.f_code
        name = code.co_qualname.rpartition("<locals>.")[2]
        file = os.path.basename(code.co_filename)  # noqa: PTH119  # not every file name of a code object is a path
        where = f"{name} ({file}, line {line or frame.f_lineno})"
        self._sights.setdefault(Sight(kind, deed, where), Sight(kind, f"{deed} {subject}".rstrip(), where))


def homes_of(strategy: Strategy) -> tuple[str, ...]:
    """Folders, or files, of the packages that define the strategy's own classes; none for a strategy of finpod's."""
    found = []
    for kind in type(strategy).__mro__:
        top = kind.__module__.partition(".")[0]
        file = getattr(sys.modules.get(top), "__file__", None)
        if issubclass(kind, Strategy) and top != "finpod" and file:
            found.append(str(Path(file).parent if Path(file).name == "__init__.py" else file))
    return tuple(dict.fromkeys(found))


@lru_cache(maxsize=4096)
def whose(filename: str, homes: tuple[str, ...] = ()) -> Owner:
    """Whose code a code object with this file name is; code without a file, as typed at a prompt, is the user's."""
    if filename.startswith("<frozen "):
        return "import" if filename.startswith(("<frozen importlib", "<frozen zipimport")) else "library"
    if filename.startswith("<"):
        return "user"
    path = Path(filename)
    if any(path.is_relative_to(home) for home in homes):
        return "user"
    if path.is_relative_to(FINPOD) or _is_in(path, PACKAGES) or PACKAGE_FOLDERS & set(path.parts):
        return "package"
    return "library" if _is_in(path, LIBRARY) else "user"


_LOCAL = threading.local()


@lru_cache(maxsize=1)
def _install() -> None:
    """Audit hooks cannot be removed: one is installed for good, and listens to whatever watch is entered."""
    sys.addaudithook(_heard)


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if event in EVENTS and (watch := getattr(_LOCAL, "watch", None)) is not None:
        _LOCAL.watch = None  # what looking at it does is no sight
        try:
            watch._told(event, args)
        finally:
            _LOCAL.watch = watch


def _is_in(path: Path, folders: Sequence[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _deed(event: str, args: tuple[Any, ...], packages: bool) -> tuple[str, str, str] | None:
    """The kind of an audit event, the event in words, and what it is about; None for what is nobody's business."""
    if event in NETWORK:
        return "network", "reaches for the network", ""
    if event in PROCESSES:
        return "process", "starts a process", ""
    subject = args[0] if args else None
    if isinstance(subject, int):  # a file that is open already
        return None
    name = os.fsdecode(subject if isinstance(subject, (str, bytes, os.PathLike)) else ".")
    if event == "sqlite3.connect" and name.removeprefix("file:").partition("?")[0] in IN_MEMORY:
        return None
    path = Path(name)
    if event in LISTING:
        return None if _is_pythons(path, packages) else ("file", "lists the folder", str(path))
    flags = args[2] if event == "open" and isinstance(args[2], int) else os.O_RDONLY
    makes = flags & MAKING == MAKING or flags & TEMPORARY == TEMPORARY
    writes = makes or flags & os.O_WRONLY or (flags & os.O_RDWR and flags & os.O_TRUNC)
    return None if writes or _is_pythons(path, packages) else ("file", "reads the file", str(path))


def _is_of_temporary_files(frame: FrameType) -> bool:
    """Whether a function makes a temporary file, or removes a folder, for which it opens the folder."""
    names = frame.f_globals
    return names is vars(tempfile) or (names is vars(shutil) and "rmtree" in frame.f_code.co_name)


def _is_pythons(path: Path, packages: bool) -> bool:
    """Whether a file belongs to Python, a package or the system; if `packages`, whether it is a package's cache."""
    path = Path(os.path.abspath(path))  # noqa: PTH100  # a link's own name counts, so it is not resolved
    parts = set(path.parts)
    if PACKAGE_FOLDERS & parts or _is_in(path, (*LIBRARY, *PACKAGES, FINPOD)):
        return not PRICES & set(path.suffixes)
    return path.suffix in CODE or _is_in(path, SYSTEM) or (packages and bool(CACHES & parts))


def _is_no_file(path: Path) -> bool:
    """Whether nothing is there, or a folder."""
    try:
        return not path.exists() or path.is_dir()
    except (OSError, ValueError):  # it cannot be asked for, as where a name is too long
        return True


def _first_argument(frame: FrameType) -> Path | None:
    """The path that a function was given first; None for anything else."""
    value = frame.f_locals.get(next(iter(frame.f_code.co_varnames), ""))
    return Path(os.fsdecode(value)) if isinstance(value, (str, bytes, os.PathLike)) else None
