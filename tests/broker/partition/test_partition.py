"""One partition: open, append, read, wait and close."""

from __future__ import annotations

import asyncio
import errno
from dataclasses import replace

import pytest

from millstream.broker.partition.batch_validator import InvalidBatchRecord
from millstream.broker.partition.results import FetchResult, append_time_of
from millstream.config.schema import Durability, LogConfig
from millstream.errors import (
    BatchTooLarge,
    DamagedRecords,
    DeadlineExceeded,
    InvalidBatch,
    LogClosed,
    LogOffline,
    OffsetOutOfRange,
    Stopping,
    UnknownTopic,
)
from millstream.records.batch import decode_header, split
from millstream.records.compression import Codec
from millstream.records.iterate import read_all
from millstream.testing import Fault, FaultyFilesystem, SimulatedFilesystem
from tests.broker.partitions import (
    SMALL_SEGMENTS,
    SNAPSHOT,
    Bench,
    Config,
    append,
    batch,
    run,
    values,
)
from tests.in_loop import in_loop
from tests.storage.logs import HeldExecutor, turns


class TestOpening:
    @in_loop
    async def test_it_opens_when_it_is_asked_to_and_only_once(self):
        bench = Bench()
        partition = bench.partition
        assert not partition.is_open
        with pytest.raises(LogClosed):
            append(partition, batch())
        with pytest.raises(LogClosed):
            partition.reader.read(0, size_max=1)
        await asyncio.gather(*(partition.open() for _ in range(5)))
        assert partition.is_open
        await partition.open()
        assert len(bench.store.open_logs) == 1

    @in_loop
    async def test_one_caller_that_gives_up_does_not_take_the_others_along(self):
        bench = Bench()
        bench.background.is_held = True
        first, second = (asyncio.ensure_future(bench.partition.open()) for _ in range(2))
        await turns()
        first.cancel()
        await turns()
        bench.background.let_go()
        await second
        assert bench.partition.is_open

    @in_loop
    async def test_an_opening_that_failed_is_tried_again(self):
        fault = Fault(call=1, error=errno.EIO, path="partition.json", only=("create",))
        bench = Bench(FaultyFilesystem(SimulatedFilesystem(), fault))
        with pytest.raises(Exception, match="cannot be opened"):
            await bench.partition.open()
        assert not bench.partition.is_open
        await bench.partition.open()
        assert bench.partition.is_open

    @in_loop
    async def test_a_log_that_is_open_already_takes_the_settings_of_the_topic(self):
        bench = Bench(config=Config(log=LogConfig(durability=Durability.DISK)))
        await bench.store.log("t", 0, config=LogConfig())
        await bench.partition.open()
        assert bench.store.get("t").config == bench.config.log

    def test_settings_that_changed_meanwhile_reach_the_log(self):
        async def scenario(bench: Bench):
            other = replace(bench.config, log=LogConfig(durability=Durability.DISK))
            await bench.partition.reconfigure(other)
            assert bench.store.get("t").config.durability is Durability.DISK
            small = replace(other, message_bytes_max=100)
            await bench.partition.reconfigure(small)
            with pytest.raises(BatchTooLarge):
                append(bench.partition, batch(b"x" * 100))

        run(scenario)


