"""Appends of a client are recorded as they are stored, before the caller gets the result."""

from __future__ import annotations

import pytest

from millstream import AcknowledgementFile, NewRecord
from millstream.audit.acknowledgements.checksums import bytes_checksum, headers_checksum
from millstream.audit.acknowledgements.reader import AcknowledgementReader
from millstream.clients.kafka.client import KafkaClient
from millstream.clients.partition import Isolation
from millstream.errors import InvalidRecord, MillstreamError
from millstream.records.iterate import read_all
from millstream.records.topic_partition import TopicPartition


@pytest.fixture
def file(tmp_path):
    with AcknowledgementFile(tmp_path / "acknowledged") as made:
        yield made


def noted(file):
    file.flush()
    return [one for _, one in AcknowledgementReader(file.path)]


def stored(broker, topic, partition):
    with KafkaClient(broker.bootstrap) as node:
        where = TopicPartition(topic, partition)
        isolation = Isolation.READ_UNCOMMITTED
        start, end = node.bounds([where], isolation=isolation)[where]
        return {
            record.offset: record
            for chunk in node.chunks(where, start, end, isolation=isolation)
            for record in read_all(chunk.data)
        }


VALUES = [
    {"n": 1, "text": "ü"},
    [1.5, None, True],
    "text",
    b"\xff\x00",
    {"base64": "AA=="},
    None,
    0,
]


def test_all_kinds_of_values_are_noted_as_the_node_keeps_them(connect, broker, name, file):
    client = connect(broker.url, acknowledgements=file)
    client.create_topic(name, partitions=2)
    topic_id = client.topic(name).describe().id
    for number, value in enumerate(VALUES):
        client.append(name, value, key=f"k{number}", headers={"h": ["1", None], "b": b"\xff"})
    client.append_many(name, [NewRecord(1, partition=0, timestamp_ms=77), NewRecord(2)])
    found = noted(file)
    assert len(found) == len(VALUES) + 2
    by_partition = {number: stored(broker, name, number) for number in (0, 1)}
    for one in found:
        record = by_partition[one.partition][one.offset]
        assert (one.key, one.value) == (bytes_checksum(record.key), bytes_checksum(record.value))
        assert one.headers == headers_checksum(record.headers)
        assert one.timestamp_ms in (None, record.timestamp_ms)
        assert str(one.topic_id) == topic_id
    assert [one.timestamp_ms for one in found].count(77) == 1


def test_what_makes_its_topic_is_noted_too(connect, broker, name, file):
    client = connect(broker.url, acknowledgements=file)
    client.append_many(name, ["a", "b"])
    first, second = noted(file)
    assert (first.topic, first.offset, second.offset) == (name, 0, 1)
    assert first.value == bytes_checksum(b'"a"')
    assert first.topic_id is None


def test_what_was_refused_is_not_noted_and_what_went_elsewhere_is(connect, broker, name, file):
    client = connect(broker.url, acknowledgements=file)
    client.create_topic(name, partitions=2, configs={"max.message.bytes": "1000"})
    with pytest.raises(InvalidRecord):
        client.append(name, object())
    good, bad = NewRecord("good", partition=0), NewRecord("." * 5000, partition=1)
    with pytest.raises(MillstreamError):
        client.append_many(name, [bad, good])
    (one,) = noted(file)
    assert (one.partition, one.value) == (0, bytes_checksum(b'"good"'))


def test_who_cannot_note_is_told_that_the_record_was_appended(connect, broker, topic, file):
    client = connect(broker.url, acknowledgements=file)
    file.close()
    with pytest.raises(MillstreamError) as raised:
        client.append(topic, 1)
    assert raised.value.__notes__ == ["the 1 records were appended"]
    assert len(stored(broker, topic, 0)) == 1
