"""Deletion of a topic: who is notified, what is freed, and what a failing disk leaves."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from millstream.config.schema import Durability, LogConfig, StoreConfig
from millstream.errors import InvalidName, LogClosed, StorageFailed, UnknownLog
from millstream.records.iterate import read_all
from millstream.records.record import Record
from millstream.storage.log import Log
from millstream.storage.store import Store
from millstream.testing import Fault, FaultyFilesystem, SimulatedFilesystem
from tests.in_loop import in_loop

from .logs import HeldExecutor, batch_of, make_store, turns

SMALL = LogConfig(segment_bytes_max=1024, index_interval_bytes=64)
EPHEMERAL = LogConfig(durability=Durability.EPHEMERAL)


async def fill(log: Log, count: int = 6, value: bytes = b"x" * 300) -> None:
    for _ in range(count):
        await log.append_records([Record(value)])


def values(log: Log) -> list[bytes | None]:
    return [record.value for record in log.records()]


def entries(disk: SimulatedFilesystem) -> set[str]:
    """Everything in the data directory that does not belong to the store itself."""
    return set(disk.contents()) - {
        "/data",
        "/data/clock.json",
        "/data/lock",
        "/data/node.json",
        "/data/topics",
        "/data/trash",
    }


# What is gone.


@in_loop
async def test_a_deleted_topic_is_gone_with_all_its_logs_and_its_neighbours_stay():
    disk = SimulatedFilesystem()
    store = make_store(disk, config=SMALL)
    for topic, partition in (("a", 0), ("a", 7), ("b", 0)):
        await fill(await store.log(topic, partition))
    await store.delete("a")
    assert store.names() == [("b", 0)]
    with pytest.raises(UnknownLog):
        store.get("a")
    await turns(50)
    assert all(path.startswith("/data/topics/b") for path in entries(disk))
    assert len(values(store.get("b"))) == 6
    again = make_store(disk.crash(), config=SMALL)
    assert again.names() == [("b", 0)]


@in_loop
async def test_the_name_is_free_at_once_and_the_new_topic_is_empty():
    disk = SimulatedFilesystem()
    store = make_store(disk, config=SMALL)
    old = await store.log("a")
    await fill(old)
    assert len(values(old)) == 6, "its segments are mapped now"
    await store.delete("a")
    new = await store.log("a")
    assert (new.start_offset, new.end_offset) == (0, 0)
    await fill(new, value=b"y" * 300)
    assert values(new) == [b"y" * 300] * 6
    await store.close()
    log = await make_store(disk.crash(), config=SMALL).log("a")
    assert values(log) == [b"y" * 300] * 6


@in_loop
async def test_a_log_of_a_deleted_topic_never_shows_what_the_new_one_holds():
    store = make_store(config=SMALL)
    old = await store.log("a")
    await fill(old)
    await store.delete("a")
    await fill(await store.log("a"))
    for read in (
        lambda: old.read(0),
        lambda: old.read(6),
        lambda: list(old.headers(0)),
        lambda: old.find_timestamp(0),
    ):
        with pytest.raises(LogClosed, match="a/0 is closed"):
            read()


@in_loop
async def test_a_topic_that_was_found_and_never_opened_is_deleted_too():
    disk = SimulatedFilesystem()
    store = make_store(disk)
    await fill(await store.log("a"))
    store = make_store(disk.copy())
    await store.delete("a")
    assert store.names() == []
    assert store.recovered() == {}


@in_loop
async def test_a_damaged_topic_can_be_deleted_and_made_anew():
    disk = SimulatedFilesystem()
    store = make_store(disk)
    await fill(await store.log("a"))
    await store.close()
    disk.flip_bit("/data/topics/a/0/partition.json", 100)
    store = make_store(disk)
    assert store.damage() != {}
    await store.delete("a")
    assert store.damage() == {}
    assert (await (await store.log("a")).append(batch_of(b"v"))).offset == 0


@in_loop
async def test_deleting_what_is_not_there_does_nothing():
    disk = SimulatedFilesystem()
    store = make_store(disk)
    await store.delete("missing")
    await store.delete("missing")
    assert entries(disk) == set()
    with pytest.raises(InvalidName):
        await store.delete("../etc")


@in_loop
async def test_an_ephemeral_topic_gives_its_memory_back():
    store = make_store()
    log = await store.log("a", config=EPHEMERAL)
    await fill(log, 20)
    assert store._memory.bytes_used > 5_000
    await store.delete("a")
    del log
    assert store._memory.bytes_used == 0
    log = await store.log("a", config=LogConfig())
    assert log.end_offset == 0
    assert log.config.durability is Durability.FSYNC, "it is another topic"


@in_loop
async def test_maps_descriptors_and_failures_are_forgotten():
    store = make_store(config=SMALL)
    log = await store.log("a")
    await fill(log)
    values(log)
    assert store.maps_open > 0
    assert len(store._index_cache) > 0
    await store.delete("a")
    assert (store.maps_open, len(store._index_cache), len(store._open_writers)) == (0, 0, 0)
    assert (store._recovered, store._failed, store._configs) == ({}, {}, {})
    assert len(store._opening) == 0


@in_loop
async def test_slices_of_a_deleted_topic_stay_readable():
    store = make_store(config=SMALL)
    log = await store.log("a")
    await fill(log)
    found = log.read(0)
    await store.delete("a")
    await store.close()
    assert [record.offset for record in read_all(found.data)] == [0, 1]


# Notifications.


@in_loop
async def test_all_who_have_to_do_with_the_log_are_told():
    background = HeldExecutor()
    batch = batch_of(b"v")
    config = LogConfig(unflushed_bytes_max=2 * len(batch))
    store = make_store(background=background, config=config)
    log = await store.log("a")
    await log.append(batch)
    rewinds: list[int] = []
    seen: list[int] = []
    log.on_rewind = rewinds.append
    log.watch(lambda: seen.append(log.end_offset))
    follower = asyncio.ensure_future(log.wait_for(100))
    await turns()
    background.is_held = True
    written = log.submit(batch)
    await turns()
    pending = log.submit(batch)
    waiting = log.submit(batch)
    epoch = asyncio.ensure_future(log.begin_epoch(5))
    deleting = asyncio.ensure_future(store.delete("a"))
    await turns()
    results = await asyncio.gather(written, pending, waiting, return_exceptions=True)
    assert [str(result) for result in results] == ["a/0 is closed"] * 3
    assert all(isinstance(result, LogClosed) for result in results)
    assert rewinds == [1]
    background.let_go()
    await deleting
    assert seen
    assert set(seen) == {1}, "nothing is committed any more"
    for task in (follower, epoch):
        with pytest.raises(LogClosed):
            await task
    for use in (lambda: log.submit(batch), lambda: log.try_append(batch)):
        with pytest.raises(LogClosed):
            use()
    with pytest.raises(LogClosed):
        await log.delete_before(0)


@in_loop
async def test_nothing_is_sealed_and_nothing_synced_for_files_that_go():
    filesystem = FaultyFilesystem(SimulatedFilesystem(), Fault(call=0))
    store = make_store(filesystem)
    await fill(await store.log("a"))
    before = len(filesystem.calls)
    await store.delete("a")
    await turns()
    calls = [call.name for call in filesystem.calls[before:]]
    assert calls == [
        "make_directory",
        "sync_directory",
        "rename",
        "sync_directory",
        "sync_directory",
        "remove_tree",
    ]


@in_loop
async def test_who_asks_for_the_log_meanwhile_waits_and_gets_the_new_one():
    background = HeldExecutor()
    store = make_store(background=background)
    old = await store.log("a")
    await fill(old)
    background.is_held = True
    deleting = [asyncio.ensure_future(store.delete("a")) for _ in range(2)]
    await turns()
    opening = asyncio.ensure_future(store.log("a"))
    await turns()
    assert not opening.done()
    background.let_go()
    new = await opening
    await asyncio.gather(*deleting)
    assert new is not old
    assert store.names() in ([], [("a", 0)]), "the second deletion came before or after"
    log = await store.log("a")
    assert (await log.append(batch_of(b"v"))).offset == 0


@in_loop
async def test_a_log_that_is_just_being_opened_is_opened_first_and_then_deleted():
    background = HeldExecutor()
    store = make_store(background=background)
    background.is_held = True
    opening = asyncio.ensure_future(store.log("a"))
    await turns()
    deleting = asyncio.ensure_future(store.delete("a"))
    await turns()
    background.let_go()
    log = await opening
    await deleting
    with pytest.raises(LogClosed):
        await log.append(batch_of(b"v"))
    assert store.names() == []


@in_loop
async def test_a_caller_that_stops_waiting_does_not_stop_the_deletion():
    background = HeldExecutor()
    store = make_store(background=background)
    await fill(await store.log("a"))
    background.is_held = True
    deleting = asyncio.ensure_future(store.delete("a"))
    await turns()
    deleting.cancel()
    await turns()
    background.let_go()
    log = await store.log("a")
    assert log.end_offset == 0


@in_loop
async def test_closing_waits_for_a_deletion_and_takes_no_other():
    disk, background = SimulatedFilesystem(), HeldExecutor()
    store = make_store(disk, background=background)
    await fill(await store.log("a"))
    await fill(await store.log("b"))
    background.is_held = True
    deleting = asyncio.ensure_future(store.delete("a"))
    await turns()
    closing = asyncio.ensure_future(store.close())
    await turns()
    assert not closing.done()
    with pytest.raises(LogClosed):
        await store.delete("b")
    background.let_go()
    await asyncio.gather(deleting, closing)
    assert all(path.startswith("/data/topics/b") for path in entries(disk))


@in_loop
async def test_reopening_a_deleted_log_finds_nothing():
    store = make_store()
    await store.log("a")
    deleting = asyncio.ensure_future(store.delete("a"))
    await asyncio.sleep(0)
    with pytest.raises(UnknownLog):
        await store.reopen("a")
    await deleting


# A disk that fails.


@pytest.mark.parametrize("call", ["make_directory", "rename", "sync_directory"])
@in_loop
async def test_a_topic_that_cannot_be_moved_stays_whole_and_can_be_opened_again(call):
    disk = SimulatedFilesystem()
    fault = Fault(call=10**9, only=[call])
    store = make_store(FaultyFilesystem(disk, fault), config=SMALL)
    log = await store.log("a")
    await fill(log)
    await turns(50)
    fault.call = fault._matched + 1
    with pytest.raises(StorageFailed, match=r"a was not deleted: .*Errno 5"):
        await store.delete("a")
    assert fault.hits
    with pytest.raises(LogClosed):
        await log.append(batch_of(b"v"))
    log = await store.log("a")
    assert values(log) == [b"x" * 300] * 6
    await fill(log, 1)
    await store.delete("a")
    assert (await store.log("a")).end_offset == 0


@pytest.mark.parametrize("call", [2, 3])
@in_loop
async def test_a_move_that_may_not_be_durable_is_made_so_by_trying_again(call):
    disk = SimulatedFilesystem()
    fault = Fault(call=10**9, only=["sync_directory"])
    store = make_store(FaultyFilesystem(disk, fault), config=SMALL)
    await fill(await store.log("a"))
    await turns(50)
    fault.call = fault._matched + call
    with pytest.raises(StorageFailed):
        await store.delete("a")
    assert store.names() == []
    await store.delete("a")
    assert make_store(disk.crash(), config=SMALL).names() == []


@in_loop
async def test_what_cannot_be_removed_is_removed_by_the_next_start(caplog):
    disk = SimulatedFilesystem()
    fault = Fault(call=1, only=["remove_tree"], forever=True, error=errno.EACCES)
    store = make_store(FaultyFilesystem(disk, fault))
    await fill(await store.log("a"))
    await store.delete("a")
    await store.close()
    assert "was deleted, but its files cannot be removed" in caplog.text
    assert len([path for path in entries(disk) if path.startswith("/data/trash/")]) > 2
    stubborn = make_store(FaultyFilesystem(disk.copy(), fault))
    assert stubborn.names() == []
    store = make_store(disk)
    assert store.names() == []
    assert entries(disk) == set()


def test_links_in_a_deleted_topic_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"kept")

    async def check() -> None:
        async with Store(str(tmp_path / "data"), config=StoreConfig()) as store:
            await (await store.log("a")).append(batch_of(b"v"))
            os.symlink(outside, tmp_path / "data/topics/a/link")
            os.symlink(outside, tmp_path / "data/topics/a/0/link")
            await store.delete("a")
        assert list((tmp_path / "data/topics").iterdir()) == []
        assert list((tmp_path / "data/trash").iterdir()) == []

    asyncio.run(check())
    assert (outside / "precious").read_bytes() == b"kept"
