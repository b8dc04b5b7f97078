"""confluent-kafka (librdkafka) writes records and reads them back as they were."""

from __future__ import annotations

import time

import pytest
from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from millstream.records.batch import split

from .librdkafka import consumer, error_code, producer, read, read_all, send, values
from .raw_kafka import RawKafka
from .samples import every_codec


@every_codec
def test_every_compression_is_kept_and_read_back(bootstrap, new_topic, codec):
    topic = new_topic()
    writer = producer(
        bootstrap, {"compression.type": codec.name.lower(), "linger.ms": 500, "acks": "all"}
    )
    sent = [b"value %d " % number * 20 for number in range(300)]
    reports = send(writer, topic, sent, partition=0)
    assert [report.offset() for report in reports] == list(range(300))
    assert values(read_all(bootstrap, topic)) == sent
    host, port = bootstrap.split(":")
    raw = RawKafka(host, int(port))
    assert {header.codec for header, _ in split(raw.fetch(topic, 0))} == {codec}
    raw.close()


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_records_arrive_with_every_kind_of_acknowledgement(bootstrap, new_topic, acks):
    topic = new_topic()
    send(producer(bootstrap, {"acks": acks}), topic, [b"1", b"2", b"3"], partition=0)
    reader = consumer(bootstrap)
    reader.assign([TopicPartition(topic, 0, 0)])
    assert values(read(reader, 3)) == [b"1", b"2", b"3"]
    reader.close()


def test_headers_keep_order_duplicates_and_missing_values(bootstrap, new_topic):
    topic = new_topic()
    headers = [("a", b"1"), ("a", b"2"), ("none", None), ("empty", b""), ("ü", b"\x00\xff")]
    send(producer(bootstrap), topic, [b"with", b"without"], headers=headers)
    send(producer(bootstrap), topic, [b"without"])
    with_headers, _, without = read_all(bootstrap, topic)
    assert with_headers.headers() == headers
    assert without.headers() is None


@pytest.mark.parametrize("key", [None, b"", b"key"])
@pytest.mark.parametrize("value", [None, b"", b"value"])
def test_missing_is_not_empty(bootstrap, new_topic, key, value):
    topic = new_topic()
    send(producer(bootstrap), topic, [value], key=key)
    (message,) = read_all(bootstrap, topic)
    assert (message.key(), message.value()) == (key, value)


def test_the_time_that_a_producer_gives_is_kept(bootstrap, new_topic):
    topic = new_topic(configs={"message.timestamp.type": "CreateTime"})
    for timestamp_ms in (1, 1_600_000_000_000, 1_500_000_000_000):
        send(producer(bootstrap), topic, [b""], timestamp=timestamp_ms)
    assert [message.timestamp() for message in read_all(bootstrap, topic)] == [
        (TIMESTAMP_CREATE_TIME, 1),
        (TIMESTAMP_CREATE_TIME, 1_600_000_000_000),
        (TIMESTAMP_CREATE_TIME, 1_500_000_000_000),
    ]


@every_codec
def test_a_topic_of_append_time_has_the_brokers_time(bootstrap, new_topic, codec):
    topic = new_topic(configs={"message.timestamp.type": "LogAppendTime"})
    writer = producer(bootstrap, {"compression.type": codec.name.lower(), "linger.ms": 100})
    before_ms = int(time.time() * 1000)
    (first, second) = send(writer, topic, [b"x" * 2000, b"y" * 2000], timestamp=1, partition=0)
    after_ms = int(time.time() * 1000)
    kind, time_ms = first.timestamp()
    assert kind == TIMESTAMP_LOG_APPEND_TIME
    assert before_ms <= time_ms <= after_ms
    assert second.timestamp() == first.timestamp()
    read_back = [message.timestamp() for message in read_all(bootstrap, topic)]
    assert read_back == [first.timestamp(), second.timestamp()]


def test_a_delivery_report_says_where_the_record_is(bootstrap, new_topic):
    topic = new_topic(partitions=3)
    writer = producer(bootstrap)
    for partition in (2, 0, 2, 2):
        (report,) = send(writer, topic, [b"%d" % partition], partition=partition)
        assert report.topic() == topic
        found = read_all(bootstrap, topic, partition=partition)[report.offset()]
        assert found.offset() == report.offset()
        assert found.value() == b"%d" % partition
    assert [len(read_all(bootstrap, topic, partition=n)) for n in range(3)] == [1, 0, 3]


def test_an_idempotent_producer_with_many_requests_in_flight_keeps_its_order(bootstrap, new_topic):
    topic = new_topic()
    writer = producer(bootstrap, {"enable.idempotence": True, "batch.num.messages": 7})
    sent = [b"%d" % number for number in range(2000)]
    reports = send(writer, topic, sent, partition=0)
    assert [report.offset() for report in reports] == list(range(2000))
    assert values(read_all(bootstrap, topic)) == sent


