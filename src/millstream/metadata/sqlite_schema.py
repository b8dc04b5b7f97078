"""The SQLite file of a lone node: its tables, its version, its sums.

    entries   key TEXT, value BLOB, revision INTEGER, crc32c INTEGER     one row per key
    tally     revision INTEGER, entries INTEGER, sums INTEGER            one row

SQLite notices a page that it cannot make sense of, and not a byte that became another byte. So each
row carries the sum of its key, revision and value, and the tally says how many rows there are
and what their sums come to, combined by exclusive or: a row that is damaged, lost, or back from an
older time is found when the file is opened.

The file says what it is by SQLite's `application_id` and its version by `user_version`.
"""

from __future__ import annotations

import contextlib
import sqlite3
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

APPLICATION_ID = 0x4D4C4C4D  # "MLLM"
SCHEMA_VERSION = 1

_PRIMARY_CODE = 0xFF  # The lower byte of SQLite's extended error codes.

_TABLES = (
    """CREATE TABLE entries (
           key TEXT PRIMARY KEY,
           value BLOB NOT NULL,
           revision INTEGER NOT NULL,
           crc32c INTEGER NOT NULL
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


@dataclass(slots=True)
class EntryTotals:
    """What all entries come to."""

    revision: int
    """That of the last transaction, whether or not anything of it is left."""
    entries: int = 0
    sums: int = 0

    def add(self, entry: MetadataEntry) -> None:
        """Count an entry that was put."""
        self.entries += 1
        self.sums ^= entry_checksum(entry)

    def remove(self, entry: MetadataEntry) -> None:
        """Count an entry that was replaced or deleted."""
        self.entries -= 1
        self.sums ^= entry_checksum(entry)


def entry_checksum(entry: MetadataEntry) -> int:
    """Return the sum that is kept beside an entry."""
    return crc32c(b"%s\0%d\0%s" % (entry.key.encode(), entry.revision, entry.value))


def open_connection(path: str) -> sqlite3.Connection:
    """Open the file, which must exist and may be empty; every commit is synced.

    It is looked at first by a connection that can only read, so that a file which we do not
    know, or which is damaged, stays as it is.
    """
    with contextlib.closing(sqlite3.connect(f"file:{quote(path)}?mode=ro", uri=True)) as reading:
        is_new = check_format(reading, path)
        if not is_new:
            check_integrity(reading, path)
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # Where fsync alone does not reach the disk.
        if is_new:
            create_tables(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def check_format(connection: sqlite3.Connection, path: str) -> bool:
    """Return whether the file is new; raise `UnknownFormat` if it is neither that nor ours."""
    version = _number(connection, "PRAGMA user_version")
    application = _number(connection, "PRAGMA application_id")
    is_empty = not connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    if (application, version) == (0, 0) and is_empty:
        return True
    if application != APPLICATION_ID:
        raise UnknownFormat(f"{path}: a database of another program (application id {application})")
    if version != SCHEMA_VERSION:
        raise UnknownFormat(f"{path}: found version {version}, known is {SCHEMA_VERSION}")
    return False


def create_tables(connection: sqlite3.Connection) -> None:
    """Make the tables of a new file, all at once."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute("COMMIT")


def check_integrity(connection: sqlite3.Connection, path: str) -> None:
    """Raise `CorruptFile` unless every entry is what was put, and none is missing."""
    found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise CorruptFile(f"{path}: {found}")
    wanted = read_totals(connection, path)
    tally = EntryTotals(wanted.revision)
    for row in connection.execute("SELECT key, value, revision, crc32c FROM entries"):
        tally.add(checked_entry(row, path))
    if tally != wanted:
        raise CorruptFile(
            f"{path}: {tally.entries} entries sum to {tally.sums:08x},"
            f" {wanted.entries} that sum to {wanted.sums:08x} were kept"
        )


def read_totals(connection: sqlite3.Connection, path: str) -> EntryTotals:
    """Return what the file says that its entries come to."""
    row = connection.execute("SELECT revision, entries, sums FROM tally").fetchone()
    if row is None or not all(isinstance(number, int) for number in row):
        raise CorruptFile(f"{path}: its tally is {row!r}")
    return EntryTotals(*row)


def write_totals(connection: sqlite3.Connection, tally: EntryTotals) -> None:
    """Replace what the file says that its entries come to."""
    connection.execute(
        "UPDATE tally SET revision = ?, entries = ?, sums = ?",
        (tally.revision, tally.entries, tally.sums),
    )


def checked_entry(row: tuple[object, ...], path: str) -> MetadataEntry:
    """Return the entry of a row, once its sum was checked."""
    key, value, revision, written_sum = row
    if not (isinstance(key, str) and isinstance(value, bytes) and isinstance(revision, int)):
        raise CorruptFile(f"{path}: the row of {key!r} is not as we write it")
    entry = MetadataEntry(key, value, revision)
    if (found := entry_checksum(entry)) != written_sum:
        raise CorruptFile(f"{path}: {key} sums to {found:08x}, its row says {written_sum!r}")
    return entry


def translate(error: sqlite3.Error, path: str) -> MillstreamError:
    """Return what an error of SQLite is called here."""
    match getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY_CODE:
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return CorruptFile(f"{path}: {error}")
        case sqlite3.SQLITE_FULL:
            return DiskFull(f"{path}: {error}")
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return Unavailable(f"{path}: another program has it: {error}")
        case _:
            return StorageFailed(f"{path}: {error}")


def _number(connection: sqlite3.Connection, query: str) -> int:
    found: int = connection.execute(query).fetchone()[0]
    return found
