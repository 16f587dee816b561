"""`Store`: a folder of files, here or at a URL, whose files are either whole or absent."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from finpod.errors import InputError, first_line
from finpod.files import write_bytes

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo, FileSelector, FileSystem

READERS = 16
"""Parts of a file at a URL that are read at a time."""


class Store(Protocol):
    """What a tournament asks of its storage; names may hold slashes."""

    where: str
    """How messages call it."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file whole. Raises InputError, naming it, where it cannot be written."""

    def read(self, name: str) -> bytes:
        """The content of a file. Raises FileNotFoundError if there is none, InputError if it cannot be read."""

    def append(self, name: str, content: bytes) -> None:
        """Add to the end of a file, and return when it is on the disk."""

    def names(self, folder: str = "") -> list[str]:
        """Files in a folder, by their whole names, sorted; none if there is no such folder."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there. Raises InputError if it cannot be removed."""


class Place(Store, Protocol):
    """A store of several tournaments, each in a folder of its own."""

    def folders(self, prefix: str) -> list[str]:
        """Folders directly in this one whose names begin so, sorted."""

    def remove_folder(self, name: str) -> None:
        """Remove such a folder with all that is in it. Raises InputError if it cannot be removed."""


class LocalStore:
    """A folder on this machine, or on a file system mounted here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.where = str(folder)

    def write(self, name: str, content: bytes) -> None:
        """Written beside the target, then renamed."""
        write_bytes(self.folder / name, content)

    def read(self, name: str) -> bytes:
        """The bytes of the file."""
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError:
            raise
        except OSError as error:
            raise InputError(f"cannot read {self.folder / name}: {error.strerror or error}") from error

    def append(self, name: str, content: bytes) -> None:
        """One write at the end of the file, forced to the disk; what a full disk cut short is taken back."""
        path = self.folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab", buffering=0) as file:
                before = file.tell()
                try:
                    written = file.write(content)
                    if written != len(content):
                        raise OSError(28, "No space left on device")
                    os.fsync(file.fileno())
                except OSError:
                    file.truncate(before)
                    raise
        except OSError as error:
            raise InputError(f"cannot write {path}: {error.strerror or error}; free some space and resume") from error

    def names(self, folder: str = "") -> list[str]:
        """Files directly in the folder, hidden ones left out."""
        place = self.folder / folder
        if not place.is_dir():
            return []
        prefix = f"{folder}/" if folder else ""
        return sorted(prefix + one.name for one in place.iterdir() if one.is_file() and not one.name.startswith("."))

    def remove(self, name: str) -> None:
        """Unlink."""
        try:
            (self.folder / name).unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"cannot remove {self.folder / name}: {error.strerror or error}") from error

    def folders(self, prefix: str) -> list[str]:
        """Those on the disk."""
        return sorted(path.name for path in self.folder.glob(f"{prefix}*") if path.is_dir())

    def remove_folder(self, name: str) -> None:
        """From the bottom up."""
        try:
            shutil.rmtree(self.folder / name)
        except OSError as error:
            raise InputError(f"cannot remove {self.folder / name}: {error.strerror or error}") from error


class RemoteStore:
    """A folder of an object store or another file system that pyarrow or fsspec speaks.

    Objects appear whole. They cannot be appended to, so that each addition becomes an object of its own, and `read`
    joins them.
    """

    def __init__(self, system: FileSystem, root: str, where: str) -> None:
        self.system, self.root, self.where = system, root.rstrip("/"), where
        self._made: set[str] = set()  # folders that are there
        self._next: dict[str, int] = {}  # number of the next part of a file; nobody else adds to it

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def write(self, name: str, content: bytes) -> None:
        """One object."""
        path = self._path(name)
        folder = path.rsplit("/", 1)[0]
        try:
            if folder not in self._made:
                self.system.create_dir(folder, recursive=True)
                self._made.add(folder)
            with self.system.open_output_stream(path) as file:
                file.write(content)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot write {self.where}/{name}: {first_line(error)}") from error

    def read(self, name: str) -> bytes:
        """The object, if there is one, and all that was appended to it."""
        parts = self.names(f"{name}.parts")
        whole = [name] if not parts or name in self.names(name.rpartition("/")[0]) else []
        try:
            with ThreadPoolExecutor(READERS) as readers:  # a log may be thousands of parts
                return b"".join(readers.map(self._content, whole + parts))
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            raise InputError(f"cannot read {self.where}/{name}: {first_line(error)}") from error

    def append(self, name: str, content: bytes) -> None:
        """A part of its own, numbered by how many there are."""
        if name not in self._next:
            parts = self.names(f"{name}.parts")
            self._next[name] = int(parts[-1].rsplit("/", 1)[1]) + 1 if parts else 0
        self.write(f"{name}.parts/{self._next[name]:09}", content)
        self._next[name] += 1

    def _content(self, name: str) -> bytes:
        with self.system.open_input_stream(self._path(name)) as file:
            content: bytes = file.read()
        return content

    def names(self, folder: str = "") -> list[str]:
        """Objects directly under the folder."""
        from pyarrow.fs import FileSelector, FileType

        place = self._path(folder) if folder else self.root
        found = self._listed(FileSelector(place, allow_not_found=True))
        prefix = f"{folder}/" if folder else ""
        return sorted(prefix + one.base_name for one in found if one.type == FileType.File)

    def _listed(self, selector: FileSelector) -> list[FileInfo]:
        try:
            found: list[FileInfo] = self.system.get_file_info(selector)
        except (OSError, ValueError) as error:
            raise InputError(f"cannot list {self.where}: {first_line(error)}") from error
        return found

    def folders(self, prefix: str) -> list[str]:
        """Prefixes directly under the root."""
        from pyarrow.fs import FileSelector, FileType

        found = self._listed(FileSelector(self.root, allow_not_found=True))
        return sorted(
            one.base_name for one in found if one.type == FileType.Directory and one.base_name.startswith(prefix)
        )

    def remove_folder(self, name: str) -> None:
        """All objects under it."""
        try:
            self.system.delete_dir(self._path(name))
        except OSError as error:
            raise InputError(f"cannot remove {self.where}/{name}: {first_line(error)}") from error
        self._made.clear()
        self._next.clear()

    def remove(self, name: str) -> None:
        """Delete the object and its parts."""
        for path in (name, *self.names(f"{name}.parts")):
            try:
                self.system.delete_file(self._path(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                raise InputError(f"cannot remove {self.where}/{path}: {first_line(error)}") from error


def open_store(place: str | Path) -> Place:
    """A folder, or a URL such as s3://bucket/runs, gs://..., abfs://..., that pyarrow or fsspec can open.

    Raises InputError for a URL that neither knows or that cannot be reached.
    """
    text = str(place)
    if "://" not in text:
        return LocalStore(Path(place))
    if text.startswith("file://"):
        if not text.startswith("file:///"):
            raise InputError(
                f"{text} names no file of this machine; write file:/// and the whole path, or the path alone"
            )
        from urllib.parse import urlsplit
        from urllib.request import url2pathname

        return LocalStore(Path(url2pathname(urlsplit(text).path)))
    try:
        from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem

        try:
            system, root = FileSystem.from_uri(text)
        except (ValueError, OSError):
            import fsspec

            files, root = fsspec.core.url_to_fs(text)
            system = PyFileSystem(FSSpecHandler(files))
    except (ImportError, ValueError, OSError) as error:
        raise InputError(
            f"cannot open {text}: {first_line(error)}; give a folder, or a URL that pyarrow or fsspec knows"
        ) from error
    return RemoteStore(system, root, text if text.endswith("://") else text.rstrip("/"))
