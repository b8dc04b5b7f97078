"""DescribeProducers, as clients see it."""

from __future__ import annotations

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.producers import (
    DescribeProducersRequest,
    DescribeProducersRequestTopic,
)
from millstream.servers.kafka.handlers.producers import describe_producers
from tests.broker.partitions import NOW_MS, Bench, append, ask, batch, run


async def describe(bench: Bench, topic: str, *indexes: int):
    wanted = DescribeProducersRequestTopic(name=topic, partition_indexes=indexes)
    answer = await ask(bench, describe_producers, DescribeProducersRequest(topics=(wanted,)), 0)
    assert answer.topics[0].name == topic
    return answer.topics[0].partitions


def test_what_is_remembered_of_each_is_told():
    async def scenario(bench: Bench):
        partition = bench.partition
        await append(partition, batch(b"a", b"b", producer_id=2, epoch=1))
        await append(partition, batch(producer_id=1, is_transactional=True))
        await partition.appender.append_marker(3, 7, is_commit=True, coordinator_epoch=4)
        (found,) = await describe(bench, "t", 0)
        assert found.error_code == 0
        told = [
            (
                one.producer_id,
                one.producer_epoch,
                one.last_sequence,
                one.last_timestamp,
                one.coordinator_epoch,
                one.current_txn_start_offset,
            )
            for one in found.active_producers
        ]
        assert told == [
            (1, 0, 0, NOW_MS, -1, 2),
            (2, 1, 1, NOW_MS, -1, -1),
            (3, 7, -1, NOW_MS, 4, -1),
        ]

    run(scenario)


def test_an_unknown_partition_does_not_hide_the_others():
    async def scenario(bench: Bench):
        found = await describe(bench, "t", 1, 0)
        assert [one.error_code for one in found] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
        assert "t/1" in found[0].error_message
        (found,) = await describe(bench, "other", 0)
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(scenario)
