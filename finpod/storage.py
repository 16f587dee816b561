"""`Store`: a folder on this machine or at a URL, with atomic writes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from pyarrow import fs

from finpod.errors import InputError, first_line
from finpod.files import write_bytes

READERS = 16
"""Number of parts of a file that are read in parallel."""


class Store:
    """A folder on this machine, or at a URL that pyarrow or fsspec can open, such as s3://bucket/runs.

    File names may contain slashes. Objects at a URL cannot grow. There, `append` writes a new object into the folder
    NAME.parts, and `read` joins these objects. If a file cannot be written, read or removed, methods raise InputError
    that names the file. The constructor raises InputError if `place` is a file, or a URL that cannot be opened.
    """

    def __init__(self, place: str | Path) -> None:
        text = str(place)
        self.system = _opened(text)
        is_local = isinstance(self.system.base_fs, fs.LocalFileSystem)
        self.folder = Path(self.system.base_path if "://" in text else text) if is_local else None
        """Folder on this machine; None if the store is at a URL."""
        if self.folder is not None and self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"the storage {text} is a file; give a folder, or a URL such as s3://bucket/runs")
        self.where = str(self.folder or (text if text.endswith("://") else text.rstrip("/")))
        """Folder or URL as messages show it."""
        self._made: set[str] = set()  # folders known to exist
        self._next: dict[str, int] = {}  # number of the next part of a file; a file has only one writer

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically: readers see the old content or the new content."""
        if self.folder is not None:
            write_bytes(self.folder / name, content)
            return
        folder = name.rpartition("/")[0]
        with self._named("write", name):
            if folder not in self._made:
                self.system.base_fs.create_dir(f"{self.system.base_path}{folder}", recursive=True)
                self._made.add(folder)
            with self.system.open_output_stream(name) as file:
                file.write(content)

    def read(self, name: str) -> bytes:
        """Return the content of a file, including what was appended. Raises FileNotFoundError for a missing file."""
        parts = self.names(f"{name}.parts")
        whole = [name] if not parts or name in self.names(name.rpartition("/")[0]) else []
        with self._named("read", name), ThreadPoolExecutor(READERS) as readers:  # a log may have thousands of parts
            return b"".join(readers.map(self._content, whole + parts))

    def append(self, name: str, content: bytes) -> None:
        """Append to a file. The call returns when the content is stored."""
        if self.folder is not None:
            with self._named("write", name):
                _append(self.folder / name, content)
            return
        if name not in self._next:
            parts = self.names(f"{name}.parts")
            self._next[name] = int(parts[-1].rsplit("/", 1)[1]) + 1 if parts else 0
        self.write(f"{name}.parts/{self._next[name]:09}", content)
        self._next[name] += 1

    def names(self, folder: str = "") -> list[str]:
        """Return the sorted names FOLDER/NAME of the visible files directly in a folder; [] for a missing folder."""
        names = [entry.base_name for entry in self._listed(folder) if entry.is_file]
        return [f"{folder}/{name}" if folder else name for name in sorted(names) if not name.startswith(".")]

    def folders(self, prefix: str) -> list[str]:
        """Return the sorted names, with the prefix `prefix`, of the folders directly in the store."""
        names = [entry.base_name for entry in self._listed("") if not entry.is_file]
        return [name for name in sorted(names) if name.startswith(prefix)]

    def remove(self, name: str) -> None:
        """Remove a file and everything that was appended to it. A missing file is no error."""
        for path in (name, *self.names(f"{name}.parts")):
            with self._named("remove", path), suppress(FileNotFoundError):
                self.system.delete_file(path)

    def remove_folder(self, name: str) -> None:
        """Remove a folder and its content."""
        with self._named("remove", name):
            self.system.delete_dir(name)
        self._made.clear()
        self._next.clear()

    def _content(self, name: str) -> bytes:
        with self.system.open_input_stream(name) as file:
            return file.read()

    def _listed(self, folder: str) -> list[fs.FileInfo]:
        with self._named("list", folder):
            return self.system.get_file_info(fs.FileSelector(folder, allow_not_found=True))

    @contextmanager
    def _named(self, verb: str, name: str) -> Iterator[None]:
        """Turn an OSError or ValueError into an InputError that names the file. On reading, keep FileNotFoundError."""
        try:
            yield
        except (OSError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and verb == "read":
                raise
            place = "/".join(filter(None, (self.where, name)))
            reason = getattr(error, "strerror", None) or first_line(error)
            raise InputError(f"cannot {verb} {place}: {reason}; correct this and try again") from error


def _append(path: Path, content: bytes) -> None:
    """Append `content` with one write, and sync the file to disk. An incomplete write on a full disk is undone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        before = file.tell()
        try:
            if file.write(content) != len(content):
                raise OSError(28, "No space left on device")
            os.fsync(file.fileno())
        except OSError:
            file.truncate(before)
            raise


def _opened(place: str) -> fs.SubTreeFileSystem:
    """Return the file system of a folder or URL. Paths in this file system are relative to the folder or URL."""
    if place.startswith("file://") and not place.startswith("file:///"):
        raise InputError(f"{place} names another machine; write a path such as /data/runs, or file:///data/runs")
    url = place if "://" in place else Path(place).absolute().as_uri()
    try:
        try:
            system, root = fs.FileSystem.from_uri(url)
        except (ValueError, OSError):
            import fsspec

            files, root = fsspec.core.url_to_fs(url)
            system = fs.PyFileSystem(fs.FSSpecHandler(files))
    except (ImportError, ValueError, OSError) as error:
        text = f"cannot open {url}: {first_line(error)}; pass a folder, or a URL that pyarrow or fsspec supports"
        raise InputError(text) from error
    return fs.SubTreeFileSystem(root, system)
