"""Record pages: which records follow a cursor, and how many are returned at once."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.broker.partition import record_page as difference
from millstream.broker.partition.record_page import NewRecordsWaiter, RecordPage, read_page
from millstream.errors import DamagedRecords, OffsetOutOfRange
from millstream.records.batch import decode_header, seal, split
from millstream.records.compression import Codec
from millstream.testing import ManualClock
from millstream.testing.clocks.manual_timers import ManualTimers
from tests.broker.partitions import DIRECTORY, SMALL_SEGMENTS, SNAPSHOT, Bench, append, batch, run
from tests.storage.logs import turns


async def read(
    bench: Bench, cursor: int, *, limit: int = 1000, size_max: int = 1 << 20
) -> RecordPage:
    return await read_page(bench.partition, cursor, limit=limit, size_max=size_max)


def offsets(found: RecordPage) -> list[int]:
    return [one.offset for one in found.records]


async def transact(bench: Bench, *values: bytes, sequence: int = 0, is_commit: bool | None) -> None:
    await append(
        bench.partition, batch(*values, producer_id=7, sequence=sequence, is_transactional=True)
    )
    if is_commit is not None:
        await bench.partition.appender.append_marker(7, 0, is_commit=is_commit, coordinator_epoch=0)


def test_a_long_stretch_of_aborted_records_is_passed_in_steps(monkeypatch) -> None:
    monkeypatch.setattr(difference, "BATCHES_BYTES_MAX", 1)
    monkeypatch.setattr(difference, "READS_MAX", 4)

    async def scenario(bench: Bench) -> None:
        for number in range(10):
            await transact(bench, b"x", sequence=number, is_commit=False)
        await append(bench.partition, batch(b"seen"))
        cursors, cursor = [], 0
        while True:
            found = await read(bench, cursor)
            if found.next_offset == cursor:
                break
            cursor = found.next_offset
            cursors.append((cursor, offsets(found)))
        assert cursors == [(4, []), (8, []), (12, []), (16, []), (20, []), (21, [20])]

    run(scenario)


def test_a_cursor_that_stays_says_that_there_is_nothing_up_to_the_end() -> None:
    async def scenario(bench: Bench) -> None:
        await transact(bench, b"x", is_commit=False)
        assert (await read(bench, 0)).next_offset == 2
        assert (await read(bench, 2)).next_offset == 2
        await transact(bench, b"x", sequence=1, is_commit=None)
        found = await read(bench, 2)
        assert (found.next_offset, found.head, found.records) == (2, 3, ())
        with pytest.raises(OffsetOutOfRange):
            await read(bench, 4)

    run(scenario)


def test_no_more_is_opened_than_is_asked_for(monkeypatch) -> None:
    opened: list[int] = []
    real = difference.open_body

    def open_body(header: Any, data: Any, *, size_max: int) -> Any:
        opened.append(header.base_offset)
        return real(header, data, size_max=size_max)

    monkeypatch.setattr(difference, "open_body", open_body)

    async def scenario(bench: Bench) -> None:
        for _ in range(10):
            await append(bench.partition, batch(b"a", b"b"))
        assert offsets(await read(bench, 3, limit=2)) == [3, 4]
        assert opened == [2, 4]

    run(scenario)


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD])
def test_packed_batches_are_opened_in_a_thread_wherever_they_lie(codec) -> None:
    async def scenario(bench: Bench) -> None:
        await append(bench.partition, batch(b"a"))
        await append(bench.partition, batch(b"b" * 100_000, codec=codec))
        bench.background.is_held = True
        reading = asyncio.ensure_future(read(bench, 0))
        await turns()
        assert bench.background.waiting == 1
        bench.background.let_go()
        assert offsets(await reading) == [0, 1]

    run(scenario)


def test_retention_that_comes_while_batches_are_opened_skips_nothing_in_silence(
    monkeypatch,
) -> None:
    """The log can change between two reads of one page, while a thread decodes batches."""
    monkeypatch.setattr(difference, "BATCHES_BYTES_MAX", 1)

    async def scenario(bench: Bench) -> None:
        for _ in range(6):
            await append(bench.partition, batch(b"x" * 900))
        evictions = [4]

        real = bench.partition.opener.run

        async def off_loop(parts: Any, work: Any) -> Any:
            done = await real(parts, work)
            if evictions:
                await bench.store.get("t").evict_before(evictions.pop())
            return done

        monkeypatch.setattr(bench.partition.opener, "run", off_loop)
        found = await read(bench, 0)
        assert (offsets(found), found.gap, found.next_offset) == ([0], None, 1)
        found = await read(bench, 1)
        assert (offsets(found), tuple(found.gap or ())) == ([4, 5], (1, 3, "retention"))

    run(scenario, config=SMALL_SEGMENTS)


def test_retention_that_comes_twice_before_a_record_is_seen_is_one_gap(monkeypatch) -> None:
    monkeypatch.setattr(difference, "BATCHES_BYTES_MAX", 1)

    async def scenario(bench: Bench) -> None:
        for number in range(3):
            await transact(bench, b"x" * 900, sequence=number, is_commit=False)
        await append(bench.partition, batch(b"seen"))
        log = bench.store.get("t")
        await log.evict_before(2)

        real = bench.partition.opener.run

        async def off_loop(parts: Any, work: Any) -> Any:
            done = await real(parts, work)
            await log.evict_before(6)
            return done

        monkeypatch.setattr(bench.partition.opener, "run", off_loop)
        found = await read(bench, 0)
        assert (offsets(found), tuple(found.gap or ())) == ([6], (0, 5, "retention"))

    run(scenario, config=SMALL_SEGMENTS)


def test_records_begin_at_the_cursor() -> None:
    async def scenario(bench: Bench) -> None:
        await append(bench.partition, batch(b"a", b"b", b"c"))
        found = await read(bench, 1)
        assert [one.value for one in found.records] == [b"b", b"c"]

    run(scenario)


# Waiting.


def test_an_arrival_is_noted_also_before_anyone_waits() -> None:
    async def scenario(bench: Bench) -> None:
        arrival = NewRecordsWaiter([bench.partition], ManualTimers(bench.clock))
        await append(bench.partition, batch(b"a"))
        assert await arrival.wait(60)
        arrival.close()
        assert not bench.partition._watchers

    run(scenario)


def test_a_wait_ends_when_its_time_is_up_and_leaves_no_timer() -> None:
    async def scenario(_: Bench) -> None:
        clock = ManualClock()
        timers = ManualTimers(clock)
        arrival = NewRecordsWaiter([], timers)
        waiting = asyncio.ensure_future(arrival.wait(5))
        await turns()
        timers.advance(4.9)
        await turns()
        assert not waiting.done()
        timers.advance(0.1)
        assert await waiting is False
        assert timers.pending == 0
        waiting = asyncio.ensure_future(arrival.wait(5))
        await turns()
        arrival.wake()
        assert await waiting is True
        assert timers.pending == 0

    run(scenario)


def test_a_wait_that_is_called_off_leaves_nothing_behind() -> None:
    async def scenario(bench: Bench) -> None:
        timers = ManualTimers(bench.clock)
        arrival = NewRecordsWaiter([bench.partition], timers)
        waiting = asyncio.ensure_future(arrival.wait(5))
        await turns()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert timers.pending == 0
        await append(bench.partition, batch(b"a"))  # There is no waiter left to notify.

    run(scenario)


def test_the_size_of_a_record_counts_all_that_its_writer_chose() -> None:
    record: Any = SimpleNamespace(value=b"1234", key=b"123", headers=(("ab", b"1"), ("c", None)))
    assert difference.size_of(record) == 11


# Damage.


async def damaged(bench: Bench, offset: int, *, has_snapshot: bool = True) -> Bench:
    """Close the partition, damage the batch at `offset`, and open it again."""
    await bench.close()
    disk = bench.filesystem
    if not has_snapshot:
        disk.remove(SNAPSHOT)
    path = f"{DIRECTORY}/{0:020d}.log"
    position = 0
    for header, stored in split(disk.content(path)):
        if header.base_offset == offset:
            break
        position += len(stored)
    disk.flip_bit(path, 8 * (position + 65))
    bench = Bench(disk.copy())
    await bench.partition.open()
    return bench


@pytest.mark.parametrize("offset", [2, 4], ids=["in the middle", "at the end"])
def test_records_before_damage_come_first_and_then_an_error_and_never_nothing(offset) -> None:
    async def scenario(bench: Bench) -> None:
        for number in range(5):
            await append(bench.partition, batch(b"%d" % number))
        bench = await damaged(bench, offset)
        found = await read(bench, 0)
        assert (offsets(found), found.next_offset) == (list(range(offset)), offset)
        assert found.head == 5
        with pytest.raises(DamagedRecords) as raised:
            await read(bench, found.next_offset)
        assert (raised.value.from_offset, raised.value.to_offset) == (offset, offset)
        found = await read(bench, offset + 1)
        assert (offsets(found), found.next_offset) == (list(range(offset + 1, 5)), 5)

    run(scenario)


def test_records_of_a_transaction_that_may_have_ended_in_lost_batches_are_an_error() -> None:
    async def scenario(bench: Bench) -> None:
        await append(bench.partition, batch(b"0"))
        await transact(bench, b"1", is_commit=True)
        await append(bench.partition, batch(b"3"))
        bench = await damaged(bench, 2, has_snapshot=False)
        assert offsets(await read(bench, 0)) == [0]
        for offset in (1, 2):
            with pytest.raises(DamagedRecords):
                await read(bench, offset)
        assert offsets(await read(bench, 3)) == [3]
        assert bench.partition.last_stable_offset == 4

    run(scenario)


def test_a_batch_that_cannot_be_opened_costs_its_own_records() -> None:
    async def scenario(bench: Bench) -> None:
        await append(bench.partition, batch(b"0"))
        header = decode_header(batch(b"1"))
        junk = header._replace(attributes=Codec.GZIP.value)
        await append(bench.partition, seal(junk, b"not gzip"))
        await append(bench.partition, batch(b"2"))
        found = await read(bench, 0)
        assert (offsets(found), found.next_offset) == ([0], 1)
        with pytest.raises(DamagedRecords) as raised:
            await read(bench, 1)
        assert (raised.value.from_offset, raised.value.to_offset) == (1, 1)
        assert offsets(await read(bench, 2)) == [2]

    run(scenario)
