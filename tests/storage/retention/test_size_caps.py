"""Readers see no more than the limits allow, to the record and at once; files go later."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import pytest

from millstream.config.schema import Discard, Durability, LogConfig, StoreConfig
from millstream.records.build import build_batch
from millstream.records.record import Gap, Record, StoredRecord
from millstream.storage.inspect.readonly_log import ReadOnlyLog
from millstream.storage.log import Log
from millstream.storage.store import Store
from millstream.testing import ManualClock, SimulatedFilesystem, sample_crash_states
from millstream.testing.clocks.seeded_background import SeededBackground
from tests.in_loop import in_loop
from tests.storage.logs import batch_of, make_store, turns

SMALL = {"segment_bytes_max": 2048, "index_interval_bytes": 128}


def capped(**limits: object) -> LogConfig:
    return LogConfig(**SMALL, **limits)  # type: ignore[arg-type]


def offsets(log: Log) -> list[int]:
    found = []
    for record in log.records():
        assert isinstance(record, StoredRecord)
        found.append(record.offset)
    return found


async def fill(log: Log, count: int, *, size: int = 10) -> None:
    for number in range(count):
        await log.append_records([Record(b"%d:" % number + b"x" * size)])


@in_loop
async def test_with_ten_allowed_a_reader_sees_exactly_the_last_ten_after_every_append() -> None:
    log = await make_store(config=capped(retention_records=10)).log("a")
    for count in range(1, 201):
        await log.append(batch_of(b"v"))
        assert offsets(log) == list(range(max(0, count - 10), count))
        assert log.start_offset == log.eviction_floor == max(0, count - 10)


@in_loop
async def test_the_last_records_are_counted_within_a_batch_too() -> None:
    log = await make_store(config=capped(retention_records=10)).log("a")
    await log.append(batch_of(*[b"v"] * 25))
    assert offsets(log) == list(range(15, 25))
    await log.append(batch_of(*[b"v"] * 3))
    assert offsets(log) == list(range(18, 28))


@in_loop
async def test_none_allowed_leaves_none() -> None:
    log = await make_store(config=capped(retention_records=0)).log("a")
    await fill(log, 3)
    assert offsets(log) == []
    assert log.start_offset == log.end_offset == 3


@pytest.mark.parametrize("seed", range(6))
@in_loop
async def test_a_reader_sees_the_newest_batches_that_fit_into_the_bytes_allowed(seed: int) -> None:
    chance = random.Random(seed)
    limit = chance.choice((0, 500, 1500, 6000))
    log = await make_store(config=capped(retention_bytes=limit)).log("a")
    sizes: list[int] = []
    for _ in range(120):
        batch = build_batch([Record(b"x" * chance.choice((0, 50, 400, 900)))], now_ms=1)
        sizes.append(len(batch))
        await log.append(batch)
        first = len(sizes) - 1
        while first > 0 and sum(sizes[first - 1 :]) <= limit:
            first -= 1
        assert log.start_offset == first, "the last batch stays, and what fits beside it"
        if chance.random() < 0.05:
            await log.roll()
    assert offsets(log) == list(range(log.start_offset, log.end_offset))


@in_loop
async def test_a_reader_below_the_start_gets_a_gap() -> None:
    log = await make_store(config=capped(retention_records=10)).log("a")
    await fill(log, 50)
    gap, *rest = log.records(5)
    assert isinstance(gap, Gap)
    assert (gap.from_offset, gap.to_offset) == (5, 39)
    assert len(rest) == 10


@in_loop
async def test_moving_the_start_writes_nothing() -> None:
    disk = SimulatedFilesystem()
    config = LogConfig(retention_records=10, retention_bytes=5000)
    log = await make_store(disk, config=config).log("a")
    await fill(log, 2)
    before = len(disk.trace.events)
    await fill(log, 50)
    plain = await make_store(disk2 := SimulatedFilesystem(), config=LogConfig()).log("a")
    await fill(plain, 2)
    before2 = len(disk2.trace.events)
    await fill(plain, 50)
    assert len(disk.trace.events) - before == len(disk2.trace.events) - before2


@pytest.mark.parametrize("limits", [{"retention_records": 10}, {"retention_bytes": 900}])
@in_loop
async def test_files_are_removed_by_whole_segments_when_maintenance_runs(
    limits: dict[str, int],
) -> None:
    disk = SimulatedFilesystem()
    store = make_store(disk, config=capped(**limits))
    log = await store.log("a")
    await fill(log, 200)
    start, count = log.start_offset, len(log.segments)
    assert count > 5
    await store.maintenance.run_once()
    await turns(50)
    assert len(log.segments) <= 2
    assert log.start_offset == start
    assert start - 20 < log.partition.eviction_floor <= start == log.eviction_floor
    assert sum(".log" in path for path in disk.paths()) <= 2
    assert log.counters.evicted_records == start


@pytest.mark.parametrize("limits", [{"retention_records": 7}, {"retention_bytes": 900}])
@pytest.mark.parametrize("how", ["power cut", "clean"])
@in_loop
async def test_the_start_is_the_same_after_a_crash(limits: dict[str, int], how: str) -> None:
    disk = SimulatedFilesystem()
    store = make_store(disk, config=capped(**limits))
    log = await store.log("a")
    await fill(log, 60)
    start = log.start_offset
    if how == "clean":
        await store.close()
    again = await make_store(disk.crash(), config=capped(**limits)).log("a")
    assert (again.start_offset, again.eviction_floor) == (start, start)
    assert offsets(again) == list(range(start, 60))


@in_loop
async def test_a_higher_limit_brings_nothing_back() -> None:
    disk = SimulatedFilesystem()
    log = await make_store(disk, config=capped(retention_records=10)).log("a")
    await fill(log, 50)
    await log.reconfigure(capped(retention_records=30))
    assert log.start_offset == 40
    await fill(log, 5)
    again = await make_store(disk.crash(), config=capped(retention_records=30)).log("a")
    assert again.start_offset == 40
    await fill(again, 30)
    assert again.start_offset == 55


@pytest.mark.parametrize("limits", [{"retention_records": 30}, {}, {"retention_bytes": 10**9}])
@in_loop
async def test_a_higher_limit_brings_nothing_back_that_comes_with_a_crash(
    limits: dict[str, int],
) -> None:
    """The node may have crashed before its logs knew the new limit."""
    disk = SimulatedFilesystem()
    log = await make_store(disk, config=capped(retention_records=10)).log("a")
    await fill(log, 50)
    disk = disk.crash()
    for _ in range(2):
        again = await make_store(disk, config=capped(**limits)).log("a")
        assert again.start_offset == 40
        disk = disk.crash()


class Hold:
    """Removal hooks that need the records from an offset on."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def stable_offset(self) -> int:
        return 2**62

    def aborted(self, first: int, end: int) -> list[object]:
        return []

    def needed_offset(self) -> int | None:
        return self.offset

    async def before_removal(self) -> None:
        pass


