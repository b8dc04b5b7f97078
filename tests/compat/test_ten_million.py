"""A compacted topic that ten million records went into, read by a client that we did not write."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from crc32c import crc32c

from millstream.config.schema import MIB, StoreConfig
from millstream.records.batch import CRC_END, CRC_START
from millstream.records.build import build_batch
from millstream.records.record import Record
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.kafka.client import RawClient, produce_request

RECORDS = 10_000_000
KEYS = 100_000
BATCH = 1_000
TIMEOUT_S = 60
IN_FLIGHT = 32
UNLIMITED = StoreConfig(upkeep_interval_ms=0, cleaning_bytes_per_second_max=0)
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(32 * MIB),
    "millstream.durability": "disk",
}


def numbered_batches() -> Iterator[bytes]:
    """Batches whose keys cycle up to KEYS, and whose values contain the number of the cycle.

    Building ten million records one by one would take a minute: one batch is, and then the digits
    in it are changed.
    """
    keys = [b"k%07d" % number for number in range(BATCH)]
    template = build_batch([Record(b"%08d" % 99_999_999, key=key) for key in keys], now_ms=1)
    places = np.array([template.index(key) + 1 for key in keys])
    at = places[:, None] + np.arange(7)
    values = np.array([template.index(b"99999999", place) for place in places])[:, None]
    batch = np.frombuffer(template, np.uint8).copy()
    for first in range(0, RECORDS, BATCH):
        batch[at] = _digits(np.arange(first, first + BATCH) % KEYS, 7)
        batch[values + np.arange(8)] = _digits(np.full(BATCH, first // KEYS), 8)
        batch[CRC_START:CRC_END] = list(struct.pack(">I", crc32c(batch[CRC_END:])))
        yield batch.tobytes()


def _digits(numbers: np.ndarray, count: int) -> np.ndarray:
    powers = 10 ** np.arange(count - 1, -1, -1)
    return (numbers[:, None] // powers % 10 + ord("0")).astype(np.uint8)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path, store=UNLIMITED) as running:
        yield running


def test_the_latest_of_each_key_is_left_of_ten_million_records(node: RunningBroker) -> None:
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic("state", 1, 1, config=CONFIGS)])["state"].result(TIMEOUT_S)
    with RawClient(node.bootstrap) as client:
        batches = numbered_batches()
        while some := list(islice(batches, IN_FLIGHT)):
            for batch in some:
                client.send(produce_request("state", batch), 9)
            for _ in some:
                answer = client.receive()
                assert answer.responses[0].partition_responses[0].error_code == 0
    log = node.server.broker.store.get("state")
    node.run(log.roll())
    before = log.size_bytes
    node.run(node.server.broker.store.maintenance.run_once(is_forced=True))
    assert log.end_offset == RECORDS, "offsets stay"
    assert log.record_count == KEYS
    assert log.size_bytes < before / 50
    assert read_all(node.bootstrap) == expected()


def expected() -> list[tuple[int, bytes, bytes]]:
    first, last_round = RECORDS - KEYS, b"%08d" % (RECORDS // KEYS - 1)
    return [(first + number, b"k%07d" % number, last_round) for number in range(KEYS)]


def read_all(bootstrap: str) -> list[tuple[int, bytes, bytes]]:
    """Read the topic from its first offset on, as an application would."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "error"}
    )
    consumer.assign([TopicPartition("state", 0, 0)])
    found: list[tuple[int, bytes, bytes]] = []
    try:
        while len(found) < KEYS:
            messages = consumer.consume(10_000, timeout=TIMEOUT_S)
            assert messages, f"{len(found)} records came, and then none"
            for message in messages:
                assert message.error() is None, message.error()
                found.append((message.offset(), message.key(), message.value()))
    finally:
        consumer.close()
    return found
