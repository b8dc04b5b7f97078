"""DeleteRecords, as clients see it."""

from __future__ import annotations

import pytest

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.records import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
)
from millstream.servers.kafka.handlers.records import delete_records
from tests.broker.partitions import Bench, Config, append, ask, batch, run

VERSIONS = range(3)


async def delete(bench: Bench, offset: int, *, version: int = 2, topic: str = "t", index: int = 0):
    part = DeleteRecordsRequestPartition(partition_index=index, offset=offset)
    request = DeleteRecordsRequest(
        topics=(DeleteRecordsRequestTopic(name=topic, partitions=(part,)),), timeout_ms=1000
    )
    answer = await ask(bench, delete_records, request, version)
    return answer.topics[0].partitions[0]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("offset", "start"), [(0, 0), (2, 2), (3, 3), (-1, 3)])
def test_the_first_offset_moves_on_and_is_told(version, offset, start):
    async def scenario(bench: Bench):
        await append(bench.partition, batch(b"a", b"b"))
        await append(bench.partition, batch(b"c"))
        found = await delete(bench, offset, version=version)
        assert (found.error_code, found.low_watermark) == (0, start)
        assert bench.partition.log_start_offset == start

    run(scenario)


def test_it_is_durable_and_never_goes_back():
    async def scenario(bench: Bench):
        await append(bench.partition, batch(b"a", b"b", b"c"))
        await delete(bench, 2)
        assert (await delete(bench, 1)).low_watermark == 2
        bench = await bench.again()
        assert bench.partition.log_start_offset == 2

    run(scenario)


@pytest.mark.parametrize("offset", [4, 2**63 - 1, -2, -(2**63)])
def test_an_offset_that_is_not_there_yet(offset):
    async def scenario(bench: Bench):
        await append(bench.partition, batch(b"a", b"b", b"c"))
        found = await delete(bench, offset)
        assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert found.low_watermark == -1
        assert bench.partition.log_start_offset == 0

    run(scenario)


@pytest.mark.parametrize("where", [{"topic": "other"}, {"index": 1}, {"index": -1}])
def test_an_unknown_partition(where):
    async def scenario(bench: Bench):
        found = await delete(bench, 0, **where)
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(scenario)


def test_a_topic_that_is_only_compacted_keeps_its_records():
    async def scenario(bench: Bench):
        await append(bench.partition, batch(key=b"k"))
        assert (await delete(bench, 1)).error_code == ErrorCode.POLICY_VIOLATION

    run(scenario, config=Config(cleanup_policy=frozenset({"compact"})))


def test_one_that_is_compacted_and_deleted_from_does_not():
    async def scenario(bench: Bench):
        await append(bench.partition, batch(key=b"k"))
        assert (await delete(bench, 1)).low_watermark == 1

    run(scenario, config=Config(cleanup_policy=frozenset({"compact", "delete"})))
