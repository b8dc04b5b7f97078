"""Measurements of `millstream bench` on a node: both servers, with our own clients.

Creates a topic with an unused name and deletes it in every case.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator

import click

from millstream.cli.bench.machine import RECORD_SIZE, RECORDS, SYNC, Measurement, Stopwatch
from millstream.cli.support.output import printable
from millstream.clients.http.core.values import TopicRecord
from millstream.clients.http.sync.client import Client
from millstream.clients.kafka.client import KafkaClient
from millstream.clients.kafka.producer import TransactionalProducer
from millstream.clients.kafka.security import NO_SECURITY, KafkaSecurity
from millstream.clients.partition import Isolation
from millstream.errors import MillstreamError, NodeUnreachable, UnknownTopic
from millstream.records.build import build_batch
from millstream.records.record import Record
from millstream.records.topic_partition import TopicPartition

CONNECT_S = 2.0
"""Timeout of connecting to the Kafka server."""

IN_FLIGHT = 1
"""Batches in flight: one, as in the measurement of the disk."""


def measure_node(
    client: Client, bootstrap: str, seconds: float, security: KafkaSecurity = NO_SECURITY
) -> Iterator[Measurement]:
    """Measure both servers of a node, each with a topic of its own."""
    with_http = f"millstream-bench-http-{secrets.token_hex(6)}"
    with_kafka = f"millstream-bench-kafka-{secrets.token_hex(6)}"
    try:
        client.create_topic(with_http, partitions=1, durability="fsync")
        yield from _measure_http(client, with_http, seconds)
        client.create_topic(with_kafka, partitions=1, durability="fsync")
        yield from _measure_kafka(bootstrap, with_kafka, seconds, security)
    finally:
        for topic in (with_http, with_kafka):
            try:
                client.topic(topic).delete()
            except UnknownTopic:
                pass  # It was not created.
            except MillstreamError as error:
                click.echo(printable(f"topic {topic} could not be deleted: {error}"), err=True)


def _measure_http(client: Client, topic: str, seconds: float) -> Iterator[Measurement]:
    values = [secrets.token_bytes(RECORD_SIZE) for _ in range(RECORDS)]
    client.append_many(topic, values)  # The first makes connections and files.
    watch = Stopwatch(seconds)
    while not watch.is_over:
        client.append_many(topic, values)
        watch.lap(RECORDS * RECORD_SIZE, RECORDS)
    yield watch.measured("http: append", SYNC)
    watch = Stopwatch(seconds)
    count = 0
    for item in client.read(topic):
        count += isinstance(item, TopicRecord)
        if count == RECORDS:
            watch.lap(RECORDS * RECORD_SIZE, RECORDS)
            count = 0
            if watch.is_over:
                break
    yield watch.measured("http: read")


def _measure_kafka(
    bootstrap: str, topic: str, seconds: float, security: KafkaSecurity
) -> Iterator[Measurement]:
    with KafkaClient(bootstrap, timeout_s=CONNECT_S, security=security) as node:
        try:
            node.topics([topic])
        except (NodeUnreachable, UnknownTopic) as error:
            # Another node may be there, which does not have the topic: it is left alone. So it
            # seems also to those who may not describe the topic.
            text = f"Kafka is not measured, because this node is not at {bootstrap}: {error}"
            if security.login is None and isinstance(error, UnknownTopic):
                text += "; if it is, it may need a login (--user)"
            click.echo(printable(text), err=True)
            return
        yield _produce(node, topic, seconds)
        yield _fetch(node, topic, seconds)


def _produce(node: KafkaClient, topic: str, seconds: float) -> Measurement:
    records = [Record(secrets.token_bytes(RECORD_SIZE)) for _ in range(RECORDS)]
    watch = Stopwatch(seconds)
    is_first = True
    with TransactionalProducer(node, None, timeout_ms=30_000, in_flight_max=IN_FLIGHT) as producer:
        while not watch.is_over:
            batch = build_batch(
                records,
                now_ms=time.time_ns() // 1_000_000,
                producer_id=producer.identity.producer_id,
                producer_epoch=producer.identity.producer_epoch,
                base_sequence=producer.next_sequence(topic, 0),
            )
            watch.skip()  # Building it costs the same for every server.
            producer.send(topic, 0, batch, RECORDS)
            producer.flush()
            if is_first:  # Which makes connections and files.
                watch, is_first = Stopwatch(seconds), False
            else:
                watch.lap(len(batch), RECORDS)
    return watch.measured("kafka: produce", SYNC)


def _fetch(node: KafkaClient, topic: str, seconds: float) -> Measurement:
    partition = TopicPartition(topic, 0)
    start, end = node.bounds([partition], isolation=Isolation.READ_UNCOMMITTED)[partition]
    chunks = node.chunks(partition, start, end, isolation=Isolation.READ_UNCOMMITTED)
    watch = Stopwatch(seconds)
    for chunk in chunks:
        watch.lap(len(chunk.data), chunk.next_offset - start)
        start = chunk.next_offset
        if watch.is_over:
            break
    return watch.measured("kafka: fetch")
