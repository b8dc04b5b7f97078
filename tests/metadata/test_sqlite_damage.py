"""Damage to the SQLite file of the metadata: found, reported, and not changed."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest

from millstream.errors import (
    CorruptData,
    CorruptFile,
    MillstreamError,
    StorageFailed,
    UnknownFormat,
)
from millstream.metadata.metadata_checkpoint import RevisionRecord, encode_record
from millstream.metadata.sqlite import SqliteMetadata
from tests.in_loop import in_loop
from tests.metadata.sqlite_files import opened, write
from tests.metadata.suite import put

FIFTY = {f"topics/t{number:02}": b"value %d" % number for number in range(50)}


@pytest.mark.parametrize("is_killed", [False, True])
def test_every_flipped_bit_is_reported_or_harmless(tmp_path, is_killed):
    """After a clean stop all are reported: the checkpoint has the digest of the file.

    After a kill, bits of free space, and of numbers that SQLite itself derives, may flip
    undetected.
    """
    path = tmp_path / "meta.db"
    write(path, FIFTY)
    checkpoint = tmp_path / "meta.db-checkpoint"
    if is_killed:
        checkpoint.write_bytes(b"".join(encode_record(RevisionRecord(n, 1)) for n in (6, 7)))
    sound, written = path.read_bytes(), checkpoint.read_bytes()
    size = len(sound)
    reported = 0
    for bit in range(0, size * 8, 997):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        found = asyncio.run(all_or_error(path))
        if isinstance(found, MillstreamError):
            assert isinstance(found, CorruptData | StorageFailed | UnknownFormat)
            assert str(path) in str(found)
            reported += 1
        else:
            assert found == FIFTY, f"bit {bit} went unnoticed"
        checkpoint.write_bytes(written)
    assert reported > 5
    assert reported == len(range(0, size * 8, 997)) or is_killed


async def all_or_error(path: Path) -> dict[str, bytes] | MillstreamError:
    try:
        async with SqliteMetadata(str(path)) as metadata:
            return {entry.key: entry.value for entry in await metadata.list("")}
    except MillstreamError as error:
        return error


def change_a_value(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE entries SET value = x'00' WHERE key = 'topics/t07'")


def change_a_key(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE entries SET key = 'topics/u07' WHERE key = 'topics/t07'")


def change_a_revision(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE entries SET revision = 2 WHERE key = 'topics/t07'")


def change_a_kind(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE entries SET value = 'text' WHERE key = 'topics/t07'")


def lose_a_row(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM entries WHERE key = 'topics/t07'")


def lose_the_tally(connection: sqlite3.Connection) -> None:
    connection.execute("DELETE FROM tally")


def damage_the_tally(connection: sqlite3.Connection) -> None:
    connection.execute("UPDATE tally SET sums = 'none'")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (change_a_value, "checksum of topics/t07 is"),
        (change_a_key, "checksum of topics/u07 is"),
        (change_a_revision, "checksum of topics/t07 is"),
        (change_a_kind, "the row of 'topics/t07' has columns of wrong types"),
        (lose_a_row, "50 entries with .* must exist, got 49 with"),
        (lose_the_tally, "the tally must have three numbers, got None"),
        (damage_the_tally, "the tally must have three numbers"),
    ],
)
def test_damage_that_sqlite_does_not_see_is_reported(tmp_path, damage, message):
    path = tmp_path / "meta.db"
    write(path, FIFTY)
    connection = sqlite3.connect(path)
    damage(connection)
    connection.commit()
    connection.close()
    before = path.read_bytes()
    with pytest.raises(CorruptFile, match=f"{path}: {message}"):
        asyncio.run(opened(path))
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_damaged(tmp_path):
    path = tmp_path / "meta.db"
    path.write_bytes(b"not a database, " * 100)
    with pytest.raises(CorruptFile, match=f"{path}: file is not a database"):
        asyncio.run(opened(path))


def test_a_row_that_is_damaged_while_the_file_is_open_is_reported_when_read(tmp_path):
    @in_loop
    async def run() -> None:
        metadata = await opened(tmp_path / "meta.db")
        await put(metadata, a=b"1", b=b"1")
        assert metadata._connection is not None
        metadata._connection.execute("UPDATE entries SET value = x'00' WHERE key = 'a'")
        with pytest.raises(CorruptFile, match="checksum of a is"):
            await metadata.get("a")
        with pytest.raises(CorruptFile, match="checksum of a is"):
            await metadata.list("")
        with pytest.raises(CorruptFile, match="checksum of a is"):
            await metadata.transact(puts={"a": b"2"})
        assert (await metadata.get("b")) is not None
        await metadata.close()

    run()
