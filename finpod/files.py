"""Atomic writes of files and folders, a file lock, strict JSON, and the kinds of output folders."""

import json
import math
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import date
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from finpod.errors import InputError

ENSEMBLE = "ensemble.json"
RESULT = "result.json"
SNAPSHOT = "manifest.json"
EXPORT = "export.json"
TRAINED = "trained.json"
WALK_FORWARD = "walkforward.json"
KINDS = {
    ENSEMBLE: "the folder of a trained ensemble",
    TRAINED: "a trained run",
    RESULT: "a backtest",
    SNAPSHOT: "a snapshot",
    EXPORT: "an export",
    WALK_FORWARD: "a walk-forward",
}
"""Name of the marker file that identifies a kind of output folder -> text for this kind in messages."""
_PARTS = re.compile(
    r"member-\d+\.pt|log-\d+\.jsonl|segment-[\d-]+|run\.json|SHA256SUMS|"
    r"(returns|trades|weights|fan|bars|benchmark|equal_weight|positions|transactions)\.(csv|parquet)"
)
"""Names that files and folders in an output folder may have, besides the marker file."""
UNFINISHED = ".unfinished"
"""Suffix of the folder of an unfinished training run: OUT.unfinished for the output folder OUT."""

Progress = Callable[[str, float], None]
"""Function that receives a description of the current step, and the fraction of the work that is done, from 0 to 1."""
BACKTESTS = Path("backtests")
"""Default folder of the results of backtests, relative to the current folder."""


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically: it is written under a temporary name and then renamed.

    Raises InputError, which names the path, if the folder cannot be written or if the path is a folder.
    """
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            Path(name).chmod(0o644)
            Path(name).replace(path)
        finally:
            Path(name).unlink(missing_ok=True)


def write_text(path: Path, content: str) -> None:
    """Write text to a file atomically, in UTF-8. Raises InputError as `write_bytes` does."""
    write_bytes(path, content.encode())


def require_free(path: Path, overwrite: bool, marker: str | None = None) -> None:
    """Raise InputError unless the folder `path` can be written. Call this function before a long computation.

    Without `overwrite`, the folder must not exist. With `overwrite`, an existing folder must be empty, or contain one
    output of finpod and nothing else. `marker`, a key of `KINDS`, is the kind of output that may be overwritten; None
    allows any kind. The current folder and the folders above it are refused.
    """
    with _writing(path):
        here = Path.cwd()
        if path.resolve() in (here, *here.parents):
            raise InputError(f"{path} is the current folder or one above it; give another folder")
        _require_writable(path, overwrite)
        if os.path.lexists(path):
            _require_own(path, marker)


def require_free_file(path: Path, overwrite: bool) -> None:
    """Raise InputError unless the file `path` can be written. A file that exists is allowed only with `overwrite`."""
    with _writing(path):
        if path.is_dir():
            raise InputError(f"{path} is a folder, not a file; move it away or choose another name")
        _require_writable(path, overwrite)


@contextmanager
def new_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder. After the block, rename this folder to `path`; if the block fails, remove it.

    With `overwrite`, an existing output of the same kind is replaced, by the rules of `require_free`. Raises InputError
    if `path` must not be replaced or cannot be written.
    """
    require_free(path, overwrite)
    with _writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=path.parent, prefix=f".{path.name}.", ignore_cleanup_errors=True
        ) as folder:
            fresh = Path(folder) / "new"
            fresh.mkdir()
            yield fresh
            fresh.chmod(0o755)
            require_free(path, overwrite, next((name for name in KINDS if (fresh / name).exists()), None))
            replace_folder(path, fresh)


@contextmanager
def locked(path: Path, *, shared: bool = False, wait: bool = True) -> Iterator[bool]:
    """Lock a file or folder while the block runs, and yield True.

    Several processes may have a shared lock at once. An exclusive lock excludes all other locks, and creates a missing
    file. A lock ends with its process. Raises BlockingIOError if `wait` is False and another process has the lock.
    Yields False if no lock can be set: on Windows, on some network drives, and with `shared` for a missing file.
    """
    with ExitStack() as stack:
        is_locked = False
        try:
            import fcntl

            handle = os.open(path, os.O_RDONLY if shared or path.is_dir() else os.O_RDWR | os.O_CREAT, 0o644)
            stack.callback(os.close, handle)
            fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
            is_locked = True
        except BlockingIOError:
            raise
        except (ImportError, OSError):  # Windows, or a file system without locks
            pass
        yield is_locked


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into an InputError that names the path."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # the user's code raised the error, not the operating system
            raise
        shown = str(path) if len(str(path)) <= 200 else f"{str(path)[:60]}..."
        raise InputError(f"cannot write {shown}: {error.strerror}; choose a path that can be written") from error