@in_loop
async def test_appends_while_a_limit_is_raised_bring_nothing_back() -> None:
    disk = SimulatedFilesystem()
    log = await make_store(disk, config=capped(retention_records=10)).log("a")
    await fill(log, 50)
    starts = []
    log.watch(lambda: starts.append(log.start_offset))
    await asyncio.gather(log.reconfigure(capped(retention_records=30)), fill(log, 10))
    again = await make_store(disk.crash(), config=capped(retention_records=30)).log("a")
    assert starts == sorted(starts)
    assert again.start_offset >= starts[-1]


class Saving(Hold):
    """Removal hooks that note when state is saved, and what is stored then."""

    def __init__(self, log: Log) -> None:
        super().__init__(2**62)
        self._log = log
        self.saved: list[int] = []

    async def before_removal(self) -> None:
        self.saved.append(self._log.partition.start_offset)


@in_loop
async def test_state_that_only_hidden_records_have_is_saved_before_other_limits_apply() -> None:
    log = await make_store(config=capped(retention_records=10)).log("a", is_managed=True)
    log.removal_hooks = hooks = Saving(log)  # type: ignore[assignment]
    await log.begin_retention()
    await fill(log, 50)
    assert hooks.saved == []
    await log.reconfigure(capped(retention_records=30))
    assert hooks.saved == [0]
    assert log.partition.start_offset == 40


@in_loop
async def test_a_lower_limit_holds_at_once() -> None:
    log = await make_store(config=capped()).log("a")
    await fill(log, 50)
    await log.reconfigure(capped(retention_records=10))
    assert offsets(log) == list(range(40, 50))


@in_loop
async def test_a_log_that_rejects_shows_all_that_it_has() -> None:
    config = capped(retention_records=10, discard=Discard.REJECT)
    log = await make_store(config=config).log("a")
    await fill(log, 10)
    assert log.start_offset == 0


@in_loop
async def test_records_that_are_needed_stay_visible() -> None:
    log = await make_store(config=capped(retention_records=10)).log("a", is_managed=True)
    log.removal_hooks = hold = Hold(5)  # type: ignore[assignment]
    await log.begin_retention()
    await fill(log, 50)
    assert log.start_offset == 5
    hold.offset = 45
    await fill(log, 1)
    assert log.start_offset == 41


@in_loop
async def test_records_that_are_needed_stay_visible_when_the_log_is_opened_again() -> None:
    disk = SimulatedFilesystem()
    config = capped(retention_records=10)
    log = await make_store(disk, config=config).log("a", is_managed=True)
    log.removal_hooks = Hold(5)  # type: ignore[assignment]
    await log.begin_retention()
    await fill(log, 50)
    log = await make_store(disk.crash(), config=config).log("a", is_managed=True)
    assert log.start_offset == 0
    log.removal_hooks = Hold(5)  # type: ignore[assignment]
    await log.begin_retention()
    assert log.start_offset == 5


