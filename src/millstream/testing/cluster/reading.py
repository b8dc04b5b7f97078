"""What readers see of a topic: records with confluent-kafka, batches with our own client."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaError, TopicPartition

from millstream.clients.kafka.client import KafkaClient
from millstream.clients.partition import Isolation
from millstream.records import topic_partition
from millstream.records.batch import check_batch, split
from millstream.testing.cluster.history import SeenBatch, SeenRecord, TopicContent

WAIT_SECONDS = 120.0
"""How long clients may take. Tests share slow machines: this is no figure of the product."""


class NoEnd(Exception):
    """A reader did not reach the end of a partition."""


def read_content(bootstrap: str, topic: str, partitions: int = 3) -> TopicContent:
    """Return all records and batches of a topic."""
    return TopicContent(
        read_topic(bootstrap, topic, partitions), read_batches(bootstrap, topic, partitions)
    )


def read_topic(bootstrap: str, topic: str, partitions: int = 3) -> list[SeenRecord]:
    """Return all committed records, partition by partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    records = []
    try:
        for partition in range(partitions):
            consumer.assign([TopicPartition(topic, partition, 0)])
            while (message := consumer.poll(WAIT_SECONDS)) is not None:
                if message.error() is None:
                    records.append(SeenRecord(partition, message.offset(), message.value()))
                elif message.error().code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    break
                elif not message.error().retriable():
                    raise NoEnd(f"{topic}-{partition}: {message.error()}")
            else:
                raise NoEnd(f"no end of {topic}-{partition} within {WAIT_SECONDS:g} s")
    finally:
        consumer.close()
    return records


def read_batches(bootstrap: str, topic: str, partitions: int = 3) -> list[SeenBatch]:
    """Return all batches, also control batches and those of aborted transactions."""
    isolation = Isolation.READ_UNCOMMITTED
    batches = []
    with KafkaClient(bootstrap, timeout_s=WAIT_SECONDS) as client:
        for index in range(partitions):
            partition = topic_partition.TopicPartition(topic, index)
            start, end = client.bounds([partition], isolation=isolation)[partition]
            for chunk in client.chunks(partition, start, end, isolation=isolation):
                for header, batch in split(chunk.data):
                    check_batch(header, batch)
                    batches.append(
                        SeenBatch(index, header.base_offset, header.last_offset, header.is_control)
                    )
    return batches