def test_two_idempotent_producers_do_not_disturb_each_other(bootstrap, new_topic):
    topic = new_topic()
    first, second = (producer(bootstrap, {"enable.idempotence": True}) for _ in range(2))
    for number in range(20):
        send(first, topic, [b"a%d" % number], partition=0)
        send(second, topic, [b"b%d" % number], partition=0)
    assert values(read_all(bootstrap, topic)) == [
        b"%c%d" % (letter, number) for number in range(20) for letter in b"ab"
    ]


def test_a_message_as_large_as_allowed_is_kept(bootstrap, new_topic):
    topic = new_topic()
    value = bytes(range(256)) * 4000  # 1,024,000 bytes, the default limit is 1,048,588.
    send(producer(bootstrap, {"message.max.bytes": 2_000_000}), topic, [value])
    assert values(read_all(bootstrap, topic)) == [value]


@pytest.mark.parametrize("size_max", [None, 2000])
def test_a_message_that_is_too_large_is_refused(bootstrap, new_topic, size_max):
    topic = new_topic(configs={"max.message.bytes": str(size_max)} if size_max else None)
    writer = producer(bootstrap, {"message.max.bytes": 5_000_000})
    with pytest.raises(KafkaException) as raised:
        send(writer, topic, [b"x" * ((size_max or 1_048_588) + 1)])
    assert error_code(raised) == KafkaError.MSG_SIZE_TOO_LARGE
    send(writer, topic, [b"small"])
    assert values(read_all(bootstrap, topic)) == [b"small"]


def test_a_batch_larger_than_the_consumers_limit_still_comes(bootstrap, new_topic):
    topic = new_topic()
    send(producer(bootstrap), topic, [b"x" * 500_000, b"y"], partition=0)
    limits = {"fetch.message.max.bytes": 1000, "fetch.max.bytes": 1000, "message.max.bytes": 1000}
    assert values(read_all(bootstrap, topic, limits)) == [b"x" * 500_000, b"y"]


def test_a_consumer_that_waits_is_woken_by_a_write(bootstrap, new_topic):
    topic = new_topic()
    writer = producer(bootstrap)
    reader = consumer(bootstrap, {"fetch.wait.max.ms": 20_000, "socket.timeout.ms": 60_000})
    reader.assign([TopicPartition(topic, 0, 0)])
    send(writer, topic, [b"first"])
    assert values(read(reader, 1)) == [b"first"]
    for number in range(5):
        assert reader.poll(0.05) is None  # It waits at the end now.
        began = time.monotonic()
        send(writer, topic, [b"%d" % number])
        assert values(read(reader, 1)) == [b"%d" % number]
        assert time.monotonic() - began < 10
    reader.close()


def test_many_partitions_are_read_by_one_consumer(bootstrap, new_topic):
    topic = new_topic(partitions=30)
    writer = producer(bootstrap)
    for number in range(300):
        writer.produce(topic, b"%d" % number, partition=number % 30)
    writer.flush()
    reader = consumer(bootstrap)
    reader.assign([TopicPartition(topic, partition, 0) for partition in range(30)])
    found: dict[int, list[int]] = {}
    for message in read(reader, 300):
        found.setdefault(message.partition(), []).append(int(message.value()))
    assert found == {n: list(range(n, 300, 30)) for n in range(30)}
    reader.close()


def test_a_compacted_topic_refuses_a_record_without_a_key(bootstrap, new_topic):
    topic = new_topic(configs={"cleanup.policy": "compact"})
    writer = producer(bootstrap)
    with pytest.raises(KafkaException) as raised:
        send(writer, topic, [b"no key"])
    assert error_code(raised) == KafkaError.INVALID_RECORD
    send(writer, topic, [b"value", None], key=b"key", partition=0)
    assert values(read_all(bootstrap, topic)) == [b"value", None]


def test_writing_to_a_topic_that_is_not_there_creates_it(bootstrap, admin, name):
    send(producer(bootstrap), name, [b"first"])
    assert name in admin.list_topics(timeout=30).topics
    assert values(read_all(bootstrap, name)) == [b"first"]
    admin.delete_topics([name])


def test_a_consumer_does_not_create_the_topic_that_it_asks_for(bootstrap, admin, name):
    reader = consumer(bootstrap, {"allow.auto.create.topics": False})
    reader.subscribe([name])
    message = reader.poll(30)
    assert message is not None
    assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert name not in admin.list_topics(timeout=30).topics
    reader.close()


@pytest.mark.parametrize("topic", ["a b", "x" * 250, "..", "ü", "a/b"])
def test_a_topic_name_that_is_not_allowed_is_refused(bootstrap, topic):
    writer = producer(bootstrap)
    with pytest.raises(KafkaException) as raised:
        send(writer, topic, [b"value"])
    assert error_code(raised) == KafkaError.TOPIC_EXCEPTION
