"""The client that applications use, confluent-kafka, with the same settings for every server.

Producers send as fast as they can for some time and then wait for the last acknowledgement. Records
are handed over in lists and without callbacks, so that Python is not what is measured; that all
arrived is seen by the ends of the partitions.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from subjects.log.common import KIB, MIB

PARTITIONS = 4
"""One for each producer."""
_TIMEOUT = 60
_HANDED_OVER_BYTES = 256 * KIB
_CONSUMED_AT_ONCE = 10_000
_GROUP = "bench"


class Moved(NamedTuple):
    """What became of a turn."""

    records: int
    bytes: int
    """Of the values alone."""
    seconds: float


@contextmanager
def topic(
    bootstrap: str,
    configs: Mapping[str, str],
    *,
    partitions: int = PARTITIONS,
    replicas: int = 1,
    assignment: Sequence[Sequence[int]] = (),
) -> Iterator[str]:
    """Create a topic under a name of its own, and delete it at the end.

    `assignment` has the nodes of each partition, the leader first, instead of the two numbers.
    """
    name = f"bench-{os.urandom(6).hex()}"
    client = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    if assignment:
        nodes = [list(each) for each in assignment]
        new = NewTopic(name, len(nodes), replica_assignment=nodes, config=dict(configs))
    else:
        new = NewTopic(name, partitions, replicas, config=dict(configs))
    for created in client.create_topics([new]).values():
        created.result(_TIMEOUT)
    try:
        yield name
    finally:
        for deleted in client.delete_topics([name]).values():
            deleted.result(_TIMEOUT)


def produce_for(
    seconds: float, bootstrap: str, name: str, *, size: int, batch_size: int, acks: str
) -> Moved:
    """Produce values of `size` bytes for so long, with a producer for each partition."""
    producers = [_producer(bootstrap, size, batch_size, acks) for _ in range(PARTITIONS)]
    value = os.urandom(size)
    count = max(1, min(4000, _HANDED_OVER_BYTES // size))
    for partition, producer in enumerate(producers):
        producer.produce(name, value, partition=partition)  # Connects, and finds the leader.
        producer.flush(_TIMEOUT)
    before = end_of(bootstrap, name)
    began = time.perf_counter()
    records = _hand_over(producers, name, value, count, began + seconds)
    for producer in producers:
        producer.flush(_TIMEOUT)
    elapsed = time.perf_counter() - began
    arrived = end_of(bootstrap, name) - before
    if arrived < records:  # More if a server was so slow that the client sent a batch again.
        raise RuntimeError(f"{records} records were produced, only {arrived} arrived")
    return Moved(records, records * size, elapsed)


def _producer(bootstrap: str, size: int, batch_size: int, acks: str) -> Producer:
    return Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "batch.size": batch_size,
            "batch.num.messages": max(10_000, batch_size // size),
            "linger.ms": 5,
            # Enough for five requests in flight and the next: the rest is awaited at the end.
            "queue.buffering.max.kbytes": max(1024, 8 * batch_size // KIB),
            "error_cb": _note,
            "log_level": 3,
        }
    )


def _note(error: KafkaError) -> None:
    if error.fatal():
        raise RuntimeError(str(error))


def _hand_over(
    producers: Sequence[Producer], name: str, value: bytes, count: int, end: float
) -> int:
    """Hand records to all producers in turn until the time is over; return how many.

    A producer counts a record until its delivery was reported, so all of them have to be polled:
    else one that was filled once would take no more.
    """
    messages = [{"value": value}] * count
    records = 0
    while time.perf_counter() < end:
        taken = sum(
            producer.produce_batch(name, messages, partition=partition)
            for partition, producer in enumerate(producers)
        )
        records += taken
        for producer in producers:
            producer.poll(0)
        if taken < count * len(producers) // 2:
            producers[0].poll(0.001)  # Most of them are full.
    return records


def end_of(bootstrap: str, name: str) -> int:
    """Return how many records a topic has."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": _GROUP})
    try:
        return sum(
            consumer.get_watermark_offsets(TopicPartition(name, partition), timeout=_TIMEOUT)[1]
            for partition in range(PARTITIONS)
        )
    finally:
        consumer.close()


def consume_all(bootstrap: str, name: str, records: int) -> Moved:
    """Read a topic from its start."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": _GROUP,
            "enable.auto.commit": False,
            "check.crcs": False,
            "queued.max.messages.kbytes": 64 * KIB,
            "fetch.max.bytes": 50 * MIB,
        }
    )
    try:
        consumer.assign([TopicPartition(name, partition, 0) for partition in range(PARTITIONS)])
        began = time.perf_counter()
        count = size = 0
        while count < records:
            messages = consumer.consume(min(_CONSUMED_AT_ONCE, records - count), _TIMEOUT)
            if not messages:
                raise RuntimeError(f"{count} of {records} records came, then none")
            count += len(messages)
            size += len(messages) * len(messages[0].value())
        return Moved(count, size, time.perf_counter() - began)
    finally:
        consumer.close()
