"""Opening batches: where they are decompressed, and how much memory they may take together."""

from __future__ import annotations

import asyncio
import struct
import threading
from typing import Any

import cramjam
import pytest
from crc32c import crc32c

from millstream.broker.partition.batch_opener import (
    BatchOpener,
    DecompressionBudget,
    OpenedSizes,
)
from millstream.broker.partition.record_page import RecordPage, read_page
from millstream.config.schema import BrokerConfig
from millstream.errors import BatchTooLarge, DamagedRecords, DeadlineExceeded
from millstream.records import compression
from millstream.records.build import build_batch
from millstream.records.compression import BODY_SIZE_MAX, Codec
from millstream.records.record import Record
from millstream.testing import ManualClock
from millstream.testing.clocks.manual_timers import ManualTimers
from tests.broker.partitions import NOW_MS, Bench, Config, append, batch, run
from tests.storage.logs import HeldExecutor, turns

MIB = 1024 * 1024
GIB_OF_ZEROS = bytes(cramjam.gzip.compress(bytes(64 * MIB))) * 16
"""1 MB that holds 1 GiB, in members of which the last declares an allowed size."""

LARGE = OpenedSizes(compressed=MIB, total=BODY_SIZE_MAX, largest=BODY_SIZE_MAX)


def packed(codec: Codec, body: bytes) -> bytes:
    """Return a batch of one record with a compressed body that need not hold a record."""
    summed = struct.pack(">hiqqqhii", codec, 0, NOW_MS, NOW_MS, -1, -1, -1, 1) + body
    return struct.pack(">qiibI", 0, len(summed) + 9, -1, 2, crc32c(summed)) + summed


@pytest.fixture
def decompressed(monkeypatch) -> list[tuple[int, int]]:
    """The size of each buffer that was decompressed into, and the thread that did."""
    made: list[tuple[int, int]] = []
    real = compression._make_buffer

    def make_buffer(size: int) -> memoryview:
        made.append((size, threading.get_ident()))
        return real(size)

    monkeypatch.setattr(compression, "_make_buffer", make_buffer)
    return made


async def read(bench: Bench, cursor: int = 0) -> RecordPage:
    return await read_page(bench.partition, cursor, limit=1000, size_max=MIB)


def test_twelve_reads_of_a_bomb_take_their_turns_away_from_the_loop(decompressed) -> None:
    async def scenario(bench: Bench) -> None:
        await append(bench.partition, packed(Codec.GZIP, GIB_OF_ZEROS))
        bench.background.is_held = True
        readers = [asyncio.ensure_future(read(bench)) for _ in range(12)]
        await turns()
        budget = bench.partition.opener.budget
        for left in range(12, 0, -1):
            assert bench.background.waiting == min(2, left)
            assert budget.waiting == max(0, left - 2)
            assert budget.used_bytes <= 256 * MIB
            assert len(decompressed) == 12 - left, "nothing is decompressed on the event loop"
            bench.background.let_one_go()
            await turns()
        assert budget.used_bytes == 0
        assert [size for size, _ in decompressed] == [BODY_SIZE_MAX] * 12
        for reader in readers:
            with pytest.raises(DamagedRecords, match=r"67108864 bytes; offset 0 is lost"):
                await reader

    run(scenario, config=Config(message_bytes_max=2 * MIB))


def test_a_small_batch_is_opened_on_the_loop_and_one_that_only_says_so_is_not(decompressed) -> None:
    """A thread costs more than opening 64 KiB; a gzip body may declare any size."""

    async def scenario(bench: Bench) -> None:
        await append(bench.partition, batch(b"x" * 60_000, codec=Codec.GZIP))
        liar = bytes(cramjam.gzip.compress(bytes(10 * MIB))) + bytes(cramjam.gzip.compress(b"x"))
        bench.background.is_held = True
        assert len((await read(bench)).records) == 1
        await append(bench.partition, packed(Codec.GZIP, liar))
        reader = asyncio.ensure_future(read(bench, 1))
        await turns()
        assert max(size for size, _ in decompressed) <= 64 * 1024
        assert bench.background.waiting == 1
        bench.background.let_go()
        with pytest.raises(DamagedRecords, match="truncated"):  # What it holds is no record.
            await reader
        assert max(size for size, _ in decompressed) > 10 * MIB

    run(scenario)


def test_threads_open_batches_so_that_the_loop_does_not_wait(decompressed) -> None:
    async def scenario(bench: Bench) -> None:
        bench.partition.opener = BatchOpener()
        await append(bench.partition, batch(b"x" * 500_000, codec=Codec.ZSTD))
        assert len((await read(bench)).records) == 1
        assert {thread for _, thread in decompressed}.isdisjoint({threading.get_ident()})

    run(scenario)


def test_records_before_a_batch_that_is_too_large_are_returned_first() -> None:
    async def scenario(bench: Bench) -> None:
        await append(bench.partition, batch(b"sound"))
        await append(bench.partition, packed(Codec.GZIP, GIB_OF_ZEROS))
        await append(bench.partition, batch(b"behind"))
        first = await read(bench)
        assert [record.value for record in first.records] == [b"sound"]
        with pytest.raises(DamagedRecords, match="offset 1 is lost"):
            await read(bench, first.next_offset)
        assert [record.value for record in (await read(bench, 2)).records] == [b"behind"]
        parts = bench.partition.reader.read(1, size_max=4 * MIB).parts
        assert b"".join(parts)[61:].startswith(GIB_OF_ZEROS), "Kafka consumers get it as it is"

    run(scenario, config=Config(message_bytes_max=2 * MIB))