@in_loop
async def test_a_deletion_and_the_limit_move_the_start_further_whichever_is_further() -> None:
    disk = SimulatedFilesystem()
    log = await make_store(disk, config=capped(retention_records=10)).log("a")
    await fill(log, 50)
    await log.delete_before(30)
    assert (log.start_offset, log.eviction_floor) == (40, 40)
    await log.delete_before(45)
    assert (log.start_offset, log.eviction_floor) == (45, 40)
    again = await make_store(disk.crash(), config=capped(retention_records=10)).log("a")
    assert (again.start_offset, again.eviction_floor) == (45, 40)


@in_loop
async def test_appends_while_the_start_is_made_durable_move_it_on() -> None:
    log = await make_store(config=capped(retention_records=10)).log("a")
    await fill(log, 50)
    await asyncio.gather(log.evict_before(40), fill(log, 20), log.delete_before(41))
    assert offsets(log) == list(range(60, 70))


@in_loop
async def test_segments_without_all_records_keep_at_least_the_limit() -> None:
    config = capped(retention_records=10, is_compacted=True, dirty_ratio_min=0.0)
    store = make_store(config=config)
    log = await store.log("a")
    for number in range(8):
        await log.append_records([Record(b"x" * 100, key=b"%d" % (number % 5))])
    await log.roll()
    await store.maintenance.clean(log, is_forced=True)
    left = offsets(log)
    assert left == [3, 4, 5, 6, 7]
    for number in range(7):
        await log.append_records([Record(b"x", key=b"k%d" % number)])
    assert offsets(log) == [*left, *range(8, 15)], "twelve: the first segment stays whole"
    for number in range(7, 10):
        await log.append_records([Record(b"x", key=b"k%d" % number)])
    assert offsets(log) == list(range(8, 18)), "ten"


@in_loop
async def test_files_read_in_place_show_what_the_log_shows() -> None:
    disk = SimulatedFilesystem()
    log = await make_store(disk, config=capped(retention_records=10)).log("a")
    await fill(log, 50)
    found = ReadOnlyLog(disk, log.log_directory.directory).reload()
    assert (found.start_offset, found.eviction_floor, found.end_offset) == (40, 40, 50)


@dataclass(frozen=True)
class Shown:
    """A reader was told this start."""

    start: int
    end: int


async def _live(disk: SimulatedFilesystem, seed: int) -> None:
    chance = random.Random(seed)
    store = _store(disk, seed)
    log = await store.log("a")
    for _ in range(30):
        await log.append(batch_of(*[b"x" * chance.choice((5, 200))] * chance.choice((1, 4))))
        disk.note(Shown(log.start_offset, log.end_offset))
        if chance.random() < 0.1:
            await store.maintenance.run_once()
        if chance.random() < 0.1:
            await log.reconfigure(capped(retention_records=chance.choice((5, 8, 20))))
            disk.note(Shown(log.start_offset, log.end_offset))


def _store(disk: SimulatedFilesystem, seed: int) -> Store:
    store = Store(
        "/data",
        config=StoreConfig(),
        log_config=capped(retention_records=8),
        filesystem=disk,
        clock=ManualClock(),
        background=SeededBackground(seed),
    )
    store.open()
    return store


@pytest.mark.parametrize("seed", range(3))
@in_loop
async def test_no_power_cut_moves_the_start_back(seed: int) -> None:
    disk = SimulatedFilesystem()
    await _live(disk, seed)
    for state in sample_crash_states(disk.trace, 120, seed):
        store = _store(state.filesystem(), seed)
        assert store.damage() == {}, str(state)
        log = await store.log("a")
        start = max((note.start for note in state.notes if isinstance(note, Shown)), default=0)
        assert log.start_offset >= start, f"{state}: evicted records came back"
        assert log.end_offset - log.start_offset <= 20, str(state)
        await store.close()


@in_loop
async def test_class_disk_keeps_what_is_allowed_of_the_rest_though_files_were_removed() -> None:
    disk = SimulatedFilesystem()
    config = capped(retention_records=10, durability=Durability.DISK)
    store = make_store(disk, config=config)
    log = await store.log("a")
    await fill(log, 60)
    await log.flush()
    await fill(log, 30, size=0)
    await store.maintenance.run_once()
    await turns()
    assert log.partition.start_offset > 0
    log = await make_store(disk.crash(), config=config).log("a")
    assert (log.start_offset, log.end_offset) == (80, 90), "synced before files were removed"


@in_loop
async def test_class_disk_that_loses_its_end_shows_what_is_allowed_of_the_rest() -> None:
    disk = SimulatedFilesystem()
    config = capped(retention_records=10, durability=Durability.DISK)
    log = await make_store(disk, config=config).log("a")
    await fill(log, 50)
    await log.flush()
    await fill(log, 3)
    log = await make_store(disk.crash(), config=config).log("a")
    assert (log.start_offset, log.end_offset) == (40, 50)
