"""The data directory of a lone node as release 0.x left it, for tests: `golden/lone-node.tar.gz`.

    python -m tests.cluster.adoption.lone_node      makes it, once

It has been written through a real node by real clients.
"""

from __future__ import annotations

import tarfile
import tempfile
import urllib.request
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)

from millstream import Client
from millstream.config.schema import BrokerConfig
from millstream.testing.broker import RunningBroker, running_broker

GOLDEN = Path(__file__).parent / "golden" / "lone-node.tar.gz"
LEFT_OUT = ("lock", "spare")
"""Files that a node makes again: one is empty, the other large."""

WAIT_SECONDS = 60.0
ORDERS = 40
"""Records of the topic `orders`, in 2 partitions: 0, 1, 2 ... by turns."""

GROUPS = {f"billing-{number}": number % 5 + 1 for number in range(20)}
"""Offset that each group has committed for `orders/0`."""

TRANSACTIONS = {f"payments/{number}": 3 for number in range(20)}
"""Transactional ids, and how often a producer was initialized for each."""

STREAM = ["alpha", "beta"]
"""What was appended to the stream `logs/a`, by the producer `writer` with the epoch 1."""


def make(node: RunningBroker) -> None:
    """Write everything through a node."""
    kafka = {"bootstrap.servers": node.bootstrap}
    admin = AdminClient(kafka)
    topic = NewTopic("orders", num_partitions=2, config={"retention.ms": "-1"})
    for future in admin.create_topics([topic]).values():
        future.result(WAIT_SECONDS)
    resource = ConfigResource(
        ConfigResource.Type.GROUP,
        "billing-1",
        incremental_configs=[
            ConfigEntry(
                "consumer.session.timeout.ms", "50000", incremental_operation=AlterConfigOpType.SET
            )
        ],
    )
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(WAIT_SECONDS)
    producer = Producer({**kafka, "enable.idempotence": True})
    for number in range(ORDERS):
        producer.produce("orders", value=str(number), partition=number % 2)
    assert producer.flush(WAIT_SECONDS) == 0
    for group, offset in GROUPS.items():
        consumer = Consumer({**kafka, "group.id": group})
        consumer.commit(offsets=[TopicPartition("orders", 0, offset)], asynchronous=False)
        consumer.close()
    for transactional_id, count in TRANSACTIONS.items():
        for _ in range(count):
            writer = Producer({**kafka, "transactional.id": transactional_id})
            writer.init_transactions(WAIT_SECONDS)
    with Client(node.url) as client:
        queue = client.create_queue("mail", lease_ms=60_000, dead_letter="mail-dead")
        for number in range(5):
            queue.put(f"job {number}".encode())
        queue.ack(queue.claim(2))
        queue.claim(1)
    append(node, "PUT", b"")
    for number, text in enumerate(STREAM):
        append(node, "POST", text.encode(), sequence=number)


def append(node: RunningBroker, method: str, body: bytes, *, sequence: int | None = None) -> int:
    """Create the stream or append to it, as one of its producers; return the status."""
    headers = {"Content-Type": "application/octet-stream"}
    if sequence is not None:
        headers |= {"Producer-Id": "writer", "Producer-Epoch": "1", "Producer-Seq": str(sequence)}
    request = urllib.request.Request(
        f"{node.url}/v1/streams/logs/a", data=body, method=method, headers=headers
    )
    with urllib.request.urlopen(request) as response:
        status: int = response.status
    return status


def unpack(directory: Path) -> Path:
    """Return a fresh copy of the data directory."""
    with tarfile.open(GOLDEN) as archive:
        archive.extractall(directory, filter="data")
    return directory / "data"


def main() -> None:
    if GOLDEN.exists():
        raise SystemExit(f"{GOLDEN} exists: golden files are made once")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        with running_broker(data, broker=BrokerConfig(node_id=1)) as node:
            make(node)
        GOLDEN.parent.mkdir(exist_ok=True)
        with tarfile.open(GOLDEN, "w:gz", compresslevel=9) as archive:
            archive.add(
                data,
                "data",
                filter=lambda item: None if Path(item.name).name in LEFT_OUT else item,
            )


if __name__ == "__main__":
    main()
