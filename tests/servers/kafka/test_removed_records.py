"""Fetches from partitions with removed records, and produces to a full partition."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsRequestConfig,
    IncrementalAlterConfigsRequestResource,
)
from millstream.protocols.kafka.messages.fetch import FetchRequest, FetchRequestTopic
from millstream.protocols.kafka.messages.records import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
)
from millstream.records.batch import HEADER_SIZE, split
from millstream.records.iterate import read_all
from tests.servers.kafka.handlers.test_fetch import fetch, part, request_for, values
from tests.servers.kafka.handlers.test_produce import produce

from .client import RawClient, batch_of
from .conftest import make_topic

SHORT_WAY, LONG_WAY = 9, 8
"""Versions of Produce: plain requests of the first are answered without the handler."""


@pytest.fixture
def partition_of(broker):
    """Return partition 0 of a topic; it belongs to the thread of the broker."""
    return lambda topic: broker.server.broker.topics.partition(topic, 0)


@pytest.fixture
def run_maintenance(broker):
    """Run maintenance of all logs."""

    def run(*, is_forced=False):
        broker.run(broker.server.broker.store.maintenance.run_once(is_forced=is_forced))

    return run


def batches_in(found):
    return {header.base_offset: bytes(data) for header, data in split(found.records)}


def configure(client, topic, **configs):
    resource = IncrementalAlterConfigsRequestResource(
        resource_type=2,
        resource_name=topic,
        configs=tuple(
            IncrementalAlterConfigsRequestConfig(
                name=name.replace("_", "."), config_operation=0, value=value
            )
            for name, value in configs.items()
        ),
    )
    answer = client.call(IncrementalAlterConfigsRequest(resources=(resource,)))
    assert answer.responses[0].error_code == 0, answer.responses[0].error_message


# Retention.


@pytest.fixture
def evicted(client, run_maintenance, partition_of):
    """A topic with offset 5; retention deleted 0 to 4."""
    topic = make_topic(client, retention_ms="0")
    for number in range(5):
        produce(client, topic, batch_of(b"%d" % number))
    deadline = time.monotonic() + 20
    while partition_of(topic).log_start_offset < 5:
        assert time.monotonic() < deadline
        run_maintenance()
    configure(client, topic, retention_ms="-1")
    produce(client, topic, batch_of(b"5"))
    return topic


@pytest.mark.parametrize("version", [4, 5, 11, 12])
@pytest.mark.parametrize("offset", [0, 4])
def test_what_was_evicted_is_out_of_range_and_the_start_is_told(client, evicted, offset, version):
    found = fetch(client, evicted, part(offset=offset), version=version)
    assert found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert found.log_start_offset == (5 if version >= 5 else -1)
    assert values(fetch(client, evicted, part(offset=5), version=version)) == [b"5"]


def test_what_was_deleted_behind_it_is_not(client, evicted):
    for number in range(6, 9):
        produce(client, evicted, batch_of(b"%d" % number))
    delete_before(client, evicted, 8)
    assert fetch(client, evicted, part(offset=4)).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    for offset in (5, 7, 8):
        found = fetch(client, evicted, part(offset=offset))
        assert (found.error_code, found.log_start_offset) == (0, 8)
        assert values(found) == [b"8"]


def test_where_all_was_deleted_a_consumer_waits_for_what_comes(broker, client, topic):
    produce(client, topic, batch_of(b"0", b"1"))
    delete_before(client, topic, 2)
    with RawClient(broker.bootstrap) as reader:
        reader.send(request_for(topic, part(offset=0), wait_ms=20_000, size_min=1), 11)
        produce(client, topic, batch_of(b"2"))
        assert values(reader.receive().responses[0].partitions[0]) == [b"2"]


def delete_before(client, topic, offset):
    wanted = DeleteRecordsRequestPartition(partition_index=0, offset=offset)
    answer = client.call(
        DeleteRecordsRequest(
            topics=(DeleteRecordsRequestTopic(name=topic, partitions=(wanted,)),), timeout_ms=1000
        )
    )
    assert answer.topics[0].partitions[0].error_code == 0


# Deletion by key.


@pytest.fixture
def deleted(broker, client, partition_of):
    """A topic with batches of two keys, and its records before one key was deleted."""
    topic = make_topic(client)
    for number in range(10):
        key = b"gone" if number % 3 == 0 else b"stay"
        produce(client, topic, batch_of(b"%d" % number * 100, key=key))
    before = batches_in(fetch(client, topic, part()))
    assert broker.run(partition_of(topic).delete_keys(key=b"gone")) == 4
    return topic, before


@pytest.mark.parametrize("is_reclaimed", [False, True])
def test_all_other_batches_are_the_same_bytes(client, deleted, run_maintenance, is_reclaimed):
    topic, before = deleted
    if is_reclaimed:
        run_maintenance(is_forced=True)
    found = fetch(client, topic, part())
    assert [record.offset for record in read_all(found.records)] == [1, 2, 4, 5, 7, 8]
    after = batches_in(found)
    for base, data in after.items():
        assert data == before[base] or (base % 3 == 0 and len(data) == HEADER_SIZE)
    assert {base for base in after if base % 3} == {1, 2, 4, 5, 7, 8}


@pytest.mark.parametrize("is_reclaimed", [False, True])
@pytest.mark.parametrize("size_max", [1, 100, 300, 1_000_000])
def test_every_position_leads_to_the_next_record(
    client, deleted, run_maintenance, is_reclaimed, size_max
):
    topic, _ = deleted
    if is_reclaimed:
        run_maintenance(is_forced=True)
    left = [1, 2, 4, 5, 7, 8]
    for offset in range(10):
        found = fetch(client, topic, part(offset=offset, size_max=size_max))
        headers = [header for header, _ in split(found.records)]
        following = [record.offset for record in read_all(found.records)]
        if expected := [number for number in left if number >= offset]:
            assert following[0] == expected[0]
            assert headers[0].record_count == 1
        else:
            assert following == []
            assert [header.next_offset for header in headers] == [10]


def test_an_empty_batch_at_the_end_does_not_end_the_wait(broker, client, deleted):
    """A client that does not skip it would fetch it again and again without a pause."""
    topic, _ = deleted
    began = time.monotonic()
    found = fetch(client, topic, part(offset=9), wait_ms=200, size_min=1)
    assert time.monotonic() - began >= 0.15
    assert values(found) == []
    assert len(found.records) == HEADER_SIZE
    with RawClient(broker.bootstrap) as reader:
        reader.send(request_for(topic, part(offset=9), wait_ms=20_000, size_min=1), 11)
        produce(client, topic, batch_of(b"new"))
        assert values(reader.receive().responses[0].partitions[0]) == [b"new"]


def test_a_session_is_told_of_an_empty_batch_too(client, deleted):
    topic, _ = deleted
    request = request_for(topic, part(offset=9), wait_ms=1)
    first = client.call(replace(request, session_epoch=0), 11)
    assert len(first.responses[0].partitions[0].records) == HEADER_SIZE
    again = FetchRequest(
        max_wait_ms=1, min_bytes=1, session_id=first.session_id, session_epoch=1, topics=()
    )
    assert len(client.call(again, 11).responses[0].partitions[0].records) == HEADER_SIZE
    moved = FetchRequestTopic(topic=topic, partitions=(part(offset=10),))
    answer = client.call(replace(again, session_epoch=2, topics=(moved,)), 11)
    assert answer.responses == ()


def test_an_empty_batch_leaves_its_room_to_the_next_partition(client, partition_of, broker):
    topic = make_topic(client, partitions=2)
    produce(client, topic, batch_of(b"gone", key=b"k"))
    produce(client, topic, batch_of(b"x" * 500), partition=1)
    broker.run(partition_of(topic).delete_keys(key=b"k"))
    answer = client.call(request_for(topic, part(0), part(1), max_bytes=100), 11)
    first, second = answer.responses[0].partitions
    assert len(first.records) == HEADER_SIZE
    assert values(second) == [b"x" * 500]


# Compaction.


@pytest.mark.parametrize("isolation", [0, 1])
@pytest.mark.parametrize("size_max", [1, 200, 1_000_000])
def test_a_compacted_log_can_be_read_from_every_position(
    client, run_maintenance, broker, isolation, size_max
):
    topic = make_topic(client, cleanup_policy="compact")
    for number in range(30):
        produce(client, topic, batch_of(b"%d" % number, key=b"%d" % (number % 7)))
    log = broker.server.broker.store.get(topic)
    broker.run(log.roll())
    run_maintenance(is_forced=True)
    for offset in range(31):
        position, seen = offset, []
        while position < 30:
            found = fetch(
                client, topic, part(offset=position, size_max=size_max), isolation_level=isolation
            )
            seen += [r.offset for r in read_all(found.records) if r.offset >= position]
            *_, (last, _) = split(found.records)
            assert last.next_offset > position
            position = last.next_offset
        assert seen == list(range(max(23, offset), 30))


# Full.


@pytest.mark.parametrize("version", [SHORT_WAY, LONG_WAY])
@pytest.mark.parametrize("limit", ["bytes", "records"])
def test_a_full_topic_refuses_what_does_not_fit(client, version, limit):
    limits = {
        "bytes": {"retention_bytes": "1000"},
        "records": {"millstream_retention_records": "1"},
    }
    topic = make_topic(client, millstream_discard="reject", **limits[limit])
    produce(client, topic, batch_of(b"x" * 800), version)
    for _ in range(2):
        refused = produce(client, topic, batch_of(b"y" * 800), version)
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert refused.base_offset == -1
        if version >= 8:
            assert "is full: it must hold at most" in refused.error_message
    configure(client, topic, millstream_discard="old")
    assert produce(client, topic, batch_of(b"y" * 800), version).base_offset == 1


@pytest.mark.parametrize("version", [SHORT_WAY, LONG_WAY])
def test_what_is_refused_uses_no_sequence_number(client, version):
    topic = make_topic(client, millstream_discard="reject", retention_bytes="1000")

    def send(value, sequence):
        fields = {"producer_id": 5, "producer_epoch": 0, "base_sequence": sequence}
        return produce(client, topic, batch_of(value, **fields), version)

    first = b"x" * 800
    assert send(first, 0).base_offset == 0
    assert send(b"y" * 800, 1).error_code == ErrorCode.POLICY_VIOLATION
    again = send(first, 0)
    assert (again.error_code, again.base_offset) == (0, 0)
    assert send(b"small", 1).base_offset == 1
