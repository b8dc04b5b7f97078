"""Deletion at the front: what can be read afterwards, which files go, what a crash leaves."""

from __future__ import annotations

import asyncio
import errno
import threading

import pytest

from millstream.config.schema import Durability, LogConfig
from millstream.errors import (
    DiskFull,
    InvalidAddress,
    LogClosed,
    LogOffline,
    OffsetOutOfRange,
    StorageFailed,
    Unavailable,
)
from millstream.records.iterate import read_all
from millstream.records.record import Record
from millstream.storage.files.partition_metadata import (
    LeaderEpoch,
    PartitionMetadata,
    read_partition_metadata,
    write_partition_metadata,
)
from millstream.storage.inspect.verify_store import verify_partition
from millstream.storage.log import Log
from millstream.storage.store import Store
from millstream.testing import Fault, FaultyFilesystem, ManualClock, SimulatedFilesystem
from tests.in_loop import in_loop
from tests.storage.logs import HeldExecutor, batch_of, make_store, turns

SMALL = LogConfig(segment_bytes_max=1024, index_interval_bytes=64)
DISK = LogConfig(segment_bytes_max=1024, index_interval_bytes=64, durability=Durability.DISK)
DIRECTORY = "/data/topics/a/0"


async def fill(log: Log, batches: int, *, first: int = 0) -> None:
    """Append batches of three records, three batches to a segment."""
    for number in range(first, first + batches):
        records = [Record(b"x" * 80, timestamp_ms=1000 * number + i) for i in range(3)]
        await log.append_records(records)


async def filled(
    batches: int = 12, config: LogConfig = SMALL, **options: object
) -> tuple[SimulatedFilesystem, Store, Log]:
    disk = SimulatedFilesystem()
    store = make_store(disk, config=config, **options)
    log = await store.log("a")
    await fill(log, batches)
    await turns(50)
    return disk, store, log


def bases(log: Log) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def bases_on(disk: SimulatedFilesystem, suffix: str = "log") -> list[int]:
    paths = [path for path in disk.paths() if path.startswith(DIRECTORY)]
    return [int(path.split("/")[-1][:20]) for path in paths if path.endswith(suffix)]


def offsets(log: Log) -> list[int]:
    return [record.offset for record in log.records()]


# Reads.


@in_loop
async def test_the_segments_of_these_tests_hold_nine_records_each():
    _, _, log = await filled()
    assert bases(log) == [0, 9, 18, 27]


@pytest.mark.parametrize("offset", [1, 3, 8, 9, 10, 20, 27, 34, 35, 36])
@in_loop
async def test_what_lies_before_cannot_be_read_and_all_else_can(offset):
    _, _, log = await filled()
    await log.delete_before(offset)
    assert (log.start_offset, log.end_offset) == (offset, 36)
    assert offsets(log) == list(range(offset, 36))
    for gone in (0, offset - 1):
        with pytest.raises(OffsetOutOfRange, match=rf"between {offset} and 36, got {gone}"):
            log.read(gone)
    for there in range(offset, 36):
        found = log.read(there, size_max=1)
        assert there in [record.offset for record in read_all(found.data)]