class TestAppending:
    def test_offsets_are_given_in_the_order_of_the_calls(self):
        async def scenario(bench: Bench):
            futures = [append(bench.partition, batch(b"%d" % n, b"-")) for n in range(5)]
            assert [(await f).offset for f in futures] == [0, 2, 4, 6, 8]
            assert bench.partition.high_watermark == bench.partition.appender.next_offset == 10
            assert values(bench.partition)[::2] == [b"0", b"1", b"2", b"3", b"4"]

        run(scenario)

    def test_nothing_is_written_of_a_batch_that_is_wrong(self):
        async def scenario(bench: Bench):
            with pytest.raises(InvalidBatch):
                append(bench.partition, batch()[:-1])
            await turns()
            assert bench.partition.appender.next_offset == 0

        run(scenario)

    def test_where_the_broker_dates_records_the_answer_says_when(self):
        async def scenario(bench: Bench):
            appended = await append(bench.partition, batch(timestamp_ms=5))
            assert append_time_of(appended) == bench.clock.wall_ms()
            (record,) = read_all(bench.partition.reader.read(0, size_max=1000).parts[0])
            assert record.timestamp_ms == bench.clock.wall_ms()

        run(scenario, config=Config(timestamp_type="LogAppendTime"))

    def test_and_says_the_same_of_a_duplicate(self):
        async def scenario(bench: Bench):
            one = batch(producer_id=1)
            first = await append(bench.partition, one)
            when = bench.clock.wall_ms()
            bench.clock.advance(5)
            second = await append(bench.partition, one)
            assert first[:2] == second[:2]
            assert append_time_of(first) == append_time_of(second) == when

        run(scenario, config=Config(timestamp_type="LogAppendTime"))

    def test_elsewhere_it_says_nothing(self):
        async def scenario(bench: Bench):
            assert append_time_of(await append(bench.partition, batch())) == -1

        run(scenario)

    def test_too_much_under_way_makes_it_wait_and_then_give_up(self):
        async def scenario(bench: Bench):
            held = bench.store._background
            held.is_held = True
            first = append(bench.partition, batch(b"x" * 500, producer_id=1))
            second = append(
                bench.partition, batch(b"y" * 500, producer_id=1, sequence=1), timeout_ms=0
            )
            third = append(bench.partition, batch(b"z" * 500), timeout_ms=60_000)
            await asyncio.sleep(0.01)
            with pytest.raises(DeadlineExceeded):
                await second
            held.let_go()
            assert (await first).offset == 0
            assert (await third).offset == 1
            retried = await append(bench.partition, batch(producer_id=1, sequence=1))
            assert retried.offset == 2

        config = Config(log=LogConfig(unflushed_bytes_max=600))
        run(scenario, config=config, store_background=HeldExecutor())

    def test_an_early_acknowledgement_does_not_wait_for_the_disk_and_readers_do(self):
        async def scenario(bench: Bench):
            held = bench.store._background
            held.is_held = True
            early = append(bench.partition, batch(), is_early=True)
            early_too = append(bench.partition, batch(producer_id=1), is_early=True)
            late = append(bench.partition, batch(producer_id=1, sequence=1))
            again = append(bench.partition, batch(producer_id=1), is_early=True)
            await turns()
            assert [(await early).offset, (await early_too).offset] == [0, 1]
            assert not late.done()
            assert not again.done()
            assert bench.partition.high_watermark == 0
            held.let_go()
            assert [(await late).offset, (await again).offset] == [2, 1]

        run(scenario, store_background=HeldExecutor())

    def test_a_compacted_topic_refuses_a_record_without_a_key_and_takes_others(self):
        async def scenario(bench: Bench):
            with pytest.raises(InvalidBatchRecord) as found:
                append(bench.partition, batch())
            assert found.value.record_index == 0
            assert (await append(bench.partition, batch(key=b"k"))).offset == 0

        run(scenario, config=Config(cleanup_policy=frozenset({"compact"})))

    def test_a_topic_with_a_codec_keeps_the_order_though_large_batches_take_longer(self):
        async def scenario(bench: Bench):
            bench.background.is_held = True
            sent = [b"large" * 10_000, b"small", b"larger" * 10_000, b"last"]
            futures = [append(bench.partition, batch(value)) for value in sent]
            await turns()
            assert bench.partition.appender.next_offset == 0
            bench.background.let_one_go(1)
            await turns()
            assert bench.partition.appender.next_offset == 0, "the first is not ready"
            bench.background.let_go()
            assert [(await f).offset for f in futures] == [0, 1, 2, 3]
            assert values(bench.partition) == sent
            parts = b"".join(bench.partition.reader.read(0, size_max=1 << 20).parts)
            assert {header.codec for header, _ in split(parts)} == {Codec.ZSTD}

        run(scenario, config=Config(compression_type="zstd"))

    def test_a_batch_that_needs_no_work_does_not_overtake_one_that_does(self):
        async def scenario(bench: Bench):
            bench.background.is_held = True
            first = append(bench.partition, batch(b"large" * 10_000))
            second = append(bench.partition, batch(b"packed", codec=Codec.ZSTD))
            await turns()
            assert bench.partition.appender.next_offset == 0
            bench.background.let_go()
            assert [(await first).offset, (await second).offset] == [0, 1]

        run(scenario, config=Config(compression_type="zstd"))

    def test_a_batch_that_fails_in_line_fails_alone(self):
        async def scenario(bench: Bench):
            large = b"x" * 50_000
            futures = [
                append(bench.partition, batch(large, key=b"k")),
                append(bench.partition, batch(large)),
                append(bench.partition, batch(large, key=b"k")),
            ]
            assert (await futures[0]).offset == 0
            with pytest.raises(InvalidBatchRecord):
                await futures[1]
            assert (await futures[2]).offset == 1

        run(scenario, config=Config(cleanup_policy=frozenset({"compact"})))

    def test_what_stands_in_line_when_it_closes_is_refused(self):
        async def scenario(bench: Bench):
            bench.background.is_held = True
            future = append(bench.partition, batch(b"large" * 10_000))
            closing = asyncio.ensure_future(bench.partition.close())
            await turns()
            bench.background.let_go()
            await closing
            with pytest.raises(Stopping):
                await future

        run(scenario, config=Config(compression_type="zstd"))


