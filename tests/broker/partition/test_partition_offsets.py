"""One partition: offset lookup, and deletion up to an offset."""

from __future__ import annotations

import pytest

from millstream.errors import (
    FencedLeaderEpoch,
    OffsetOutOfRange,
    UnknownLeaderEpoch,
)
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.record import Record
from tests.broker.partitions import (
    NOW_MS,
    Bench,
    append,
    batch,
    run,
)


class TestLookingUp:
    def test_by_time_per_record(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            for base in (NOW_MS - 100, NOW_MS - 50):
                records = [Record(b"", timestamp_ms=base + n) for n in range(3)]
                await append(partition, build_batch(records, now_ms=0, codec=Codec.GZIP))
            found = await partition.offsets.at_timestamp(NOW_MS - 99)
            assert found == (1, NOW_MS - 99, 0)
            assert (await partition.offsets.at_timestamp(NOW_MS - 97)).offset == 3
            assert (await partition.offsets.at_timestamp(0)).offset == 0
            assert await partition.offsets.at_timestamp(NOW_MS) is None
            assert await partition.offsets.max_timestamp() == (5, NOW_MS - 48, 0)

        run(scenario)

    def test_readers_of_committed_records_find_nothing_past_what_is_stable(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(timestamp_ms=NOW_MS - 10))
            await append(partition, batch(producer_id=1, is_transactional=True))
            assert (await partition.offsets.at_timestamp(NOW_MS)).offset == 1
            assert await partition.offsets.at_timestamp(NOW_MS, is_committed_only=True) is None
            assert partition.offsets.latest() == (2, -1, 0)
            assert partition.offsets.latest(is_committed_only=True) == (1, -1, 0)

        run(scenario)

    def test_the_ends(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            assert partition.offsets.earliest() == (0, -1, 0)
            assert partition.offsets.latest() == (0, -1, 0)
            assert await partition.offsets.max_timestamp() is None
            await append(partition, batch(b"a", b"b"))
            await partition.delete_before(1)
            assert partition.offsets.earliest() == (1, -1, 0)

        run(scenario)

    def test_where_epochs_end(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            await append(partition, batch(b"a", b"b"))
            await bench.store.get("t").begin_epoch(5)
            await append(partition, batch(b"c"))
            assert partition.offsets.leader_epoch == 5
            found = {epoch: partition.offsets.epoch_end(epoch) for epoch in (-1, 0, 3, 5, 6)}
            assert found == {-1: (-1, -1), 0: (0, 2), 3: (0, 2), 5: (5, 3), 6: (-1, -1)}
            assert (await partition.offsets.at_timestamp(0)).leader_epoch == 0
            for epoch in (-1, 5):
                partition.offsets.check_leader_epoch(epoch)
            with pytest.raises(FencedLeaderEpoch):
                partition.offsets.check_leader_epoch(4)
            with pytest.raises(UnknownLeaderEpoch):
                partition.offsets.check_leader_epoch(6)

        run(scenario)

    def test_deleting_before_an_offset(self):
        async def scenario(bench: Bench):
            partition = bench.partition
            for _ in range(3):
                await append(partition, batch())
            assert await partition.delete_before(1) == 1
            assert await partition.delete_before(0) == 1
            for offset in (-2, 4):
                with pytest.raises(OffsetOutOfRange):
                    await partition.delete_before(offset)
            assert await partition.delete_before(-1) == 3
            assert partition.high_watermark == 3

        run(scenario)
