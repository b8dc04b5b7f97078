"""Appending and fetching by the native protocol."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer, Producer

from millstream import Client
from millstream.config.schema import BrokerConfig, LogConfig, NativeConfig
from millstream.protocols.native.compression import LZ4, ZSTD, compress_payload
from millstream.protocols.native.error_codes import NativeErrorCode
from millstream.protocols.native.frame import Checksum, Flag, ingest_frame, keepalive_frame
from millstream.protocols.native.operations import END, Fetched
from millstream.protocols.native.record_set import (
    JSON,
    KEYED,
    NULL,
    RAW,
    TIMED_KEYED,
    typed_record,
)
from millstream.testing.broker import running_broker

from .client import CatchingUp, NativeClient, Refused


def raw(*values):
    return b"".join(typed_record(RAW, value) for value in values)


def consumed(broker, name, count):
    """The records of a topic, as a Kafka client sees them."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([name])
    try:
        return [consumer.poll(60) for _ in range(count)]
    finally:
        consumer.close()


def test_what_was_appended_is_fetched(client, topic):
    client.ingest(topic, b"one", b"two")
    client.ingest(topic, b"three")
    assert client.fetch(topic, 0) == (Fetched(3, 26, 3), raw(b"one", b"two", b"three"))
    assert client.fetch(topic, 2) == (Fetched(3, 10, 1), raw(b"three"))
    assert client.fetch(topic, 3) == (Fetched(3, 0, 0), b"")


def test_the_end_is_found_by_an_offset_that_means_it(client, topic):
    assert client.fetch(topic, END, 1)[0].next_offset == 0
    client.ingest(topic, b"one")
    assert client.fetch(topic, END, 1) == (Fetched(1, 0, 0), b"")


def test_a_client_past_the_end_is_told_the_end(client, topic):
    client.ingest(topic, b"one")
    with pytest.raises(CatchingUp) as behind:
        client.fetch(topic, 2)
    assert behind.value.end == 1


def test_a_fetch_returns_whole_records_up_to_its_size_and_at_least_one(client, topic):
    client.ingest(topic, *[bytes(100)] * 5)
    assert client.fetch(topic, 0, 250)[0] == Fetched(2, 210, 2)
    assert client.fetch(topic, 2, 1)[0] == Fetched(3, 105, 1)
    assert client.fetch(topic, 4, 0)[0] == Fetched(5, 105, 1)


def test_types_keys_and_times_come_back_as_they_were_sent(client, topic, broker, name):
    payload = b"".join(
        (
            typed_record(JSON, b"{}"),
            typed_record(TIMED_KEYED, b"v", key=b"k", time_ns=1_700_000_000_123_456_789),
            typed_record(0x91, b"mine"),
            typed_record(KEYED, b"w", key=b"l"),
            typed_record(NULL, key=b"l"),
        )
    )
    client.ingest_payload(topic, payload, count=5)
    assert client.fetch(topic, 0) == (Fetched(5, len(payload), 5), payload)
    seen = consumed(broker, name, 5)
    assert [(message.key(), message.value()) for message in seen] == [
        (None, b"{}"),
        (b"k", b"v"),
        (None, b"mine"),
        (b"l", b"w"),
        (b"l", None),
    ]
    assert seen[1].timestamp()[1] == 1_700_000_000_123


def test_values_without_anything_between_them_come_back_as_they_were_sent(client, topic):
    client.ingest_payload(topic, b"firstsecond", count=2)
    client.ingest(topic, b"third")
    fetched, data = client.fetch(topic, 0)
    assert data == b"firstsecond" + raw(b"third")
    assert fetched.record_count == 3


def test_records_of_kafka_and_http_clients_are_fetched(client, topic, broker, name):
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(name, b"v", key=b"k", headers={"trace": b"1"})
    producer.flush(60)
    with Client(broker.url) as http:
        http.append(name, b"from http")
    assert client.fetch(topic, 0)[1] == typed_record(KEYED, b"v", key=b"k") + raw(b"from http")


@pytest.mark.parametrize("codec", [LZ4, ZSTD])
def test_compressed_records_are_stored_one_by_one(client, topic, codec):
    payload = raw(*[b"text that repeats"] * 1000)
    client.ingest_payload(topic, compress_payload(codec, payload), flags=Flag.COMPRESSED)
    assert client.fetch(topic, 0) == (Fetched(1000, len(payload), 1000), payload)


def test_a_damaged_compressed_payload_is_refused_and_the_connection_goes_on(client, topic):
    with pytest.raises(Refused) as refused:
        client.ingest_payload(topic, compress_payload(ZSTD, b"abc")[:-2], flags=Flag.COMPRESSED)
    assert refused.value.code == NativeErrorCode.MALFORMED
    client.ingest(topic, b"one")
    assert client.fetch(topic, 0)[0].record_count == 1


