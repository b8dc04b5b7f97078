"""Copy of a database, to read it without a change to its files.

Opening an SQLite database may write files next to it, and undoes an interrupted transaction in it.
So a database of a running node, or one with an interrupted transaction, is copied with its journal,
and the copy is opened. A copy that was made while the node wrote is made again: the files must be
unchanged before and after.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator

from millstream.errors import CorruptFile, StorageFailed
from millstream.metadata.sqlite_wal import WAL_SUFFIX

JOURNAL_SUFFIX = "-journal"

_SUFFIXES = ("", JOURNAL_SUFFIX, WAL_SUFFIX)
_TRIES_MAX = 100
"""How often the metadata may change while it is copied: far more than happens."""

_JOURNAL_HEADER = struct.Struct(">8s5I")
_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
"""A journal starts with it while a transaction is in progress; then the bytes are set to 0."""


@contextlib.contextmanager
def copied(path: str) -> Iterator[str]:
    """Copy a database, and yield the path of the copy, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="millstream-metadata-") as directory:
        copy = os.path.join(directory, os.path.basename(path))
        _copy(path, copy)
        yield copy


def has_hot_journal(path: str) -> bool:
    """Return whether the last transaction was interrupted: opening the database undoes it.

    Raises `CorruptFile` if that would extend the file, which no transaction has shortened.
    """
    try:
        with open(path + JOURNAL_SUFFIX, "rb") as journal:
            header = journal.read(_JOURNAL_HEADER.size)
    except FileNotFoundError:
        return False
    if not header.startswith(_JOURNAL_MAGIC):
        return False
    if len(header) == _JOURNAL_HEADER.size:
        _, _, _, pages, _, page_size = _JOURNAL_HEADER.unpack(header)
        if pages * page_size > (size := os.stat(path).st_size):
            raise CorruptFile(
                f"{path}{JOURNAL_SUFFIX}: the database had {pages} pages of {page_size} bytes,"
                f" but has only {size} bytes"
            )
    return True


def _copy(path: str, copy: str) -> None:
    for _ in range(_TRIES_MAX):
        before = _states(path)
        for suffix in _SUFFIXES:
            with contextlib.suppress(FileNotFoundError):
                os.remove(copy + suffix)
            with contextlib.suppress(FileNotFoundError):
                shutil.copyfile(path + suffix, copy + suffix)
        if _states(path) == before:
            return
    raise StorageFailed(f"{path} changed {_TRIES_MAX} times while it was copied")


def _states(path: str) -> list[tuple[int, int] | None]:
    """Return size and modification time of each file."""
    states: list[tuple[int, int] | None] = []
    for suffix in _SUFFIXES:
        try:
            state = os.stat(path + suffix)
        except FileNotFoundError:
            states.append(None)
        else:
            states.append((state.st_size, state.st_mtime_ns))
    return states
