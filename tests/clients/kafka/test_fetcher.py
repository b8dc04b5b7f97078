"""Reading ranges of real partitions: every record is returned once."""

from __future__ import annotations

import itertools
import time

import pytest
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient

from millstream.clients.kafka.client import KafkaClient
from millstream.clients.kafka.fetcher import FetchChunk, whole_batches
from millstream.errors import (
    CorruptBatch,
    InvalidRequest,
    MalformedAnswer,
    OffsetOutOfRange,
    UnknownTopic,
    UnknownTopicId,
)
from millstream.records.batch import split, stamp
from millstream.records.build import build_batch
from millstream.records.record import Record
from millstream.records.topic_partition import TopicPartition

from .samples import (
    COMMITTED,
    NOW_MS,
    TIMEOUT_S,
    UNCOMMITTED,
    confluent_producer,
    confluent_read,
    read,
)


def fill(broker, topic, count, *, start=0, **settings):
    """Write `count` records with librdkafka, ten per batch."""
    producer = confluent_producer(broker.bootstrap, batch_num_messages=10, **settings)
    for number in range(start, start + count):
        value = None if number % 7 == 3 else b"%d" % number * 20
        producer.produce(topic, value, key=b"key %d" % number, partition=0)
    assert producer.flush(TIMEOUT_S) == 0


def delete_before(broker, topic, offset):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    answer = admin.delete_records([KafkaPartition(topic, 0, offset)])
    for one in answer.values():
        one.result(TIMEOUT_S)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_librdkafka_wrote_is_read_back_exactly(broker, node, topic, codec):
    fill(broker, topic, 500, compression_codec=codec)
    found = read(node, TopicPartition(topic, 0))
    assert found == confluent_read(broker.bootstrap, topic)
    assert len(found) == 500


def test_transactions_are_read_as_their_producer_ended_them(broker, node, topic):
    producer = confluent_producer(broker.bootstrap, transactional_id=topic)
    producer.init_transactions(TIMEOUT_S)
    for number in range(7):
        producer.begin_transaction()
        for each in range(3):
            producer.produce(topic, b"%d %d" % (number, each), partition=0)
        producer.flush(TIMEOUT_S)
        if number % 3 == 1:
            producer.abort_transaction(TIMEOUT_S)
        elif number < 6:
            producer.commit_transaction(TIMEOUT_S)
    where = TopicPartition(topic, 0)
    seen = [value for _, _, value in read(node, where)]
    assert seen == [b"%d %d" % (number, each) for number in (0, 2, 3, 5) for each in range(3)]
    assert read(node, where) == confluent_read(broker.bootstrap, topic)
    everything = read(node, where, isolation=UNCOMMITTED)
    assert everything == confluent_read(broker.bootstrap, topic, isolation=UNCOMMITTED)
    # The last transaction is still open: the committed range ends before it.
    assert node.bounds([where], isolation=COMMITTED)[where].end == 24
    assert node.bounds([where], isolation=UNCOMMITTED)[where].end == 27
    producer.abort_transaction(TIMEOUT_S)


def test_a_range_may_start_and_end_inside_batches(broker, node, topic):
    fill(broker, topic, 60)
    where = TopicPartition(topic, 0)
    everything = read(node, where)
    for start, end in itertools.combinations((0, 1, 9, 10, 25, 59, 60), 2):
        assert read(node, where, start, end) == everything[start:end]


def test_no_batch_beyond_the_range_is_handed_out(broker, node, topic):
    fill(broker, topic, 60)
    where = TopicPartition(topic, 0)
    for start, end in ((0, 10), (5, 11), (19, 21), (20, 30)):
        headers = [
            header
            for chunk in node.chunks(where, start, end, isolation=COMMITTED)
            for header, _ in split(chunk.data)
        ]
        assert headers[0].base_offset <= start < headers[0].next_offset
        assert headers[-1].base_offset < end <= headers[-1].next_offset


