"""Log cleaner: what remains, what never comes back, and when it runs."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import replace

import pytest

from millstream.config.schema import DAY_MS, Durability, LogConfig
from millstream.errors import Busy, StorageFailed
from millstream.records.batch import decode_header, seal
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.filter.rules import AbortedOffsets
from millstream.records.record import Record
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.files.partition_metadata import read_partition_metadata
from millstream.storage.inspect.verify_store import verify_partition
from millstream.storage.log import Log
from millstream.storage.store import Store
from millstream.testing import ManualClock, SimulatedFilesystem
from tests.in_loop import in_loop
from tests.storage.logs import HeldExecutor, make_store, turns

from .cleanings import COMPACTED, FakeRemovalHooks, clean, data, kept, marker, produced, put, ranges

PLAIN = replace(COMPACTED, is_compacted=False)
DIRECTORY = "/data/topics/a/0"


async def opened(
    config: LogConfig = COMPACTED,
    *,
    disk: SimulatedFilesystem | None = None,
    clock: ManualClock | None = None,
) -> tuple[Store, Log]:
    store = make_store(disk or SimulatedFilesystem(), config=config, clock=clock)
    return store, await store.log("a")


async def settle(log: Log) -> None:
    """Seal all segments of a log."""
    await log.roll()
    await turns(50)
    assert all(generation >= 0 for _, _, generation in ranges(log))


def holds_secrets(disk: SimulatedFilesystem) -> bool:
    return any(b"secret" in disk.content(path) for path in disk.paths())


def only_offsets(log: Log) -> list[int]:
    return [record.offset for record in log.records()]


# Compaction.


class Model:
    """All records ever written, and which of them must remain."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes | None, bytes | None]] = []
        self.start = 0
        self.deleted: set[int] = set()

    def left(self, *, with_tombstones: bool) -> list[int]:
        live = [o for o in range(self.start, len(self.records)) if o not in self.deleted]
        latest = {self.records[offset][0]: offset for offset in live}
        return [
            offset
            for offset in live
            if self.records[offset][0] is None
            or (
                latest[self.records[offset][0]] == offset
                and (with_tombstones or self.records[offset][1] is not None)
            )
        ]


@pytest.mark.parametrize("seed", range(12))
@in_loop
async def test_what_is_left_of_a_random_log_is_the_latest_of_each_key(seed):
    chance = random.Random(seed)
    clock, disk, model = ManualClock(), SimulatedFilesystem(), Model()
    config = replace(COMPACTED, segment_bytes_max=chance.choice([1024, 2048, 4096]))
    store, log = await opened(config, disk=disk, clock=clock)
    for _ in range(4):
        for _ in range(chance.randrange(60)):
            records = [
                Record(
                    chance.choice([None, b"", b"v%d" % chance.randrange(9), b"w" * 60]),
                    key=chance.choice([None, b"", *(b"k%d" % n for n in range(12))]),
                    timestamp_ms=chance.randrange(1000),
                )
                for _ in range(chance.randrange(1, 6))
            ]
            codec = chance.choice([Codec.NONE, Codec.LZ4])
            appended = await log.append_records(records, codec=codec)
            assert appended.offset == len(model.records)
            model.records += [(record.key, record.value) for record in records]
        if chance.random() < 0.5:
            key = b"k%d" % chance.randrange(12)
            await log.delete_keys(key=key)
            model.deleted |= {o for o, (k, _) in enumerate(model.records) if k == key}
        if chance.random() < 0.3:
            model.start = chance.randrange(model.start, len(model.records) + 1)
            await log.delete_before(model.start)
        if chance.random() < 0.3:
            await log.begin_epoch(log.partition.leader_epoch + 1)
        if chance.random() < 0.4:
            await store.close()
            store, log = await opened(config, disk=disk, clock=clock)
        before = {record.offset: record for record in log.records()}
        await settle(log)
        await clean(log, is_forced=chance.random() < 0.5)
        after = {record.offset: record for record in log.records()}
        wanted = model.left(with_tombstones=True)
        # Expired tombstones of an earlier round may have been removed.
        assert set(wanted) - {o for o in wanted if model.records[o][1] is None} <= set(after)
        assert set(after) <= set(wanted)
        assert all(before[offset] == record for offset, record in after.items())
        clock.advance(61)
        await clean(log, is_forced=True)
        assert only_offsets(log) == model.left(with_tombstones=False)
        assert not log.partition.deletions
        assert log.deleted_records == 0
    await store.close()
    assert not verify_partition(disk, DIRECTORY)
    store, log = await opened(config, disk=disk, clock=clock)
    assert only_offsets(log) == model.left(with_tombstones=False)
    await store.close()


