"""The Kafka server: bytes, requests, durability and latency, beside the least they could cost.

Then the same work beside Apache Kafka, Redis Streams and NATS JetStream.
"""

from __future__ import annotations

from subjects.kafka.beside_kafka import (
    CONSUME_BESIDE_KAFKA,
    LONE_BESIDE_KAFKA,
    PRODUCE_BESIDE_KAFKA,
)
from subjects.kafka.beside_streams import RECORDS_BESIDE_PEERS
from subjects.kafka.consume import CONSUME, LONE
from subjects.kafka.partitions import PARTITIONS
from subjects.kafka.produce import DURABLE, PRODUCE_1_MB, PRODUCE_16_KB, REQUESTS

EXPERIMENTS = (
    *(PRODUCE_1_MB, PRODUCE_16_KB, REQUESTS, DURABLE, CONSUME, LONE, PARTITIONS),
    # Last, since peers stay up once they run.
    *(RECORDS_BESIDE_PEERS, *PRODUCE_BESIDE_KAFKA, CONSUME_BESIDE_KAFKA, LONE_BESIDE_KAFKA),
)
