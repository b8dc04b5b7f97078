"""One partition: state that survives a restart of the process."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from millstream.broker.partition.partition import Partition
from millstream.broker.partition.producers.states import ALL_PRODUCER_IDS
from millstream.config.schema import Durability, LogConfig
from millstream.errors import DamagedRecords, InvalidProducerEpoch, UnknownProducer
from tests.broker.partitions import (
    DIRECTORY,
    SMALL_SEGMENTS,
    SNAPSHOT,
    Bench,
    Config,
    append,
    batch,
    run,
)
from tests.storage.logs import HeldExecutor, turns


class TestComingBack:
    @staticmethod
    async def fill(partition: Partition) -> list[bytes]:
        sent = [
            batch(b"1-0", producer_id=1),
            batch(b"1-1", producer_id=1, sequence=1),
            batch(b"2-0", producer_id=2, is_transactional=True),
            batch(b"3-0", producer_id=3, is_transactional=True),
        ]
        for one in sent:
            await append(partition, one)
        await partition.appender.append_marker(2, 1, is_commit=False, coordinator_epoch=0)
        return sent

    async def check(self, partition: Partition, sent: Sequence[bytes]) -> None:
        assert partition.last_stable_offset == 3
        assert partition.appender.producers()[-1].transaction_first_offset == 3
        got = partition.reader.read(0, size_max=1 << 20, is_committed_only=True)
        assert [tuple(item) for item in got.aborted] == [(2, 2)]
        for offset in (0, 1, 3):
            assert (await append(partition, sent[offset])).offset == offset
        with pytest.raises(InvalidProducerEpoch):
            await append(partition, sent[2])
        assert partition.appender.next_offset == 5

    @pytest.mark.parametrize("is_clean", [True, False])
    def test_all_of_it_is_remembered(self, is_clean):
        async def scenario(bench: Bench):
            sent = await self.fill(bench.partition)
            bench = await bench.again(is_clean=is_clean)
            assert (SNAPSHOT in bench.filesystem.paths()) == is_clean
            await self.check(bench.partition, sent)

        run(scenario)

    @pytest.mark.parametrize(
        "damage", ["gone", "empty", "cut", "flipped", "older log", "newer log"]
    )
    def test_whatever_happens_to_the_snapshot(self, damage):
        async def scenario(bench: Bench):
            early = None
            if damage == "newer log":
                await append(bench.partition, batch(b"0"))
                bench = await bench.again(is_clean=True)
                early = bench.filesystem.content(SNAPSHOT)
                bench = Bench()
                await bench.partition.open()
            sent = await self.fill(bench.partition)
            await bench.close()
            disk = bench.filesystem
            if damage == "gone":
                disk.remove(SNAPSHOT)
            elif damage == "empty":
                disk.cut(SNAPSHOT, 0)
            elif damage == "cut":
                disk.cut(SNAPSHOT, 100)
            elif damage == "flipped":
                disk.flip_bit(SNAPSHOT, 333)
            elif damage == "newer log":
                disk.replace_content(SNAPSHOT, early)
            else:
                other = Bench()
                await other.partition.open()
                for n in range(10):
                    await append(other.partition, batch(b"%d" % n))
                await other.close()
                disk.replace_content(SNAPSHOT, other.filesystem.content(SNAPSHOT))
            bench = Bench(disk.copy())
            await bench.partition.open()
            await self.check(bench.partition, sent)
            assert SNAPSHOT not in bench.filesystem.paths()

        run(scenario)

    def test_a_snapshot_is_written_whenever_a_segment_begins(self):
        async def scenario(bench: Bench):
            for n in range(20):
                await append(bench.partition, batch(b"x" * 200, producer_id=1, sequence=n))
            await turns()
            assert len(bench.store.get("t").segments) > 2
            bench = await bench.again()
            assert SNAPSHOT in bench.filesystem.paths()
            assert bench.partition._opened.saver.saved_offset > 10
            again = [
                (await append(bench.partition, batch(b"x" * 200, producer_id=1, sequence=n))).offset
                for n in range(15, 20)
            ]
            assert again == [15, 16, 17, 18, 19]

        run(scenario, config=SMALL_SEGMENTS)

    def test_a_snapshot_says_nothing_of_what_is_not_committed(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(b"0", producer_id=1))
            held = bench.store._background
            held.is_held = True
            append(partition, batch(b"1", producer_id=1, sequence=1))
            append(partition, batch(b"2", producer_id=2, is_transactional=True))
            await turns()
            await partition._opened.saver.save()
            bench = await bench.again()
            assert bench.partition.appender.next_offset == 1
            assert [view.last_sequence for view in bench.partition.appender.producers()] == [0]

        run(scenario, store_background=HeldExecutor())

    def test_what_is_deleted_from_the_log_is_still_remembered(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            one = batch(b"a", producer_id=1)
            await append(partition, one)
            await append(partition, batch(b"b"))
            await partition.delete_before(2)
            bench = await bench.again()
            assert bench.partition.log_start_offset == 2
            assert (await append(bench.partition, one)).offset == 0

        run(scenario)

    def test_without_a_snapshot_producers_of_deleted_records_are_told_so(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(b"a", producer_id=1))
            await append(partition, batch(b"b"))
            await partition.delete_before(1)
            await bench.close()
            bench.filesystem.remove(SNAPSHOT)
            bench = Bench(bench.filesystem.copy())
            await bench.partition.open()
            assert bench.partition._opened.states.forgotten_max == ALL_PRODUCER_IDS
            with pytest.raises(UnknownProducer):
                await append(bench.partition, batch(producer_id=1, sequence=1))
            assert (await append(bench.partition, batch(producer_id=1, epoch=1))).offset == 2

        run(scenario)

    def test_a_snapshot_of_what_is_deleted_is_not_believed(self):
        async def scenario(bench: Bench):
            await append(bench.partition, batch(b"a", producer_id=1))
            await bench.partition._opened.saver.save()
            old = bench.filesystem.content(SNAPSHOT)
            for n in range(3):
                await append(bench.partition, batch(b"b", producer_id=2, sequence=n))
            await bench.partition.delete_before(3)
            await bench.close()
            bench.filesystem.replace_content(SNAPSHOT, old)
            bench = Bench(bench.filesystem.copy())
            await bench.partition.open()
            assert [view.producer_id for view in bench.partition.appender.producers()] == [2]
            assert SNAPSHOT not in bench.filesystem.paths()

        run(scenario)

    def test_a_full_disk_only_costs_the_snapshot(self):
        async def scenario(bench: Bench):
            await self.fill(bench.partition)
            bench.filesystem.bytes_max = bench.filesystem.bytes_used
            await bench.partition.close()
            assert SNAPSHOT not in bench.filesystem.paths()

        run(scenario)

    def test_where_the_log_is_damaged_nothing_is_appended_and_nothing_doubtful_is_committed(self):
        async def scenario(bench: Bench):
            for n in range(3):
                await append(
                    bench.partition, batch(b"%d" % n, producer_id=n, is_transactional=True)
                )
            await bench.store.close()
            disk = bench.filesystem
            path = f"{DIRECTORY}/{0:020d}.log"
            size = len(batch(b"0"))
            disk.flip_bit(path, 8 * (size + 65))
            bench = Bench(disk.copy())
            await bench.partition.open()
            with pytest.raises(DamagedRecords):
                append(bench.partition, batch(b"x"))
            reader = bench.partition.reader
            assert bench.partition.high_watermark == 3
            assert bench.partition.last_stable_offset == 2, "a transaction is open there"
            assert reader.read(0, size_max=1).next_offset == 1
            with pytest.raises(DamagedRecords, match="the outcome of a transaction may be in"):
                reader.read(0, size_max=1, is_committed_only=True)
            for is_committed_only in (False, True):
                with pytest.raises(DamagedRecords, match="offset 1 is lost"):
                    reader.read(1, size_max=1, is_committed_only=is_committed_only)
            assert reader.read(2, size_max=1).next_offset == 3
            await bench.partition.delete_before(0)
            await bench.close()
            assert SNAPSHOT not in bench.filesystem.paths()

        run(scenario)

    def test_a_snapshot_of_a_log_that_was_cut_and_grew_again_is_not_believed(self):
        """If the durability class may lose the end of a log, the offset alone is not enough."""

        async def scenario(bench: Bench):
            for n in range(3):
                await append(bench.partition, batch(b"old", producer_id=n))
            await bench.partition._opened.saver.save()
            bench = await bench.again()
            assert bench.partition.appender.next_offset == 0
            for n in range(4):
                await append(bench.partition, batch(b"new", producer_id=5, sequence=n))
            assert SNAPSHOT not in bench.filesystem.paths()
            bench = await bench.again(is_clean=True)
            assert [view.producer_id for view in bench.partition.appender.producers()] == [5]

        run(scenario, config=Config(log=LogConfig(durability=Durability.DISK)))

    def test_a_snapshot_of_another_history_is_not_believed_either(self):
        async def scenario(bench: Bench):
            snapshots = []
            for producer_id in (1, 2):
                bench = Bench()
                await bench.partition.open()
                await append(bench.partition, batch(b"%d" % producer_id, producer_id=producer_id))
                await bench.close()
                snapshots.append(bench.filesystem.content(SNAPSHOT))
            bench.filesystem.replace_content(SNAPSHOT, snapshots[0])
            bench = Bench(bench.filesystem.copy())
            await bench.partition.open()
            assert [view.producer_id for view in bench.partition.appender.producers()] == [2]

        run(scenario)
