"""Metadata in SQLite: the suite for every `Metadata`, and failures of the file."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from millstream.errors import (
    DiskFull,
    MillstreamError,
    StorageFailed,
    Unavailable,
    UnknownFormat,
)
from millstream.metadata.sqlite import SqliteMetadata
from millstream.testing.clocks.seeded_background import SeededBackground
from tests.in_loop import in_loop
from tests.metadata.sqlite_files import FailingConnection, opened, write
from tests.metadata.suite import MetadataSuite, put

EXAMPLES = 10_000 if os.environ.get("MILLSTREAM_LONG") else 200

GOLDEN = Path(__file__).parent / "golden"

FIFTY = {f"topics/t{number:02}": b"value %d" % number for number in range(50)}


class TestSqliteMetadata(MetadataSuite):
    @pytest.fixture
    def open_metadata(self, tmp_path: Path) -> Callable[[], Awaitable[SqliteMetadata]]:
        return lambda: opened(tmp_path / "meta.db")


class TestSqliteMetadataWithoutThreads(MetadataSuite):
    @pytest.fixture
    def open_metadata(self, tmp_path: Path) -> Callable[[], Awaitable[SqliteMetadata]]:
        async def open_it() -> SqliteMetadata:
            path = str(tmp_path / "meta.db")
            metadata = SqliteMetadata(path, background=SeededBackground(7, width=1))
            await metadata.open()
            return metadata

        return open_it


# The file.


@in_loop
async def test_the_files_are_for_their_owner_alone(tmp_path):
    metadata = await opened(tmp_path / "meta.db")
    await put(metadata, a=b"1")
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == [
        "meta.db",
        "meta.db-checkpoint",
        "meta.db-journal",
    ]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    await metadata.close()


@in_loop
async def test_every_commit_is_synced(tmp_path):
    metadata = await opened(tmp_path / "meta.db")
    assert metadata._connection is not None
    assert metadata._connection.execute("PRAGMA journal_mode").fetchone() == ("persist",)
    assert metadata._connection.execute("PRAGMA synchronous").fetchone() == (3,)
    await metadata.close()


def set_pragma(path: Path, pragma: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA {pragma}")
    connection.close()


def newer_version(path: Path) -> None:
    set_pragma(path, "user_version = 4")


def other_program(path: Path) -> None:
    set_pragma(path, "application_id = 77")


def no_program(path: Path) -> None:
    set_pragma(path, "application_id = 0")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (newer_version, "version must be between 1 and 3, got 4"),
        (other_program, "a database of another program"),
        (no_program, "a database of another program"),
    ],
)
def test_a_file_that_we_do_not_know_is_refused_and_stays_as_it_is(tmp_path, change, message):
    path = tmp_path / "meta.db"
    write(path, FIFTY)
    change(path)
    before = path.read_bytes()
    with pytest.raises(UnknownFormat, match=f"{path}: {message}"):
        asyncio.run(opened(path))
    assert path.read_bytes() == before


def test_a_newer_file_whose_writer_died_stays_as_it_is(tmp_path):
    """A file of version 1 has a write-ahead log, in which another program has left a version."""
    path = tmp_path / "meta.db"
    for file in (GOLDEN / "v1-killed").iterdir():
        shutil.copy(file, tmp_path)
    dying = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, signal, sqlite3, sys\n"
            "connection = sqlite3.connect(sys.argv[1])\n"
            "connection.execute('PRAGMA user_version = 9')\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n",
            str(path),
        ]
    )
    assert dying.wait(30) == -signal.SIGKILL
    before = {file.name: file.read_bytes() for file in tmp_path.glob("meta.db*")}
    assert before["meta.db-wal"]
    with pytest.raises(UnknownFormat, match="version must be between 1 and 3, got 9"):
        asyncio.run(opened(path))
    assert path.read_bytes() == before["meta.db"]
    assert (tmp_path / "meta.db-wal").read_bytes() == before["meta.db-wal"]


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    path = tmp_path / "missing" / "meta.db"
    with pytest.raises(StorageFailed, match=f"{path} cannot be opened"):
        asyncio.run(opened(path))
    with pytest.raises(StorageFailed, match=str(tmp_path)):
        asyncio.run(opened(tmp_path))


def test_what_is_acknowledged_survives_the_death_of_the_process(tmp_path):
    path = tmp_path / "meta.db"
    script = (
        "import asyncio, os, signal, sys\n"
        "from millstream.metadata.sqlite import SqliteMetadata\n"
        "async def main():\n"
        "    metadata = SqliteMetadata(sys.argv[1])\n"
        "    await metadata.open()\n"
        "    for number in range(20):\n"
        "        await metadata.transact(puts={f'k{number:02}': b'v'})\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    died = subprocess.run([sys.executable, "-c", script, str(path)], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL

    @in_loop
    async def look() -> None:
        async with SqliteMetadata(str(path)) as metadata:
            found = [(entry.key, entry.revision) for entry in await metadata.list("")]
            assert found == [(f"k{number:02}", number + 1) for number in range(20)]

    look()


# Failing calls.


async def failing(path: Path, statement: str, code: int) -> SqliteMetadata:
    metadata = await opened(path)
    await put(metadata, a=b"1")
    assert metadata._connection is not None
    metadata._connection = FailingConnection(metadata._connection, statement, code)
    return metadata


STATEMENTS = ["BEGIN", "SELECT key", "REPLACE", "DELETE", "UPDATE tally", "COMMIT"]


@pytest.mark.parametrize("statement", STATEMENTS)
@pytest.mark.parametrize(
    ("code", "error"),
    [
        (sqlite3.SQLITE_FULL, DiskFull),
        (sqlite3.SQLITE_BUSY, Unavailable),
        (sqlite3.SQLITE_LOCKED, Unavailable),
    ],
)
def test_a_change_that_finds_no_room_changes_nothing_and_may_be_repeated(
    tmp_path: Path, statement: str, code: int, error: type[MillstreamError]
) -> None:
    @in_loop
    async def run() -> None:
        metadata = await failing(tmp_path / "meta.db", statement, code)
        with pytest.raises(error, match=r"meta\.db: "):
            await metadata.transact(puts={"b": b"2"}, deletes=["a"])
        assert [tuple(entry) for entry in await metadata.list("")] == [("a", b"1", 1, 1)]
        assert await metadata.transact(puts={"b": b"2"}, deletes=["a"]) == 2
        await metadata.close()

    run()


@pytest.mark.parametrize("statement", STATEMENTS)
def test_after_a_failing_disk_no_change_is_taken_until_it_was_opened_again(
    tmp_path: Path, statement: str
) -> None:
    @in_loop
    async def run() -> None:
        path = tmp_path / "meta.db"
        metadata = await failing(path, statement, sqlite3.SQLITE_IOERR)
        with pytest.raises(StorageFailed, match="on purpose"):
            await metadata.transact(puts={"b": b"2"}, deletes=["a"])
        with pytest.raises(StorageFailed, match=r"accepts no changes: .*on purpose"):
            await metadata.transact(puts={"c": b"3"})
        assert await metadata.get("c") is None
        await metadata.close()
        metadata = await opened(path)
        assert await put(metadata, c=b"3") == 2
        await metadata.close()

    run()


def test_a_failing_read_does_not_stop_changes(tmp_path):
    @in_loop
    async def run() -> None:
        metadata = await failing(tmp_path / "meta.db", "SELECT key", sqlite3.SQLITE_IOERR)
        with pytest.raises(StorageFailed, match="on purpose"):
            await metadata.get("a")
        assert await put(metadata, b=b"2") == 2
        await metadata.close()

    run()


def test_a_file_in_use_by_another_program_is_unavailable(tmp_path, monkeypatch):
    @in_loop
    async def run() -> None:
        path = tmp_path / "meta.db"
        metadata = await opened(path)
        assert metadata._connection is not None
        metadata._connection.execute("PRAGMA busy_timeout = 1")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unavailable, match="locked by another program"):
            await put(metadata, a=b"1")
        other.execute("ROLLBACK")
        other.close()
        await put(metadata, a=b"1")
        await metadata.close()

    run()


def test_before_opening_nothing_can_be_done(tmp_path):
    @in_loop
    async def run() -> None:
        metadata = SqliteMetadata(str(tmp_path / "meta.db"))
        with pytest.raises(StorageFailed, match="is not open"):
            await metadata.get("a")
        await metadata.close()

    run()
