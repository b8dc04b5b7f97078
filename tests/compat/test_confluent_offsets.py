"""confluent-kafka (librdkafka) positions: watermarks, timestamps, seeks and committed offsets."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from .conftest import TIMEOUT_S
from .librdkafka import consumer, error_code, poll_until, producer, read, send, values

OFFSET_TAIL_BASE = -2000  # librdkafka: so many before the end is this less the number.


@pytest.fixture
def ten(bootstrap, new_topic):
    """A topic with the values 0 to 9 at the times 1000, 1010, ... in one partition."""
    topic = new_topic()
    writer = producer(bootstrap, {"linger.ms": 300})
    for number in range(10):
        writer.produce(topic, b"%d" % number, partition=0, timestamp=1000 + 10 * number)
    assert writer.flush(TIMEOUT_S) == 0
    return topic


@pytest.fixture
def reader(bootstrap, name):
    made = consumer(bootstrap, group=name)
    yield made
    made.close()


def listed(admin, topic, spec, **settings):
    partition = TopicPartition(topic, 0)
    found = admin.list_offsets({partition: spec}, **settings)[partition].result(TIMEOUT_S)
    return found.offset, found.timestamp


def test_watermarks_are_where_the_log_starts_and_ends(reader, admin, ten):
    assert reader.get_watermark_offsets(TopicPartition(ten, 0)) == (0, 10)
    admin.delete_records([TopicPartition(ten, 0, 4)])
    poll_until([], lambda: reader.get_watermark_offsets(TopicPartition(ten, 0)) == (4, 10))


@pytest.mark.parametrize(
    ("time_ms", "offset"),
    [(0, 0), (1000, 0), (1001, 1), (1010, 1), (1055, 6), (1090, 9), (1091, OFFSET_END)],
)
def test_a_time_leads_to_the_first_record_that_is_not_older(reader, ten, time_ms, offset):
    (found,) = reader.offsets_for_times([TopicPartition(ten, 0, time_ms)], TIMEOUT_S)
    assert found.error is None
    assert found.offset == offset


def test_offsets_are_listed_by_every_kind_of_question(bootstrap, admin, ten):
    send(producer(bootstrap), ten, [b"late, but old"], partition=0, timestamp=5)
    assert listed(admin, ten, OffsetSpec.earliest())[0] == 0
    assert listed(admin, ten, OffsetSpec.latest())[0] == 11
    assert listed(admin, ten, OffsetSpec.max_timestamp()) == (9, 1090)
    assert listed(admin, ten, OffsetSpec.for_timestamp(1045)) == (5, 1050)
    assert listed(admin, ten, OffsetSpec.for_timestamp(2000)) == (-1, -1)
    level = IsolationLevel.READ_COMMITTED
    assert listed(admin, ten, OffsetSpec.latest(), isolation_level=level)[0] == 11


def test_an_empty_partition_has_no_newest_record(admin, new_topic):
    assert listed(admin, new_topic(), OffsetSpec.max_timestamp()) == (-1, -1)


def test_offsets_of_a_topic_that_is_not_there_are_an_error(admin, name):
    with pytest.raises(KafkaException) as raised:
        listed(admin, name, OffsetSpec.earliest())
    assert error_code(raised) == KafkaError._NOENT


@pytest.mark.parametrize(
    ("to", "first"),
    [(7, 7), (OFFSET_BEGINNING, 0), (OFFSET_TAIL_BASE - 3, 7)],
)
def test_a_seek_goes_there(reader, ten, to, first):
    reader.assign([TopicPartition(ten, 0, 2)])
    assert values(read(reader, 1)) == [b"2"]
    reader.seek(TopicPartition(ten, 0, to))
    assert values(read(reader, 2)) == [b"%d" % first, b"%d" % (first + 1)]
    assert reader.position([TopicPartition(ten, 0)])[0].offset == first + 2


def test_a_seek_to_the_end_sees_only_what_comes_then(bootstrap, ten):
    reader = consumer(bootstrap, {"enable.partition.eof": True})
    reader.assign([TopicPartition(ten, 0, 2)])
    assert values(read(reader, 1)) == [b"2"]
    reader.seek(TopicPartition(ten, 0, OFFSET_END))
    message = reader.poll(TIMEOUT_S)
    assert message.error().code() == KafkaError._PARTITION_EOF
    send(producer(bootstrap), ten, [b"new"], partition=0)
    assert values(read(reader, 1)) == [b"new"]
    reader.close()


def test_a_place_past_the_end_is_an_error_for_who_wants_to_know(bootstrap, ten):
    reader = consumer(bootstrap, {"auto.offset.reset": "error"})
    reader.assign([TopicPartition(ten, 0, 1000)])
    message = reader.poll(TIMEOUT_S)
    assert message is not None
    assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
    assert "out of range" in message.error().str().lower()
    reader.close()


def test_what_was_never_committed_has_no_offset(reader, ten):
    (found,) = reader.committed([TopicPartition(ten, 0)], TIMEOUT_S)
    assert found.error is None
    assert found.offset == OFFSET_INVALID


def test_a_committed_offset_comes_back_with_its_metadata(bootstrap, reader, name, ten):
    commit = TopicPartition(ten, 0, 4, "why ✓", 0)
    (answer,) = reader.commit(offsets=[commit], asynchronous=False)
    assert answer.error is None
    other = consumer(bootstrap, group=name)
    (found,) = other.committed([TopicPartition(ten, 0)], TIMEOUT_S)
    assert (found.offset, found.metadata, found.leader_epoch) == (4, "why ✓", 0)
    other.close()


def test_an_asynchronous_commit_reports_when_it_is_done(bootstrap, name, ten):
    reports = []
    settings = {"on_commit": lambda error, partitions: reports.append((error, partitions))}
    reader = consumer(bootstrap, settings, group=name)
    reader.commit(offsets=[TopicPartition(ten, 0, 6)])
    poll_until([reader], lambda: bool(reports))
    ((error, (partition,)),) = reports
    assert error is None
    assert (partition.topic, partition.partition, partition.offset) == (ten, 0, 6)
    assert reader.committed([TopicPartition(ten, 0)], TIMEOUT_S)[0].offset == 6
    reader.close()


def test_stored_offsets_are_committed_in_the_background(bootstrap, name, ten):
    settings = {
        "enable.auto.commit": True,
        "enable.auto.offset.store": False,
        "auto.commit.interval.ms": 50,
    }
    reader = consumer(bootstrap, settings, group=name)
    reader.subscribe([ten])
    for message in read(reader, 10):
        if message.offset() < 5:
            reader.store_offsets(message)
    place = [TopicPartition(ten, 0)]
    poll_until([reader], lambda: reader.committed(place, TIMEOUT_S)[0].offset == 5)
    reader.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_goes_on_where_the_one_before_committed(bootstrap, name, ten, protocol):
    settings = {"group.protocol": protocol}
    for first, count in ((0, 3), (3, 5), (8, 2)):
        reader = consumer(bootstrap, settings, group=name)
        reader.subscribe([ten])
        messages = read(reader, count)
        assert values(messages) == [b"%d" % number for number in range(first, first + count)]
        reader.commit(message=messages[-1], asynchronous=False)
        reader.close()


def test_a_commit_for_a_topic_that_is_not_there_is_an_error(reader, name):
    with pytest.raises(KafkaException) as raised:
        reader.commit(offsets=[TopicPartition(name, 0, 1)], asynchronous=False)
    assert error_code(raised) == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_commits_from_many_threads_all_succeed(bootstrap, name, ten):
    readers = [consumer(bootstrap, group=f"{name}-{number}") for number in range(8)]

    def commit(reader):
        for offset in range(1, 11):
            reader.commit(offsets=[TopicPartition(ten, 0, offset)], asynchronous=False)

    threads = [threading.Thread(target=commit, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for reader in readers:
        assert reader.committed([TopicPartition(ten, 0)], TIMEOUT_S)[0].offset == 10
        reader.close()
