"""Two floors: readers skip deleted records silently, and get a gap for evicted ones."""

from __future__ import annotations

import asyncio
import errno

import pytest

from millstream.errors import DiskFull, LogClosed, OffsetOutOfRange, StorageFailed
from millstream.records.record import Gap, Record
from millstream.storage.files.partition_metadata import read_partition_metadata
from millstream.storage.inspect.verify_store import verify_partition
from millstream.storage.log import Log
from millstream.testing import Fault, FaultyFilesystem, SimulatedFilesystem
from millstream.testing.disk.crash_states import crash_states
from tests.in_loop import in_loop
from tests.storage.keyed import DIRECTORY, SMALL, fill, filled
from tests.storage.logs import make_store, turns

RETENTION = "retention"


def read(log: Log, offset: int | None = None, **bounds: int) -> list[int | tuple[int, int]]:
    """Return offsets of records and the two ends of gaps, as a reader sees them."""
    return [
        (each.from_offset, each.to_offset) if isinstance(each, Gap) else each.offset
        for each in log.records(offset, **bounds)
    ]


# Readers at any position.


@pytest.mark.parametrize("floor", [1, 9, 10, 20, 36])
@pytest.mark.parametrize("position", [0, 1, 8, 9, 10, 19, 20, 35, 36])
@in_loop
async def test_a_reader_at_any_position_is_told_of_a_gap_if_and_only_if_it_missed_something(
    position, floor
):
    _, _, log = await filled()
    await log.evict_before(floor)
    gap = [(position, floor - 1)] if position < floor else []
    assert read(log, position) == [*gap, *range(max(position, floor), 36)]
    assert log.gap_at(position) == (Gap(position, floor - 1, RETENTION) if gap else None)


@pytest.mark.parametrize("position", [0, 4, 9, 14, 15, 20, 25])
@in_loop
async def test_what_was_deleted_is_skipped_without_a_word_and_what_was_evicted_is_not(position):
    _, _, log = await filled()
    await log.evict_before(15)
    await log.delete_before(25)
    assert (log.eviction_floor, log.start_offset) == (15, 25)
    gap = [(position, 14)] if position < 15 else []
    assert read(log, position) == [*gap, *range(25, 36)]


@in_loop
async def test_what_is_evicted_behind_what_was_deleted_is_one_gap():
    _, _, log = await filled()
    await log.delete_before(10)
    assert read(log, 3) == list(range(10, 36))
    await log.evict_before(20)
    assert read(log, 3) == [(3, 19), *range(20, 36)]
    assert read(log, 12) == [(12, 19), *range(20, 36)]


@in_loop
async def test_who_starts_at_the_first_offset_misses_nothing():
    _, _, log = await filled()
    await log.evict_before(20)
    assert read(log) == list(range(20, 36))


@in_loop
async def test_a_gap_reaches_no_further_than_what_was_asked_for():
    _, _, log = await filled()
    await log.evict_before(20)
    assert read(log, 3, until=7) == [(3, 6)]
    assert read(log, 3, until=22) == [(3, 19), 20, 21]


@in_loop
async def test_a_gap_has_a_reason():
    _, _, log = await filled()
    await log.evict_before(9)
    assert next(log.records(2)) == Gap(2, 8, "retention")


@pytest.mark.parametrize("offset", [-1, 37])
@in_loop
async def test_an_offset_that_never_was_is_no_gap(offset):
    _, _, log = await filled()
    await log.evict_before(20)
    assert log.gap_at(offset) is None
    with pytest.raises(OffsetOutOfRange):
        list(log.records(offset, until=100))


@in_loop
async def test_reading_batches_below_the_first_offset_is_refused_as_ever():
    _, _, log = await filled()
    await log.evict_before(20)
    with pytest.raises(OffsetOutOfRange, match="offset must be between 20 and 36, got 19"):
        log.read(19)
    with pytest.raises(OffsetOutOfRange):
        list(log.headers(19))


# Readers overtaken in the middle.


