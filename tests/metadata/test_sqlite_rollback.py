"""Metadata never goes back to an older state in silence: not by a flipped bit, not by a crash."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.errors import CorruptData, MillstreamError, StorageFailed
from millstream.metadata.metadata_checkpoint import RevisionRecord, encode_record
from millstream.metadata.sqlite import SqliteMetadata
from millstream.metadata.sqlite_copy import has_hot_journal

ROUNDS = 200 if os.environ.get("MILLSTREAM_LONG") else 5
ROOT = Path(__file__).parents[2]


def dead_writer(directory: Path, *, revisions: int) -> int:
    """Run a process that changes metadata, kill it, and return its last acknowledged revision."""
    directory.mkdir(exist_ok=True)
    acknowledged = 0
    with subprocess.Popen(
        [sys.executable, "-m", "tests.metadata.writer_process", str(directory / "meta.db")],
        stdout=subprocess.PIPE,
        cwd=ROOT,
        text=True,
    ) as process:
        assert process.stdout is not None
        for _ in range(revisions):
            acknowledged = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        for line in process.stdout:  # Acknowledged between the last line read and the kill.
            if line.endswith("\n"):
                acknowledged = int(line)
    assert process.returncode == -signal.SIGKILL
    return acknowledged


async def content_or_error(path: Path) -> dict[str, tuple[bytes, int, int]] | MillstreamError:
    try:
        async with SqliteMetadata(str(path)) as metadata:
            return {entry.key: entry[1:] for entry in await metadata.list("")}
    except MillstreamError as error:
        return error


def test_a_flipped_byte_after_a_kill_is_reported_or_changes_nothing(tmp_path):
    written, copy = tmp_path / "written", tmp_path / "copy"
    acknowledged = dead_writer(written, revisions=60)
    shutil.copytree(written, copy)
    sound = asyncio.run(content_or_error(copy / "meta.db"))
    assert isinstance(sound, dict)
    assert max(revision for _, revision, _ in sound.values()) >= acknowledged
    rng = random.Random(3)
    for file in sorted(written.iterdir()):
        size = file.stat().st_size
        for position in sorted(rng.sample(range(size), min(size, 60))):
            shutil.rmtree(copy)
            shutil.copytree(written, copy)
            damaged = bytearray(file.read_bytes())
            damaged[position] ^= 1 << rng.randrange(8)
            (copy / file.name).write_bytes(damaged)
            found = asyncio.run(content_or_error(copy / "meta.db"))
            assert isinstance(found, MillstreamError) or found == sound, (
                f"byte {position} of {file.name}: an older state is taken for whole"
            )


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_a_killed_writer_leaves_metadata_that_opens_with_all_that_was_acknowledged(tmp_path, seed):
    rng = random.Random(seed)
    for _ in range(2):
        acknowledged = dead_writer(tmp_path / "data", revisions=rng.randrange(40))
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        found = asyncio.run(content_or_error(tmp_path / "copy" / "meta.db"))
        assert isinstance(found, dict), f"a healthy file is refused: {found}"
        assert max(revision for _, revision, _ in found.values()) >= acknowledged
        shutil.rmtree(tmp_path / "copy")


def test_an_older_file_is_refused_whether_the_node_was_stopped_or_killed(tmp_path):
    async def change(path: Path) -> None:
        async with SqliteMetadata(str(path)) as metadata:
            await metadata.transact(puts={"a": b"1"})

    data = tmp_path / "data"
    data.mkdir()
    path = data / "meta.db"
    asyncio.run(change(path))
    old = path.read_bytes()
    asyncio.run(change(path))
    path.write_bytes(old)
    found = asyncio.run(content_or_error(path))
    assert isinstance(found, CorruptData)
    assert "revision 1" in str(found)
    assert "revision 2" in str(found)
    assert path.read_bytes() == old, "a refused file is not changed"
    dead_writer(tmp_path / "killed", revisions=3)
    (tmp_path / "killed" / "meta.db").write_bytes(old)
    for journal in (tmp_path / "killed").glob("meta.db-journal"):
        journal.unlink()
    found = asyncio.run(content_or_error(tmp_path / "killed" / "meta.db"))
    assert isinstance(found, CorruptData)
    assert "revision 1" in str(found)


@pytest.mark.parametrize("content", [None, b""])
def test_a_missing_or_empty_file_is_refused_if_there_was_one(tmp_path, content):
    dead_writer(tmp_path, revisions=3)
    path = tmp_path / "meta.db"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    (tmp_path / "meta.db-journal").unlink(missing_ok=True)
    found = asyncio.run(content_or_error(path))
    assert isinstance(found, CorruptData)
    assert str(path) in str(found)
    assert "restore" in str(found)


def interrupted(directory: Path) -> None:
    """Leave a file as a kill in the middle of a commit does: partly changed, with its journal."""

    async def fill() -> None:
        async with SqliteMetadata(str(directory / "meta.db")) as metadata:
            await metadata.transact(puts={f"k{number:03}": b"x" * 900 for number in range(100)})

    directory.mkdir()
    asyncio.run(fill())
    source = directory.parent / "source"
    shutil.copytree(directory, source)
    connection = sqlite3.connect(source / "meta.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode = PERSIST")
    connection.execute("PRAGMA cache_size = 1")  # Changed pages are written before the commit.
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE entries SET value = zeroblob(900)")
    assert (source / "meta.db").read_bytes() != (directory / "meta.db").read_bytes()
    for file in source.iterdir():
        shutil.copy(file, directory)
    connection.execute("ROLLBACK")
    connection.close()
    # While changes are made, the checkpoint does not say that the file is closed.
    records = (encode_record(RevisionRecord(number, 1)) for number in (6, 7))
    (directory / "meta.db-checkpoint").write_bytes(b"".join(records))


def test_an_interrupted_transaction_is_undone(tmp_path):
    interrupted(tmp_path / "data")
    assert has_hot_journal(str(tmp_path / "data" / "meta.db"))
    found = asyncio.run(content_or_error(tmp_path / "data" / "meta.db"))
    assert found == {f"k{number:03}": (b"x" * 900, 1, 1) for number in range(100)}


def test_a_damaged_journal_of_an_interrupted_transaction_is_reported_or_harmless(tmp_path):
    interrupted(tmp_path / "data")
    sound = {f"k{number:03}": (b"x" * 900, 1, 1) for number in range(100)}
    journal = (tmp_path / "data" / "meta.db-journal").read_bytes()
    reported = 0
    for position in (*range(28), *range(28, len(journal), 2003)):
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        damaged = bytearray(journal)
        damaged[position] ^= 0x10
        (tmp_path / "copy" / "meta.db-journal").write_bytes(damaged)
        before = (tmp_path / "copy" / "meta.db").read_bytes()
        found = asyncio.run(content_or_error(tmp_path / "copy" / "meta.db"))
        assert isinstance(found, MillstreamError) or found == sound, f"byte {position}"
        if isinstance(found, MillstreamError):
            assert (tmp_path / "copy" / "meta.db").read_bytes() == before, f"byte {position}"
        reported += isinstance(found, MillstreamError)
        shutil.rmtree(tmp_path / "copy")
    assert reported > 5


def test_an_operator_can_accept_what_is_left(tmp_path):
    async def accept() -> int | None:
        path = str(tmp_path / "meta.db")
        async with SqliteMetadata(path, must_exist=True, is_loss_accepted=True) as metadata:
            return await metadata.transact(puts={"a": b"1"})

    dead_writer(tmp_path, revisions=3)
    (tmp_path / "meta.db").unlink()
    assert asyncio.run(accept()) == 1
    assert asyncio.run(content_or_error(tmp_path / "meta.db")) == {"a": (b"1", 1, 1)}


def test_a_checkpoint_with_one_damaged_record_is_used_and_without_any_refused(tmp_path):
    dead_writer(tmp_path, revisions=3)
    path = tmp_path / "meta.db-checkpoint"
    sound = path.read_bytes()
    for position in range(0, len(sound), 7):
        damaged = bytearray(sound)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        assert isinstance(asyncio.run(content_or_error(tmp_path / "meta.db")), dict)
    path.write_bytes(bytes(len(sound)))
    found = asyncio.run(content_or_error(tmp_path / "meta.db"))
    assert isinstance(found, CorruptData)
    assert f"{path}: no record is intact" in str(found)


def test_what_the_node_knows_to_have_existed_must_exist(tmp_path):
    async def open_it() -> None:
        async with SqliteMetadata(str(tmp_path / "meta.db"), must_exist=True):
            pass

    with pytest.raises(CorruptData, match="the node has state that depends on it"):
        asyncio.run(open_it())
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_that_cannot_be_written_is_an_error_of_opening(tmp_path):
    dead_writer(tmp_path, revisions=3)
    path = tmp_path / "meta.db-checkpoint"
    path.unlink()
    (tmp_path / "meta.db-checkpoint.tmp").mkdir()  # In the place of the file to rename.
    found = asyncio.run(content_or_error(tmp_path / "meta.db"))
    assert isinstance(found, StorageFailed)
    assert f"{tmp_path}/meta.db cannot be opened" in str(found)