@pytest.mark.parametrize("fetch_size", [1, 700, 5000])
def test_small_fetches_follow_each_other_without_gap_or_overlap(broker, node, topic, fetch_size):
    fill(broker, topic, 100)
    where = TopicPartition(topic, 0)
    with KafkaClient(broker.bootstrap, fetch_size_max=fetch_size) as small:
        assert read(small, where) == read(node, where)
        positions = [
            (next(split(chunk.data))[0].base_offset, chunk.next_offset)
            for chunk in small.chunks(where, 0, 100, isolation=COMMITTED)
        ]
    assert len(positions) > 1
    assert all(before == start for (_, before), (start, _) in itertools.pairwise(positions))


def test_a_stretch_outlives_the_next_answer(broker, topic):
    """Two buffers alternate, so the previous chunk is still intact when the next one arrives."""
    fill(broker, topic, 100)
    where = TopicPartition(topic, 0)
    with KafkaClient(broker.bootstrap, fetch_size_max=1) as node:
        pairs = itertools.pairwise(node.chunks(where, 0, 100, isolation=COMMITTED))
        kept = bytes(next(node.chunks(where, 0, 100, isolation=COMMITTED)).data)
        before, after = next(pairs)
        assert bytes(before.data) == kept != bytes(after.data)


def test_readings_may_take_turns_on_one_node(broker, new_topic):
    topics = [new_topic(), new_topic()]
    for number, topic in enumerate(topics):
        fill(broker, topic, 100, start=number * 1000)
    with KafkaClient(broker.bootstrap, fetch_size_max=700) as node:
        readings = [
            node.chunks(TopicPartition(topic, 0), 0, 100, isolation=COMMITTED) for topic in topics
        ]
        found = [[], []]
        for at, chunk in _in_turn(readings):
            node.bounds([TopicPartition(topics[at], 0)], isolation=COMMITTED)
            found[at] += [header.base_offset for header, _ in split(chunk.data)]
    assert found[0] == found[1] == sorted(set(found[0]))
    assert found[0][-1] == 90


def _in_turn(readings):
    left = dict(enumerate(readings))
    while left:
        for at in list(left):
            if (chunk := next(left[at], None)) is None:
                del left[at]
            else:
                yield at, chunk


def test_a_reading_may_be_left_half_way(broker, topic):
    fill(broker, topic, 100)
    where = TopicPartition(topic, 0)
    with KafkaClient(broker.bootstrap, fetch_size_max=1) as node:
        for _ in range(3):
            next(node.chunks(where, 0, 100, isolation=COMMITTED))
        assert len(read(node, where)) == 100


def test_an_empty_range_is_not_asked_for(node, topic):
    assert list(node.chunks(TopicPartition(topic, 0), 5, 5, isolation=COMMITTED)) == []


@pytest.mark.parametrize(("start", "end"), [(-1, 3), (3, 2)])
def test_a_range_that_is_none_is_refused(node, topic, start, end):
    with pytest.raises(InvalidRequest, match=f"got {start} to {end}"):
        node.chunks(TopicPartition(topic, 0), start, end, isolation=COMMITTED)


def test_records_that_retention_took_are_named(broker, node, new_topic):
    topic = new_topic(retention_ms="0")
    fill(broker, topic, 50)
    where = TopicPartition(topic, 0)
    partition = broker.server.broker.topics.partition(topic, 0)
    deadline = time.monotonic() + TIMEOUT_S
    while partition.log_start_offset < 50:
        assert time.monotonic() < deadline
        broker.run(broker.server.broker.store.maintenance.run_once(is_forced=False))
    with pytest.raises(OffsetOutOfRange) as raised:
        read(node, where, 10, 50)
    assert (raised.value.offset, raised.value.start, raised.value.end) == (10, 50, 50)


@pytest.mark.parametrize("before", [25, 60])
def test_records_that_were_deleted_on_purpose_are_passed_over(broker, node, topic, before):
    fill(broker, topic, 60)
    where = TopicPartition(topic, 0)
    delete_before(broker, topic, before)
    assert [offset for offset, _, _ in read(node, where, 10, 60)] == list(range(before, 60))