@pytest.mark.parametrize("seen", [1, 5, 9, 10, 18])
@in_loop
async def test_a_reader_that_is_overtaken_is_told_what_it_missed_from_where_it_was(seen):
    _, _, log = await filled()
    found = log.records(0)
    before = [next(found).offset for _ in range(seen)]
    assert before == list(range(seen))
    await log.evict_before(30)
    await turns(50)
    rest = [(e.from_offset, e.to_offset) if isinstance(e, Gap) else e.offset for e in found]
    # The remaining records of the current segment had been read already.
    had = list(range(seen, -(-seen // 9) * 9))
    assert rest == [*had, (seen + len(had), 29), *range(30, 36)]


@in_loop
async def test_a_reader_that_is_overtaken_twice_is_told_twice():
    _, _, log = await filled()
    found = log.records(0)
    assert next(found).offset == 0
    await log.evict_before(12)
    seen = [next(found).offset for _ in range(8)]
    assert seen == list(range(1, 9))
    assert next(found) == Gap(9, 11, RETENTION)
    await log.evict_before(20)
    assert next(found) == Gap(12, 19, RETENTION)
    assert [each.offset for each in found] == list(range(20, 36))


@in_loop
async def test_a_reader_that_is_overtaken_by_a_deletion_goes_on_behind_it():
    _, _, log = await filled()
    found = log.records(0)
    assert next(found).offset == 0
    await log.delete_before(20)
    assert [each.offset for each in found] == [*range(1, 9), *range(20, 36)]


@in_loop
async def test_records_before_the_first_offset_in_the_same_batch_do_not_come_back():
    _, _, log = await filled()
    await log.delete_before(10)
    assert read(log, 9) == list(range(10, 36))
    await log.evict_before(11)
    assert read(log, 9) == [(9, 10), *range(11, 36)]


@in_loop
async def test_a_follower_that_waits_at_the_end_and_is_too_slow_can_find_out_what_it_missed():
    _, _, log = await filled()
    following = log.follow(36)
    waiting = asyncio.ensure_future(anext(following))
    await turns()
    await fill(log, 9)
    assert (await waiting).next_offset > 36
    late = log.follow(38)
    await log.evict_before(42)
    with pytest.raises(OffsetOutOfRange):
        await anext(late)
    assert log.gap_at(38) == Gap(38, 41, RETENTION)
    assert log.overtaken(38) == (Gap(38, 41, RETENTION), 42)


@in_loop
async def test_a_follower_at_the_end_misses_nothing_when_all_before_it_goes():
    _, _, log = await filled()
    following = log.follow(36)
    waiting = asyncio.ensure_future(anext(following))
    await turns()
    await log.evict_before(36)
    await turns()
    assert not waiting.done()
    await fill(log, 3)
    assert (await waiting).next_offset == 39


# Where a reader continues.


@in_loop
async def test_who_was_not_overtaken_is_told_so():
    _, _, log = await filled()
    await log.delete_before(10)
    assert log.overtaken(4) == (None, 10)
    for offset in (-1, 10, 36, 40):
        with pytest.raises(OffsetOutOfRange, match=rf"between 10 and 36, got {offset}"):
            log.overtaken(offset)


# Durability.


@pytest.mark.parametrize("how", ["closed", "killed", "power cut"])
@pytest.mark.parametrize("floor", [1, 9, 20, 36])
@in_loop
async def test_both_floors_are_what_they_were_when_the_log_is_opened_again(floor, how):
    disk, store, log = await filled()
    await log.evict_before(floor)
    if floor < 30:
        await log.delete_before(floor + 5)
    start = log.start_offset
    if how == "closed":
        await store.close()
    disk = disk.crash() if how == "power cut" else disk.copy()
    log = await make_store(disk, config=SMALL).log("a")
    assert (log.eviction_floor, log.start_offset) == (floor, start)
    assert read(log, 0) == [(0, floor - 1), *range(start, 36)]


@in_loop
async def test_no_power_cut_finds_the_one_moved_and_the_other_not():
    disk, _, log = await filled(18)
    before = len(disk.trace.events)
    await log.evict_before(9)
    points = range(before, len(disk.trace.events) + 1)
    seen = set()
    for state in crash_states(disk.trace, seed=1, randoms=2, points=points):
        partition = read_partition_metadata(state.filesystem(), DIRECTORY)
        seen.add((partition.start_offset, partition.eviction_floor))
    assert seen == {(0, 0), (9, 9)}


@in_loop
async def test_evicting_no_further_does_nothing_and_further_than_the_end_is_refused():
    disk, _, log = await filled()
    await log.delete_before(20)
    before = disk.content(f"{DIRECTORY}/partition.json")
    for offset in (0, 19, 20):
        await log.evict_before(offset)
    assert disk.content(f"{DIRECTORY}/partition.json") == before
    assert log.eviction_floor == 0, "all of it had been deleted"
    with pytest.raises(OffsetOutOfRange):
        await log.evict_before(37)


@in_loop
async def test_files_go_and_are_counted():
    disk, _, log = await filled()
    size = sum(segment.size for segment in log.segments[:2])
    await log.evict_before(20)
    await turns(50)
    left = {p.split("/")[-1][:20] for p in disk.paths() if p.startswith(DIRECTORY) and ".l" in p}
    assert left == {f"{18:020d}", f"{27:020d}"}
    counters = log.counters
    assert (counters.evicted_segments, counters.evicted_records) == (2, 20)
    assert counters.evicted_bytes == size
    await log.evict_before(20)
    assert counters.evicted_segments == 2


@in_loop
async def test_deleting_is_not_counted_as_evicting():
    _, _, log = await filled()
    await log.delete_before(20)
    assert (log.counters.evicted_segments, log.counters.evicted_bytes) == (0, 0)


@in_loop
async def test_who_watches_the_log_is_woken():
    _, _, log = await filled()
    woken = []
    log.watch(lambda: woken.append((log.start_offset, log.eviction_floor)))
    await log.evict_before(20)
    assert woken == [(20, 20)]


@in_loop
async def test_a_log_that_was_evicted_from_is_sound():
    disk, store, log = await filled()
    await log.evict_before(20)
    await store.close()
    assert [f for f in verify_partition(disk, DIRECTORY) if f.is_damage] == []


# Removal hooks.


class RecordingRemovalHooks:
    """Records the start offset of the log at each call."""

    def __init__(self, log: Log, error: Exception | None = None) -> None:
        self._log = log
        self._error = error
        self.asked: list[int] = []
        self.needed: int | None = None

    def stable_offset(self):
        return self._log.end_offset

    def aborted(self, first, end):
        return []

    def needed_offset(self):
        return self.needed

    async def before_removal(self):
        self.asked.append(self._log.start_offset)
        await turns(1)
        if self._error:
            raise self._error


@in_loop
async def test_the_hooks_are_called_before_anything_is_evicted():
    disk, _, log = await filled()
    log.removal_hooks = hooks = RecordingRemovalHooks(log)
    evicting = asyncio.ensure_future(log.evict_before(20))
    await turns(1)
    assert hooks.asked == [0]
    assert read_partition_metadata(disk, DIRECTORY).start_offset == 0
    await evicting
    assert log.start_offset == 20


@in_loop
async def test_nothing_is_evicted_if_the_hooks_fail():
    disk, _, log = await filled()
    log.removal_hooks = RecordingRemovalHooks(log, StorageFailed("no room for what only they know"))
    with pytest.raises(StorageFailed, match="no room for what only they know"):
        await log.evict_before(20)
    assert (log.start_offset, log.eviction_floor) == (0, 0)
    assert read_partition_metadata(disk, DIRECTORY).start_offset == 0


@in_loop
async def test_records_that_the_hooks_need_stay_even_if_the_caller_asks_for_more():
    disk, _, log = await filled()
    log.removal_hooks = hooks = RecordingRemovalHooks(log)
    hooks.needed = 7
    await log.evict_before(20)
    assert (log.start_offset, log.eviction_floor) == (7, 7)
    assert read_partition_metadata(disk, DIRECTORY).start_offset == 7


@in_loop
async def test_the_hooks_may_change_the_metadata_file():
    _, _, log = await filled()

    class Busy(RecordingRemovalHooks):
        async def before_removal(self):
            await log.begin_epoch(5)

    log.removal_hooks = Busy(log)
    await log.evict_before(20)
    assert log.partition.leader_epoch == 5


# Failures.


@pytest.mark.parametrize(
    ("error", "kind"),
    [(errno.EIO, StorageFailed), (errno.EMFILE, Exception)],
    ids=["EIO", "EMFILE"],
)
@in_loop
async def test_what_cannot_be_written_down_does_not_go(error, kind):
    disk = SimulatedFilesystem()
    fault = Fault(call=2, error=error, only={"create"}, path="partition.json", forever=True)
    log = await make_store(FaultyFilesystem(disk, fault), config=SMALL).log("a")
    await fill(log, 36)
    with pytest.raises(kind):
        await log.evict_before(20)
    assert (log.start_offset, log.eviction_floor) == (0, 0)
    assert read(log, 0) == list(range(36))


@in_loop
async def test_records_go_though_the_disk_is_full_to_the_last_byte():
    """P27: freeing space must not need any."""
    disk, store, log = await filled()
    await store.run_housekeeping()
    disk.bytes_max = disk.bytes_used
    with pytest.raises(DiskFull):
        await log.append_records([Record(b"x" * 100_000)])
    await turns(50)  # The space reserved for the growing segment is released.
    disk.bytes_max = disk.bytes_used
    await log.evict_before(20)
    await turns(50)
    assert disk.bytes_used < disk.bytes_max
    assert read(log, 0) == [(0, 19), *range(20, 36)]
    log = await make_store(disk.copy().crash(), config=SMALL).log("a")
    assert read(log, 0) == [(0, 19), *range(20, 36)]


@in_loop
async def test_a_closed_log_evicts_nothing():
    _, store, log = await filled()
    await store.close()
    with pytest.raises(LogClosed):
        await log.evict_before(20)