@in_loop
async def test_a_compacted_log_reads_on_at_every_offset():
    _, log = await opened()
    for number in range(100):
        await put(log, b"k%d" % (number % 7), b"v%d" % number)
    await settle(log)
    await clean(log)
    left = only_offsets(log)
    assert left == list(range(93, 100))
    assert (log.start_offset, log.end_offset) == (0, 100)
    for offset in range(100):
        found = next(log.records(offset))
        assert found.offset == min(o for o in left if o >= offset)
        assert log.read(offset).next_offset > offset


@in_loop
async def test_a_second_run_does_nothing():
    disk = SimulatedFilesystem()
    _, log = await opened(disk=disk)
    for number in range(60):
        await put(log, b"k%d" % (number % 7), b"v")
    await settle(log)
    assert await clean(log) is not None
    await turns(50)
    before, counters = disk.contents(), replace(log.counters)
    assert await clean(log) is None
    assert disk.contents() == before
    assert log.counters.cleanings == counters.cleanings == 1
    assert log.counters.cleaned_bytes_read == counters.cleaned_bytes_read


@in_loop
async def test_forcing_it_twice_changes_nothing_the_second_time():
    disk = SimulatedFilesystem()
    _, log = await opened(disk=disk)
    for number in range(60):
        await put(log, b"k%d" % (number % 7), b"v")
    await settle(log)
    await clean(log, is_forced=True)
    await turns(50)
    before = disk.contents()
    found = await clean(log, is_forced=True)
    assert found is not None
    assert (found.segments_before, found.removed_records) == (0, 0)
    assert disk.contents() == before


@in_loop
async def test_records_without_a_key_stay():
    _, log = await opened()
    for number in range(20):
        await put(log, None if number % 2 else b"k", b"v")
    await settle(log)
    await clean(log)
    assert only_offsets(log) == [1, 3, 5, 7, 9, 11, 13, 15, 17, 18, 19]


@in_loop
async def test_growing_segments_are_neither_compacted_nor_compared():
    _, log = await opened()
    await put(log, b"k", b"1")
    await put(log, b"k", b"2")
    await settle(log)
    await put(log, b"k", b"3")
    await clean(log)
    assert only_offsets(log) == [1, 2]


@in_loop
async def test_it_is_durable_how_far_a_log_was_compacted():
    disk = SimulatedFilesystem()
    _, log = await opened(disk=disk)
    for number in range(30):
        await put(log, b"k", b"%d" % number)
    await settle(log)
    done = await clean(log)
    assert done is not None
    assert done.compacted_offset == 30
    for seed in range(10):
        partition = read_partition_metadata(disk.crash(seed), DIRECTORY)
        assert (partition.cleaned_offset, partition.is_rewritten) == (30, True)


@in_loop
async def test_a_log_is_compacted_when_enough_of_it_is_dirty():
    config = replace(COMPACTED, dirty_ratio_min=0.5)
    _, log = await opened(config)
    for number in range(50):
        await put(log, b"k%d" % number, b"v" * 50)
    await settle(log)
    assert await clean(log) is not None
    size = log.size_bytes
    while log.size_bytes < 2 * size - 300:
        await put(log, b"k1", b"v" * 50)
        await settle(log)
        assert await clean(log) is None
    for _ in range(4):
        await put(log, b"k1", b"v" * 50)
    await settle(log)
    assert await clean(log) is not None


@in_loop
async def test_a_segment_is_not_compacted_before_its_time():
    clock = ManualClock()
    config = replace(COMPACTED, compaction_lag_ms_min=10_000)
    _, log = await opened(config, clock=clock)
    await put(log, b"k", b"1")
    await put(log, b"k", b"2")
    await settle(log)
    clock.advance(9.999)
    assert await clean(log, is_forced=True) is None
    assert only_offsets(log) == [0, 1]
    clock.advance(0.001)
    assert await clean(log) is not None
    assert only_offsets(log) == [1]


