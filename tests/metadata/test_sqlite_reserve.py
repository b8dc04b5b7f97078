"""Space that is kept for changes of metadata on a full disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import DiskFull
from millstream.metadata.sqlite import SqliteMetadata
from millstream.metadata.sqlite_reserve import JOURNAL_BYTES, PAGES_MIN
from tests.in_loop import in_loop
from tests.metadata.sqlite_files import opened


def limit_pages(metadata: SqliteMetadata, *, is_full: bool) -> None:
    """Let SQLite find a disk that has no space for more pages, or one that has."""
    assert metadata._connection is not None
    (pages,) = metadata._connection.execute("PRAGMA page_count").fetchone()
    limit = pages if is_full else 2**30
    metadata._connection.execute(f"PRAGMA max_page_count = {limit}")


async def create_until_full(metadata: SqliteMetadata, value: bytes) -> int:
    """Create keys until there is no space, and return how many there are."""
    for number in range(10_000):
        try:
            await metadata.transact(puts={f"topics/{number}": value})
        except DiskFull:
            return number
    raise AssertionError("the disk is never full")


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


@in_loop
async def test_on_a_full_disk_keys_can_be_changed_and_deleted_but_not_created(tmp_path):
    metadata = await opened(tmp_path / "meta.db")
    limit_pages(metadata, is_full=True)
    count = await create_until_full(metadata, b"x" * 500)
    assert count > PAGES_MIN
    before = size(tmp_path)
    for number in range(count):
        await metadata.transact(puts={f"topics/{number}": b"y" * 700})
    assert size(tmp_path) == before, "a change takes no space"
    for number in range(count):
        await metadata.transact(deletes=[f"topics/{number}"])
    assert size(tmp_path) == before
    assert list(await metadata.list("")) == []
    await metadata.transact(puts={"a": b"1"})  # The space of deleted keys is used again.
    await metadata.close()


@in_loop
async def test_keys_can_be_created_again_when_there_is_space(tmp_path):
    metadata = await opened(tmp_path / "meta.db")
    limit_pages(metadata, is_full=True)
    count = await create_until_full(metadata, b"x" * 500)
    with pytest.raises(DiskFull, match=f"the disk is full, so topics/{count} cannot be created"):
        await metadata.transact(puts={f"topics/{count}": b""})
    limit_pages(metadata, is_full=False)
    await metadata.transact(puts={f"topics/{count}": b""})
    await metadata.close()


@in_loop
async def test_the_journal_keeps_its_size(tmp_path):
    metadata = await opened(tmp_path / "meta.db")
    journal = tmp_path / "meta.db-journal"
    assert journal.stat().st_size == JOURNAL_BYTES
    await metadata.transact(puts={f"topics/{number}": b"x" * 100 for number in range(200)})
    assert journal.stat().st_size >= JOURNAL_BYTES
    await metadata.close()
    assert journal.stat().st_size >= JOURNAL_BYTES
