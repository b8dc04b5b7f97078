"""Files of earlier versions are opened and converted; damaged ones are refused.

The files in `golden` were written by the last release of versions 1 (with a write-ahead log) and 2:
`closed` were closed, and the processes that wrote `killed` were killed with SIGKILL. They are made
once and not again.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from pathlib import Path

import pytest

from millstream.errors import CorruptFile
from millstream.metadata.interface import CompareCreated
from millstream.metadata.sqlite import SqliteMetadata
from millstream.metadata.sqlite_schema import read_entries

GOLDEN = Path(__file__).parent / "golden"
ENTRIES = {
    "producer-ids": (b"3000", 4, 4),
    "topics/t0": (b"value 0", 1, 1),
    "topics/t2": (b"value 2", 1, 1),
}
VERSIONS = ["v1-closed", "v1-killed", "v2-closed", "v2-killed"]
LAST_TRANSACTION = 45352
"""Position of its first frame in the write-ahead log."""


async def content(path: Path) -> dict[str, tuple[bytes, int, int]]:
    async with SqliteMetadata(str(path)) as metadata:
        return {entry.key: entry[1:] for entry in await metadata.list("")}


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_of_an_earlier_version_is_opened_and_converted(tmp_path, version):
    data = tmp_path / "data"
    shutil.copytree(GOLDEN / version, data)
    for _ in range(2):
        assert asyncio.run(content(data / "meta.db")) == ENTRIES
    assert sorted(file.name for file in data.iterdir()) == [
        "meta.db",
        "meta.db-checkpoint",
        "meta.db-journal",
    ]
    connection = sqlite3.connect(data / "meta.db")
    assert connection.execute("PRAGMA user_version").fetchone() == (3,)
    connection.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_of_an_earlier_version_can_be_read_without_converting_it(tmp_path, version):
    data = tmp_path / "data"
    shutil.copytree(GOLDEN / version, data)
    with contextlib.closing(sqlite3.connect(data / "meta.db")) as connection:
        entries = {entry.key: entry[1:] for entry in read_entries(connection, "meta.db")}
        assert entries == ENTRIES
        assert connection.execute("PRAGMA user_version").fetchone() == (int(version[1]),)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_creation_of_converted_entries_stays(tmp_path, version):
    data = tmp_path / "data"
    shutil.copytree(GOLDEN / version, data)

    async def change() -> None:
        async with SqliteMetadata(str(data / "meta.db")) as metadata:
            compares = [CompareCreated("topics/t0", 1)]
            assert await metadata.transact(compares=compares, puts={"topics/t0": b"new"})

    asyncio.run(change())
    assert asyncio.run(content(data / "meta.db"))["topics/t0"][2] == 1
    connection = sqlite3.connect(data / "meta.db")
    connection.execute("UPDATE entries SET created = 2 WHERE key = 'topics/t0'")
    connection.commit()
    connection.close()
    with pytest.raises(CorruptFile):
        asyncio.run(content(data / "meta.db"))


def test_damage_in_a_write_ahead_log_is_not_taken_for_its_end(tmp_path):
    data = tmp_path / "data"
    sound = (GOLDEN / "v1-killed" / "meta.db-wal").read_bytes()
    for position in range(0, LAST_TRANSACTION, 601):
        shutil.copytree(GOLDEN / "v1-killed", data)
        damaged = bytearray(sound)
        damaged[position] ^= 4
        (data / "meta.db-wal").write_bytes(damaged)
        with pytest.raises(CorruptFile, match=f"{data}/meta.db-wal: "):
            asyncio.run(content(data / "meta.db"))
        assert (data / "meta.db-wal").read_bytes() == damaged
        shutil.rmtree(data)


@pytest.mark.parametrize("cut", [0, 20, 32, 5000, LAST_TRANSACTION, LAST_TRANSACTION + 5000])
def test_a_write_ahead_log_that_ends_within_a_transaction_is_opened(tmp_path, cut):
    data = tmp_path / "data"
    shutil.copytree(GOLDEN / "v1-killed", data)
    wal = data / "meta.db-wal"
    wal.write_bytes(wal.read_bytes()[:cut])
    found = asyncio.run(content(data / "meta.db"))
    assert found.get("topics/t0", (b"value 0", 1, 1)) == (b"value 0", 1, 1)
