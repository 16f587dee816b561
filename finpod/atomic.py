"""Files that are either whole or absent: write beside the target, then rename."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from finpod.errors import InputError


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    Raises InputError, naming the path, if the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise _unwritable(path, error) from error


def write_text(path: Path, content: str) -> None:
    """`write_bytes` for UTF-8 text."""
    write_bytes(path, content.encode())


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Raise InputError if an output is already there and may not be replaced."""
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists already; choose another name or allow --overwrite")


def require_free(path: Path, overwrite: bool) -> None:
    """Raise InputError if `path` exists (unless `overwrite`), or if it and its missing parents could not be made."""
    refuse_existing(path, overwrite)
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise InputError(f"cannot write {path}: {parent} is not a folder; move it away or work in another folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {path}: {parent} is read-only; work in a folder you may write to")


@contextmanager
def new_folder(path: Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Yield an empty sibling folder that takes the name `path` when the block ends well, and vanishes when it does not.

    Raises InputError if `path` exists and `overwrite` is false, or if the parent cannot be written.
    """
    refuse_existing(path, overwrite)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    try:
        yield temporary
        temporary.chmod(0o755)
        if path.exists():
            _swap(path, temporary)
        else:
            temporary.replace(path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _swap(path: Path, fresh: Path) -> None:
    """Put `fresh` in the place of `path`; if that fails, what was there is back."""
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


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"cannot write {path}: {error.strerror or error}; choose a folder you may write to")
