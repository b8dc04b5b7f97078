"""OffsetForLeaderEpoch, as clients see it."""

from __future__ import annotations

import pytest

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.epochs import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
)
from millstream.servers.kafka.handlers.epochs import offset_for_leader_epoch
from tests.broker.partitions import Bench, append, ask, batch, run


async def end_of(
    bench: Bench,
    epoch: int,
    *,
    version: int = 4,
    known: int = -1,
    topic: str = "t",
    index: int = 0,
    **fields: int,
):
    part = OffsetForLeaderEpochRequestPartition(
        partition=index, current_leader_epoch=known, leader_epoch=epoch
    )
    request = OffsetForLeaderEpochRequest(
        topics=(OffsetForLeaderEpochRequestTopic(topic=topic, partitions=(part,)),), **fields
    )
    answer = await ask(bench, offset_for_leader_epoch, request, version)
    assert answer.topics[0].topic == topic
    return answer.topics[0].partitions[0]


async def fill(bench: Bench) -> None:
    await append(bench.partition, batch(b"a", b"b"))
    await bench.store.get("t").begin_epoch(3)
    await append(bench.partition, batch(b"c"))


@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize(
    ("epoch", "found"),
    [(0, (0, 2)), (1, (0, 2)), (2, (0, 2)), (3, (3, 3)), (4, (-1, -1)), (-1, (-1, -1))],
)
def test_the_newest_epoch_that_is_not_later_and_its_end(version, epoch, found):
    async def scenario(bench: Bench):
        await fill(bench)
        answer = await end_of(bench, epoch, version=version)
        assert (answer.error_code, answer.leader_epoch, answer.end_offset) == (0, *found)

    run(scenario)


@pytest.mark.parametrize(
    ("known", "code"),
    [
        (3, ErrorCode.NONE),
        (2, ErrorCode.FENCED_LEADER_EPOCH),
        (4, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_who_knows_another_leader_is_told(known, code):
    async def scenario(bench: Bench):
        await fill(bench)
        answer = await end_of(bench, 3, known=known)
        assert answer.error_code == code
        assert (answer.end_offset == 3) == (code == ErrorCode.NONE)

    run(scenario)


@pytest.mark.parametrize("where", [{"topic": "other"}, {"index": 1}, {"index": -1}])
def test_an_unknown_partition(where):
    async def scenario(bench: Bench):
        answer = await end_of(bench, 0, **where)
        assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (answer.leader_epoch, answer.end_offset) == (-1, -1)

    run(scenario)


@pytest.mark.parametrize("version", [3, 4])
def test_a_replica_is_refused_and_a_consumer_is_not(version):
    async def scenario(bench: Bench):
        await fill(bench)
        for replica_id in (0, 5):
            refused = await end_of(bench, 0, version=version, replica_id=replica_id)
            assert (refused.error_code, refused.end_offset) == (ErrorCode.INVALID_REQUEST, -1)
        for replica_id in (-1, -2):
            served = await end_of(bench, 0, version=version, replica_id=replica_id)
            assert (served.error_code, served.end_offset) == (ErrorCode.NONE, 2)

    run(scenario)