@in_loop
async def test_a_segment_does_not_wait_longer_than_it_may():
    clock = ManualClock()
    config = replace(COMPACTED, dirty_ratio_min=1.0, compaction_lag_ms_max=10_000)
    _, log = await opened(config, clock=clock)
    for number in range(20):
        await put(log, b"k%d" % number, b"v" * 90)
    await settle(log)
    assert await clean(log) is not None
    await put(log, b"k1", b"again")
    await settle(log)
    clock.advance(10)
    assert await clean(log) is None
    clock.advance(0.001)
    assert await clean(log) is not None
    assert 1 not in only_offsets(log)


# With less memory than keys.


@pytest.mark.parametrize("memory", [2**14, 2**16, 2**20])
@in_loop
async def test_with_too_little_memory_it_takes_more_runs_and_comes_to_the_same(memory):
    clock = ManualClock()
    config = replace(COMPACTED, segment_bytes_max=32 * 1024)
    _, log = await opened(config, clock=clock)
    chance, model = random.Random(memory), Model()
    for _ in range(100):
        records = [
            Record(
                chance.choice([None, b"v"]),
                key=b"a rather long key, which takes memory: %d" % chance.randrange(2000),
            )
            for _ in range(40)
        ]
        await log.append_records(records)
        model.records += [(record.key, record.value) for record in records]
    await settle(log)
    cleaned, runs = 0, 0
    while cleaned < log.end_offset:
        found = await clean(log, memory=memory)
        assert found is not None
        assert found.compacted_offset is not None
        assert found.compacted_offset > cleaned
        cleaned, runs = found.compacted_offset, runs + 1
        assert log.partition.cleaned_offset == cleaned
        clock.advance(100)  # Tombstones could go with every run.
        left = set(only_offsets(log))
        assert set(model.left(with_tombstones=False)) <= left
        shown = {}
        for offset in sorted(left):
            shown[model.records[offset][0]] = model.records[offset][1]
        truth = dict(model.records)
        # No key shows an older value than the last: it shows that, or is absent.
        assert all(truth[key] == value for key, value in shown.items())
        assert all(shown.get(key) == value for key, value in truth.items())
    assert (runs > 1) == (memory < 2**20)
    await clean(log, is_forced=True)
    assert only_offsets(log) == model.left(with_tombstones=False)


@in_loop
async def test_a_batch_with_more_keys_than_fit_stops_compaction_and_nothing_else(caplog):
    _, log = await opened(replace(COMPACTED, segment_bytes_max=2**20))
    await log.append_records([Record(b"v", key=b"k" * 50 + b"%d" % n) for n in range(5000)])
    await settle(log)
    await log.delete_keys(prefix=b"k" * 50 + b"1")
    for _ in range(2):
        await clean(log, memory=2**14)
    assert "the key table must have at most 16384 bytes" in caplog.text
    assert len(caplog.records) == 1
    assert log.counters.cleaning_failures == 2
    assert log.deleted_records == 0
    assert len(only_offsets(log)) == 5000 - 1111


# Tombstones.


@in_loop
async def test_a_tombstone_stays_for_its_time_and_then_the_key_is_gone():
    clock, disk = ManualClock(), SimulatedFilesystem()
    store, log = await opened(clock=clock, disk=disk)
    await put(log, b"a", b"1")
    await put(log, b"b", b"1")
    await put(log, b"a", None)
    await settle(log)
    clock.advance(1000)
    await clean(log)
    assert kept(log) == [(1, b"b", b"1"), (2, b"a", None)]
    clock.advance(59.999)
    assert await clean(log) is None
    await clean(log, is_forced=True)
    assert kept(log) == [(1, b"b", b"1"), (2, b"a", None)]
    await store.close()
    store, log = await opened(clock=clock, disk=disk)  # It is known when it may go.
    assert await clean(log) is None
    clock.advance(0.001)
    assert await clean(log) is not None
    assert kept(log) == [(1, b"b", b"1")]
    assert log.partition.tombstones_due_ms == 0
    assert await clean(log) is None


@in_loop
async def test_the_wall_clock_does_not_make_tombstones_go():
    clock = ManualClock()
    _, log = await opened(clock=clock)
    await put(log, b"a", None)
    await settle(log)
    await clean(log)
    clock.jump_wall(10**12)
    await clean(log, is_forced=True)
    assert only_offsets(log) == [0]
    clock.jump_wall(-2 * 10**12)
    clock.advance(60)
    await clean(log)
    assert only_offsets(log) == []


