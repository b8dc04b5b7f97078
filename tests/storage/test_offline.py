"""Failing and full disks: what is refused, what still works, and how a log recovers."""

from __future__ import annotations

import asyncio
import errno
import traceback

import pytest

from millstream.config.schema import LogConfig
from millstream.errors import DiskFull, LogOffline, StorageFailed, Unavailable
from millstream.storage.store import Store
from millstream.testing import Fault, FaultyFilesystem, SimulatedFilesystem
from tests.in_loop import in_loop

from .logs import HeldExecutor, batch_of, make_store, turns

SMALL = LogConfig(segment_bytes_max=1024)


def values(store_log) -> list[bytes | None]:
    return [record.value for record in store_log.records()]


# A failed sync.


def failing_sync(call: int = 2, **fault) -> tuple[SimulatedFilesystem, Store]:
    disk = SimulatedFilesystem()
    faulty = FaultyFilesystem(disk, Fault(call=call, only=["sync"], path=".log", **fault))
    return disk, make_store(faulty)


@in_loop
async def test_after_a_failed_sync_nothing_more_is_acknowledged() -> None:
    _, store = failing_sync()
    log = await store.log("a")
    await log.append(batch_of(b"good"))
    with pytest.raises(LogOffline, match=r"a/0 is offline until it is opened again: .*Errno 5"):
        await log.append(batch_of(b"bad"))
    for _ in range(3):
        with pytest.raises(LogOffline):
            await log.append(batch_of(b"later"))
    assert log.counters.syncs == 1, "the sync is not tried again"
    assert log.counters.offline == 1


@in_loop
async def test_all_who_wait_for_a_failed_sync_are_told() -> None:
    _, store = failing_sync(1)
    log = await store.log("a")
    results = await asyncio.gather(
        *(log.append(batch_of(b"v")) for _ in range(10)), return_exceptions=True
    )
    assert all(isinstance(result, LogOffline) for result in results)
    assert log.end_offset == 0


@in_loop
async def test_an_offline_log_still_reads_what_was_committed_and_nothing_else() -> None:
    _, store = failing_sync()
    log = await store.log("a")
    await log.append(batch_of(b"good"))
    with pytest.raises(LogOffline):
        await log.append(batch_of(b"bad"))
    assert values(log) == [b"good"]


@in_loop
async def test_one_offline_log_leaves_the_others_alone() -> None:
    disk = SimulatedFilesystem()
    fault = Fault(call=1, only=["sync"], path="/a/0/0", forever=True)
    store = make_store(FaultyFilesystem(disk, fault))
    broken, sound = await store.log("a"), await store.log("b")
    results = await asyncio.gather(
        broken.append(batch_of(b"v")), sound.append(batch_of(b"v")), return_exceptions=True
    )
    assert isinstance(results[0], (LogOffline, StorageFailed))
    assert results[1].offset == 0


@in_loop
async def test_opening_again_brings_an_offline_log_back_with_all_that_was_acknowledged() -> None:
    disk, store = failing_sync()
    log = await store.log("a")
    await log.append(batch_of(b"good"))
    with pytest.raises(LogOffline):
        await log.append(batch_of(b"in doubt"))
    log = await store.reopen("a")
    shown = values(log)
    assert shown[0] == b"good"
    await log.append(batch_of(b"after"))
    assert values(log) == [*shown, b"after"]
    again = await make_store(disk.crash()).log("a")
    assert values(again) == [*shown, b"after"], "what was shown again stays"


@in_loop
async def test_an_error_that_is_kept_keeps_nothing_of_those_who_met_it() -> None:
    _, store = failing_sync(1)
    log = await store.log("a")
    lengths = []
    for _ in range(20):
        with pytest.raises(LogOffline):
            await log.append(batch_of(b"v"))
        with pytest.raises(LogOffline):
            await log.wait_for(log.end_offset)
        assert log.offline is not None
        lengths.append(len(list(traceback.walk_tb(log.offline.__traceback__))))
    assert lengths[-1] <= lengths[0], "frames, and what they refer to, would stay in memory"


@in_loop
async def test_a_directory_that_cannot_be_synced_takes_the_log_offline() -> None:
    disk = SimulatedFilesystem()
    store = make_store(disk)
    await store.log("a")
    await store.close()
    fault = Fault(call=1, only=["sync_directory"], path="/a/0")
    store = make_store(FaultyFilesystem(disk, fault))
    log = await store.log("a")
    with pytest.raises(LogOffline):
        await log.append(batch_of(b"v"))


@in_loop
async def test_a_write_error_takes_the_log_offline() -> None:
    fault = Fault(call=1, only=["write_at"], path=".log")
    log = await make_store(FaultyFilesystem(SimulatedFilesystem(), fault)).log("a")
    with pytest.raises(LogOffline, match="Errno 5"):
        await log.append(batch_of(b"v"))


@in_loop
async def test_closing_an_offline_log_does_not_seal_it() -> None:
    disk, store = failing_sync(1)
    log = await store.log("a")
    with pytest.raises(LogOffline):
        await log.append(batch_of(b"v"))
    await store.close()
    assert not any(path.endswith(".seal") for path in disk.paths())


# A full disk.


@in_loop
async def test_a_full_disk_refuses_writes_keeps_reads_and_resumes_by_itself() -> None:
    disk = SimulatedFilesystem()
    log = await make_store(disk, config=SMALL).log("a")
    await log.append(batch_of(b"before"))
    disk.bytes_max = disk.bytes_used
    refused = 0
    offsets = [0]
    for _ in range(200):
        try:
            offsets.append((await log.append(batch_of(b"x" * 500))).offset)
        except DiskFull:
            refused += 1
    assert refused > 100
    assert len(values(log)) == len(offsets)
    assert log.counters.refusals["full"] == refused
    disk.free(1_000_000)
    assert (await log.append(batch_of(b"after"))).offset == len(offsets)
    assert values(log)[-1] == b"after"
    before = values(log)
    again = await make_store(disk.crash(), config=SMALL).log("a")
    assert values(again) == before


