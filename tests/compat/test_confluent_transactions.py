"""confluent-kafka (librdkafka) writes in transactions: all of one is visible, or nothing."""

from __future__ import annotations

import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec

from .conftest import TIMEOUT_S
from .librdkafka import (
    consumer,
    error_code,
    member,
    poll_until,
    producer,
    read,
    read_all,
    send,
    values,
)

UNCOMMITTED = {"isolation.level": "read_uncommitted"}


@pytest.fixture
def writer(bootstrap, name):
    return transactional(bootstrap, name)


def transactional(bootstrap, name, **settings):
    made = producer(bootstrap, {"transactional.id": name} | settings)
    made.init_transactions(TIMEOUT_S)
    return made


def write(writer, topic, *sent, partition=0):
    send(writer, topic, sent, partition=partition)


def committed_end(admin, topic, partition=0):
    """Return the last stable offset, where read_committed ends."""
    place = TopicPartition(topic, partition)
    answer = admin.list_offsets(
        {place: OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED
    )
    return answer[place].result(TIMEOUT_S).offset


def offset_of(bootstrap, group, topic, partition=0):
    reader = consumer(bootstrap, group=group)
    (found,) = reader.committed([TopicPartition(topic, partition)], TIMEOUT_S)
    reader.close()
    return found.offset


def test_what_is_committed_is_seen_and_what_is_aborted_is_not(bootstrap, new_topic, writer):
    topic = new_topic(2)
    for number in range(6):
        writer.begin_transaction()
        for partition in (0, 1):
            write(writer, topic, b"%d" % number, partition=partition)
        if number % 3 == 1:
            writer.abort_transaction(TIMEOUT_S)
        else:
            writer.commit_transaction(TIMEOUT_S)
    for partition in (0, 1):
        seen = read_all(bootstrap, topic, partition=partition)
        assert values(seen) == [b"0", b"2", b"3", b"5"]
        # Every transaction ends with a marker that takes an offset of its own.
        assert [message.offset() for message in seen] == [0, 4, 6, 10]
        all_of_them = read_all(bootstrap, topic, UNCOMMITTED, partition=partition)
        assert values(all_of_them) == [b"%d" % number for number in range(6)]


def test_what_is_not_yet_committed_is_hidden(bootstrap, admin, new_topic, writer):
    topic = new_topic()
    send(producer(bootstrap), topic, [b"before"], partition=0)
    writer.begin_transaction()
    write(writer, topic, b"inside")
    send(producer(bootstrap), topic, [b"after"], partition=0)
    assert committed_end(admin, topic) == 1
    assert values(read_all(bootstrap, topic)) == [b"before"]
    assert values(read_all(bootstrap, topic, UNCOMMITTED)) == [b"before", b"inside", b"after"]
    reader = consumer(bootstrap)
    reader.assign([TopicPartition(topic, 0, 0)])
    assert values(read(reader, 1)) == [b"before"]
    writer.commit_transaction(TIMEOUT_S)
    assert values(read(reader, 2)) == [b"inside", b"after"]
    assert committed_end(admin, topic) == 4
    reader.close()


def test_transactions_of_two_producers_may_overlap(bootstrap, new_topic, name):
    topic = new_topic()
    first, second = (transactional(bootstrap, f"{name}-{number}") for number in range(2))
    first.begin_transaction()
    second.begin_transaction()
    write(first, topic, b"first 1")
    write(second, topic, b"second 1")
    write(first, topic, b"first 2")
    second.commit_transaction(TIMEOUT_S)
    assert read_all(bootstrap, topic) == []
    first.abort_transaction(TIMEOUT_S)
    assert values(read_all(bootstrap, topic)) == [b"second 1"]


def test_many_transactions_follow_each_other_without_a_gap(bootstrap, new_topic, writer):
    topic = new_topic(3)
    for number in range(50):
        writer.begin_transaction()
        for partition in range(3):
            writer.produce(topic, b"%d" % number, partition=partition)
        writer.commit_transaction(TIMEOUT_S)
    for partition in range(3):
        seen = values(read_all(bootstrap, topic, partition=partition))
        assert seen == [b"%d" % number for number in range(50)]


def test_a_transaction_may_be_empty(bootstrap, new_topic, writer):
    topic = new_topic()
    writer.begin_transaction()
    writer.commit_transaction(TIMEOUT_S)
    writer.begin_transaction()
    writer.abort_transaction(TIMEOUT_S)
    writer.begin_transaction()
    write(writer, topic, b"at last")
    writer.commit_transaction(TIMEOUT_S)
    assert values(read_all(bootstrap, topic)) == [b"at last"]


def test_a_producer_is_fenced_by_the_next_of_its_name(bootstrap, new_topic, name, writer):
    topic = new_topic()
    writer.begin_transaction()
    write(writer, topic, b"of the zombie")
    successor = transactional(bootstrap, name)
    # The open transaction of the zombie was aborted before its successor could begin.
    successor.begin_transaction()
    write(successor, topic, b"of the successor")
    successor.commit_transaction(TIMEOUT_S)
    with pytest.raises(KafkaException) as raised:
        writer.commit_transaction(TIMEOUT_S)
    assert raised.value.args[0].fatal()
    assert error_code(raised) == KafkaError._FENCED
    assert values(read_all(bootstrap, topic)) == [b"of the successor"]


def test_a_record_of_a_fenced_producer_is_refused(bootstrap, new_topic, name, writer):
    topic = new_topic()
    writer.begin_transaction()
    write(writer, topic, b"of the zombie")
    transactional(bootstrap, name)
    with pytest.raises(KafkaException) as raised:
        write(writer, topic, b"too late")
    assert error_code(raised) in (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
    assert read_all(bootstrap, topic) == []
    found = values(read_all(bootstrap, topic, UNCOMMITTED))
    assert found == [b"of the zombie"]


def test_a_producer_that_stays_away_loses_its_transaction(bootstrap, admin, new_topic, name):
    topic = new_topic()
    slow = transactional(bootstrap, name, **{"transaction.timeout.ms": 1000})
    slow.begin_transaction()
    write(slow, topic, b"left open")
    poll_until([], lambda: committed_end(admin, topic) == 2)
    assert read_all(bootstrap, topic) == []
    with pytest.raises(KafkaException):
        slow.commit_transaction(TIMEOUT_S)


def test_a_timeout_longer_than_the_broker_allows_is_refused(bootstrap, name):
    writer = producer(
        bootstrap, {"transactional.id": name, "transaction.timeout.ms": 2_000_000_000}
    )
    with pytest.raises(KafkaException) as raised:
        writer.init_transactions(TIMEOUT_S)
    assert error_code(raised) == KafkaError.INVALID_TRANSACTION_TIMEOUT


@pytest.fixture
def source(bootstrap, new_topic):
    """A topic with the values 0 to 9."""
    topic = new_topic()
    send(producer(bootstrap), topic, [b"%d" % number for number in range(10)], partition=0)
    return topic


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_results_and_the_place_of_the_input_are_committed_together(
    bootstrap, new_topic, name, source, writer, protocol
):
    target = new_topic()
    reader = member(bootstrap, name, protocol)
    reader.subscribe([source])
    for is_commit in (False, True, True, False):
        writer.begin_transaction()
        messages = read(reader, 4 if is_commit else 2)
        for message in messages:
            writer.produce(target, b"got " + message.value(), partition=0)
        place = TopicPartition(source, 0, messages[-1].offset() + 1)
        writer.send_offsets_to_transaction([place], reader.consumer_group_metadata(), TIMEOUT_S)
        if is_commit:
            writer.commit_transaction(TIMEOUT_S)
        else:
            writer.abort_transaction(TIMEOUT_S)
            reader.seek(TopicPartition(source, 0, messages[0].offset()))
    reader.close()
    assert offset_of(bootstrap, name, source) == 8
    assert values(read_all(bootstrap, target)) == [b"got %d" % number for number in range(8)]


def test_the_place_is_not_shown_before_the_commit(bootstrap, name, source, writer):
    reader = member(bootstrap, name)
    reader.subscribe([source])
    read(reader, 1)
    writer.begin_transaction()
    place = TopicPartition(source, 0, 1)
    writer.send_offsets_to_transaction([place], reader.consumer_group_metadata(), TIMEOUT_S)
    # A request for stable offsets, as librdkafka sends it, has to wait; here it times out.
    with pytest.raises(KafkaException) as raised:
        reader.committed([TopicPartition(source, 0)], 0.5)
    assert error_code(raised) == KafkaError._TIMED_OUT
    writer.commit_transaction(TIMEOUT_S)
    assert reader.committed([TopicPartition(source, 0)], TIMEOUT_S)[0].offset == 1
    reader.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_place_of_a_member_that_was_replaced_is_refused(
    bootstrap, name, source, writer, protocol
):
    reader = member(bootstrap, name, protocol)
    reader.subscribe([source])
    read(reader, 1)
    old = reader.consumer_group_metadata()
    reader.close()
    successor = member(bootstrap, name, protocol)
    successor.subscribe([source])
    read(successor, 1)
    writer.begin_transaction()
    with pytest.raises(KafkaException) as raised:
        writer.send_offsets_to_transaction([TopicPartition(source, 0, 1)], old, TIMEOUT_S)
    assert raised.value.args[0].txn_requires_abort()
    writer.abort_transaction(TIMEOUT_S)
    successor.close()
    assert offset_of(bootstrap, name, source) < 0