def test_records_that_are_deleted_while_they_are_being_read_are_passed_over(broker, topic):
    fill(broker, topic, 100)
    where = TopicPartition(topic, 0)
    with KafkaClient(broker.bootstrap, fetch_size_max=1) as node:
        reading = node.chunks(where, 0, 100, isolation=COMMITTED)
        first = next(reading)
        delete_before(broker, topic, 95)
        rest = [chunk.next_offset for chunk in reading]
    # One fetch was in flight before the records were deleted.
    assert rest in ([100], [first.next_offset + 10, 100])


@pytest.mark.parametrize(("start", "end", "wrong"), [(0, 61, 61), (60, 70, 70), (65, 70, 65)])
def test_a_range_beyond_the_end_is_refused(broker, node, topic, start, end, wrong):
    fill(broker, topic, 60)
    with pytest.raises(OffsetOutOfRange) as raised:
        read(node, TopicPartition(topic, 0), start, end)
    assert (raised.value.offset, raised.value.start, raised.value.end) == (wrong, 0, 60)


@pytest.mark.parametrize("where", [TopicPartition("no-such", 0), None])
def test_a_partition_that_is_not_there_is_named(node, topic, where):
    where = where or TopicPartition(topic, 1)
    with pytest.raises(UnknownTopic, match=where.topic):
        list(node.chunks(where, 0, 1, isolation=COMMITTED))


def test_a_topic_that_is_made_anew_meanwhile_is_not_taken_for_the_old_one(broker, topic):
    fill(broker, topic, 100)
    with KafkaClient(broker.bootstrap, fetch_size_max=1) as node:
        reading = node.chunks(TopicPartition(topic, 0), 0, 100, isolation=COMMITTED)
        next(reading)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
        admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        node.create_topic(topic, partitions=1)
        fill(broker, topic, 100)
        with pytest.raises(UnknownTopicId, match="was deleted and created again"):
            list(reading)


# Cutting chunks to complete batches.


def batches(*offsets, count=2):
    made = build_batch([Record(b"v")] * count, now_ms=NOW_MS)
    return [stamp(made, base_offset=offset, leader_epoch=0) for offset in offsets]


def test_batches_from_the_end_of_the_range_on_are_cut_off():
    whole = batches(0, 2, 4)
    data = memoryview(b"".join(whole))
    assert whole_batches(data, 0, 10) == FetchChunk(data, 6, 6)
    assert whole_batches(data, 0, 4) == FetchChunk(data[: -len(whole[2])], 4, 4)
    assert whole_batches(data, 0, 3) == FetchChunk(data[: -len(whole[2])], 4, 4)


def test_a_batch_that_a_node_cut_short_is_left_for_the_next_fetch():
    whole = batches(0, 2)
    data = memoryview(b"".join(whole))
    for size in range(len(whole[0]), len(data)):
        assert whole_batches(data[:size], 0, 10) == FetchChunk(data[: len(whole[0])], 2, 2)
    for size in range(len(whole[0])):
        assert whole_batches(data[:size], 0, 10) is None


def test_where_nothing_is_left_of_a_range_the_next_batch_says_how_far():
    data = memoryview(b"".join(batches(50)))
    assert whole_batches(data, 10, 20) == FetchChunk(data[:0], 10, 50)
    gap = memoryview(b"".join(batches(10, 50)))
    assert whole_batches(gap, 10, 20) == FetchChunk(gap[: len(gap) // 2], 12, 50)


def test_batches_before_what_was_asked_for_are_no_answer():
    with pytest.raises(MalformedAnswer, match="response to a fetch from offset 7 ends at offset 6"):
        whole_batches(memoryview(b"".join(batches(0, 2, 4))), 7, 10)


@pytest.mark.parametrize("length", [-1, 0, 48])
def test_a_batch_smaller_than_its_header_is_no_batch(length):
    data = bytearray(b"".join(batches(0)))
    data[8:12] = length.to_bytes(4, "big", signed=True)
    with pytest.raises(CorruptBatch, match=f"batch size must be at least 61, got {length + 12}"):
        whole_batches(memoryview(data), 0, 10)
