"""ListOffsets, as clients see it."""

from __future__ import annotations

import pytest

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
)
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.record import Record
from millstream.servers.kafka.handlers.list_offsets import list_offsets
from tests.broker.partitions import NOW_MS, Bench, append, ask, batch, run

VERSIONS = range(1, 12)


async def look_up(bench: Bench, *timestamps: int, version: int = 11, index: int = 0, **fields):
    epoch = fields.pop("epoch", -1)
    topic = ListOffsetsRequestTopic(
        name=fields.pop("topic", "t"),
        partitions=tuple(
            ListOffsetsRequestPartition(
                partition_index=index, current_leader_epoch=epoch, timestamp=timestamp
            )
            for timestamp in timestamps
        ),
    )
    request = ListOffsetsRequest(topics=(topic,), **fields)
    answer = await ask(bench, list_offsets, request, version)
    assert [found.name for found in answer.topics] == [topic.name]
    found = answer.topics[0].partitions
    return found[0] if len(timestamps) == 1 else found


@pytest.mark.parametrize("version", VERSIONS)
def test_the_ends_of_the_log(version):
    async def scenario(bench: Bench):
        await append(bench.partition, batch(b"a", b"b", b"c"))
        await bench.partition.delete_before(1)
        latest = await look_up(bench, -1, version=version)
        earliest = await look_up(bench, -2, version=version)
        assert (latest.error_code, latest.offset, latest.timestamp) == (0, 3, -1)
        assert (earliest.error_code, earliest.offset, earliest.timestamp) == (0, 1, -1)
        expected = 0 if version >= 4 else -1
        assert latest.leader_epoch == earliest.leader_epoch == expected

    run(scenario)


@pytest.mark.parametrize("codec", list(Codec))
def test_by_time_it_is_the_record_and_not_its_batch(codec):
    async def scenario(bench: Bench):
        records = [Record(b"", timestamp_ms=NOW_MS + n * 10) for n in range(5)]
        await append(bench.partition, build_batch(records, now_ms=0, codec=codec))
        for asked, offset in ((0, 0), (10, 1), (11, 2), (40, 4)):
            found = await look_up(bench, NOW_MS + asked)
            assert (found.offset, found.timestamp) == (offset, NOW_MS + offset * 10)
        nothing = await look_up(bench, NOW_MS + 41)
        assert (nothing.error_code, nothing.offset, nothing.timestamp) == (0, -1, -1)

    run(scenario)


def test_the_record_with_the_largest_timestamp():
    async def scenario(bench: Bench):
        nothing = await look_up(bench, -3)
        assert (nothing.error_code, nothing.offset) == (0, -1)
        for when in (5, 9, 9, 2):
            await append(bench.partition, batch(timestamp_ms=NOW_MS + when))
        found = await look_up(bench, -3)
        assert (found.offset, found.timestamp) == (1, NOW_MS + 9)

    run(scenario)


def test_nothing_is_kept_elsewhere():
    async def scenario(bench: Bench):
        await append(bench.partition, batch())
        assert (await look_up(bench, -4)).offset == 0
        for mark in (-5, -6):
            found = await look_up(bench, mark)
            assert (found.error_code, found.offset, found.leader_epoch) == (0, -1, -1)

    run(scenario)


@pytest.mark.parametrize(
    ("mark", "since"), [(-1, 1), (-2, 1), (-3, 7), (-4, 8), (-5, 9), (-6, 11), (-7, 99)]
)
def test_a_mark_is_known_from_its_version_on(mark, since):
    async def scenario(bench: Bench):
        for version in VERSIONS:
            found = await look_up(bench, mark, version=version)
            expected = ErrorCode.NONE if version >= since else ErrorCode.UNSUPPORTED_VERSION
            assert found.error_code == expected, version

    run(scenario)


def test_readers_of_committed_records_see_no_open_transaction():
    async def scenario(bench: Bench):
        await append(bench.partition, batch(timestamp_ms=NOW_MS - 5))
        await append(bench.partition, batch(producer_id=1, is_transactional=True))
        assert (await look_up(bench, -1)).offset == 2
        assert (await look_up(bench, -1, isolation_level=1)).offset == 1
        assert (await look_up(bench, NOW_MS)).offset == 1
        assert (await look_up(bench, NOW_MS, isolation_level=1)).offset == -1

    run(scenario)


@pytest.mark.parametrize(
    ("epoch", "code"),
    [
        (-1, ErrorCode.NONE),
        (2, ErrorCode.NONE),
        (1, ErrorCode.FENCED_LEADER_EPOCH),
        (3, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_who_knows_another_leader_is_told(epoch, code):
    async def scenario(bench: Bench):
        await bench.store.get("t").begin_epoch(2)
        assert (await look_up(bench, -1, epoch=epoch)).error_code == code

    run(scenario)


@pytest.mark.parametrize("where", [{"topic": "other"}, {"index": 1}, {"index": -1}])
def test_an_unknown_partition(where):
    async def scenario(bench: Bench):
        found = await look_up(bench, -1, **where)
        assert found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (found.offset, found.timestamp) == (-1, -1)

    run(scenario)


def test_a_partition_that_is_there_twice():
    async def scenario(bench: Bench):
        found = await look_up(bench, -1, -2)
        assert [one.error_code for one in found] == [ErrorCode.INVALID_REQUEST] * 2

    run(scenario)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_replica_is_refused_and_a_tool_that_verifies_replicas_is_not(version):
    async def scenario(bench: Bench):
        await append(bench.partition, batch())
        for replica_id in (0, 5):
            refused = await look_up(bench, -1, version=version, replica_id=replica_id)
            assert (refused.error_code, refused.offset) == (ErrorCode.INVALID_REQUEST, -1)
        for replica_id in (-1, -2):
            served = await look_up(bench, -1, version=version, replica_id=replica_id)
            assert (served.error_code, served.offset) == (ErrorCode.NONE, 1)

    run(scenario)