@in_loop
async def test_a_tombstone_is_superseded_at_once_by_a_later_record():
    _, log = await opened()
    await put(log, b"a", None)
    await put(log, b"a", b"back")
    await settle(log)
    await clean(log)
    assert kept(log) == [(1, b"a", b"back")]


@in_loop
async def test_a_tombstone_keeps_the_timestamps_of_all_records_beside_it():
    _, log = await opened()
    records = [Record(b"v", key=b"b", timestamp_ms=5), Record(None, key=b"a", timestamp_ms=3)]
    await log.append_records(records)
    await settle(log)
    await clean(log)
    assert [record.timestamp_ms for record in log.records()] == [5, 3]
    assert log.find_timestamp(4) == (0, 5)
    assert log.find_latest() == (0, 5)


@in_loop
async def test_no_tombstone_goes_before_what_it_deleted_when_a_run_ends_in_between():
    clock = ManualClock()
    config = replace(COMPACTED, tombstone_ms=0)
    _, log = await opened(config, clock=clock)
    values = {}
    for number in range(60):
        key = b"k%d" % (number % 10)
        value = None if number >= 50 else b"v" * 60
        await put(log, key, value)
        values[key] = value
    await settle(log)
    background = HeldExecutor()
    for steps in range(60):
        background.is_held = True
        for _ in range(steps):
            run = log.clean(
                background=background, throttle=_Stops(steps), memory_bytes_max=2**20, seed=1
            )
            background.let_go()
            await run
        shown = {record.key: record.value for record in log.records()}
        assert all(shown.get(key) == value for key, value in values.items()), steps
        if not shown:
            break
    assert only_offsets(log) == []


class _Stops:
    """A throttle that stops after some chunks."""

    def __init__(self, steps: int) -> None:
        self._inner = IoThrottle()
        self._left = steps

    def pause(self, size: int, *, unless: object) -> None:
        self._left -= 1
        if self._left < 0:
            self._inner.stop()
        self._inner.pause(size)

    def wake(self) -> None:
        self._inner.wake()


# Transactions.


async def append_all(log: Log, *batches: bytes) -> None:
    for batch in batches:
        await log.append(batch)


@in_loop
async def test_aborted_records_go_and_shadow_nothing():
    _, log = await opened()
    await append_all(
        log,
        data((b"a", b"kept")),
        produced(1, 0, b"a", b"b", is_transactional=True),
        marker(1, is_commit=False),
        produced(2, 0, b"b", is_transactional=True),
        marker(2, is_commit=True),
    )
    log.removal_hooks = FakeRemovalHooks(
        [AbortedOffsets(producer_id=1, first_offset=1, last_offset=3)]
    )
    await settle(log)
    await clean(log)
    assert kept(log) == [(0, b"a", b"kept"), (4, b"b", b"0")]
    headers = [header for header, _ in log.headers(0)]
    assert [h.base_offset for h in headers if h.is_control] == [3, 5]
    assert not any(h.is_transactional for h in headers if not h.is_control)
    assert log.removal_hooks.calls == 1


@in_loop
async def test_nothing_of_an_open_transaction_is_touched_and_nothing_behind_it():
    _, log = await opened()
    await append_all(log, data((b"a", b"1")), data((b"a", b"2")))
    await settle(log)
    await append_all(log, produced(1, 0, b"a", is_transactional=True), data((b"a", b"4")))
    await settle(log)
    hooks = log.removal_hooks = FakeRemovalHooks(stable=2)
    await clean(log)
    assert only_offsets(log) == [1, 2, 3]
    assert log.partition.cleaned_offset == 2
    hooks.stable = 4
    await clean(log)
    assert only_offsets(log) == [3]


@in_loop
async def test_without_hooks_compaction_ends_before_the_first_transaction():
    """It is unknown whether it was aborted, so its record must not supersede an earlier one."""
    _, log = await opened()
    await append_all(log, data((b"a", b"1")), data((b"a", b"2")))
    await settle(log)
    await append_all(log, produced(1, 0, b"a", is_transactional=True), marker(1, is_commit=False))
    await settle(log)
    await append_all(log, data((b"b", b"1")), data((b"b", b"2")))
    await settle(log)
    await clean(log)
    assert only_offsets(log) == [1, 2, 4, 5]
    assert log.partition.cleaned_offset == 2
    assert await clean(log) is None