def test_batches_with_deleted_records_are_rebuilt_away_from_the_loop(decompressed) -> None:
    async def scenario(bench: Bench) -> None:
        records = [Record(b"v" * 2000, key=b"%d" % number) for number in range(100)]
        await append(bench.partition, build_batch(records, now_ms=NOW_MS, codec=Codec.ZSTD))
        await append(bench.partition, build_batch(records, now_ms=NOW_MS, codec=Codec.ZSTD))
        await bench.partition.delete_keys(key=b"150")
        await bench.partition.delete_keys(key=b"77")
        await bench.partition.delete_before(10)
        decompressed.clear()
        bench.background.is_held = True
        reader = bench.partition.reader
        cold = reader.cold_ranges(0, size_max=MIB)
        prefetching = asyncio.ensure_future(reader.prefetch(cold))
        await turns()
        assert (decompressed, bench.background.waiting) == ([], 1)
        bench.background.let_go()
        await prefetching
        decompressed.clear()
        assert reader.read(0, size_max=MIB).next_offset == 200
        assert decompressed == [], "what was rebuilt is cached"

    run(scenario)


def test_a_lookup_by_time_waits_for_the_same_memory() -> None:
    async def scenario(bench: Bench) -> None:
        await append(bench.partition, batch(b"x", timestamp_ms=NOW_MS))
        budget = bench.partition.opener.budget
        await budget.acquire(BODY_SIZE_MAX)
        await budget.acquire(BODY_SIZE_MAX)
        lookup = asyncio.ensure_future(bench.partition.offsets.at_timestamp(NOW_MS))
        await turns()
        assert budget.waiting == 1
        budget.release(BODY_SIZE_MAX)
        found = await lookup
        assert found is not None
        assert found.offset == 0

    run(scenario)


@pytest.mark.parametrize(
    ("codec", "body"),
    [
        (Codec.GZIP, bytes(cramjam.gzip.compress(bytes(65 * MIB)))),
        (Codec.SNAPPY, bytes.fromhex("ffffffff0f 00")),
        (Codec.LZ4, bytes.fromhex("04224d18 6c 70") + (2**40).to_bytes(8, "little") + b"\0"),
        (Codec.ZSTD, bytes(cramjam.zstd.compress(bytes(65 * MIB)))),
    ],
    ids=lambda part: getattr(part, "name", ""),
)
def test_a_batch_that_declares_too_much_is_refused_when_it_is_produced(
    codec, body, decompressed
) -> None:
    async def scenario(bench: Bench) -> None:
        with pytest.raises(BatchTooLarge, match="at most 67108864 bytes without compression, got"):
            await append(bench.partition, packed(codec, body))
        assert decompressed == []

    run(scenario)


# The budget.


def budget_of(**settings: Any) -> tuple[DecompressionBudget, ManualTimers]:
    timers = ManualTimers(ManualClock())
    return DecompressionBudget(BrokerConfig(**settings), timers=timers), timers


def test_a_request_that_waits_too_long_for_memory_fails_and_leaves_its_place() -> None:
    async def scenario() -> None:
        budget, timers = budget_of(decompression_wait_ms_max=5000)
        await budget.acquire(BODY_SIZE_MAX)
        await budget.acquire(BODY_SIZE_MAX)
        late = asyncio.ensure_future(budget.acquire(BODY_SIZE_MAX))
        await turns()
        timers.advance(5.0)
        with pytest.raises(DeadlineExceeded, match="within 5000 ms: 268435456 bytes of 268435456"):
            await late
        assert (budget.waiting, budget.timeouts) == (0, 1)
        budget.release(BODY_SIZE_MAX)
        await budget.acquire(BODY_SIZE_MAX)

    asyncio.run(scenario())


def test_memory_is_given_in_order_of_arrival() -> None:
    async def scenario() -> None:
        budget, _ = budget_of()
        await budget.acquire(BODY_SIZE_MAX)
        await budget.acquire(BODY_SIZE_MAX - 2 * MIB)
        large = asyncio.ensure_future(budget.acquire(BODY_SIZE_MAX))
        small = asyncio.ensure_future(budget.acquire(MIB))
        await turns()
        assert not small.done(), "or the large one might wait forever"
        budget.release(BODY_SIZE_MAX)
        await asyncio.gather(large, small)

    asyncio.run(scenario())


def test_a_cancelled_wait_holds_nothing() -> None:
    async def scenario() -> None:
        budget, _ = budget_of()
        await budget.acquire(BODY_SIZE_MAX)
        await budget.acquire(BODY_SIZE_MAX)
        waits = [asyncio.ensure_future(budget.acquire(BODY_SIZE_MAX)) for _ in range(2)]
        await turns()
        waits[0].cancel()
        await turns()
        budget.release(BODY_SIZE_MAX)
        waits[1].cancel()  # In the turn in which it is admitted.
        await turns()
        assert (budget.used_bytes, budget.waiting) == (128 * MIB, 0)

    asyncio.run(scenario())


def test_a_client_that_leaves_frees_no_memory_that_a_thread_still_uses() -> None:
    async def scenario() -> None:
        executor = HeldExecutor()
        executor.is_held = True
        opener = BatchOpener(executor=executor)
        reader = asyncio.ensure_future(opener.run_in_thread(LARGE, lambda size: size))
        await turns()
        reader.cancel()
        await turns()
        assert opener.budget.used_bytes == 128 * MIB
        executor.let_go()
        await turns()
        assert opener.budget.used_bytes == 0

    asyncio.run(scenario())
