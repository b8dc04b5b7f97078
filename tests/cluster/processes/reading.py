"""What a reader sees of a topic, with a client that is not ours."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

WAIT_SECONDS = 120.0


class SeenRecord(NamedTuple):
    partition: int
    offset: int
    value: bytes


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
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    break
                else:
                    assert message.error().retriable(), message.error()
            else:
                raise AssertionError(f"no end of {topic}-{partition} within {WAIT_SECONDS} s")
    finally:
        consumer.close()
    return records