@in_loop
async def test_hooks_that_fail_keep_the_records_from_being_removed(caplog):
    disk = SimulatedFilesystem()
    _, log = await opened(disk=disk)
    for number in range(30):
        await put(log, b"k", b"%d" % number)
    await settle(log)
    hooks = log.removal_hooks = FakeRemovalHooks()
    hooks.error = StorageFailed("no snapshot")
    before = disk.contents()
    assert await clean(log) is None
    assert disk.contents() == before
    assert log.counters.cleaning_failures == 1
    assert "no snapshot" in caplog.text
    hooks.error = None
    assert await clean(log) is not None
    assert only_offsets(log) == [29]


@in_loop
async def test_the_hooks_are_called_once_for_each_run_that_removes_something():
    _, log = await opened()
    hooks = log.removal_hooks = FakeRemovalHooks()
    for number in range(50):
        await put(log, b"k%d" % number, b"v")
    await settle(log)
    await clean(log)
    assert hooks.calls == 0
    for _ in range(50):
        await put(log, b"k1", b"v")
    await settle(log)
    done = await clean(log)
    assert done is not None
    assert done.segments_after > 1
    assert hooks.calls == 1


# Merging.


@in_loop
async def test_many_small_segments_become_few_and_read_the_same():
    store, log = await opened(replace(PLAIN, segment_bytes_max=4096))
    for number in range(40):
        await put(log, b"k%d" % number, b"v")
        await settle(log)
    before = list(log.records())
    assert len(log.segments) == 40
    assert await clean(log) is None
    done = await clean(log, is_forced=True)
    assert done is not None
    assert (done.segments_before, done.removed_records) == (40, 0)
    assert len(log.segments) == done.segments_after == 1
    assert list(log.records()) == before
    assert all(segment.size <= 4096 for segment in log.segments)
    await put(log, b"next", b"v")
    assert only_offsets(log) == list(range(41))
    await store.close()


@in_loop
async def test_segments_of_different_epochs_stay_apart():
    _, log = await opened(replace(PLAIN, segment_bytes_max=4096))
    for epoch in range(1, 4):
        await log.begin_epoch(epoch)
        for _ in range(3):
            await put(log, b"k", b"v")
            await settle(log)
    await clean(log, is_forced=True)
    assert [segment.leader_epoch for segment in log.segments] == [1, 2, 3]
    assert ranges(log) == [(0, 3, 1), (3, 6, 1), (6, 9, 1)]
    assert [header.leader_epoch for header, _ in log.headers(0)] == [1] * 3 + [2] * 3 + [3] * 3


@in_loop
async def test_a_compacted_log_is_merged_by_itself_and_another_is_not():
    for config, count in ((COMPACTED, 1), (PLAIN, 8)):
        _, log = await opened(config)
        for number in range(8):
            await put(log, b"k%d" % number, b"v")
            await settle(log)
        await clean(log)
        assert len(log.segments) == count
        assert only_offsets(log) == list(range(8))


@in_loop
async def test_what_is_still_to_be_compacted_is_not_merged_with_what_was():
    clock = ManualClock()
    _, log = await opened(replace(COMPACTED, compaction_lag_ms_min=1000), clock=clock)
    for number in range(4):
        await put(log, b"k%d" % number, b"v")
        await settle(log)
    clock.advance(1)
    for number in range(4):
        await put(log, b"k%d" % number, b"v")
        await settle(log)
    await clean(log)
    assert [(base, end) for base, end, _ in ranges(log)] == [(0, 4), (4, 5), (5, 6), (6, 7), (7, 8)]
    assert log.partition.cleaned_offset == 4


# Reclaiming.


@in_loop
async def test_what_was_deleted_by_key_leaves_the_files_and_then_the_rule_goes():
    disk = SimulatedFilesystem()
    _, log = await opened(PLAIN, disk=disk)
    for number in range(30):
        await put(log, b"k%d" % (number % 3), b"secret" if number % 3 == 1 else b"v")
    assert await log.delete_keys(key=b"k1") == 10
    await settle(log)
    left = [number for number in range(30) if number % 3 != 1]
    assert only_offsets(log) == left
    done = await clean(log)
    assert done is not None
    assert done.removed_records == 10
    await turns(50)
    assert only_offsets(log) == left
    assert (log.deleted_records, log.reclaimable_bytes, log.partition.deletions) == (0, 0, ())
    assert not holds_secrets(disk)
    assert read_partition_metadata(disk, DIRECTORY).deletions == ()
    assert await clean(log) is None