@pytest.mark.parametrize("offset", [1, 3, 8, 9, 10, 20, 27, 34, 35, 36])
@in_loop
async def test_no_search_finds_what_was_deleted(offset):
    _, _, log = await filled()
    await log.delete_before(offset)
    stamps = {number: 1000 * (number // 3) + number % 3 for number in range(offset, 36)}
    first = (offset, stamps[offset]) if stamps else None
    assert log.find_timestamp(0) == first
    assert log.find_timestamp(-1) == first
    for number, stamp in stamps.items():
        assert log.find_timestamp(stamp) == (number, stamp)
    assert log.find_latest() == ((35, 11_002) if stamps else None)
    found = [record.offset for record in log.records_between(0, 10**6)]
    assert found == list(stamps)


@in_loop
async def test_the_latest_record_is_found_though_a_later_one_was_deleted():
    _, _, log = await filled(1)
    await log.append_records([Record(b"late", timestamp_ms=9_000), Record(b"x", timestamp_ms=5)])
    await log.append_records([Record(b"y", timestamp_ms=5), Record(b"z", timestamp_ms=7)])
    await log.append_records([Record(b"z", timestamp_ms=7)])
    assert log.find_latest() == (3, 9_000)
    await log.delete_before(4)
    assert log.find_latest() == (6, 7)


@in_loop
async def test_the_first_batch_comes_whole_and_its_header_too():
    _, _, log = await filled()
    await log.delete_before(11)
    assert [header.base_offset for header, _ in log.headers(11)][:2] == [9, 12]
    assert [header.base_offset for header, _ in log.headers(12, until=19)] == [12, 15, 18]
    with pytest.raises(OffsetOutOfRange):
        list(log.headers(10))


@in_loop
async def test_a_batch_that_was_deleted_has_no_address():
    _, _, log = await filled()
    first, second = (log.read(offset, size_max=1).address for offset in (9, 12))
    await log.delete_before(13)
    with pytest.raises(InvalidAddress, match="the batch there is deleted"):
        log.read_at(first)
    assert log.read_at(second).next_offset == 15
    with pytest.raises(InvalidAddress, match="no segment starts at 0"):
        log.read_at(first._replace(segment=0))


@in_loop
async def test_slices_of_a_removed_segment_stay_readable():
    disk, _, log = await filled()
    sealed = log.read(0)
    growing = log.read(27)
    await log.delete_before(36)
    await turns(50)
    assert bases_on(disk) == [27]
    assert [record.offset for record in read_all(sealed.data)] == list(range(9))
    assert [record.offset for record in read_all(growing.data)] == list(range(27, 36))


@in_loop
async def test_a_reader_that_is_overtaken_by_a_deletion_is_told_so():
    """It took the state of the log before, and finds the file gone."""
    _, _, log = await filled()
    stale = log._state.snapshot
    await log.delete_before(20)
    await turns(50)
    current = log._state.snapshot

    class Overtaken(type(log._state)):
        """Returns the old state to the first caller, and the new one afterwards."""

        asked = 0

        @property
        def state(self):
            self.asked += 1
            return stale if self.asked == 1 else current

        @state.setter
        def state(self, _):
            raise AssertionError

    log._state.__class__ = Overtaken
    with pytest.raises(OffsetOutOfRange, match="offset must be between 20 and 36, got 0"):
        log.read(0)
    log._state.asked = 0
    assert log.find_timestamp(0) == (20, 6002), "it answers by what is there now"


@in_loop
async def test_threads_that_read_while_records_are_deleted_see_the_log_before_or_after():
    _, _, log = await filled(60)
    wrong: list[object] = []
    is_done = threading.Event()

    def read() -> None:
        while not is_done.is_set():
            try:
                start = log.start_offset
                found = [record.offset for record in log.records(start, until=start + 30)]
                missed = set(range(start, start + 30)) - set(found)
                if found != sorted(found) or any(offset >= log.start_offset for offset in missed):
                    wrong.append(found)
                log.find_timestamp(5_000)
                log.find_latest()
            except OffsetOutOfRange:
                continue
            except Exception as error:  # noqa: BLE001 - reported below.
                wrong.append(error)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for offset in range(0, 140, 7):
        await log.delete_before(offset)
        await turns(3)
    is_done.set()
    for thread in threads:
        thread.join()
    assert wrong == []


# Calls that are refused or have no effect.


@in_loop
async def test_nothing_past_the_committed_end_can_be_deleted():
    background = HeldExecutor()
    log = await make_store(background=background).log("a")
    await log.append(batch_of(b"a", b"b"))
    background.is_held = True
    pending = log.submit(batch_of(b"c"))
    await turns()
    with pytest.raises(OffsetOutOfRange, match="offset must be between 0 and 2, got 3"):
        await log.delete_before(3)
    background.let_go()
    await pending
    await log.delete_before(3)
    assert log.start_offset == 3


@in_loop
async def test_deleting_never_goes_back_and_costs_nothing_then():
    disk, _, log = await filled()
    await log.delete_before(20)
    await turns(50)
    before = len(disk.trace.events)
    for offset in (20, 19, 0, -5):
        await log.delete_before(offset)
    assert log.start_offset == 20
    assert len(disk.trace.events) == before


@in_loop
async def test_a_closed_log_and_an_offline_one_delete_nothing():
    _, store, log = await filled()
    await store.close()
    with pytest.raises(LogClosed):
        await log.delete_before(5)
    fault = Fault(call=1, only=["sync"], path=".log")
    log = await make_store(FaultyFilesystem(SimulatedFilesystem(), fault)).log("a")
    with pytest.raises(LogOffline):
        await log.append(batch_of(b"v"))
    with pytest.raises(LogOffline):
        await log.delete_before(0)


@pytest.mark.parametrize(
    ("code", "refusal"),
    [(errno.ENOSPC, DiskFull), (errno.EMFILE, Unavailable), (errno.EIO, StorageFailed)],
)
@pytest.mark.parametrize("call", ["create", "write_at", "sync", "rename", "sync_directory"])
@in_loop
async def test_a_deletion_that_fails_deletes_nothing_and_the_log_goes_on(code, refusal, call):
    disk = SimulatedFilesystem()
    fault = Fault(call=10**9, error=code, only=[call])
    store = make_store(FaultyFilesystem(disk, fault), config=SMALL)
    log = await store.log("a")
    await fill(log, 12)
    await turns(50)
    fault.call = fault._matched + 1
    with pytest.raises(refusal):
        await log.delete_before(20)
    assert fault.hits
    assert (log.start_offset, bases(log)) == (0, [0, 9, 18, 27])
    assert offsets(log) == list(range(36))
    await fill(log, 1)
    await log.delete_before(21)
    assert offsets(log) == list(range(21, 39))
    again = await make_store(disk.crash(), config=SMALL).log("a")
    assert offsets(again) == list(range(21, 39))


# Removal of files.


@pytest.mark.parametrize(
    ("offset", "left"),
    [(8, [0, 9, 18, 27]), (9, [9, 18, 27]), (26, [18, 27]), (27, [27]), (36, [27])],
)
@in_loop
async def test_files_of_which_nothing_is_left_go_save_the_last(offset, left):
    disk, _, log = await filled()
    await log.delete_before(offset)
    await turns(50)
    assert bases(log) == left
    assert bases_on(disk) == left
    assert bases_on(disk, "seal") == bases_on(disk, "index") == left[:-1]


@in_loop
async def test_the_last_segment_stays_though_it_is_sealed():
    disk, store, _ = await filled()
    await store.close()
    log = await make_store(disk, config=SMALL).log("a")
    await log.delete_before(36)
    await turns(50)
    assert bases(log) == bases_on(disk) == [27]
    await fill(log, 1)
    await turns(50)
    assert bases(log) == bases_on(disk) == [36]


@in_loop
async def test_the_last_segment_goes_once_another_holds_a_record():
    disk, _, log = await filled()
    await log.delete_before(36)
    await turns(50)
    await fill(log, 1)
    await turns(50)
    assert bases(log) == bases_on(disk) == [36]
    assert offsets(log) == [36, 37, 38]


@in_loop
async def test_a_segment_that_is_being_sealed_goes_when_it_has_its_seal():
    background = HeldExecutor()
    disk, _, log = await filled(3, background=background)
    background.is_held = True
    appending = log.submit(batch_of(b"x" * 100))
    await turns()
    assert (bases(log), background.waiting) == ([0, 9], 2), "one is sealed, one synced"
    background.let_one_go(0)
    await appending
    deleting = asyncio.ensure_future(log.delete_before(9))
    await turns()
    background.let_one_go(1)
    await deleting
    await turns()
    assert bases(log) == bases_on(disk) == [0, 9]
    background.let_go()
    await turns(50)
    assert bases(log) == bases_on(disk) == [9]


@in_loop
async def test_maps_and_indexes_of_removed_segments_are_forgotten():
    _, store, log = await filled()
    offsets(log)
    assert store.maps_open == 3
    await log.delete_before(20)
    await turns(50)
    assert store.maps_open == 1
    assert len(store._index_cache) == 1


@in_loop
async def test_a_file_that_cannot_be_removed_is_left_to_the_next_start(caplog):
    disk = SimulatedFilesystem()
    fault = Fault(call=1, only=["remove"], path=".log", forever=True)
    store = make_store(FaultyFilesystem(disk, fault), config=SMALL)
    log = await store.log("a")
    await fill(log, 12)
    await log.delete_before(20)
    await turns(50)
    assert "a/0: a deleted segment was not removed" in caplog.text
    assert offsets(log) == list(range(20, 36))
    await store.close()
    again = make_store(disk.copy(), config=SMALL)
    assert bases(await again.log("a")) == [18, 27]
    assert again.damage() == {}


@in_loop
async def test_deleting_in_memory_gives_the_memory_back():
    config = LogConfig(durability=Durability.EPHEMERAL, segment_bytes_max=1024)
    store = make_store(config=config)
    log = await store.log("a")
    await fill(log, 12)
    await turns(50)
    before = store._memory.bytes_used
    await log.delete_before(30)
    await turns(50)
    assert store._memory.bytes_used < before - 2000
    assert offsets(log) == list(range(30, 36))


@in_loop
async def test_appends_go_on_while_records_are_deleted():
    _, _, log = await filled()
    results = await asyncio.gather(
        *(log.append(batch_of(b"v")) for _ in range(5)),
        log.delete_before(30),
        *(log.append(batch_of(b"v")) for _ in range(5)),
        log.delete_before(33),
    )
    appended = [result.offset for result in results if result]
    assert appended == list(range(36, 46))
    assert offsets(log) == list(range(33, 46))


# Reopening.


@pytest.mark.parametrize("offset", [1, 9, 11, 27, 30, 36])
@pytest.mark.parametrize("end", ["closed", "killed", "power cut"])
@in_loop
async def test_a_log_starts_where_it_did_when_it_is_opened_again(offset, end):
    disk, store, log = await filled()
    await log.delete_before(offset)
    if end == "closed":
        await store.close()
    disk = disk.crash() if end == "power cut" else disk.copy()
    store = make_store(disk, config=SMALL)
    assert store.damage() == {}
    log = await store.log("a")
    assert (log.start_offset, log.end_offset) == (offset, 36)
    assert offsets(log) == list(range(offset, 36))
    assert log.find_timestamp(0) == ((offset, log.find_timestamp(0)[1]) if offset < 36 else None)
    await fill(log, 4)
    assert offsets(log) == list(range(offset, 48))
    await store.close()
    assert verify_partition(disk, DIRECTORY) == []


@in_loop
async def test_a_log_of_which_all_was_deleted_goes_on_where_it_ended_even_without_a_file():
    disk, store, log = await filled()
    await log.delete_before(36)
    await turns(50)
    await store.close()
    for suffix in ("log", "index", "seal"):
        disk.remove(f"{DIRECTORY}/{27:020d}.{suffix}")
    log = await make_store(disk, config=SMALL).log("a")
    assert (log.start_offset, log.end_offset) == (36, 36)
    await fill(log, 1)
    assert offsets(log) == [36, 37, 38]


@in_loop
async def test_epochs_are_forgotten_with_the_last_segment_that_bears_them():
    disk, _, log = await filled(6)
    await log.begin_epoch(3)
    await fill(log, 3)
    await log.begin_epoch(5)
    await fill(log, 3)
    await turns(50)
    assert bases(log) == [0, 9, 18, 27]
    await log.delete_before(20)
    assert log.partition.epochs == (LeaderEpoch(3, 18), LeaderEpoch(5, 27))
    assert read_partition_metadata(disk, DIRECTORY) == log.partition
    again = make_store(disk.crash(), config=SMALL)
    assert offsets(await again.log("a")) == list(range(20, 36))
    assert again.damage() == {}


@in_loop
async def test_the_epoch_of_the_segment_that_says_where_the_log_ends_is_kept():
    disk, store, log = await filled(3)
    await log.begin_epoch(3)
    await log.delete_before(9)
    assert log.partition.epochs == (LeaderEpoch(0, 0), LeaderEpoch(3, 9))
    await store.close()
    assert verify_partition(disk, DIRECTORY) == []
    log = await make_store(disk, config=SMALL).log("a")
    await fill(log, 1)
    await turns(50)
    assert bases(log) == [9]
    assert offsets(log) == [9, 10, 11]


@in_loop
async def test_what_a_crash_brought_back_of_deleted_segments_is_removed():
    disk, store, log = await filled()
    before = disk.contents()
    await log.delete_before(20)
    await store.close()
    for path, content in before.items():
        if content is not None and path not in disk.paths():
            disk.create(path).close()
            disk.replace_content(path, content)
    disk.remove(f"{DIRECTORY}/{0:020d}.log")
    disk.remove(f"{DIRECTORY}/{9:020d}.seal")
    found = verify_partition(disk, DIRECTORY)
    assert {f.message for f in found} == {"was deleted; will be removed at the next start"}
    assert not any(finding.is_damage for finding in found)
    store = make_store(disk, config=SMALL)
    assert store.damage() == {}
    assert bases_on(disk) == bases_on(disk, "seal") == bases_on(disk, "index") == [18, 27]
    assert offsets(await store.log("a")) == list(range(20, 36))


# Damage.


@in_loop
async def test_a_log_of_class_fsync_that_ends_before_it_starts_has_lost_something():
    disk, store, log = await filled(3)
    await log.delete_before(7)
    await turns(50)
    path = f"{DIRECTORY}/{0:020d}.log"
    disk.remove(f"{DIRECTORY}/checkpoint")
    disk = disk.copy()
    disk.cut(path, len(disk.content(path)) // 2)
    [found] = [finding for finding in verify_partition(disk, DIRECTORY) if finding.is_damage]
    assert "ends at offset 3, before the first offset of the log, 7" in found.message
    before = disk.content(path)
    store = make_store(disk, config=SMALL)
    [lost] = store.damage()["a", 0]
    assert "ends at offset 3, before its start offset 7: records are lost" in str(lost)
    log = await store.log("a")
    with pytest.raises(LogOffline):
        await log.append(batch_of(b"v"))
    assert (log.start_offset, log.end_offset, offsets(log)) == (7, 7, [])
    assert disk.content(path) == before, "nothing is touched"


@in_loop
async def test_a_log_of_a_weaker_class_goes_on_where_it_starts():
    disk, store, log = await filled(3, DISK)
    await log.delete_before(7)
    disk = disk.crash()
    assert not any(finding.is_damage for finding in verify_partition(disk, DIRECTORY))
    store = make_store(disk, config=DISK)
    assert store.damage() == {}
    log = await store.log("a")
    assert (log.start_offset, log.end_offset) == (7, 7)
    await fill(log, 1)
    assert offsets(log) == [7, 8, 9]
    await store.close()
    assert verify_partition(disk, DIRECTORY) == []


@in_loop
async def test_a_segment_missing_behind_the_first_offset_is_reported():
    disk, store, log = await filled()
    await log.delete_before(5)
    await store.close()
    for suffix in ("log", "index", "seal"):
        disk.remove(f"{DIRECTORY}/{0:020d}.{suffix}")
    [found] = verify_partition(disk, DIRECTORY)
    assert "is missing: offsets 5 to 8 have no segment" in found.message
    store = make_store(disk, config=SMALL)
    [lost] = store.damage()["a", 0]
    assert "offsets 5 to 8 have no segment" in str(lost)


@in_loop
async def test_a_lost_description_brings_back_what_is_left_and_says_so():
    disk, store, log = await filled()
    await log.delete_before(20)
    await store.close()
    disk.remove(f"{DIRECTORY}/partition.json")
    store = make_store(disk, config=SMALL)
    [damage] = store.damage()["a", 0]
    assert "partition.json: is missing" in str(damage)
    assert offsets(await store.log("a")) == list(range(18, 36))


@in_loop
async def test_a_log_that_an_earlier_release_wrote_with_a_first_offset_is_read():
    """Version 1 has a start offset too, always at the start of a segment."""
    disk, store, _ = await filled()
    await store.close()
    partition = read_partition_metadata(disk, DIRECTORY)
    write_partition_metadata(
        disk, DIRECTORY, PartitionMetadata(partition.durability, 18, partition.epochs)
    )
    log = await make_store(disk, config=SMALL).log("a")
    assert offsets(log) == list(range(18, 36))


@in_loop
async def test_a_caller_that_stops_waiting_leaves_file_and_memory_agreed():
    background = HeldExecutor()
    disk, _, log = await filled(12, background=background)
    background.is_held = True
    deleting = asyncio.ensure_future(log.delete_before(20))
    beginning = asyncio.ensure_future(log.begin_epoch(1))
    await turns()
    for task in (deleting, beginning):
        task.cancel()
    await turns()
    background.let_go()
    await turns(50)
    assert log.start_offset == 20
    assert read_partition_metadata(disk, DIRECTORY) == log.partition
    assert log.partition.leader_epoch == 1


@in_loop
async def test_segments_by_age_are_deleted_too():
    clock = ManualClock()
    config = LogConfig(segment_age_ms_max=1000)
    store = make_store(clock=clock, config=config)
    log = await store.log("a")
    for _ in range(3):
        await log.append(batch_of(b"v"))
        clock.advance(2)
    await log.delete_before(2)
    await turns(50)
    assert bases(log) == [2]
