"""A log is checked in pages; damage is reported to the log, and the rest gets digests."""

from __future__ import annotations

from millstream.config.schema import LogConfig
from millstream.records.record import Record
from millstream.storage.inspect.replica_check import CheckedSegment, check_log
from millstream.storage.log import Log
from millstream.testing import SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground
from tests.in_loop import in_loop
from tests.storage.logs import make_store, turns

TWO_EACH = LogConfig(segment_records_max=2, index_interval_bytes=64)
ANY = 2**63 - 1


async def fill(log: Log, count: int) -> None:
    for number in range(count):
        await log.append_records([Record(b"%d" % number)])
    await turns()


async def check_all(
    log: Log, *, end: int = ANY, bytes_max: int = 1, count_max: int = 100
) -> list[CheckedSegment]:
    """Check a log page by page, and return all segments."""
    found: list[CheckedSegment] = []
    start: int | None = 0
    while start is not None:
        page = await check_log(
            log,
            SeededBackground(1),
            start=start,
            end=end,
            bytes_max=bytes_max,
            count_max=count_max,
        )
        found += page.segments
        start = page.next_offset
    return found


@in_loop
async def test_two_logs_with_the_same_batches_have_the_same_digests_and_others_do_not() -> None:
    store = make_store(config=TWO_EACH)
    one, two, other = [await store.log(name) for name in ("one", "two", "other")]
    await fill(one, 7)
    await fill(two, 7)
    await fill(other, 6)
    await other.append_records([Record(b"something else")])
    found = [await check_all(log) for log in (one, two, other)]
    assert [(s.base_offset, s.next_offset) for s in found[0]] == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert found[0] == found[1]
    assert found[0][:3] == found[2][:3]
    assert found[0][3].digest != found[2][3].digest
    await store.close()


@in_loop
async def test_nothing_behind_the_given_end_counts() -> None:
    """The growing segment of one replica is longer than that of another."""
    store = make_store(config=LogConfig(index_interval_bytes=64))
    one, two = await store.log("one"), await store.log("two")
    await fill(one, 9)
    await fill(two, 5)
    assert await check_all(one, end=5) == await check_all(two)
    assert await check_all(one) != await check_all(two)
    assert await check_all(one, end=0) == []
    await store.close()


@in_loop
async def test_a_page_ends_after_its_bytes_or_segments() -> None:
    store = make_store(config=TWO_EACH)
    log = await store.log("a")
    await fill(log, 8)

    async def count(**limits: int) -> int:
        page = await check_log(log, SeededBackground(1), start=0, end=ANY, **limits)
        return len(page.segments)

    assert await count(bytes_max=1, count_max=100) == 1
    assert await count(bytes_max=10**9, count_max=3) == 3
    assert await count(bytes_max=10**9, count_max=100) == 4
    await store.close()


@in_loop
async def test_damage_and_holes_are_returned_and_reported_to_the_log() -> None:
    disk = SimulatedFilesystem()
    store = make_store(disk, config=TWO_EACH)
    log = await store.log("a")
    await fill(log, 10)
    disk.flip_bit("/data/topics/a/0/00000000000000000002.log", 8 * 65)
    await log.replication.resync.quarantine(6)
    found = await check_all(log)
    assert [(s.base_offset, s.next_offset, len(s.damage)) for s in found] == [
        (0, 2, 0),
        (2, 4, 1),
        (4, 6, 0),
        (6, 8, 1),
        (8, 10, 0),
    ]
    assert sorted((d.from_offset, d.to_offset) for s in found for d in s.damage) == [(2, 2), (6, 7)]
    assert {(d.from_offset, d.to_offset) for d in log.damage} == {(2, 2), (6, 7)}  # type: ignore[attr-defined]
    await store.close()
