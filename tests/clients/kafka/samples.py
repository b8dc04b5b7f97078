"""Helpers to write and read in client tests."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from millstream.clients.aborted_filter import AbortedFilter
from millstream.clients.partition import Isolation
from millstream.records.batch import check_batch, split
from millstream.records.build import build_batch
from millstream.records.iterate import read_records
from millstream.records.record import Record

COMMITTED = Isolation.READ_COMMITTED
UNCOMMITTED = Isolation.READ_UNCOMMITTED
NOW_MS = 1_700_000_000_000
TIMEOUT_S = 30


def confluent_producer(bootstrap, **settings):
    settings = {key.replace("_", "."): value for key, value in settings.items()}
    return Producer({"bootstrap.servers": bootstrap, "log_level": 0, "linger.ms": 5} | settings)


def confluent_read(bootstrap, topic, partition=0, *, isolation=COMMITTED):
    """Return offset, key and value of all records of a partition that librdkafka returns."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "log_level": 0,
            "isolation.level": isolation.value,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    found = []
    try:
        while (message := consumer.poll(TIMEOUT_S)) is not None:
            if message.error() is None:
                found.append((message.offset(), message.key(), message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return found
            else:
                raise KafkaException(message.error())
    finally:
        consumer.close()
    raise AssertionError(f"the end of {topic}-{partition} was not reached in {TIMEOUT_S} s")


def read(node, where, start=None, end=None, *, isolation=COMMITTED):
    """Return offset, key and value of the records of a range, read as a Spark executor does."""
    if start is None:
        start, end = node.bounds([where], isolation=isolation)[where]
    aborted_filter = AbortedFilter()
    found = []
    for chunk in node.chunks(where, start, end, isolation=isolation):
        aborted_filter.add(chunk.aborted)
        for header, batch in split(chunk.data):
            check_batch(header, batch)
            if not aborted_filter.is_filtered(header):
                found += [
                    (record.offset, record.key, record.value)
                    for record in read_records(batch)
                    if start <= record.offset < end
                ]
    return found


def batch_for(producer, where, values, *, is_transactional=True):
    """Return the next batch of our producer for a partition."""
    return build_batch(
        [Record(value) for value in values],
        now_ms=NOW_MS,
        producer_id=producer.identity.producer_id,
        producer_epoch=producer.identity.producer_epoch,
        base_sequence=producer.next_sequence(*where),
        is_transactional=is_transactional,
    )


def write(producer, where, values, *, is_transactional=True):
    """Send values as one batch."""
    batch = batch_for(producer, where, values, is_transactional=is_transactional)
    producer.send(*where, batch, len(values))
