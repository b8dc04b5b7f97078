"""The kernel syncer calls back on the loop, with the error if there is one."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.config.schema import LogConfig
from millstream.records.record import Record
from millstream.storage.disk.filesystem import OsFile, OsFilesystem
from millstream.storage.disk.syncer import SYNCS_IN_FLIGHT_MAX, KernelSyncer, probe_syncer
from millstream.storage.store import Store
from tests.in_loop import in_loop


@pytest.fixture
def file(tmp_path: Path) -> Iterator[OsFile]:
    made = OsFilesystem().create(str(tmp_path / "file"))
    assert isinstance(made, OsFile)
    yield made
    made.close()


@pytest.fixture
def syncer(file: OsFile) -> Iterator[KernelSyncer]:
    made = probe_syncer(file)
    assert made is not None, "this kernel cannot; the threads are tested elsewhere"
    yield made
    made.close()


async def sync(syncer: KernelSyncer, files: list[OsFile]) -> OSError | None:
    done: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    syncer.sync(files, done.set_result)
    return await done


@in_loop
async def test_files_are_synced_and_the_loop_is_told(syncer: KernelSyncer, file: OsFile) -> None:
    file.write_at(0, [b"data"])
    assert await sync(syncer, [file]) is None
    assert await sync(syncer, [file, file]) is None


@in_loop
async def test_many_syncs_are_under_way_at_once(syncer: KernelSyncer, file: OsFile) -> None:
    results = await asyncio.gather(*(sync(syncer, [file]) for _ in range(SYNCS_IN_FLIGHT_MAX)))
    assert results == [None] * SYNCS_IN_FLIGHT_MAX


@in_loop
async def test_the_processor_is_given_up_only_for_syncs_in_flight(
    syncer: KernelSyncer, file: OsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    yields: list[int] = []
    monkeypatch.setattr(os, "sched_yield", lambda: yields.append(1))
    syncer.yield_to_syncs()
    assert not yields
    syncing = asyncio.ensure_future(sync(syncer, [file]))
    await asyncio.sleep(0)
    syncer.yield_to_syncs()
    assert yields == [1]
    await syncing
    syncer.yield_to_syncs()
    assert yields == [1]


@in_loop
async def test_there_is_room_for_so_many_and_no_more(syncer: KernelSyncer, file: OsFile) -> None:
    waiting = [asyncio.ensure_future(sync(syncer, [file])) for _ in range(SYNCS_IN_FLIGHT_MAX - 1)]
    await asyncio.sleep(0)
    assert syncer.has_capacity(1)
    assert not syncer.has_capacity(2)
    await asyncio.gather(*waiting)
    assert syncer.has_capacity(SYNCS_IN_FLIGHT_MAX)


@in_loop
async def test_a_sync_that_fails_says_why(syncer: KernelSyncer, file: OsFile) -> None:
    """A pipe cannot be synced."""

    reader, writer = os.pipe()
    pipe = OsFile(writer)
    try:
        for files in ([pipe], [file, pipe], [pipe, file]):
            error = await sync(syncer, files)
            assert error is not None
            assert error.errno == errno.EINVAL
    finally:
        pipe.close()
        os.close(reader)


def test_a_file_that_cannot_be_synced_so_is_found_out_by_trying() -> None:
    reader, writer = os.pipe()
    pipe = OsFile(writer)
    try:
        assert probe_syncer(pipe) is None
    finally:
        pipe.close()
        os.close(reader)


@pytest.mark.parametrize("is_probing", [True, False], ids=["kernel", "threads"])
@in_loop
async def test_a_store_commits_by_either(tmp_path: Path, is_probing: bool) -> None:
    filesystem = None if is_probing else OsFilesystem()
    config = LogConfig(segment_bytes_max=10_000)
    path = str(tmp_path / "data")
    async with Store(path, filesystem=filesystem, log_config=config) as store:
        assert store.sync_backend == ("kernel" if is_probing else "threads")
        logs = [await store.log("a", number) for number in range(3)]
        await asyncio.gather(
            *(log.append_records([Record(b"x" * 500)]) for log in logs for _ in range(100))
        )
        assert [log.end_offset for log in logs] == [100] * 3
        assert all(log.counters.syncs < 100 for log in logs)
