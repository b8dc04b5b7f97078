"""Boundary values: each gets the same error as from Kafka.

`MILLSTREAM_TEST_BOOTSTRAP=host:port` tests another broker, which is how the codes were taken from
Apache Kafka. If Kafka returns UNKNOWN_SERVER_ERROR, ours must return a better code.
"""

from __future__ import annotations

import os
import struct

import pytest
from crc32c import crc32c

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.epochs import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
)
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
)
from millstream.protocols.kafka.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
)
from millstream.protocols.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.protocols.kafka.messages.producers import InitProducerIdRequest
from millstream.protocols.kafka.messages.records import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
)
from millstream.protocols.kafka.messages.topics import CreateTopicsRequest, CreateTopicsRequestTopic
from tests.servers.kafka.client import RawClient, batch_of, produce_request
from tests.servers.kafka.conftest import make_topic

OTHER_BROKER = os.environ.get("MILLSTREAM_TEST_BOOTSTRAP")
STUMBLES = {ErrorCode.UNKNOWN_SERVER_ERROR} if OTHER_BROKER else set()
NOT_YET = {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
"""Kafka's code for a topic that the controller has not yet announced to the broker."""

INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1


@pytest.fixture
def client(request):
    """A connection to our node, or to the broker that we are compared with."""
    bootstrap = OTHER_BROKER or request.getfixturevalue("node").bootstrap
    with RawClient(bootstrap) as connected:
        yield connected


@pytest.fixture
def topic(client):
    """A topic with one partition that holds the offsets 0, 1 and 2."""
    name = make_topic(client)
    while OTHER_BROKER and produced(client, name, b"") in NOT_YET:
        pass
    assert produced(client, name, batch_of(b"0", b"1", b"2")) == ErrorCode.NONE
    return name


def produced(client, topic, batch, **fields):
    (answer,) = client.call(produce_request(topic, batch, **fields), 9).responses
    return answer.partition_responses[0].error_code


@pytest.mark.parametrize(
    ("offset", "partition", "epoch", "code"),
    [
        (0, 0, -1, ErrorCode.NONE),
        (3, 0, -1, ErrorCode.NONE),
        (4, 0, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (-1, 0, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (-2, 0, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (INT64_MAX, 0, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (-INT64_MAX - 1, 0, -1, ErrorCode.OFFSET_OUT_OF_RANGE),
        (0, 1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, -1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, INT32_MAX, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, 0, 0, ErrorCode.NONE),
        (0, 0, 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (0, 0, INT32_MAX, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_fetching_at_the_edge(client, topic, offset, partition, epoch, code):
    part = FetchRequestPartition(
        partition=partition,
        fetch_offset=offset,
        current_leader_epoch=epoch,
        partition_max_bytes=INT32_MAX,
    )
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, topics=(FetchRequestTopic(topic=topic, partitions=(part,)),)
    )
    (answer,) = client.call(request, 12).responses
    assert answer.partitions[0].error_code == code


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_wait_ms", -1),
        ("min_bytes", -1),
        ("min_bytes", INT32_MAX),
        ("max_bytes", -1),
        ("max_bytes", 0),
        ("partition_max_bytes", 0),
        ("partition_max_bytes", -1),
    ],
)
def test_fetching_with_limits_at_the_edge_is_answered(client, topic, field, value):
    fields = {"max_wait_ms": 100, "min_bytes": 0, "partition_max_bytes": 1000} | {field: value}
    size_max = fields.pop("partition_max_bytes")
    part = FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=size_max)
    topics = (FetchRequestTopic(topic=topic, partitions=(part,)),)
    (answer,) = client.call(FetchRequest(topics=topics, **fields), 12).responses
    assert answer.partitions[0].error_code in {ErrorCode.NONE} | STUMBLES


@pytest.mark.parametrize(
    ("timestamp", "partition", "epoch", "code", "offset"),
    [
        (-1, 0, -1, ErrorCode.NONE, 3),
        (-2, 0, -1, ErrorCode.NONE, 0),
        (-3, 0, -1, ErrorCode.NONE, 0),
        (0, 0, -1, ErrorCode.NONE, 0),
        (INT64_MAX, 0, -1, ErrorCode.NONE, -1),
        (-1, -1, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (-1, INT32_MAX, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (-1, 0, 7, ErrorCode.UNKNOWN_LEADER_EPOCH, -1),
    ],
)
def test_looking_up_a_time_at_the_edge(client, topic, timestamp, partition, epoch, code, offset):
    part = ListOffsetsRequestPartition(
        partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch
    )
    wanted = ListOffsetsRequestTopic(name=topic, partitions=(part,))
    (answer,) = client.call(ListOffsetsRequest(topics=(wanted,)), 7).topics
    found = answer.partitions[0]
    assert (found.error_code, found.offset) == (code, offset)


@pytest.mark.parametrize("partition", [-1, 1, INT32_MAX])
def test_producing_to_a_partition_that_is_not_there(client, topic, partition):
    code = produced(client, topic, batch_of(b"x"), partition=partition)
    assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_producing_with_acks_that_do_not_exist(client, topic, acks):
    code = produced(client, topic, batch_of(b"x"), acks=acks)
    assert code == ErrorCode.INVALID_REQUIRED_ACKS


HEADER = struct.Struct(">qiibIhiqqqhii")
FIELDS = (
    "base_offset",
    "length",
    "leader_epoch",
    "magic",
    "crc",
    "attributes",
    "last_offset_delta",
    "base_timestamp",
    "max_timestamp",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "count",
)


def damaged(**changes):
    """A batch of three records with some fields of its header changed, and a fitting checksum."""
    batch = batch_of(b"0", b"1", b"2")
    fields = dict(zip(FIELDS, HEADER.unpack_from(batch), strict=True)) | changes
    data = bytearray(HEADER.pack(*fields.values()) + batch[HEADER.size :])
    if "crc" not in changes:
        struct.pack_into(">I", data, 17, crc32c(data[21:]))
    return bytes(data)


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({}, {ErrorCode.NONE}),
        ({"base_offset": INT64_MAX}, {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
        ({"crc": 1}, {ErrorCode.CORRUPT_MESSAGE}),
        ({"length": INT32_MAX}, {ErrorCode.CORRUPT_MESSAGE}),
        ({"length": -1}, {ErrorCode.CORRUPT_MESSAGE}),
        ({"length": 0}, {ErrorCode.CORRUPT_MESSAGE}),
        ({"magic": 3}, {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
        ({"magic": -1}, {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
        ({"last_offset_delta": -1}, {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
        ({"last_offset_delta": INT32_MAX}, {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
        ({"last_offset_delta": 5}, {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
        ({"count": -1}, {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
        ({"count": 0}, {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
        ({"count": INT32_MAX}, {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
        ({"attributes": 0x20}, {ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE}),
        ({"attributes": 0x07}, {ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD}),
    ],
    ids=str,
)
def test_producing_a_batch_with_a_number_at_the_edge(client, topic, changes, codes):
    assert produced(client, topic, damaged(**changes)) in codes | STUMBLES


@pytest.mark.parametrize(
    ("epoch", "sequence", "codes"),
    [
        (0, 0, {ErrorCode.NONE}),
        (32767, 0, {ErrorCode.NONE}),
        (0, -1, {ErrorCode.INVALID_RECORD}),
        # Kafka believes a producer that it does not know; we do where we may have forgotten it.
        (0, INT32_MAX, {ErrorCode.NONE, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}),
    ],
)
def test_producing_with_epochs_and_sequences_at_the_edge(client, topic, epoch, sequence, codes):
    batch = batch_of(b"x", producer_id=10**12, producer_epoch=epoch, base_sequence=sequence)
    assert produced(client, topic, batch) in codes


@pytest.mark.parametrize(
    ("offset", "partition", "code"),
    [
        (2, 0, ErrorCode.NONE),
        (-1, 0, ErrorCode.NONE),
        (4, 0, ErrorCode.OFFSET_OUT_OF_RANGE),
        (-2, 0, ErrorCode.OFFSET_OUT_OF_RANGE),
        (INT64_MAX, 0, ErrorCode.OFFSET_OUT_OF_RANGE),
        (0, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_deleting_records_at_the_edge(client, topic, offset, partition, code):
    part = DeleteRecordsRequestPartition(partition_index=partition, offset=offset)
    wanted = DeleteRecordsRequestTopic(name=topic, partitions=(part,))
    (answer,) = client.call(DeleteRecordsRequest(topics=(wanted,), timeout_ms=10_000)).topics
    assert answer.partitions[0].error_code == code


@pytest.mark.parametrize(
    ("offset", "partition", "code"),
    [
        (INT64_MAX, 0, ErrorCode.NONE),
        (0, -1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (0, 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_committing_offsets_at_the_edge(client, topic, offset, partition, code):
    part = OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
    wanted = OffsetCommitRequestTopic(name=topic, partitions=(part,))
    request = OffsetCommitRequest(group_id=topic, member_id="", topics=(wanted,))
    (answer,) = client.call(request, 8).topics
    assert answer.partitions[0].error_code == code


@pytest.mark.parametrize(
    ("epoch", "current", "code", "end"),
    [
        (0, -1, ErrorCode.NONE, 3),
        (0, 0, ErrorCode.NONE, 3),
        (5, -1, ErrorCode.NONE, -1),
        (INT32_MAX, -1, ErrorCode.NONE, -1),
        (0, 9, ErrorCode.UNKNOWN_LEADER_EPOCH, -1),
    ],
)
def test_asking_for_epochs_at_the_edge(client, topic, epoch, current, code, end):
    part = OffsetForLeaderEpochRequestPartition(
        partition=0, leader_epoch=epoch, current_leader_epoch=current
    )
    wanted = OffsetForLeaderEpochRequestTopic(topic=topic, partitions=(part,))
    (answer,) = client.call(OffsetForLeaderEpochRequest(topics=(wanted,)), 4).topics
    found = answer.partitions[0]
    assert (found.error_code, found.end_offset) == (code, end)


@pytest.mark.parametrize(
    ("partitions", "replicas", "codes"),
    [
        (0, 1, {ErrorCode.INVALID_PARTITIONS}),
        (-2, 1, {ErrorCode.INVALID_PARTITIONS}),
        (INT32_MAX, 1, {ErrorCode.INVALID_PARTITIONS, ErrorCode.POLICY_VIOLATION}),
        (1, 0, {ErrorCode.INVALID_REPLICATION_FACTOR}),
        (1, 2, {ErrorCode.INVALID_REPLICATION_FACTOR}),
        (1, 32767, {ErrorCode.INVALID_REPLICATION_FACTOR}),
    ],
)
def test_creating_topics_of_sizes_at_the_edge(client, partitions, replicas, codes):
    wanted = CreateTopicsRequestTopic(
        name="at-the-edge", num_partitions=partitions, replication_factor=replicas
    )
    (answer,) = client.call(CreateTopicsRequest(topics=(wanted,), timeout_ms=10_000)).topics
    assert answer.error_code in codes


@pytest.mark.parametrize(
    ("timeout_ms", "code"),
    [
        (0, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (-1, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (INT32_MAX, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (1, ErrorCode.NONE),
    ],
)
def test_transactions_with_timeouts_at_the_edge(client, timeout_ms, code):
    request = InitProducerIdRequest(
        transactional_id=f"edge {timeout_ms}", transaction_timeout_ms=timeout_ms
    )
    assert client.call(request, 4).error_code == code
