"""SQLite file of a single node: tables, version, checksums.

    entries   key TEXT, value BLOB, revision INTEGER, crc32c INTEGER, created INTEGER   one per key
    tally     revision INTEGER, entries INTEGER, sums INTEGER                           one row

SQLite detects a malformed page, but not a byte that changed. So each row has the checksum of its
key, revisions and value, and the tally has the number of rows and the exclusive or of their
checksums: a row that is damaged, lost, or back from an older state is found when the file is
opened.

The file is identified by SQLite's `application_id`, and its version is in `user_version`. Version 1
had a write-ahead log, of which SQLite drops everything from the first damaged frame on, without an
error. Version 2 has a rollback journal: after a commit all changes are in the file itself, where
the checksums cover them. Version 3 has the column `created`; in rows of older versions it is 0, and
their keys count as created at their last change. Opening an older file converts it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import quote

from crc32c import crc32c

from millstream.errors import (
    CorruptFile,
    DiskFull,
    MillstreamError,
    StorageFailed,
    Unavailable,
    UnknownFormat,
)
from millstream.metadata.interface import MetadataEntry
from millstream.metadata.sqlite_copy import copied, has_hot_journal

APPLICATION_ID = 0x4D4C4C4D  # "MLLM"
SCHEMA_VERSION = 3

_PRIMARY_CODE = 0xFF  # The lower byte of SQLite's extended error codes.

_TABLES = (
    """CREATE TABLE entries (
           key TEXT PRIMARY KEY,
           value BLOB NOT NULL,
           revision INTEGER NOT NULL,
           crc32c INTEGER NOT NULL,
           created INTEGER NOT NULL DEFAULT 0
       ) WITHOUT ROWID""",
    """CREATE TABLE tally (
           one INTEGER PRIMARY KEY CHECK (one = 1),
           revision INTEGER NOT NULL,
           entries INTEGER NOT NULL,
           sums INTEGER NOT NULL
       )""",
    "INSERT INTO tally VALUES (1, 0, 0, 0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

_ROWS = "SELECT key, value, revision, crc32c, created FROM entries"
_ROWS_BEFORE_CREATED = "SELECT key, value, revision, crc32c, 0 FROM entries"


@dataclass(slots=True)
class EntryTotals:
    """Totals of all entries: the row of the tally."""

    revision: int
    """Revision of the last transaction, even if none of its entries is left."""
    entries: int = 0
    checksum: int = 0

    def add(self, entry: MetadataEntry) -> None:
        """Count an entry that was put."""
        self.entries += 1
        self.checksum ^= entry_checksum(entry)

    def remove(self, entry: MetadataEntry) -> None:
        """Count an entry that was replaced or deleted."""
        self.entries -= 1
        self.checksum ^= entry_checksum(entry)


def entry_checksum(entry: MetadataEntry) -> int:
    """Return the checksum of an entry.

    The creation is part of it only if the key was put again since: so the checksums of rows that
    were written before there was a `created` stay valid.
    """
    created = b"" if entry.created == entry.revision else b"%d\0" % entry.created
    return crc32c(b"%s\0%d\0%s%s" % (entry.key.encode(), entry.revision, created, entry.value))


def read_revision(path: str) -> int:
    """Check all of a file and return its revision; 0 if nothing was ever written to it.

    The file is not changed: an interrupted transaction is undone in a copy.
    """
    if has_hot_journal(path):
        with copied(path) as copy:
            return _read_revision(copy, path, mode="rw")
    return _read_revision(path, path, mode="ro")


def _read_revision(file: str, path: str, *, mode: str) -> int:
    with closing(sqlite3.connect(f"file:{quote(file)}?mode={mode}", uri=True)) as connection:
        if check_format(connection, path):
            return 0
        check_integrity(connection, path)
        return read_totals(connection, path).revision


def open_connection(path: str) -> sqlite3.Connection:
    """Open a file that was checked, or is empty; every commit is synced."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        is_new = check_format(connection, path)
        # The journal stays, so that a change needs no space for it on a full disk.
        (mode,) = connection.execute("PRAGMA journal_mode = PERSIST").fetchone()
        if mode != "persist":
            raise Unavailable(f"{path}: locked by another program: its journal mode is {mode}")
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("PRAGMA fullfsync = ON")  # Where fsync alone does not reach the disk.
        connection.execute("PRAGMA temp_store = MEMORY")
        if is_new:
            create_tables(connection)
        else:
            convert(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def check_format(connection: sqlite3.Connection, path: str) -> bool:
    """Return whether the file is new; raise `UnknownFormat` if it is neither new nor ours."""
    version = _number(connection, "PRAGMA user_version")
    application = _number(connection, "PRAGMA application_id")
    is_empty = not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    if (application, version) == (0, 0) and is_empty:
        return True
    if application != APPLICATION_ID:
        raise UnknownFormat(f"{path}: a database of another program (application id {application})")
    if version not in range(1, SCHEMA_VERSION + 1):
        raise UnknownFormat(
            f"{path}: version must be between 1 and {SCHEMA_VERSION}, got {version}"
        )
    return False


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables of a new file in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute("COMMIT")


def convert(connection: sqlite3.Connection) -> None:
    """Convert a file of an older version in one transaction; rows are not rewritten."""
    if _number(connection, "PRAGMA user_version") == SCHEMA_VERSION:
        return
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("ALTER TABLE entries ADD COLUMN created INTEGER NOT NULL DEFAULT 0")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")


def check_integrity(connection: sqlite3.Connection, path: str) -> None:
    """Raise `CorruptFile` unless all entries are present and intact."""
    result = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if result != "ok":
        raise CorruptFile(f"{path}: {result}")
    expected = read_totals(connection, path)
    totals = EntryTotals(expected.revision)
    for entry in read_entries(connection, path):
        totals.add(entry)
    if totals != expected:
        raise CorruptFile(
            f"{path}: {expected.entries} entries with checksum {expected.checksum:08x} must exist,"
            f" got {totals.entries} with {totals.checksum:08x}"
        )


def read_entries(connection: sqlite3.Connection, path: str) -> Iterator[MetadataEntry]:
    """Yield all entries of a file of any version, in no particular order."""
    has_created = _number(connection, "PRAGMA user_version") == SCHEMA_VERSION
    for row in connection.execute(_ROWS if has_created else _ROWS_BEFORE_CREATED):
        yield checked_entry(row, path)


def read_totals(connection: sqlite3.Connection, path: str) -> EntryTotals:
    """Return the totals that the file has."""
    row = connection.execute("SELECT revision, entries, sums FROM tally").fetchone()
    if row is None or not all(isinstance(number, int) for number in row):
        raise CorruptFile(f"{path}: the tally must have three numbers, got {row!r}")
    return EntryTotals(*row)


def write_totals(connection: sqlite3.Connection, totals: EntryTotals) -> None:
    """Replace the totals of the file."""
    connection.execute(
        "UPDATE tally SET revision = ?, entries = ?, sums = ?",
        (totals.revision, totals.entries, totals.checksum),
    )


def checked_entry(row: tuple[object, ...], path: str) -> MetadataEntry:
    """Return the entry of a row, after a check of its checksum."""
    key, value, revision, stored, created = row
    if not (
        isinstance(key, str)
        and isinstance(value, bytes)
        and isinstance(revision, int)
        and isinstance(created, int)
    ):
        raise CorruptFile(f"{path}: the row of {key!r} has columns of wrong types")
    entry = MetadataEntry(key, value, revision, created or revision)
    if (computed := entry_checksum(entry)) != stored:
        raise CorruptFile(f"{path}: checksum of {key} is {computed:08x}, its row says {stored!r}")
    return entry


def translate(error: sqlite3.Error, path: str) -> MillstreamError:
    """Convert an error of SQLite to ours."""
    match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY_CODE:
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return CorruptFile(f"{path}: {error}")
        case sqlite3.SQLITE_FULL:
            return DiskFull(f"{path}: {error}")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Unavailable(f"{path}: locked by another program: {error}")
        case _:
            return StorageFailed(f"{path}: {error}")


def _number(connection: sqlite3.Connection, query: str) -> int:
    result: int = connection.execute(query).fetchone()[0]
    return result
