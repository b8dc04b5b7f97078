"""Metadata store of a single node, in one SQLite file.

One connection, used by one thread: calls queue up there and take effect in that order. Every
transaction is synced before it is acknowledged (rollback journal, `synchronous=EXTRA`), and its
revision is recorded in the checkpoint beside the file. A file that is older than that, or gone, is
refused when it is opened: topics, quotas and producer ids must not go back to an older state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Self, TypeVar

from millstream.clock import Clock, SystemClock
from millstream.errors import CorruptFile, DiskFull, MillstreamError, StorageFailed
from millstream.metadata.counters import MetadataCall, MetadataCounters
from millstream.metadata.interface import (
    Condition,
    MetadataChange,
    MetadataEntry,
    MetadataList,
    Watch,
    check_transaction,
)
from millstream.metadata.metadata_checkpoint import (
    CHECKPOINT_SUFFIX,
    MetadataCheckpoint,
    RevisionRecord,
    check_digest,
    file_digest,
)
from millstream.metadata.sqlite_copy import JOURNAL_SUFFIX
from millstream.metadata.sqlite_reserve import reserve_journal, reserve_pages
from millstream.metadata.sqlite_schema import (
    checked_entry,
    entry_checksum,
    open_connection,
    read_revision,
    read_totals,
    translate,
    write_totals,
)
from millstream.metadata.sqlite_wal import check_wal_of
from millstream.metadata.watches import Watches
from millstream.storage.disk.executor import Executor, ThreadExecutor
from millstream.storage.disk.filesystem import Filesystem, OsFilesystem, parent

logger = logging.getLogger(__name__)

T = TypeVar("T")

AFTER_ALL_KEYS = "\x7f"
"""Sorts after every character that a key may have."""

LOSS_ADVICE = (
    "restore the newest copy, or start once with topics.adopt = true to continue with what is left"
)

_SELECT = "SELECT key, value, revision, crc32c, created FROM entries"


class SqliteMetadata:
    """Metadata in a file that only this process uses; it is created if it does not exist.

    It must exist if there is a checkpoint beside it, or if the caller knows that it did
    (`must_exist`). `is_loss_accepted` opens what is there all the same, and records its revision:
    the decision of an operator who has nothing newer.
    """

    def __init__(
        self,
        path: str,
        *,
        background: Executor | None = None,
        must_exist: bool = False,
        is_loss_accepted: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.path = path
        self.counters = MetadataCounters()
        self._clock = clock or SystemClock()
        self._background = background or ThreadExecutor(1, name="millstream-metadata")
        self._must_exist = must_exist
        self._is_loss_accepted = is_loss_accepted
        self._filesystem = OsFilesystem()
        self._checkpoint = MetadataCheckpoint(self._filesystem, path + CHECKPOINT_SUFFIX)
        self._connection: sqlite3.Connection | None = None
        self._revision = 0
        self._has_reserve = False
        self._failed: StorageFailed | None = None
        self._watches = Watches()
        self._is_closed = False

    # Opening and closing.

    async def open(self) -> None:
        """Open the file and check all of it.

        A file of an unknown version raises `UnknownFormat` and is not changed; one that is damaged,
        missing, or older than the last change raises `CorruptFile`.
        """
        try:
            await self._background.run(self._open)
        except MillstreamError:
            await self.close()
            raise

    def _open(self) -> None:
        try:
            recorded = None if self._is_loss_accepted else self._checkpoint.read()
            if _size(self._filesystem, self.path) == 0:
                self._check_may_be_new(recorded)
                _make_file(self._filesystem, self.path)
            else:
                self._check_file(recorded)
            self._connection = open_connection(self.path)
            self._revision = read_totals(self._connection, self.path).revision
            self._checkpoint.start(self._revision, recorded)
            self._reserve_journal()
            self._has_reserve = reserve_pages(self._connection)
        except sqlite3.Error as error:
            raise translate(error, self.path) from error
        except OSError as error:
            raise StorageFailed(f"{self.path} cannot be opened: {error}") from error

    def _check_may_be_new(self, recorded: RevisionRecord | None) -> None:
        """Raise `CorruptFile` if there was a file, before an empty one takes its place."""
        if recorded is not None and recorded.revision > 0:
            what = f"{self._checkpoint.path} records revision {recorded.revision}"
        elif self._must_exist and not self._is_loss_accepted:
            what = "the node has state that depends on it"
        else:
            return
        raise CorruptFile(f"{self.path} is missing or empty, but {what}; {LOSS_ADVICE}")

    def _check_file(self, recorded: RevisionRecord | None) -> None:
        """Raise `CorruptFile` unless the file is intact and up to date. Does not change it."""
        if not self._is_loss_accepted:
            check_wal_of(self._filesystem, self.path)
        revision = read_revision(self.path)
        if recorded is None:
            return
        if revision < recorded.revision:
            raise CorruptFile(
                f"{self.path} has revision {revision}, but {self._checkpoint.path} records"
                f" revision {recorded.revision}: later changes are lost; {LOSS_ADVICE}"
            )
        if recorded.closed is not None:
            check_digest(self._filesystem, self.path, recorded.closed)

    def _reserve_journal(self) -> None:
        try:
            reserve_journal(self._filesystem, self.path + JOURNAL_SUFFIX)
        except OSError as error:
            logger.warning("%s: no space is reserved for changes: %s", self.path, error)

    async def close(self) -> None:
        """Close the file, after all calls in flight."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._connection is not None:
            await self._background.run(self._close)
        self._background.close()
        self._watches.clear()

    def _close(self) -> None:
        """Close the file, and record its digest if all changes are in it."""
        self._connected().close()
        try:
            if self._failed is None and self._checkpoint.is_open:
                digest = file_digest(self._filesystem, self.path)
                self._checkpoint.finish(self._revision, digest)
        except OSError as error:  # The next start opens it as after a crash.
            logger.warning("%s: cannot be recorded as closed: %s", self.path, error)
        finally:
            self._checkpoint.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def failure(self) -> StorageFailed | None:
        """The error after which no changes are accepted until the store is opened again."""
        return self._failed

    @property
    def revision(self) -> int:
        """The revision of the last change."""
        return self._revision

    # Reading.

    async def get(self, key: str) -> MetadataEntry | None:
        """Return the entry of `key`; `None` if there is none."""
        return await self._measure("get", self._run(partial(self._get, key)))

    def _get(self, key: str) -> MetadataEntry | None:
        row = self._execute(f"{_SELECT} WHERE key = ?", key).fetchone()
        return checked_entry(row, self.path) if row else None

    async def list(self, prefix: str) -> MetadataList:
        """Return all entries whose keys start with `prefix`, sorted by key."""
        return await self._measure("list", self._run(partial(self._list, prefix)))

    def _list(self, prefix: str) -> MetadataList:
        rows = self._execute(
            f"{_SELECT} WHERE key >= ? AND key < ? ORDER BY key", prefix, prefix + AFTER_ALL_KEYS
        )
        return MetadataList([checked_entry(row, self.path) for row in rows], self._revision)

    # Changing.

    async def transact(
        self,
        *,
        compares: Sequence[Condition] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Collection[str] = (),
    ) -> int | None:
        """Put and delete all of these, or none; `None` if one of `compares` does not hold."""
        puts = dict(puts or {})
        deletes = frozenset(deletes)
        check_transaction(puts, deletes)
        loop = asyncio.get_running_loop()
        work = partial(self._transact, tuple(compares), puts, deletes, loop)
        return await self._measure("transact", self._run(work, is_change=True))

    def _transact(
        self,
        compares: Sequence[Condition],
        puts: Mapping[str, bytes],
        deletes: Collection[str],
        loop: asyncio.AbstractEventLoop,
    ) -> int | None:
        self._has_reserve = reserve_pages(self._connected())
        self._execute("BEGIN IMMEDIATE")
        try:
            if not all(compare.holds(self._get(compare.key)) for compare in compares):
                self._execute("ROLLBACK")
                return None
            changes, revision = self._apply(puts, deletes)
            self._execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self._revision = revision
        self._checkpoint.write(revision)
        # From this thread, so that watchers are called even if the caller was cancelled, and
        # before the caller resumes.
        loop.call_soon_threadsafe(self._watches.notify, changes)
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
            elif value is not None and not self._has_reserve:
                raise DiskFull(f"{self.path}: the disk is full, so {key} cannot be created")
            if value is not None:
                created = totals.revision if old is None else old.created
                entry = MetadataEntry(key, value, totals.revision, created)
                totals.add(entry)
                self._execute(
                    "REPLACE INTO entries (key, value, revision, created, crc32c)"
                    " VALUES (?, ?, ?, ?, ?)",
                    *entry,
                    entry_checksum(entry),
                )
            else:
                self._execute("DELETE FROM entries WHERE key = ?", key)
            if old is not None or value is not None:
                changes.append(MetadataChange(key, value, totals.revision))
        write_totals(self._connected(), totals)
        return changes, totals.revision

    def _roll_back(self) -> None:
        connection = self._connected()
        if connection.in_transaction:
            with contextlib.suppress(sqlite3.Error):  # The error before it is the one to report.
                connection.execute("ROLLBACK")

    # Watching.

    def watch(self, prefix: str, callback: Callable[[MetadataChange], None]) -> Watch:
        """Call back on the loop for each later change whose key starts with `prefix`."""
        return self._watches.add(prefix, callback)

    # The worker thread.

    def _measure(self, call: MetadataCall, work: Awaitable[T]) -> Awaitable[T]:
        return self.counters.measure(call, self._clock, work)

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
        except OSError as error:
            translated = StorageFailed(f"{self._checkpoint.path}: {error}")
            if is_change:
                self._failed = translated
            raise translated from error

    def _execute(self, statement: str, *values: object) -> sqlite3.Cursor:
        return self._connected().execute(statement, values)

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StorageFailed(f"{self.path} is not open")
        return self._connection


def _make_file(filesystem: Filesystem, path: str) -> None:
    """Create the file with access for its owner only, which SQLite's other files inherit."""
    with contextlib.suppress(FileExistsError):
        filesystem.create(path).close()
    filesystem.sync_directory(parent(path))


def _size(filesystem: Filesystem, path: str) -> int:
    try:
        return filesystem.size(path)
    except FileNotFoundError:
        return 0
