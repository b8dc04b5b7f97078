"""Cold stores: named objects of bytes, behind one interface.

    tier.store = "/mnt/archive"         a local directory, which may be a mounted one
    tier.store = "s3://bucket/prefix"   an object store, through `pyarrow.fs`

Nothing is assumed of a store but this: what `read` returns may be wrong, short or late. The
reader checks it. Methods block, raise `OSError`, and may be called from any thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from millstream.errors import InvalidConfig
from millstream.storage.disk.filesystem import Filesystem, OsFilesystem, join, parent, write_all
from millstream.storage.files.names import TEMPORARY_SUFFIX


class ColdStore(Protocol):
    """A place for objects. An object is written once, under a name that was never used before."""

    @property
    def uri(self) -> str:
        """The store in messages and markers."""
        ...

    def put(self, key: str, pieces: Iterable[bytes]) -> str:
        """Write an object, durably; return its version as the store names it, or nothing."""
        ...

    def read(self, key: str, start: int, size: int) -> bytes:
        """Return bytes of an object; fewer at its end. Raise `FileNotFoundError` if it is gone."""
        ...

    def size(self, key: str) -> int:
        """Return the size of an object; raise `FileNotFoundError` if it does not exist."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object; do nothing if it does not exist."""
        ...

    def list(self, prefix: str) -> Iterator[str]:
        """Yield the keys that begin with a prefix, which ends in a slash."""
        ...


class DirectoryStore:
    """Objects as files of a directory."""

    def __init__(self, path: str, filesystem: Filesystem | None = None) -> None:
        self._path = path.rstrip("/") or "/"
        self._filesystem = filesystem or OsFilesystem()

    @property
    def uri(self) -> str:
        return self._path

    def put(self, key: str, pieces: Iterable[bytes]) -> str:
        filesystem, path = self._filesystem, join(self._path, key)
        self._make_directory(parent(path))
        temporary = path + TEMPORARY_SUFFIX
        with contextlib.suppress(FileNotFoundError):
            filesystem.remove(temporary)
        file = filesystem.create(temporary)
        try:
            position = 0
            for piece in pieces:
                position = write_all(file, position, [piece])
            file.sync()
        finally:
            file.close()
        filesystem.rename(temporary, path)
        filesystem.sync_directory(parent(path))
        return ""

    def _make_directory(self, path: str) -> None:
        """Create a directory and those above it, down from that of the store, durably."""
        if path == self._path or len(path) <= len(self._path):
            return
        self._make_directory(parent(path))
        self._filesystem.make_directory(path)
        self._filesystem.sync_directory(parent(path))

    def read(self, key: str, start: int, size: int) -> bytes:
        file = self._filesystem.open_readonly(join(self._path, key))
        try:
            return file.read_at(start, size)
        finally:
            file.close()

    def size(self, key: str) -> int:
        return self._filesystem.size(join(self._path, key))

    def delete(self, key: str) -> None:
        path = join(self._path, key)
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.remove(path)
            self._filesystem.sync_directory(parent(path))

    def list(self, prefix: str) -> Iterator[str]:
        return self._list(prefix.rstrip("/"))

    def _list(self, key: str) -> Iterator[str]:
        for name in self._filesystem.list(join(self._path, key)):
            below = f"{key}/{name}"
            try:
                self._filesystem.list(join(self._path, below))
            except NotADirectoryError:
                yield below
            else:
                yield from self._list(below)


class StoreAddress(NamedTuple):
    """A store as it was configured."""

    scheme: str
    """Empty for a local directory."""
    path: str


SCHEMES = ("s3", "gs", "gcs", "abfs", "abfss", "hdfs", "viewfs")
"""What `pyarrow.fs` opens."""


def parse_address(text: str) -> StoreAddress:
    """Parse the value of `tier.store`; raise `InvalidConfig`."""
    scheme, found, rest = text.partition("://")
    if not found:
        scheme, rest = "", text
    if scheme == "file":
        scheme = ""
    allowed = "a path of a directory that begins with /, or a URI of " + ", ".join(SCHEMES)
    if scheme not in ("", *SCHEMES) or not rest or (not scheme and not rest.startswith("/")):
        raise InvalidConfig(f"tier.store must be {allowed}, got {text!r}")
    return StoreAddress(scheme, rest)


def open_cold_store(text: str, filesystem: Filesystem | None = None) -> ColdStore:
    """Return the store at an address. Nothing is connected yet."""
    address = parse_address(text)
    if not address.scheme:
        return DirectoryStore(address.path, filesystem)
    from millstream.storage.tier.arrow_store import ArrowStore  # noqa: PLC0415 - an extra.

    return ArrowStore(text)
