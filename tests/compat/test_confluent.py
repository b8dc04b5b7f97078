"""confluent-kafka reads what we write, and we read what it writes.

librdkafka has a mock broker that stores batches unchanged. The client talks to it as to any
broker; our half goes over a plain socket.
"""

from __future__ import annotations

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, Producer, TopicPartition

from millstream.records.arrow.decoder import arrow_batches
from millstream.records.batch import check_batch, split
from millstream.records.build import build_batch
from millstream.records.iterate import read_all
from millstream.records.record import StoredRecord

from .raw_kafka import RawKafka
from .samples import NOW, RECORDS, every_codec, stored

TIMEOUT_S = 30


@pytest.fixture(scope="module")
def cluster():
    """A producer that carries the mock broker; the broker lives as long as it does."""
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
    yield producer
    producer.flush(TIMEOUT_S)


@pytest.fixture(scope="module")
def address(cluster):
    (broker,) = cluster.list_topics(timeout=TIMEOUT_S).brokers.values()
    assert broker.host == "127.0.0.1"
    return broker.host, broker.port


@pytest.fixture
def raw(address):
    connection = RawKafka(*address)
    yield connection
    connection.close()


def server(address):
    return {"bootstrap.servers": f"{address[0]}:{address[1]}", "log_level": 0}


def write_with_client(address, topic, codec):
    settings = {"compression.type": codec.name.lower(), "linger.ms": 1000}
    producer = Producer(server(address) | settings)
    for r in RECORDS:
        headers = list(r.headers)
        producer.produce(
            topic, r.value, r.key, partition=0, timestamp=r.timestamp_ms, headers=headers
        )
    assert producer.flush(TIMEOUT_S) == 0


def fetch_all(raw, topic):
    data, offset = b"", 0
    while offset < len(RECORDS):
        data += raw.fetch(topic, offset)
        offset = max(header.next_offset for header, _ in split(data))
    return data


def read_with_client(address, topic):
    consumer = Consumer(server(address) | {"group.id": "none", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages = consumer.consume(len(RECORDS), TIMEOUT_S)
    consumer.close()
    return [as_stored(message) for message in messages]


def as_stored(message):
    assert message.error() is None
    kind, timestamp = message.timestamp()
    assert kind == TIMESTAMP_CREATE_TIME
    headers = tuple(message.headers() or ())
    return StoredRecord(message.offset(), timestamp, message.key(), message.value(), headers)


@every_codec
def test_what_the_client_writes_we_read(address, raw, codec):
    topic = f"theirs-{codec.name}"
    write_with_client(address, topic, codec)
    data = fetch_all(raw, topic)
    for header, batch in split(data):
        check_batch(header, batch)
    assert codec in {header.codec for header, _ in split(data)}
    assert list(read_all(data)) == stored()
    values = [value for batch in arrow_batches(data) for value in batch["value"].to_pylist()]
    assert values == [record.value for record in RECORDS]


@every_codec
def test_what_we_write_the_client_reads(cluster, address, raw, codec):
    topic = f"ours-{codec.name}"
    cluster.list_topics(topic, timeout=TIMEOUT_S)  # Asking for a topic creates it.
    half = len(RECORDS) // 2
    for part in (RECORDS[:half], RECORDS[half:]):
        raw.produce(topic, build_batch(part, now_ms=NOW, codec=codec))
    assert read_with_client(address, topic) == stored()
