"""Space that the metadata keeps, so that it can be changed on a full disk.

A topic is deleted, and its retention is lowered, by changes of metadata. On a full disk these must
work, or the disk stays full. So the database keeps free pages, and its journal keeps its size: both
are written over, which takes no space. While the disk is too full to restore the free pages, keys
can be changed and deleted; new ones are refused, so that they do not use up the reserve.
"""

from __future__ import annotations

import sqlite3

from millstream.storage.disk.filesystem import Filesystem, parent, write_all

PAGES_MIN = 16
"""Free pages that are kept: several times what one change needs."""

JOURNAL_BYTES = 128 * 1024
"""Size of the journal: the old content of some thirty pages."""

_CHUNK = bytes(64 * 1024)


def reserve_journal(filesystem: Filesystem, path: str) -> None:
    """Extend the journal to its size, durably. Bytes that it has are not changed.

    Raises `OSError` if there is no space for it.
    """
    try:
        file = filesystem.create(path)
    except FileExistsError:
        file = filesystem.open(path)
    try:
        if (size := file.size()) >= JOURNAL_BYTES:
            return
        while size < JOURNAL_BYTES:
            size = write_all(file, size, [_CHUNK[: JOURNAL_BYTES - size]])
        file.sync()
    finally:
        file.close()
    filesystem.sync_directory(parent(path))


def reserve_pages(connection: sqlite3.Connection) -> bool:
    """Restore the free pages of the database if necessary; return whether it has them.

    Not within a transaction.
    """
    if _free_pages(connection) >= PAGES_MIN:
        return True
    (page_size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute("CREATE TABLE filler (content BLOB)")
        # Twice as many, so that this is not necessary at each change.
        connection.execute("INSERT INTO filler VALUES (zeroblob(?))", (2 * PAGES_MIN * page_size,))
        connection.execute("DROP TABLE filler")
        connection.execute("COMMIT")
    except sqlite3.Error as error:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return False
        raise
    return True


def _free_pages(connection: sqlite3.Connection) -> int:
    count: int = connection.execute("PRAGMA freelist_count").fetchone()[0]
    return count
