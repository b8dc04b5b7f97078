"""Topics in the metadata of a data directory, read while a node may be running.

Opening an SQLite database writes files next to it. So the database is copied first, with its
write-ahead log, and the copy is opened. A copy that was made while the node wrote is made again:
the files must be unchanged before and after.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile

from millstream.broker.broker import METADATA_FILE
from millstream.broker.topics.topic import TOPICS_PREFIX, TopicRow, decode_row
from millstream.errors import StorageFailed
from millstream.metadata.sqlite_schema import (
    check_format,
    check_integrity,
    checked_entry,
    translate,
)

_SUFFIXES = ("", "-wal")
_TRIES_MAX = 100
"""How often the metadata may change while it is copied: far more than happens."""


def topics_on_disk(data: str) -> dict[str, TopicRow] | None:
    """Return the topics by name; `None` if there is no metadata.

    A directory that only an embedded store has written has none.
    """
    path = os.path.join(data, METADATA_FILE)
    if not os.path.exists(path):
        return None
    with tempfile.TemporaryDirectory(prefix="millstream-verify-") as directory:
        copy = os.path.join(directory, METADATA_FILE)
        _copy(path, copy)
        try:
            return _read(copy)
        except sqlite3.Error as error:
            raise translate(error, path) from error


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


def _read(path: str) -> dict[str, TopicRow]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        if check_format(connection, path):
            return {}
        check_integrity(connection, path)
        rows = connection.execute(
            "SELECT key, value, revision, crc32c FROM entries WHERE key LIKE ?",
            (TOPICS_PREFIX + "%",),
        )
        topics = dict(decode_row(checked_entry(row, path)) for row in rows)
    return {name: row for name, row in topics.items() if row.state == "live"}