@in_loop
async def test_a_little_that_was_deleted_waits_for_a_day():
    clock = ManualClock()
    _, log = await opened(replace(PLAIN, segment_bytes_max=8192), clock=clock)
    for number in range(60):
        await put(log, b"k%d" % number, b"v" * 20)
    await settle(log)
    await log.delete_keys(key=b"k7")
    assert await clean(log) is None
    clock.advance(DAY_MS / 1000 - 1)
    assert await clean(log) is None
    assert len(log.partition.deletions) == 1
    clock.advance(1)
    assert await clean(log) is not None
    assert log.partition.deletions == ()
    assert len(only_offsets(log)) == 59


@in_loop
async def test_what_was_deleted_does_not_wait_for_another_day_after_each_restart():
    clock, disk = ManualClock(), SimulatedFilesystem()
    config = replace(PLAIN, segment_bytes_max=8192)
    store, log = await opened(config, clock=clock, disk=disk)
    for number in range(60):
        await put(log, b"k%d" % number, b"v" * 20)
    await settle(log)
    await log.delete_keys(key=b"k7")
    clock.advance(DAY_MS / 1000 - 1)
    await store.close()
    _, log = await opened(config, clock=clock, disk=disk)
    assert await clean(log) is None
    clock.advance(1)
    assert await clean(log) is not None
    assert log.partition.deletions == ()


@in_loop
async def test_a_rule_stays_as_long_as_anything_may_be_left_of_it():
    _, log = await opened(PLAIN)
    for _ in range(20):
        await put(log, b"k", b"v" * 60)
        await put(log, b"l", b"v" * 60)
    await log.delete_keys(key=b"k", before=10)
    await log.delete_keys(key=b"k")
    assert ranges(log)[-1][2] == -1
    await clean(log)
    growing = ranges(log)[-1][0]
    assert [rule.before for rule in log.partition.deletions] == [40]
    assert log.deleted_records == len([o for o in range(growing, 40) if o % 2 == 0]) > 0
    await settle(log)
    await clean(log)
    assert log.partition.deletions == ()
    assert only_offsets(log) == list(range(1, 40, 2))


@in_loop
async def test_rules_go_when_what_they_hit_was_evicted():
    _, log = await opened(PLAIN)
    for number in range(40):
        await put(log, b"k%d" % number, b"v" * 60)
    await settle(log)
    await log.delete_keys(key=b"k1")
    await log.evict_before(30)
    assert len(log.partition.deletions) == 1
    await clean(log)
    assert log.partition.deletions == ()


@in_loop
async def test_what_was_deleted_before_an_offset_inside_a_segment_leaves_the_file():
    clock, disk = ManualClock(), SimulatedFilesystem()
    _, log = await opened(replace(PLAIN, segment_bytes_max=8192), clock=clock, disk=disk)
    for number in range(60):
        await put(log, b"k%d" % number, b"secret" if number < 20 else b"v" * 6)
    await settle(log)
    await log.delete_before(20)
    assert await clean(log) is None  # A third of it: that can wait.
    clock.advance(DAY_MS / 1000)
    assert await clean(log) is not None
    await turns(50)
    assert only_offsets(log) == list(range(20, 60))
    assert ranges(log) == [(0, 60, 1)]
    assert not holds_secrets(disk)
    assert await clean(log, is_forced=True) is None
    await log.delete_before(45)
    assert await clean(log) is not None
    assert only_offsets(log) == list(range(45, 60))


@in_loop
async def test_a_dead_front_that_cannot_get_smaller_is_not_tried_again_and_again():
    _, log = await opened(replace(PLAIN, segment_bytes_max=8192))
    for number in range(20):
        await append_all(log, produced(number, 0, b"k"))
    await put(log, b"k", b"v")
    await settle(log)
    await log.delete_before(20)
    await clean(log)
    read = log.counters.cleaned_bytes_read
    assert await clean(log) is None
    assert await clean(log) is None
    assert log.counters.cleaned_bytes_read <= 2 * read
    assert [header.producer_id for header, _ in log.headers(20)] == [-1]