def test_large_frames_are_appended_whole(client, name):
    number = client.create(name)["id"]
    values = [bytes([index % 256]) * 1000 for index in range(900)]
    client.ingest(number, *values)
    data, offset = b"", 0
    while offset < len(values):
        fetched, part = client.fetch(number, offset, 100_000)
        data, offset = data + part, fetched.next_offset
    assert data == raw(*values)


def test_a_frame_that_is_too_large_for_its_topic_is_refused_whole(client, topic):
    with pytest.raises(Refused) as refused:
        client.ingest(topic, bytes(900_000), bytes(900_000))
    assert refused.value.code == NativeErrorCode.TOO_LARGE
    assert client.fetch(topic, 0)[0].record_count == 0


def test_a_thousand_pipelined_frames_are_answered_in_order(client, topic):
    frames = [client.ingest_frame(topic, b"%d" % number) for number in range(1000)]
    sent = []
    for number, frame in enumerate(frames):
        sent.append(frame)
        if number % 100 == 0:
            sent.append(keepalive_frame())
    client.socket.sendall(b"".join(frame.to_bytes() for frame in sent))
    for frame in sent:
        header, _ = client.answer()
        expected = frame.header
        if expected.flags == Flag.BATCH:
            assert (header.flags, header.batch_id) == (Flag.ACK, expected.batch_id)
        else:
            assert header.flags == Flag.KEEPALIVE
    assert client.fetch(topic, 0)[1] == raw(*(b"%d" % number for number in range(1000)))


def test_small_and_large_frames_of_a_connection_keep_their_order(client, topic):
    values = [b"%d" % number * (5000 if number % 3 == 0 else 1) for number in range(30)]
    for value in values:
        client.send(client.ingest_frame(topic, value))
    for _ in values:
        client.answer()
    data, offset = b"", 0
    while offset < len(values):
        fetched, part = client.fetch(topic, offset)
        data, offset = data + part, fetched.next_offset
    assert data == raw(*values)


def test_both_checksums_are_understood_and_answered(broker, topic):
    for checksum in Checksum:
        with NativeClient(broker.native, checksum=checksum) as client:
            client.ingest(topic, b"one")
            client.send(keepalive_frame())
            assert client.receive()[0].flags == Flag.KEEPALIVE
            client.send(ingest_frame(9, raw(b"x"), record_count=1, topic_id=topic))
            received = client.socket.recv(44)
            assert received[8:12] == checksum.of(received[:8]).to_bytes(4, "little")


def test_the_default_topic_is_created_by_its_first_records(client, broker):
    client.ingest(0, b"one")
    client.ingest_payload(0, raw(b"two"))
    assert client.fetch(0, 0)[1] == raw(b"one", b"two")
    assert client.get(0)["name"] == "default"
    assert "default" in client.topics()
    assert consumed(broker, "default", 1)[0].value() == b"one"


def test_the_default_topic_is_not_created_where_topics_are_not(tmp_path):
    settings = NativeConfig(default_topic="inbox")
    config = BrokerConfig(auto_create_topics=False)
    with (
        running_broker(tmp_path, broker=config, native_server=settings) as broker,
        NativeClient(broker.native) as client,
    ):
        with pytest.raises(Refused, match="topic 'inbox' does not exist") as refused:
            client.ingest(0, b"one")
        assert refused.value.code == NativeErrorCode.UNKNOWN_TOPIC


def test_records_that_retention_took_are_reported_and_the_beginning_is_not(tmp_path):
    log = LogConfig(segment_bytes_max=1024, retention_records=3)
    with (
        running_broker(tmp_path, log=log, native_server=NativeConfig()) as broker,
        NativeClient(broker.native) as client,
    ):
        number = client.create("capped")["id"]
        for value in range(10):
            client.ingest(number, b"%d" % value)
        with pytest.raises(Refused, match="offset must be between 7 and 10, got 2") as refused:
            client.fetch(number, 2)
        assert refused.value.code == NativeErrorCode.OUT_OF_RANGE
        assert refused.value.details == {"offset": 2, "start": 7, "end": 10}
        assert client.fetch(number, 0) == (Fetched(10, 18, 3), raw(b"7", b"8", b"9"))


def test_records_that_a_client_deleted_are_skipped(client, topic, broker, name):
    client.ingest(topic, b"0", b"1", b"2")
    with Client(broker.url) as http:
        http.delete_records(name, before=2)
    assert client.fetch(topic, 1) == (Fetched(3, 6, 1), raw(b"2"))


def test_only_committed_records_are_fetched(client, topic, broker, name):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(name, b"aborted")
    producer.flush(60)
    assert client.fetch(topic, 0) == (Fetched(0, 0, 0), b"")
    assert client.fetch(topic, END)[0].next_offset == 0
    producer.abort_transaction(60)
    producer.begin_transaction()
    producer.produce(name, b"committed")
    producer.commit_transaction(60)
    fetched, data = client.fetch(topic, 0)
    assert data == raw(b"committed")
    assert client.fetch(topic, fetched.next_offset)[1] == b""
