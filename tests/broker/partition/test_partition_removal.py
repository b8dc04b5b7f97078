"""One partition: producers and readers continue after records are removed."""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker.partition.producers.states import ALL_PRODUCER_IDS
from millstream.config.schema import Discard, LogConfig
from millstream.errors import LogFull, OffsetOutOfRange, OutOfOrderSequence
from millstream.records.batch import decode_header, split
from millstream.records.iterate import read_all
from millstream.records.record import Gap
from tests.broker.partitions import SNAPSHOT, Bench, Config, append, batch, run, values

MINUTE_MS = 60_000

KEPT_A_MINUTE = Config(log=LogConfig(segment_bytes_max=1024, retention_ms=MINUTE_MS))
COMPACTED = Config(
    cleanup_policy=frozenset({"compact"}),
    log=LogConfig(segment_bytes_max=1024, is_compacted=True),
)


async def fill(bench: Bench, count: int, *, size: int = 300, **fields) -> None:
    """Append batches; three batches fill a segment."""
    for number in range(count):
        await append(bench.partition, batch(b"%d" % number * (size // 2), **fields))


async def evict(bench: Bench) -> int:
    """Evict all closed segments by age; return the first remaining offset."""
    bench.clock.advance(2 * MINUTE_MS / 1000)
    await bench.upkeep()
    bench.clock.advance(2 * MINUTE_MS / 1000)
    await bench.upkeep()
    return bench.partition.log_start_offset


def offsets(got) -> list[int]:
    return [record.offset for record in read_all(b"".join(got.parts))]


class TestEviction:
    def test_who_asks_for_what_was_evicted_is_told_where_the_log_starts(self):
        async def scenario(bench: Bench):
            await fill(bench, 10)
            start = await evict(bench)
            assert start == 10
            await fill(bench, 1)
            with pytest.raises(OffsetOutOfRange) as refused:
                bench.partition.reader.read(start - 1, size_max=1000)
            assert (refused.value.start, refused.value.end) == (start, 11)
            assert offsets(bench.partition.reader.read(start, size_max=1000)) == [10]

        run(scenario, config=KEPT_A_MINUTE)

    def test_what_was_deleted_after_it_is_passed_over(self):
        async def scenario(bench: Bench):
            await fill(bench, 10)
            floor = await evict(bench)
            await fill(bench, 5)
            await bench.partition.delete_before(floor + 3)
            for is_again in (False, True):
                if is_again:
                    bench = await bench.again()
                with pytest.raises(OffsetOutOfRange):
                    bench.partition.reader.read(floor - 1, size_max=1000)
                for offset in range(floor, floor + 4):
                    assert offsets(bench.partition.reader.read(offset, size_max=10_000)) == [13, 14]

        run(scenario, config=KEPT_A_MINUTE)

    def test_it_is_described(self):
        async def scenario(bench: Bench):
            await fill(bench, 10)
            await evict(bench)
            await fill(bench, 5)
            await bench.partition.delete_before(12)
            found = bench.partition.reader.describe()
            assert (found.start_offset, found.eviction_floor, found.high_watermark) == (12, 10, 15)
            assert found.gaps == (Gap(0, 9, "age"),)
            assert found.segments == len(bench.store.get("t").segments)
            assert found.bytes > 0
            assert found.leader_epoch == found.cleaned_offset == 0

        run(scenario, config=KEPT_A_MINUTE)

    def test_a_partition_that_lost_nothing_has_no_gap(self):
        async def scenario(bench: Bench):
            await fill(bench, 2)
            found = bench.partition.reader.describe()
            assert (found.gaps, found.eviction_floor, found.records) == ((), 0, 2)

        run(scenario)

    def test_the_producers_of_what_was_evicted_are_remembered(self):
        async def scenario(bench: Bench):
            sent = [batch(b"x" * 300, producer_id=7, sequence=number) for number in range(10)]
            for one in sent:
                await append(bench.partition, one)
            await evict(bench)
            for is_clean in (False, True):
                bench = await bench.again(is_clean=is_clean)
                assert (await append(bench.partition, sent[-1])).offset == 9
            following = batch(b"x", producer_id=7, sequence=10)
            assert (await append(bench.partition, following)).offset == 10

        run(scenario, config=KEPT_A_MINUTE)

    def test_a_full_disk_keeps_nothing_from_going(self):
        async def scenario(bench: Bench):
            for number in range(10):
                await append(bench.partition, batch(b"x" * 300, producer_id=7, sequence=number))
            await bench.upkeep()
            await bench.store.get("t").roll()
            bench.clock.advance(2 * MINUTE_MS / 1000)
            disk = bench.filesystem
            disk.bytes_max = full = disk.bytes_used
            await bench.upkeep()
            assert bench.partition.log_start_offset == 10
            assert disk.bytes_used < full

        run(scenario, config=KEPT_A_MINUTE)

    def test_aborted_transactions_of_which_nothing_is_left_are_forgotten(self):
        async def scenario(bench: Bench):
            await append(bench.partition, batch(producer_id=7, is_transactional=True))
            await bench.partition.appender.append_marker(7, 0, is_commit=False, coordinator_epoch=0)
            await fill(bench, 10)
            assert len(bench.partition._opened.states.aborted) == 1
            await evict(bench)
            assert len(bench.partition._opened.states.aborted) == 0

        run(scenario, config=KEPT_A_MINUTE)

    def test_a_partition_that_nobody_opened_is_opened_for_it(self):
        async def scenario(bench: Bench):
            for number in range(10):
                await append(bench.partition, batch(b"x" * 300, producer_id=7, sequence=number))
            await bench.close()
            bench.filesystem.remove(SNAPSHOT)
            bench = Bench(bench.filesystem.copy(), config=KEPT_A_MINUTE, clock=bench.clock)
            assert not bench.partition.is_open
            await bench.upkeep()
            assert not bench.partition.is_open
            bench.clock.advance(2 * MINUTE_MS / 1000)
            await bench.upkeep()
            assert bench.partition.log_start_offset == 10
            bench = await bench.again()
            assert (
                await append(bench.partition, batch(b"x", producer_id=7, sequence=10))
            ).offset == 10

        run(scenario, config=KEPT_A_MINUTE)

    def test_settings_that_change_hold_for_open_and_unopened_partitions(self):
        async def scenario(bench: Bench):
            await fill(bench, 10)
            await bench.partition.reconfigure(KEPT_A_MINUTE)
            assert await evict(bench) == 10
            bench.config = Config()
            bench = await bench.again(is_clean=True)
            await fill(bench, 10)
            await bench.close()
            bench = Bench(bench.filesystem.copy(), clock=bench.clock)
            await bench.partition.reconfigure(KEPT_A_MINUTE)
            assert await evict(bench) == 20

        run(scenario, config=Config(log=LogConfig(segment_bytes_max=1024)))


class TestFull:
    FULL = Config(log=LogConfig(retention_bytes=1000, discard=Discard.REJECT))

    def test_a_batch_that_is_refused_uses_no_sequence_number(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(b"x" * 800, producer_id=7))
            large = batch(b"y" * 800, producer_id=7, sequence=1)
            for _ in range(2):
                with pytest.raises(LogFull):
                    await append(partition, large)
            assert partition.appender.next_offset == 1
            small = batch(b"z", producer_id=7, sequence=1)
            assert (await append(partition, small)).offset == 1
            with pytest.raises(LogFull):
                await append(partition, batch(b"y" * 800))

        run(scenario, config=self.FULL)

    def test_one_that_was_appended_before_needs_no_room(self):
        async def scenario(bench: Bench):
            sent = [batch(b"x" * 400, producer_id=7, sequence=number) for number in range(2)]
            for one in sent:
                await append(bench.partition, one)
            for offset, one in enumerate(sent):
                assert (await append(bench.partition, one)).offset == offset
            other_epoch = batch(b"x" * 400, producer_id=7, epoch=1)
            with pytest.raises(LogFull):
                await append(bench.partition, other_epoch)

        run(scenario, config=self.FULL)

    def test_a_transaction_can_always_be_ended(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(b"x" * 900, producer_id=7, is_transactional=True))
            with pytest.raises(LogFull):
                await append(partition, batch(b"x" * 100))
            await partition.appender.append_marker(7, 0, is_commit=True, coordinator_epoch=0)
            assert partition.last_stable_offset == partition.high_watermark == 2

        run(scenario, config=self.FULL)

    def test_deleting_makes_room(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(b"x" * 800))
            with pytest.raises(LogFull):
                await append(partition, batch(b"y" * 800))
            await partition.delete_before(1)
            assert (await append(partition, batch(b"y" * 800))).offset == 1

        run(scenario, config=self.FULL)


class TestDeletingKeys:
    @staticmethod
    async def fill(bench: Bench) -> None:
        for keys in ((b"a", b"b"), (b"b",), (b"a",), (b"ab", b"c")):
            await append(bench.partition, batch(*keys, keys=keys))

    @pytest.mark.parametrize(
        ("what", "count", "left"),
        [
            ({"key": b"a"}, 2, [b"b", b"b", b"ab", b"c"]),
            ({"prefix": b"a"}, 3, [b"b", b"b", b"c"]),
            ({"key": b"b", "before": 2}, 1, [b"a", b"b", b"a", b"ab", b"c"]),
            ({"key": b"x"}, 0, [b"a", b"b", b"b", b"a", b"ab", b"c"]),
        ],
    )
    def test_nobody_sees_them_any_more(self, what, count, left):
        async def scenario(bench: Bench):
            await self.fill(bench)
            assert await bench.partition.delete_keys(**what) == count
            assert values(bench.partition) == left
            found = bench.partition.reader.describe()
            assert (found.deleted_records, found.records) == (count, 6 - count)
            assert bool(found.reclaimable_bytes) == bool(count)
            bench = await bench.again()
            assert values(bench.partition) == left
            await bench.upkeep(is_forced=True)
            assert values(bench.partition) == left
            found = bench.partition.reader.describe()
            assert (found.deleted_records, found.reclaimable_bytes) == (0, 0)
            assert found.records == 6 - count

        run(scenario)

    def test_only_batches_with_deleted_records_come_back_different(self):
        async def scenario(bench: Bench):
            await self.fill(bench)
            before = dict(_batches(bench))
            await bench.partition.delete_keys(key=b"a")
            after = dict(_batches(bench))
            assert sorted(before) == [0, 2, 3, 4]
            assert {base for base in before if before[base] == after.get(base)} == {2, 4}
            assert decode_header(after[0]).record_count == 1

        run(scenario)

    def test_whole_runs_of_deleted_records_are_stepped_over_at_once(self):
        async def scenario(bench: Bench):
            await append(bench.partition, batch(b"first", key=b"k"))
            for _ in range(50):
                await append(bench.partition, batch(b"x" * 100, key=b"gone"))
            await append(bench.partition, batch(b"last", key=b"k"))
            await bench.partition.delete_keys(key=b"gone")
            log = bench.store.get("t")
            reads: list[int] = []
            read = log.read

            def counted(offset, **options):
                reads.append(offset)
                return read(offset, **options)

            log.read = counted
            assert values(bench.partition, 1) == [b"last"]
            assert reads == [51]
            assert values(bench.partition) == [b"first", b"last"]
            assert len(log.segments) > 3

        run(scenario, config=Config(log=LogConfig(segment_bytes_max=1024)))

    def test_the_last_records_of_the_log_can_go(self):
        async def scenario(bench: Bench):
            await self.fill(bench)
            await bench.partition.delete_keys(prefix=b"c")
            await bench.partition.delete_keys(prefix=b"a")
            for offset in (3, 4, 5):
                got = bench.partition.reader.read(offset, size_max=1)
                assert (got.is_blank, got.next_offset) == (True, 6)
            assert bench.partition.reader.read(6, size_max=1).parts == ()

        run(scenario)

    def test_records_before_the_start_do_not_come_back_with_others_of_their_batch(self):
        async def scenario(bench: Bench):
            keys = (b"a", b"b", b"c", b"d")
            await append(bench.partition, batch(*keys, keys=keys))
            await bench.partition.delete_before(1)
            await bench.partition.delete_keys(key=b"b")
            assert offsets(bench.partition.reader.read(0, size_max=1)) == [2, 3]

        run(scenario)

    def test_a_snapshot_is_believed_though_the_batch_before_it_lost_records(self):
        async def scenario(bench: Bench):
            await append(bench.partition, batch(b"0", producer_id=1))
            await append(bench.partition, batch(b"1", producer_id=2, key=b"k"))
            await bench.partition.delete_before(1)
            await bench.partition.delete_keys(key=b"k")
            for is_reclaimed in (False, True):
                if is_reclaimed:
                    await bench.upkeep(is_forced=True)
                bench = await bench.again(is_clean=True)
                assert SNAPSHOT in bench.filesystem.paths()
                assert [view.producer_id for view in bench.partition.appender.producers()] == [1, 2]
                assert bench.partition._opened.states.forgotten_max < ALL_PRODUCER_IDS
            assert (await append(bench.partition, batch(producer_id=1, sequence=1))).offset == 2

        run(scenario)


def _batches(bench: Bench) -> list[tuple[int, bytes]]:
    got = bench.partition.reader.read(0, size_max=1 << 20)
    return [(h.base_offset, bytes(data)) for h, data in split(b"".join(got.parts))]


class TestCompaction:
    @staticmethod
    async def fill(bench: Bench) -> None:
        """Write with three producers: one non-transactional, one that commits, one that aborts."""
        partition = bench.partition
        for number in range(4):
            pad = b"." * 200
            key, other = b"k%d" % (number % 2), b"t%d" % (number % 2)
            await append(
                partition, batch(b"one%d" % number + pad, producer_id=1, sequence=number, key=key)
            )
            for producer_id, is_commit in ((2, True), (3, False)):
                await append(
                    partition,
                    batch(
                        b"%d:%d" % (producer_id, number) + pad,
                        producer_id=producer_id,
                        sequence=number,
                        is_transactional=True,
                        key=other,
                    ),
                )
                await partition.appender.append_marker(
                    producer_id, 0, is_commit=is_commit, coordinator_epoch=number
                )
        await append(partition, batch(b"end", key=b"end"))

    @staticmethod
    def seen(bench: Bench, *, is_committed_only: bool) -> list[bytes]:
        found = values(bench.partition, is_committed_only=is_committed_only)
        return [value.rstrip(b".") for value in found]

    @staticmethod
    async def compact(bench: Bench) -> None:
        await bench.store.get("t").roll()
        await bench.upkeep(is_forced=True)

    LEFT = (b"one2", b"2:2", b"one3", b"2:3", b"end")

    def test_the_latest_committed_record_of_each_key_is_left(self):
        async def scenario(bench: Bench):
            await self.fill(bench)
            await self.compact(bench)
            for is_committed_only in (True, False):
                assert self.seen(bench, is_committed_only=is_committed_only) == list(self.LEFT)
            assert bench.partition.reader.describe().cleaned_offset > 0

        run(scenario, config=COMPACTED)

    @pytest.mark.parametrize("snapshot", ["kept", "lost"])
    @pytest.mark.parametrize("times", [1, 2, 3])
    def test_producers_are_remembered_as_they_were(self, snapshot, times):
        async def scenario(bench: Bench):
            await self.fill(bench)
            before = bench.partition.appender.producers()
            for number in range(times):
                if number:
                    await append(bench.partition, batch(b"again", key=b"end"))
                await self.compact(bench)
            assert bench.partition.appender.producers() == before
            await bench.close()
            if snapshot == "lost":
                bench.filesystem.remove(SNAPSHOT)
            bench = Bench(bench.filesystem.copy(), config=COMPACTED)
            await bench.partition.open()
            partition = bench.partition
            assert partition.last_stable_offset == partition.high_watermark
            assert partition.appender.producers() == before
            with pytest.raises(OutOfOrderSequence):
                await append(partition, batch(producer_id=1, sequence=9, key=b"k"))
            following = batch(b"next", producer_id=1, sequence=4, key=b"k9")
            end = partition.appender.next_offset
            assert (await append(partition, following)).offset == end
            assert (await append(partition, following)).offset == end
            assert self.seen(bench, is_committed_only=True)[-1] == b"next"

        run(scenario, config=COMPACTED)

    def test_what_an_open_transaction_holds_is_left_alone(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(b"old", key=b"k"))
            first = partition.appender.next_offset
            await append(partition, batch(b"open", producer_id=1, is_transactional=True, key=b"k"))
            for number in range(3):
                await append(partition, batch(b"%d" % number, key=b"other"))
            await self.compact(bench)
            assert values(partition) == [b"old", b"open", b"0", b"1", b"2"]
            assert partition.last_stable_offset == first
            await partition.appender.append_marker(1, 0, is_commit=False, coordinator_epoch=0)
            await self.compact(bench)
            assert values(partition) == [b"old", b"2"]
            bench = await bench.again()
            assert values(bench.partition, is_committed_only=True) == [b"old", b"2"]

        run(scenario, config=COMPACTED)

    def test_a_transaction_whose_marker_lies_in_what_is_not_compacted_yet(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            for producer_id, key in ((1, b"c"), (2, b"a")):
                await append(
                    partition,
                    batch(
                        b"%d" % producer_id, producer_id=producer_id, is_transactional=True, key=key
                    ),
                )
            await bench.store.get("t").roll()
            await partition.appender.append_marker(1, 0, is_commit=True, coordinator_epoch=4)
            await partition.appender.append_marker(2, 0, is_commit=False, coordinator_epoch=5)
            await bench.upkeep(is_forced=True)
            for is_again in (False, True):
                if is_again:
                    await bench.close()
                    bench.filesystem.remove(SNAPSHOT)
                    bench = Bench(bench.filesystem.copy(), config=COMPACTED)
                    await bench.partition.open()
                partition = bench.partition
                assert values(partition) == values(partition, is_committed_only=True) == [b"1"]
                assert partition.last_stable_offset == 4
                assert [v.coordinator_epoch for v in partition.appender.producers()] == [4, 5]

        run(scenario, config=COMPACTED)

    def test_every_position_can_be_read(self):
        async def scenario(bench: Bench):
            await self.fill(bench)
            await self.compact(bench)
            partition = bench.partition
            everything = {
                record.offset: record.value
                for _, data in _batches(bench)
                for record in read_all(data)
            }
            for size_max in (1, 100, 1 << 20):
                for start in range(partition.high_watermark + 1):
                    found, position = {}, start
                    while position < partition.high_watermark:
                        got = partition.reader.read(position, size_max=size_max)
                        assert got.next_offset > position
                        for record in read_all(b"".join(got.parts)):
                            if record.offset >= position:
                                found[record.offset] = record.value
                        position = got.next_offset
                    assert found == {o: v for o, v in everything.items() if o >= start}

        run(scenario, config=COMPACTED)


def test_a_closed_partition_still_guards_its_log():
    """The log is open for a moment longer than the partition, and may still call the hooks."""

    async def scenario(bench: Bench):
        await append(bench.partition, batch(producer_id=1, is_transactional=True))
        guard = bench.store.get("t").removal_hooks
        await bench.partition.close()
        assert guard.stable_offset() == 0
        assert guard.aborted(0, 10) == []
        await guard.before_removal()

    run(scenario)


def test_reading_goes_on_while_a_log_is_compacted():
    async def scenario(bench: Bench):
        await TestCompaction.fill(bench)
        await bench.store.get("t").roll()
        compacting = asyncio.ensure_future(bench.upkeep(is_forced=True))
        seen = []
        while not compacting.done():
            seen = TestCompaction.seen(bench, is_committed_only=True)
            assert set(TestCompaction.LEFT) <= set(seen)
            await asyncio.sleep(0)
        await compacting
        assert len(seen) >= len(TestCompaction.LEFT)

    run(scenario, config=COMPACTED)
