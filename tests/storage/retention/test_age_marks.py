"""Readers see no record that is much older than allowed, and every one that is younger."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.config.schema import Durability, LogConfig
from millstream.records.record import StoredRecord
from millstream.storage.files.partition_metadata import AgeMark
from millstream.storage.log import Log
from millstream.storage.retention.eviction import AGE_MARKS, next_age_mark, plan_eviction
from millstream.storage.store import Store
from millstream.testing import ManualClock, SimulatedFilesystem
from tests.in_loop import in_loop
from tests.storage.logs import batch_of, make_store

TICK = 30
"""Seconds between two runs of maintenance."""
HOUR = 3600
AN_HOUR = LogConfig(retention_ms=HOUR * 1000)


class Aging:
    """A store whose maintenance runs as its clock passes."""

    def __init__(self, config: LogConfig, disk: SimulatedFilesystem | None = None) -> None:
        self.disk = disk or SimulatedFilesystem()
        self.clock = ManualClock()
        self.config = config
        self.store: Store = make_store(self.disk, config=config, clock=self.clock)

    async def log(self) -> Log:
        return await self.store.log("a")

    async def pass_seconds(self, seconds: int) -> None:
        for _ in range(seconds // TICK):
            self.clock.advance(TICK)
            await self.store.maintenance.run_once()


def offsets(log: Log) -> list[int]:
    return [record.offset for record in log.records() if isinstance(record, StoredRecord)]


@in_loop
async def test_a_record_goes_soon_after_its_time_though_its_segment_grows() -> None:
    aging = Aging(AN_HOUR)
    log = await aging.log()
    for _ in range(60):  # Two hours, two minutes apart.
        await log.append(batch_of(b"v"))
        written_at = log.end_offset
        await aging.pass_seconds(120)
        allowed = HOUR + HOUR / AGE_MARKS + 2 * TICK
        newest = written_at - 1
        oldest_seen = min(offsets(log))
        assert (newest - oldest_seen + 1) * 120 <= allowed + 120, "not much longer than an hour"
        assert (newest - oldest_seen + 1) * 120 >= min(HOUR, written_at * 120), "never less"


@in_loop
async def test_an_idle_log_loses_its_last_record_too() -> None:
    aging = Aging(AN_HOUR)
    log = await aging.log()
    await log.append(batch_of(b"v"))
    await aging.pass_seconds(HOUR)
    assert offsets(log) == [0]
    await aging.pass_seconds(2 * TICK)
    assert offsets(log) == []
    assert log.start_offset == log.eviction_floor == 1


@in_loop
async def test_marks_are_few_and_written_rarely() -> None:
    aging = Aging(AN_HOUR)
    log = await aging.log()
    for _ in range(3 * HOUR // TICK):
        await log.append(batch_of(b"v"))
        await aging.pass_seconds(TICK)
    assert 50 <= len(log.partition.age_marks) <= AGE_MARKS + 2


@pytest.mark.parametrize("how", ["clean", "power cut"])
@in_loop
async def test_ages_survive_a_restart(how: str) -> None:
    aging = Aging(AN_HOUR)
    log = await aging.log()
    await log.append(batch_of(b"v"))
    await aging.pass_seconds(HOUR // 2)
    await log.append(batch_of(b"v"))
    if how == "clean":
        await aging.store.close()
    disk = aging.disk.crash()
    store = make_store(disk, config=AN_HOUR, clock=aging.clock)
    aging.store = store
    log = await store.log("a")
    await aging.pass_seconds(HOUR // 2 + 2 * TICK)
    assert offsets(log) == [1]


@in_loop
async def test_records_with_offsets_that_a_power_cut_took_back_are_as_old_as_they_are() -> None:
    """A mark may not be applied to records that were appended after it."""
    aging = Aging(LogConfig(retention_ms=HOUR * 1000, durability=Durability.DISK, flush_ms=2**40))
    log = await aging.log()
    for _ in range(5):
        await log.append(batch_of(b"lost"))
    await aging.pass_seconds(TICK)
    assert log.partition.age_marks[-1].offset == 5
    aging.store = make_store(aging.disk.crash(), config=aging.config, clock=aging.clock)
    log = await aging.log()
    assert log.end_offset == 0
    await aging.pass_seconds(HOUR - 2 * TICK)
    for _ in range(5):
        await log.append(batch_of(b"new"))
    await aging.pass_seconds(5 * TICK)
    assert offsets(log) == [0, 1, 2, 3, 4]


@in_loop
async def test_a_log_without_an_age_limit_has_no_marks() -> None:
    aging = Aging(LogConfig(retention_records=10))
    log = await aging.log()
    await log.append(batch_of(b"v"))
    await aging.pass_seconds(HOUR)
    assert log.partition.age_marks == ()


@settings(max_examples=200, deadline=None)
@given(
    appends=st.lists(st.integers(0, 40), min_size=1, max_size=60),
    retention_ms=st.integers(0, 2000),
)
def test_what_the_marks_evict_is_old_enough_and_nearly_all_that_is(
    appends: list[int], retention_ms: int
) -> None:
    """Each item is one interval of 10 ms, in which so many records were appended."""
    config = LogConfig(retention_ms=retention_ms)
    marks: list[AgeMark] = []
    written: list[int] = []
    start = 0
    for turn, count in enumerate(appends):
        now_ms = turn * 10
        written += [now_ms - 10] * count
        if (m := next_age_mark(marks, committed=len(written), config=config, now_ms=now_ms)) and (
            len(written) > start
        ):
            marks.append(m)
        plan = plan_eviction(
            [], start=start, committed=len(written), config=config, now_ms=now_ms, age_marks=marks
        )
        if plan is not None:
            start = plan.before_offset
            marks = [mark for mark in marks if mark.offset > start]
        late_ms = max(10, retention_ms // AGE_MARKS) + 20
        assert all(now_ms - ms >= retention_ms for ms in written[:start])
        assert all(now_ms - ms <= retention_ms + late_ms for ms in written[start:])
