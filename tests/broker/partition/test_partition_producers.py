"""One partition: producers and their transactions."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from millstream.broker.partition.producers.entry import NOTHING
from millstream.config.schema import Durability, LogConfig
from millstream.errors import (
    DiskFull,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    Unavailable,
    UnknownProducer,
)
from tests.broker.partitions import (
    NOW_MS,
    Bench,
    Config,
    append,
    batch,
    run,
    values,
)
from tests.storage.logs import HeldExecutor, turns


class TestProducers:
    def test_a_duplicate_is_answered_with_its_first_offsets_and_not_stored(self):
        async def scenario(bench: Bench):
            one = batch(b"a", b"b", producer_id=1)
            first = await append(bench.partition, one)
            again = await append(bench.partition, one)
            assert (again.offset, again.last_offset) == (first.offset, first.last_offset) == (0, 1)
            assert bench.partition.appender.next_offset == 2

        run(scenario)

    def test_other_records_with_the_same_sequence_are_refused(self):
        async def scenario(bench: Bench):
            await append(bench.partition, batch(b"a", producer_id=1))
            with pytest.raises(OutOfOrderSequence, match="again with other records"):
                await append(bench.partition, batch(b"b", producer_id=1))
            assert values(bench.partition) == [b"a"]

        run(scenario)

    @pytest.mark.parametrize("is_clean", [False, True])
    @pytest.mark.parametrize(
        "config",
        [
            Config(),
            Config(timestamp_type="LogAppendTime"),
            Config(compression_type="gzip"),
            Config(compression_type="zstd", timestamp_type="LogAppendTime"),
        ],
    )
    def test_a_duplicate_is_known_by_its_records_after_a_restart_too(self, config, is_clean):
        async def scenario(bench: Bench):
            one = batch(b"a", b"b", producer_id=1)
            await append(bench.partition, one)
            await append(bench.partition, batch(b"c", producer_id=1, sequence=2))
            for _ in range(2):
                bench.clock.advance(60)
                again = await append(bench.partition, one)
                assert (again.offset, again.last_offset) == (0, 1)
                with pytest.raises(OutOfOrderSequence, match="again with other records"):
                    await append(bench.partition, batch(b"a", b"x", producer_id=1))
                bench = await bench.again(is_clean=is_clean)

        run(scenario, config=config)

    def test_a_duplicate_that_its_client_has_dated_again_is_known_by_its_records(self):
        """KafkaJS does so with records that have no timestamp of their own."""

        async def scenario(bench: Bench):
            sent = {"producer_id": 1, "keys": [b"k", b"l"]}
            await append(bench.partition, batch(b"a", b"b", **sent))
            later = NOW_MS + 1
            again = await append(bench.partition, batch(b"a", b"b", timestamp_ms=later, **sent))
            assert (again.offset, again.last_offset) == (0, 1)
            for other in (
                batch(b"a", b"c", timestamp_ms=later, **sent),
                batch(b"a", b"b", timestamp_ms=later, producer_id=1, keys=[b"k", b"k"]),
            ):
                with pytest.raises(OutOfOrderSequence, match="again with other records"):
                    await append(bench.partition, other)

        run(scenario)

    @pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.MEMORY])
    def test_a_batch_that_may_be_a_duplicate_waits_until_the_first_one_is_safe(self, durability):
        async def scenario(bench: Bench):
            held = bench.store._background
            held.is_held = True
            first = append(bench.partition, batch(b"a", producer_id=1))
            again = append(bench.partition, batch(b"a", producer_id=1, timestamp_ms=NOW_MS + 1))
            other = append(bench.partition, batch(b"b", producer_id=1))
            await turns()
            is_synced = durability is Durability.FSYNC
            assert [future.done() for future in (first, again, other)] == [not is_synced] * 3
            held.let_go()
            assert (await first).offset == (await again).offset == 0
            with pytest.raises(OutOfOrderSequence):
                await other

        config = Config(log=LogConfig(durability=durability))
        run(scenario, config=config, store_background=HeldExecutor())

    def test_a_batch_that_cannot_be_compared_any_more_is_refused(self):
        async def scenario(bench: Bench):
            await append(bench.partition, batch(b"a", producer_id=1))
            await append(bench.partition, batch(b"b", producer_id=1, sequence=1))
            await bench.partition.delete_before(1)
            with pytest.raises(OutOfOrderSequence):
                await append(bench.partition, batch(b"a", producer_id=1, timestamp_ms=NOW_MS + 1))

        run(scenario)

    def test_batches_of_an_old_snapshot_are_compared_with_the_log(self):
        async def scenario(bench: Bench):
            await append(bench.partition, batch(b"a", producer_id=1))
            states = bench.partition.appender.states
            entry = states.get(1)
            states._entries[1] = entry._replace(
                batches=tuple(item._replace(crc=NOTHING) for item in entry.batches)
            )
            bench = await bench.again(is_clean=True)
            assert bench.partition.appender.states.get(1).batches[0].crc == NOTHING
            assert (await append(bench.partition, batch(b"a", producer_id=1))).offset == 0
            with pytest.raises(OutOfOrderSequence):
                await append(bench.partition, batch(b"b", producer_id=1))

        run(scenario)

    @pytest.mark.parametrize("was", ["CreateTime", "LogAppendTime"])
    def test_a_duplicate_is_known_after_the_topic_has_begun_or_stopped_to_date_records(self, was):
        async def scenario(bench: Bench):
            one = batch(b"a", producer_id=1)
            await append(bench.partition, one)
            bench.clock.advance(60)
            (now,) = {"CreateTime", "LogAppendTime"} - {was}
            await bench.partition.reconfigure(replace(bench.config, timestamp_type=now))
            assert (await append(bench.partition, one)).offset == 0

        run(scenario, config=Config(timestamp_type=was))

    def test_a_duplicate_waits_until_the_first_one_is_safe(self):
        async def scenario(bench: Bench):
            held = bench.store._background
            held.is_held = True
            one = batch(producer_id=1)
            first, second = append(bench.partition, one), append(bench.partition, one)
            await turns()
            assert not first.done()
            assert not second.done()
            held.let_go()
            assert (await first).offset == (await second).offset == 0

        run(scenario, store_background=HeldExecutor())

    def test_a_duplicate_of_one_that_waits_to_be_admitted_is_found_too(self):
        async def scenario(bench: Bench):
            held = bench.store._background
            held.is_held = True
            append(bench.partition, batch(b"x" * 500))
            one = batch(b"y" * 500, producer_id=1)
            futures = [append(bench.partition, one) for _ in range(3)]
            await turns()
            assert not any(future.done() for future in futures)
            held.let_go()
            assert [(await future).offset for future in futures] == [1, 1, 1]
            assert bench.partition.appender.next_offset == 2

        config = Config(log=LogConfig(unflushed_bytes_max=600))
        run(scenario, config=config, store_background=HeldExecutor())

    def test_a_gap_and_an_old_epoch_are_refused_by_the_future(self):
        async def scenario(bench: Bench):
            await append(bench.partition, batch(producer_id=1, epoch=1))
            with pytest.raises(OutOfOrderSequence):
                await append(bench.partition, batch(producer_id=1, epoch=1, sequence=2))
            with pytest.raises(InvalidProducerEpoch):
                await append(bench.partition, batch(producer_id=1, sequence=1))
            assert bench.partition.appender.next_offset == 1

        run(scenario)

    def test_five_under_way_are_taken_back_together_and_all_succeed_when_sent_again(self):
        async def scenario(bench: Bench):
            partition, disk = bench.partition, bench.filesystem
            await append(partition, batch(b"0", producer_id=1))
            disk.bytes_max = disk.bytes_used
            sent = [
                batch(b"%d" % n + b"x" * 70_000, producer_id=1, sequence=n) for n in range(1, 6)
            ]
            futures = [append(partition, one) for one in sent]
            for future in futures:
                with pytest.raises(DiskFull):
                    await future
            assert partition.appender.next_offset == 1
            with pytest.raises(OutOfOrderSequence):
                await append(partition, sent[2])
            disk.free(1 << 24)
            assert [(await append(partition, one)).offset for one in sent] == [1, 2, 3, 4, 5]
            again = [(await append(partition, one)).offset for one in sent]
            assert again == [1, 2, 3, 4, 5]

        run(scenario)

    def test_a_duplicate_of_one_that_is_taken_back_may_be_sent_again(self):
        async def scenario(bench: Bench):
            partition, disk = bench.partition, bench.filesystem
            await append(partition, batch(b"0", producer_id=1))
            disk.bytes_max = disk.bytes_used
            one = batch(b"x" * 70_000, producer_id=1, sequence=1)
            first, second = append(partition, one), append(partition, one)
            with pytest.raises(DiskFull):
                await first
            with pytest.raises(Unavailable):
                await second
            disk.free(1 << 24)
            assert (await append(partition, one)).offset == 1

        run(scenario)

    def test_they_are_described(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(b"a", b"b", producer_id=4, epoch=2))
            await append(partition, batch(producer_id=3, is_transactional=True))
            assert [tuple(view) for view in partition.appender.producers()] == [
                (3, 0, 0, NOW_MS, -1, 2),
                (4, 2, 1, NOW_MS, -1, -1),
            ]

        run(scenario)

    def test_idle_ones_are_forgotten_by_a_clock_that_cannot_be_set(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(producer_id=1))
            bench.clock.jump_wall(10**12)
            partition.appender.expire_producers()
            assert len(partition.appender.producers()) == 1
            bench.clock.jump_wall(-(10**12))
            bench.clock.advance(3600)
            partition.appender.expire_producers()
            assert partition.appender.producers() == []
            with pytest.raises(UnknownProducer):
                await append(partition, batch(producer_id=1, sequence=1))

        run(scenario)


class TestTransactions:
    def test_readers_of_committed_records_wait_for_the_end(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(b"before"))
            await append(partition, batch(b"inside", producer_id=1, is_transactional=True))
            await append(partition, batch(b"after"))
            assert partition.last_stable_offset == 1
            assert partition.high_watermark == 3
            assert values(partition, is_committed_only=True) == [b"before"]
            assert values(partition) == [b"before", b"inside", b"after"]
            got = partition.reader.read(1, size_max=1000, is_committed_only=True)
            assert (got.parts, got.next_offset, got.size) == ((), 1, 0)
            offset = await partition.appender.append_marker(
                1, 0, is_commit=True, coordinator_epoch=0
            )
            assert offset == 3
            assert partition.last_stable_offset == 4
            assert values(partition, is_committed_only=True) == [b"before", b"inside", b"after"]

        run(scenario)

    def test_they_do_not_see_what_was_aborted_and_others_do(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(b"a", producer_id=1, is_transactional=True))
            await append(partition, batch(b"b", producer_id=2, is_transactional=True))
            await partition.appender.append_marker(1, 1, is_commit=False, coordinator_epoch=0)
            await partition.appender.append_marker(2, 1, is_commit=True, coordinator_epoch=0)
            await append(partition, batch(b"c", producer_id=1, epoch=1, is_transactional=True))
            await partition.appender.append_marker(1, 2, is_commit=True, coordinator_epoch=0)
            assert values(partition) == [b"a", b"b", b"c"]
            assert values(partition, is_committed_only=True) == [b"b", b"c"]
            got = partition.reader.read(0, size_max=1 << 20, is_committed_only=True)
            assert [tuple(item) for item in got.aborted] == [(1, 0)]
            assert partition.reader.read(0, size_max=1 << 20).aborted == ()
            assert partition.reader.read(3, size_max=1 << 20, is_committed_only=True).aborted == ()

        run(scenario)

    def test_the_end_counts_only_when_its_marker_is_safe(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(producer_id=1, is_transactional=True))
            held = bench.store._background
            held.is_held = True
            ending = asyncio.ensure_future(
                partition.appender.append_marker(1, 1, is_commit=True, coordinator_epoch=0)
            )
            await turns()
            assert partition.appender.producers()[0].transaction_first_offset == -1
            assert partition.last_stable_offset == 0
            held.let_go()
            await ending
            assert partition.last_stable_offset == 2

        run(scenario, store_background=HeldExecutor())

    def test_a_marker_fences_the_epoch_before_it_even_where_nothing_was_open(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await partition.appender.append_marker(1, 1, is_commit=False, coordinator_epoch=0)
            with pytest.raises(InvalidProducerEpoch):
                await append(partition, batch(producer_id=1, is_transactional=True))
            with pytest.raises(InvalidProducerEpoch):
                await partition.appender.append_marker(1, 0, is_commit=True, coordinator_epoch=0)
            assert partition.appender.next_offset == 1
            assert partition.last_stable_offset == 1

        run(scenario)

    def test_a_marker_may_be_written_twice(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(b"a", producer_id=1, is_transactional=True))
            for _ in range(2):
                await partition.appender.append_marker(1, 1, is_commit=True, coordinator_epoch=0)
            assert values(partition, is_committed_only=True) == [b"a"]

        run(scenario)

    def test_a_batch_that_comes_too_late_opens_nothing(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(producer_id=1, is_transactional=True))
            marker_offset = partition.appender.marker_offset_of(1)
            await partition.appender.append_marker(1, 0, is_commit=False, coordinator_epoch=0)
            late = batch(producer_id=1, sequence=1, is_transactional=True)
            with pytest.raises(InvalidTransactionState):
                await append(partition, late, expected_marker_offset=marker_offset)
            marker_offset = partition.appender.marker_offset_of(1)
            assert (await append(partition, late, expected_marker_offset=marker_offset)).offset == 2

        run(scenario)

    def test_those_of_deleted_records_are_listed_no_more(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(producer_id=1, is_transactional=True))
            await partition.appender.append_marker(1, 1, is_commit=False, coordinator_epoch=0)
            await append(partition, batch(producer_id=1, epoch=1, is_transactional=True))
            await partition.appender.append_marker(1, 2, is_commit=False, coordinator_epoch=0)
            await partition.delete_before(1)
            assert len(partition._opened.states.aborted) == 2
            await partition.delete_before(2)
            assert [item.first_offset for item in partition._opened.states.aborted] == [2]

        run(scenario)

    def test_deleting_the_start_of_an_open_one_moves_what_is_stable(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(producer_id=1, is_transactional=True))
            await append(partition, batch())
            assert await partition.delete_before(1) == 1
            assert partition.last_stable_offset == 1

        run(scenario)