@pytest.mark.parametrize("call", ["write_at", "reserve", "create"])
@in_loop
async def test_a_refused_write_leaves_no_trace(call: str) -> None:
    disk = SimulatedFilesystem()
    fault = Fault(call=2, error=errno.ENOSPC, only=[call], path=".log", forever=True)
    store = make_store(FaultyFilesystem(disk, fault), config=SMALL)
    log = await store.log("a")
    await log.append(batch_of(b"good" * 200))
    with pytest.raises(DiskFull, match="a/0: the disk is full"):
        await log.append(batch_of(b"refused" * 100))
    fault.only = []
    assert (await log.append(batch_of(b"next" * 200))).offset == 1
    assert values(log) == [b"good" * 200, b"next" * 200]
    again = await make_store(disk.crash(), config=SMALL).log("a")
    assert values(again) == [b"good" * 200, b"next" * 200]


@in_loop
async def test_a_refused_write_never_comes_back_after_a_crash() -> None:
    """Two batches are written, the disk is full in the third: none of the three may reappear."""

    disk = SimulatedFilesystem()
    fault = Fault(call=2, error=errno.ENOSPC, only=["write_at"], path=".log")
    log = await make_store(FaultyFilesystem(disk, fault)).log("a")
    await log.append(batch_of(b"first"))
    results = await asyncio.gather(
        *(log.append(batch_of(b"refused %d" % n)) for n in range(4)), return_exceptions=True
    )
    assert all(isinstance(result, DiskFull) for result in results)
    assert (await log.append(batch_of(b"refused?!"))).offset == 1
    for seed in range(30):
        after = await make_store(disk.copy().crash(seed)).log("a")
        assert values(after) == [b"first", b"refused?!"]


@in_loop
async def test_sealing_on_a_full_disk_is_tried_again_when_it_is_needed() -> None:
    disk = SimulatedFilesystem()
    fault = Fault(call=1, error=errno.ENOSPC, only=["create"], path=".seal", forever=True)
    log = await make_store(FaultyFilesystem(disk, fault), config=SMALL).log("a")
    for number in range(2):
        assert (await log.append(batch_of(b"x" * 800))).offset == number
    await turns(50)
    with pytest.raises(DiskFull):
        await log.append(batch_of(b"x" * 800))
    fault.only = []
    assert (await log.append(batch_of(b"x" * 800))).offset == 2
    assert len(values(log)) == 3


@in_loop
async def test_too_many_open_files_is_a_passing_error() -> None:
    fault = Fault(call=1, error=errno.EMFILE, only=["create"], path=".log")
    log = await make_store(FaultyFilesystem(SimulatedFilesystem(), fault)).log("a")
    with pytest.raises(Unavailable, match="Too many open files"):
        await log.append(batch_of(b"v"))
    assert (await log.append(batch_of(b"v"))).offset == 0


@in_loop
async def test_offsets_behind_a_refused_batch_are_given_again() -> None:
    disk, background = SimulatedFilesystem(), HeldExecutor()
    fault = Fault(call=2, error=errno.ENOSPC, only=["write_at"], path=".log")
    store = make_store(FaultyFilesystem(disk, fault), background=background)
    log = await store.log("a")
    background.is_held = True
    first = asyncio.ensure_future(log.append(batch_of(b"first")))
    await turns()
    second = asyncio.ensure_future(log.append(batch_of(b"second")))
    await turns()
    with pytest.raises(DiskFull):
        await second
    third = asyncio.ensure_future(log.append(batch_of(b"third")))
    await turns()
    background.let_go()
    assert [(await append).offset for append in (first, third)] == [0, 1]


@in_loop
async def test_a_store_that_cannot_be_closed_cleanly_says_so_and_loses_nothing() -> None:
    disk = SimulatedFilesystem()
    fault = Fault(call=1, only=["create"], path=".seal", forever=True)
    store = make_store(FaultyFilesystem(disk, fault))
    await (await store.log("a")).append(batch_of(b"v"))
    with pytest.raises(StorageFailed, match="a/0 was not closed cleanly"):
        await store.close()
    store = make_store(disk)
    assert values(await store.log("a")) == [b"v"]


@in_loop
async def test_a_segment_that_stayed_empty_on_a_full_disk_leaves_no_false_alarm() -> None:
    """The next segment was begun, its first batch refused, the power went, and life went on."""

    disk, background = SimulatedFilesystem(), HeldExecutor()
    fault = Fault(call=3, error=errno.ENOSPC, only=["write_at"], path=".log")
    store = make_store(FaultyFilesystem(disk, fault), config=SMALL, background=background)
    log = await store.log("a")
    background.is_held = True
    first = log.try_append(batch_of(b"x" * 200))
    await turns()
    second = log.try_append(batch_of(b"x" * 200))
    third = log.try_append(batch_of(b"x" * 900))
    await turns()
    with pytest.raises(DiskFull):
        await third
    background.let_one_go()
    await first
    background.let_one_go()  # The second commit; the sealing, which comes after it, never ends.
    await second
    disk = disk.copy()
    store = make_store(disk, config=SMALL)
    log = await store.log("a")
    await log.append(batch_of(b"small"))
    disk = disk.copy()
    last = max(path for path in disk.paths() if path.endswith(".log"))
    disk.replace_content(last, disk.content(last) + b"torn")
    store = make_store(disk, config=SMALL)
    assert store.damage() == {}
    assert len(values(await store.log("a"))) == 3