@in_loop
async def test_the_last_segment_is_reclaimed_and_the_log_goes_on_behind_it():
    disk = SimulatedFilesystem()
    store, log = await opened(PLAIN, disk=disk)
    for number in range(4):
        await put(log, b"k%d" % number, b"v" * 50)
    await store.close()
    store, log = await opened(PLAIN, disk=disk)
    await log.delete_keys(key=b"k3")
    await clean(log)
    assert ranges(log) == [(0, 4, 1)]
    assert (log.end_offset, only_offsets(log)) == (4, [0, 1, 2])
    assert log.read(4).data == b""
    assert await put(log, b"k4", b"v") == 4
    assert [(base, end) for base, end, _ in ranges(log)] == [(0, 4), (4, 5)]
    await store.close()
    store, log = await opened(PLAIN, disk=disk)
    assert only_offsets(log) == [0, 1, 2, 4]
    await store.close()


@in_loop
async def test_compaction_reclaims_what_was_deleted_in_passing(caplog):
    caplog.set_level(logging.INFO)
    _, log = await opened()
    for number in range(40):
        await put(log, b"k%d" % (number % 4), b"v" * 40)
    await settle(log)
    await log.delete_keys(key=b"k1")
    await clean(log)
    assert only_offsets(log) == [36, 38, 39]
    assert (log.deleted_records, log.partition.deletions) == (0, ())
    assert "reclaimed" not in caplog.text


# Every class of durability.


@pytest.mark.parametrize("durability", list(Durability))
@in_loop
async def test_logs_of_every_class_are_cleaned(durability):
    _, log = await opened(replace(COMPACTED, durability=durability))
    for number in range(60):
        await put(log, b"k%d" % (number % 4), b"v" * 40)
    await turns(50)
    await settle(log)
    await log.delete_keys(key=b"k1")
    await clean(log)
    await turns(50)
    assert only_offsets(log) == [56, 58, 59]
    assert log.size_bytes < 1024


@pytest.mark.parametrize("durability", [Durability.MEMORY, Durability.DISK])
@in_loop
async def test_what_was_cleaned_is_durable_in_weaker_classes_too(durability):
    disk = SimulatedFilesystem()
    _, log = await opened(replace(COMPACTED, durability=durability), disk=disk)
    for number in range(60):
        await put(log, b"k%d" % (number % 4), b"v" * 40)
    await turns(50)
    await settle(log)
    await clean(log)
    for seed in range(20):
        store = make_store(disk.crash(seed), config=COMPACTED)
        assert only_offsets(await store.log("a")) == [56, 57, 58, 59]
        assert not store.damage()


# Damage.


async def damaged(number: int, clock: ManualClock | None = None) -> tuple[Log, list[int]]:
    """Return a log of several segments, one of them with an undetected flipped bit."""
    disk = SimulatedFilesystem()
    _, log = await opened(replace(COMPACTED, tombstone_ms=1000), disk=disk, clock=clock)
    for offset in range(60):
        key, value = b"k%d" % (offset % 6), b"v" * 60
        await put(log, key, None if key == b"k5" and offset > 50 else value)
    await settle(log)
    bases = [segment.base_offset for segment in log.segments]
    disk.flip_bit(log.segments[number].path, 8 * 100)
    log.log_directory.map_cache.forget(log.segments[number].path)
    return log, [*bases, 60]


@pytest.mark.parametrize("number", [0, 2])
@in_loop
async def test_damage_ends_a_run_and_the_next_one_goes_around_it(number, caplog):
    clock = ManualClock()
    log, bases = await damaged(number, clock)
    before = ranges(log)
    assert await clean(log) is None
    assert ranges(log) == before
    assert log.counters.cleaning_failures == 1
    [message] = [r.message for r in caplog.records if r.levelno == logging.ERROR]
    assert log.segments[number].path in message
    done = await clean(log)
    assert done is not None
    assert log.counters.cleaning_failures == 1
    assert done.compacted_offset == 60
    assert log.partition.cleaned_offset == bases[number]
    first, end = bases[number], bases[number + 1]
    assert (first, end, 0) in ranges(log)
    left = [o for base in (0, end) for o in _readable(log, base, first if base == 0 else 60)]
    assert left == list(range(54, 60))
    # No tombstone after the damage is ever removed.
    clock.advance(10**6)
    await clean(log, is_forced=True)
    assert 59 in _readable(log, end, 60)
    assert await clean(log) is None


