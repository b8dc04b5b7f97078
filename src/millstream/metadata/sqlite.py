"""Metadata store of a single node, in one SQLite file.

One connection, used by one thread: calls queue up there and take effect in that order. Every
transaction is synced before it is acknowledged (write-ahead log, `synchronous=FULL`).
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from millstream.errors import MillstreamError, StorageFailed
from millstream.metadata.interface import (
    ABSENT,
    Compare,
    MetadataChange,
    MetadataEntry,
    check_transaction,
)
from millstream.metadata.sqlite_schema import (
    checked_entry,
    entry_checksum,
    open_connection,
    read_totals,
    translate,
    write_totals,
)
from millstream.storage.disk.executor import Executor, ThreadExecutor
from millstream.storage.disk.filesystem import OsFilesystem, parent

T = TypeVar("T")

AFTER_ALL_KEYS = "\x7f"
"""Sorts after every character that a key may have."""

_SELECT = "SELECT key, value, revision, crc32c FROM entries"


class SqliteMetadata:
    """Metadata in a file that only this process uses; it is created if it does not exist."""

    def __init__(self, path: str, *, background: Executor | None = None) -> None:
        self.path = path
        self._background = background or ThreadExecutor(1, name="millstream-metadata")
        self._connection: sqlite3.Connection | None = None
        self._failed: StorageFailed | None = None
        self._watches: list[_Watch] = []
        self._is_closed = False

    # Opening and closing.

    async def open(self) -> None:
        """Open the file and check all of it.

        A file of an unknown version raises `UnknownFormat` and is not changed; a damaged one raises
        `CorruptFile`.
        """
        try:
            await self._background.run(self._open)
        except MillstreamError:
            await self.close()
            raise

    def _open(self) -> None:
        try:
            _make_file(self.path)
            self._connection = open_connection(self.path)
        except sqlite3.Error as error:
            raise translate(error, self.path) from error
        except OSError as error:
            raise StorageFailed(f"{self.path} cannot be opened: {error}") from error

    async def close(self) -> None:
        """Close the file, after all calls in flight."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._connection is not None:
            await self._background.run(self._connection.close)
        self._background.close()
        self._watches.clear()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def failure(self) -> StorageFailed | None:
        """The error after which no changes are accepted until the store is opened again."""
        return self._failed

    # Reading.

    async def get(self, key: str) -> MetadataEntry | None:
        """Return the entry of `key`; `None` if there is none."""
        return await self._run(partial(self._get, key))

    def _get(self, key: str) -> MetadataEntry | None:
        row = self._execute(f"{_SELECT} WHERE key = ?", key).fetchone()
        return checked_entry(row, self.path) if row else None

    async def list(self, prefix: str) -> Sequence[MetadataEntry]:
        """Return all entries whose keys start with `prefix`, sorted by key."""
        return await self._run(partial(self._list, prefix))

    def _list(self, prefix: str) -> Sequence[MetadataEntry]:
        rows = self._execute(
            f"{_SELECT} WHERE key >= ? AND key < ? ORDER BY key", prefix, prefix + AFTER_ALL_KEYS
        )
        return [checked_entry(row, self.path) for row in rows]

    # Changing.

    async def transact(
        self,
        *,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Collection[str] = (),
    ) -> int | None:
        """Put and delete all of these, or none; `None` if one of `compares` does not hold."""
        puts = dict(puts or {})
        deletes = frozenset(deletes)
        check_transaction(puts, deletes)
        loop = asyncio.get_running_loop()
        work = partial(self._transact, tuple(compares), puts, deletes, loop)
        return await self._run(work, is_change=True)

    def _transact(
        self,
        compares: Sequence[Compare],
        puts: Mapping[str, bytes],
        deletes: Collection[str],
        loop: asyncio.AbstractEventLoop,
    ) -> int | None:
        self._execute("BEGIN IMMEDIATE")
        try:
            if any(self._revision(key) != revision for key, revision in compares):
                self._execute("ROLLBACK")
                return None
            changes, revision = self._apply(puts, deletes)
            self._execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        # From this thread, so that watchers are called even if the caller was cancelled, and
        # before the caller resumes.
        loop.call_soon_threadsafe(self._notify, changes)
        return revision

    def _apply(
        self, puts: Mapping[str, bytes], deletes: Collection[str]
    ) -> tuple[Sequence[MetadataChange], int]:
        """Make the changes within a transaction; return them, and their revision."""
        totals = read_totals(self._connected(), self.path)
        totals.revision += 1
        changes = []
        for key in sorted({*puts, *deletes}):
            old, value = self._get(key), puts.get(key)
            if old is not None:
                totals.remove(old)
            if value is not None:
                entry = MetadataEntry(key, value, totals.revision)
                totals.add(entry)
                self._execute(
                    "REPLACE INTO entries VALUES (?, ?, ?, ?)", *entry, entry_checksum(entry)
                )
            else:
                self._execute("DELETE FROM entries WHERE key = ?", key)
            if old is not None or value is not None:
                changes.append(MetadataChange(key, value, totals.revision))
        write_totals(self._connected(), totals)
        return changes, totals.revision

    def _revision(self, key: str) -> int:
        entry = self._get(key)
        return entry.revision if entry else ABSENT

    def _roll_back(self) -> None:
        connection = self._connected()
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # The error before it is the one to report.
                connection.execute("ROLLBACK")

    # Watching.

    def watch(self, prefix: str, callback: Callable[[MetadataChange], None]) -> _Watch:
        """Call back on the loop for each later change whose key starts with `prefix`."""
        watch = _Watch(prefix, callback)
        self._watches.append(watch)
        return watch

    def _notify(self, changes: Sequence[MetadataChange]) -> None:
        self._watches = [watch for watch in self._watches if not watch.is_cancelled]
        for watch in list(self._watches):
            for change in changes:
                watch.notify(change)

    # The worker thread.

    async def _run(self, work: Callable[[], T], *, is_change: bool = False) -> T:
        if self._is_closed:
            raise StorageFailed(f"{self.path} is closed")
        return await self._background.run(partial(self._translated, work, is_change=is_change))

    def _translated(self, work: Callable[[], T], *, is_change: bool) -> T:
        if is_change and self._failed is not None:
            raise StorageFailed(f"{self.path} accepts no changes: {self._failed}")
        try:
            return work()
        except sqlite3.Error as error:
            translated = translate(error, self.path)
            if is_change and isinstance(translated, StorageFailed):
                self._failed = translated  # After a failed sync the content of the disk is unknown.
            raise translated from error

    def _execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._connected().execute(statement, values)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StorageFailed(f"{self.path} is not open")
        return self._connection


class _Watch:
    """A subscription to changes."""

    def __init__(self, prefix: str, callback: Callable[[MetadataChange], None]) -> None:
        self.is_cancelled = False
        self._prefix = prefix
        self._callback = callback

    def cancel(self) -> None:
        self.is_cancelled = True

    def notify(self, change: MetadataChange) -> None:
        if not self.is_cancelled and change.key.startswith(self._prefix):
            self._callback(change)


def _make_file(path: str) -> None:
    """Create the file with access for its owner only, which SQLite's other files inherit."""
    filesystem = OsFilesystem()
    try:
        filesystem.create(path).close()
    except FileExistsError:
        return
    filesystem.sync_directory(parent(path))