def _require_own(path: Path, marker: str | None) -> None:
    """Raise InputError unless the folder is empty or contains one output of finpod and nothing else."""
    if not path.is_dir():
        raise InputError(
            f"{path} is not a folder, so overwrite=True does not replace it; move it away or choose another name"
        )
    entries = sorted(entry.name for entry in path.iterdir())
    if not entries:
        return
    mark = next((name for name in KINDS if name in entries and marker in (None, name)), None)
    if mark is None:
        kind = "an output of finpod" if marker is None else KINDS[marker]
        raise InputError(
            f"{path} is not {kind} (it holds {entries[0]!r}), so overwrite=True cannot replace it; choose another name"
        )
    for name in entries:
        if name != mark and not _PARTS.fullmatch(name):
            raise InputError(
                f"{path} holds {name!r}, which is not part of {KINDS[mark]}; to use overwrite=True, move {name!r} out"
            )
        if (path / name).is_dir():  # a segment of a walk-forward
            _require_own(path / name, ENSEMBLE)


def _require_writable(path: Path, overwrite: bool) -> None:
    """Raise InputError if `path` exists and `overwrite` is False, or if a folder above `path` is a file.

    Creates a temporary folder as a test. Raises OSError if nothing can be created in the folder of `path`.
    """
    if os.path.lexists(path) and not overwrite:
        raise InputError(f"{path} exists already; choose another name, or pass overwrite=True")
    parent = next(folder for folder in path.absolute().parents if os.path.lexists(folder))
    if not parent.is_dir():
        raise InputError(f"cannot write {path}: {parent} is not a folder; move it away or work in another folder")
    with tempfile.TemporaryDirectory(dir=parent, prefix=f".{path.name}.old.") as trial:
        (Path(trial) / path.absolute().relative_to(parent)).parent.mkdir(parents=True, exist_ok=True)


def replace_folder(path: Path, fresh: Path) -> None:
    """Rename the folder `fresh` to `path`. An existing folder `path` is removed, or restored if renaming fails."""
    if not os.path.lexists(path):
        fresh.replace(path)
        return
    aside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.old."))
    try:
        path.replace(aside / "old")
        try:
            fresh.replace(path)
        except BaseException:
            (aside / "old").replace(path)
            raise
    finally:
        if path.exists():
            shutil.rmtree(aside, ignore_errors=True)


def versions(*packages: str) -> dict[str, str]:
    """Return package -> version; 'not installed' for a missing package. 'python' stands for the Python interpreter."""
    from importlib import metadata

    versions = {"python": platform.python_version()}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):  # for example finpod, if it is imported from a source tree
            versions.setdefault(name, metadata.version(name))
    return {name: versions.get(name, "not installed") for name in packages}


def to_json(value: Any) -> str:
    """Return a value as JSON text with sorted keys and a final newline.

    The value may consist of mappings, lists, tuples, numpy values, dates, paths and plain values. NaN and infinities
    become null. Raises TypeError for other values.
    """
    return json.dumps(json_values(value), indent=1, sort_keys=True, allow_nan=False) + "\n"


def to_json_line(value: Any) -> str:
    """Return a value as `to_json` does, but on a single line and without a newline."""
    return json.dumps(json_values(value), sort_keys=True, allow_nan=False, separators=(",", ":"))


def json_values(value: Any) -> Any:
    """Return a value converted to the types of JSON, as `to_json` writes it. Values of unknown types are unchanged."""
    if type(value) is float:  # most values of a log
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): json_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_values(item) for item in value]
    if isinstance(value, (np.generic, np.ndarray)) and not isinstance(value, np.datetime64):
        return json_values(value.tolist())
    if isinstance(value, (PurePath, date, np.datetime64)):
        return str(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