class TestReading:
    def test_whole_batches_come_up_to_the_limit_over_segments(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            one = batch(b"x" * 200)
            for _ in range(20):
                await append(partition, one)
            assert len(bench.store.get("t").segments) > 3
            for count in (1, 2, 3, 7, 20):
                got = partition.reader.read(0, size_max=len(one) * count)
                assert (got.size, got.next_offset) == (len(one) * count, count)
                assert sum(map(len, got.parts)) == got.size
                got = partition.reader.read(0, size_max=len(one) * (count + 1) - 1)
                assert got.next_offset == min(20, count)
            everything = partition.reader.read(0, size_max=1 << 30)
            assert everything.next_offset == 20
            assert [h.base_offset for h, _ in split(b"".join(everything.parts))] == list(range(20))

        run(scenario, config=SMALL_SEGMENTS)

    @pytest.mark.parametrize("size_max", [0, 1, 50])
    def test_the_first_batch_comes_though_it_is_too_large_and_only_as_the_first(self, size_max):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(b"x" * 100))
            await append(partition, batch(b"x" * 100))
            assert partition.reader.read(0, size_max=size_max).next_offset == 1
            got = partition.reader.read(0, size_max=size_max, is_first=False)
            assert got == FetchResult(parts=(), next_offset=0, size=0)

        run(scenario)

    def test_a_batch_comes_whole_though_the_offset_is_inside_it(self):
        async def scenario(bench: Bench):
            await append(bench.partition, batch(b"a", b"b", b"c"))
            got = bench.partition.reader.read(2, size_max=1000)
            assert decode_header(got.parts[0]).base_offset == 0
            assert got.next_offset == 3

        run(scenario)

    def test_offsets_outside_are_refused_and_the_end_is_not_outside(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch())
            await append(partition, batch())
            assert partition.reader.read(2, size_max=100) == FetchResult(
                parts=(), next_offset=2, size=0
            )
            for offset in (-1, 3, 2**63 - 1):
                with pytest.raises(OffsetOutOfRange):
                    partition.reader.read(offset, size_max=100)

        run(scenario)

    def test_nothing_is_seen_before_it_is_safe(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            held = bench.store._background
            held.is_held = True
            future = append(partition, batch())
            await turns()
            assert partition.high_watermark == 0
            assert partition.appender.next_offset == 1
            assert partition.reader.read(0, size_max=100).parts == ()
            held.let_go()
            await future
            assert partition.reader.read(0, size_max=100).next_offset == 1

        run(scenario, store_background=HeldExecutor())

    def test_damage_is_said_where_it_is_and_not_elsewhere(self):
        async def scenario(bench: Bench):
            for n in range(20):
                await append(bench.partition, batch(b"x" * 200, producer_id=n))
            path = bench.store.get("t").segments[1].path
            first = bench.store.get("t").segments[1].base_offset
            bench.filesystem.flip_bit(path, 8 * 100)
            bench = await bench.again(is_clean=True)
            with pytest.raises(DamagedRecords):
                bench.partition.reader.read(first, size_max=100)
            assert bench.partition.reader.read(0, size_max=100).next_offset == 1
            assert bench.partition.reader.read(first + 1, size_max=100).next_offset == first + 2

        run(scenario, config=SMALL_SEGMENTS)


class TestWatching:
    def test_watchers_are_called_for_all_that_changes_what_can_be_read(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            calls: list[tuple[int, int]] = []

            def note() -> None:
                calls.append((partition.log_start_offset, partition.last_stable_offset))

            partition.watch(note)
            await append(partition, batch())
            assert calls == [(0, 1)]
            await append(partition, batch(producer_id=1, is_transactional=True))
            assert calls[-1] == (0, 1)
            await partition.appender.append_marker(1, 0, is_commit=True, coordinator_epoch=0)
            assert calls[-1] == (0, 3)
            await partition.delete_before(2)
            assert calls[-1] == (2, 3)
            count = len(calls)
            partition.unwatch(note)
            partition.unwatch(note)
            await append(partition, batch())
            assert len(calls) == count

        run(scenario)

    def test_and_when_it_ends(self):
        async def scenario(bench: Bench):
            calls: list[bool] = []
            bench.partition.watch(lambda: calls.append(bench.partition.is_open))
            await bench.partition.close()
            assert calls == [False]

        run(scenario)

    def test_and_when_the_log_goes_offline(self):
        async def scenario(bench: Bench):
            calls: list[object] = []
            bench.partition.watch(lambda: calls.append(bench.partition.appender.offline))
            with pytest.raises(LogOffline):
                await append(bench.partition, batch())
            assert isinstance(calls[-1], LogOffline)

        fault = Fault(call=1, error=errno.EIO, forever=True, only=("sync",), path=".log")
        run(scenario, Bench(FaultyFilesystem(SimulatedFilesystem(), fault)))


class TestEnding:
    def test_a_closed_partition_takes_nothing_and_still_says_what_it_was(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch())
            await partition.close()
            await partition.close()
            for use in (
                lambda: append(partition, batch()),
                lambda: partition.reader.read(0, size_max=1),
                lambda: partition.offsets.latest(is_committed_only=True),
            ):
                with pytest.raises(Stopping):
                    use()
            with pytest.raises(Stopping):
                await partition.open()
            assert partition.high_watermark == 1
            assert partition.log_start_offset == 0

        run(scenario)

    def test_a_deleted_one_is_unknown(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            woken: list[int] = []
            partition.watch(lambda: woken.append(1))
            partition.delete()
            assert woken == [1]
            with pytest.raises(UnknownTopic):
                append(partition, batch())
            with pytest.raises(UnknownTopic):
                await partition.open()
            with pytest.raises(UnknownTopic):
                await partition.offsets.at_timestamp(0)
            await partition.close()
            assert SNAPSHOT not in bench.filesystem.paths()

        run(scenario)

    @in_loop
    async def test_one_that_is_deleted_while_it_opens_does_not_open(self):
        bench = Bench()
        bench.background.is_held = True
        opening = asyncio.ensure_future(bench.partition.open())
        await turns()
        bench.partition.delete()
        bench.background.let_go()
        with pytest.raises(UnknownTopic):
            await opening
        assert not bench.partition.is_open

    def test_the_way_back_from_offline(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            with pytest.raises(LogOffline):
                await append(partition, batch(b"a", producer_id=1))
            with pytest.raises(LogOffline):
                append(partition, batch(b"a", producer_id=1))
            await partition.reopen()
            await append(partition, batch(b"a", producer_id=1))
            assert values(partition) == [b"a"]

        fault = Fault(call=1, error=errno.EIO, only=("sync",), path=".log")
        run(scenario, Bench(FaultyFilesystem(SimulatedFilesystem(), fault)))