def _readable(log: Log, first: int, end: int) -> list[int]:
    return [record.offset for record in log.records(first, until=end)]


@in_loop
async def test_once_the_damaged_segment_is_gone_all_is_as_it_should_be():
    clock = ManualClock()
    log, bases = await damaged(1, clock)
    await clean(log)
    await clean(log)
    await log.delete_before(bases[2])
    clock.advance(10)
    await clean(log, is_forced=True)
    assert log.partition.cleaned_offset == 60
    clock.advance(10)
    await clean(log, is_forced=True)
    assert only_offsets(log) == [54, 55, 56, 57, 58]


@in_loop
async def test_markers_stay_behind_a_damaged_segment():
    disk = SimulatedFilesystem()
    _, log = await opened(disk=disk)
    await append_all(log, produced(1, 0, b"a", is_transactional=True))
    await settle(log)
    for number in range(3):
        await append_all(log, marker(1, is_commit=True), produced(2, number, b"a"))
    await settle(log)
    log.removal_hooks = FakeRemovalHooks()
    disk.flip_bit(log.segments[0].path, 8 * 64)
    await clean(log)
    await clean(log)
    markers = [header for header, _ in log.headers(1) if header.is_control]
    assert [header.base_offset for header in markers] == [1, 3, 5]


# Counters and log lines.


@in_loop
async def test_what_was_done_is_counted_and_told(caplog):
    caplog.set_level(logging.INFO)
    _, log = await opened()
    for number in range(60):
        await put(log, b"k%d" % (number % 3), b"v" * 60)
    await settle(log)
    size, count = log.size_bytes, len(log.segments)
    done = await clean(log)
    assert done is not None
    assert done.removed_records == 57
    counters = log.counters
    assert (counters.cleanings, counters.removed_records) == (1, 57)
    assert counters.cleaned_bytes_read == done.bytes_before
    assert counters.cleaned_bytes_written == done.bytes_after
    [compacted, merged] = [r.message for r in caplog.records if "offsets" in r.message]
    assert compacted.startswith(f"a/0: compacted offsets 0 to 59: {count} segments with {size} by")
    assert compacted.endswith(" bytes, 57 records removed, in 0.000 s")
    assert merged.startswith(f"a/0: merged offsets 0 to 59: {count} segments with ")
    assert merged.endswith(f" became 1 with {log.size_bytes} bytes, 0 records removed, in 0.000 s")


@in_loop
async def test_only_one_run_at_a_time():
    _, log = await opened()
    await put(log, b"k", b"v")
    await settle(log)
    background = HeldExecutor()
    background.is_held = True
    task = asyncio.ensure_future(clean(log, background=background))
    await turns()
    with pytest.raises(Busy, match="a/0: a cleaner run is in progress"):
        await clean(log)
    while not task.done():
        background.let_go()
        await turns()
    assert await task is not None
    await clean(log)


@in_loop
async def test_records_that_cannot_be_opened_stay_as_they_are():
    _, log = await opened()
    broken = bytearray(build_batch([Record(b"v", key=b"k")], now_ms=1))
    broken[61] = 0x7F
    await log.append(seal(decode_header(bytes(broken)), bytes(broken[61:])))
    await put(log, b"k", b"w")
    await settle(log)
    await clean(log)
    assert [header.record_count for header, _ in log.headers(0)] == [1, 1]


@in_loop
async def test_a_rule_is_dropped_only_when_the_files_are_gone_that_held_its_records():
    disk, background = SimulatedFilesystem(), HeldExecutor()
    store = make_store(disk, config=PLAIN, background=background)
    log = await store.log("a")
    for number in range(40):
        await put(log, b"k%d" % (number % 2), b"secret" if number % 2 else b"v" * 60)
    await settle(log)
    await log.delete_keys(key=b"k1")
    background.is_held = True
    run = asyncio.ensure_future(clean(log, is_forced=True))
    while not run.done():
        await turns()
        assert read_partition_metadata(disk, DIRECTORY).deletions or not holds_secrets(disk)
        if background.waiting:
            background.let_one_go(-1)  # The last to come is done first.
    assert log.partition.deletions == ()
