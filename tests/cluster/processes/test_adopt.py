"""A lone node becomes the first of three, with everything that its clients rely on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from millstream import Client
from millstream.testing.cluster import NodeFailed, RunningNode
from millstream.testing.etcd import RunningEtcd, free_ports, running_etcd

WAIT_SECONDS = 120.0
PARTITIONS = 3


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[RunningEtcd]:
    with running_etcd(tmp_path) as running:
        yield running


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[RunningNode]]:
    """Three nodes that are not started; none of them has an etcd."""
    ports = free_ports(9)
    made = [RunningNode(n + 1, tmp_path, ports[3 * n :][:3], {}) for n in range(3)]
    try:
        yield made
    finally:
        for node in made:
            node.close()


def join(node: RunningNode, etcd: RunningEtcd) -> None:
    """Let a node be one of a cluster from its next start on."""
    node.settings["cluster.etcd"] = ",".join(etcd.endpoints)


def command(node: RunningNode, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command with the settings of a node, and return how it ended."""
    settings = {"MILLSTREAM_NODE_ID": str(node.node_id)}
    if etcd := node.settings.get("cluster.etcd"):
        settings["MILLSTREAM_CLUSTER_ETCD"] = etcd
    return subprocess.run(
        [sys.executable, "-m", "millstream.cli.main", *arguments],
        capture_output=True,
        text=True,
        cwd=node.data.parent,
        env={**os.environ, **settings},
        timeout=300,
        check=False,
    )


def kafka(node: RunningNode, **settings: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": node.bootstrap,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }


def produce(producer: Producer, topic: str, values: range) -> None:
    failed: list[object] = []

    def answered(error: object, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    for number in values:
        producer.produce(
            topic, key=str(number), value=str(number), partition=number % 3, callback=answered
        )
    assert producer.flush(WAIT_SECONDS) == 0
    assert not failed


def read_all(node: RunningNode, topic: str, count: int) -> list[int]:
    """Read a topic from its start as a new group does, without records of open transactions."""
    consumer = Consumer(
        kafka(node, group_id=f"reader-{uuid.uuid4()}", auto_offset_reset="earliest")
    )
    consumer.subscribe([topic])
    values: list[int] = []
    while len(values) < count:
        messages = consumer.consume(count - len(values), timeout=WAIT_SECONDS)
        assert messages, f"{len(values)} of {count} records were read"
        for message in messages:
            assert message.error() is None, message.error()
            values.append(int(message.value()))
    consumer.close()
    return sorted(values)


def commit(node: RunningNode, group: str, topic: str, count: int) -> list[TopicPartition]:
    """Read so many records as a member of a group, and commit."""
    consumer = Consumer(
        kafka(node, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False)
    )
    consumer.subscribe([topic])
    seen = 0
    while seen < count:
        seen += len(consumer.consume(count - seen, timeout=WAIT_SECONDS))
    committed: list[TopicPartition] = consumer.commit(asynchronous=False)
    consumer.close()
    return committed


def committed_offsets(node: RunningNode, group: str, topic: str) -> list[int]:
    consumer = Consumer(kafka(node, group_id=group))
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    offsets = [found.offset for found in consumer.committed(partitions, timeout=WAIT_SECONDS)]
    consumer.close()
    return offsets


def adopt(node: RunningNode, *options: str) -> str:
    done = command(node, "cluster", "adopt", "--data", str(node.data), *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_lone_node_becomes_the_first_of_three_and_nothing_is_lost(
    nodes: list[RunningNode], etcd: RunningEtcd
) -> None:
    first, second, third = nodes
    first.start()
    admin = AdminClient(kafka(first))
    topics = [NewTopic(name, num_partitions=PARTITIONS) for name in ("t", "u")]
    for future in admin.create_topics(topics).values():
        future.result(WAIT_SECONDS)
    plain = Producer(kafka(first, enable_idempotence=True))
    produce(plain, "t", range(300))
    old = Producer(kafka(first, transactional_id="payments/7"))
    old.init_transactions(WAIT_SECONDS)
    old.begin_transaction()
    produce(old, "t", range(300, 330))
    old.commit_transaction(WAIT_SECONDS)
    unfinished = Producer(kafka(first, transactional_id="refunds/1"))
    unfinished.init_transactions(WAIT_SECONDS)
    unfinished.begin_transaction()
    produce(unfinished, "u", range(10))
    groups = [f"group-{number}" for number in range(8)]  # In several of sixteen partitions.
    for group in groups:
        commit(first, group, "t", 60)
    before = {group: committed_offsets(first, group, "t") for group in groups}
    with Client(first.url) as client:
        mail = client.create_queue("mail", lease_ms=600_000)
        mail.put(b"one")
        mail.put(b"two")
        (held,) = mail.claim(1)
    first.stop()

    # A node in the cluster does not take the directory as it is, and says what to do.
    join(first, etcd)
    with pytest.raises(NodeFailed, match="millstream cluster adopt"):
        first.start()
    first.close()
    assert "Would adopt as node 1" in adopt(first, "--dry-run")
    assert "1 queues" in adopt(first)
    assert "has been adopted" in adopt(first)  # Once more does no harm.

    first.start()
    assert read_all(first, "t", 330) == list(range(330))
    assert {group: committed_offsets(first, group, "t") for group in groups} == before
    with Client(first.url) as client:
        mail = client.queue("mail")
        mail.ack([held])
        (other,) = mail.claim(1)
        assert {held.value, other.value} == {b"one", b"two"}
        mail.ack([other])
    # The id is known: its next producer has a greater epoch, and the old one is fenced.
    new = Producer(kafka(first, transactional_id="payments/7"))
    new.init_transactions(WAIT_SECONDS)
    old.begin_transaction()
    old.produce("t", value="900")
    with pytest.raises(KafkaException, match="fenced"):
        old.commit_transaction(WAIT_SECONDS)
    produce(plain, "t", range(330, 360))  # The same producer goes on, with its sequences.
    unfinished.commit_transaction(WAIT_SECONDS)  # A transaction that was open is still open.
    assert read_all(first, "u", 10) == list(range(10))

    for node in (second, third):
        join(node, etcd)
        node.start()
    done = command(first, "cluster", "reassign", "--all", "--replicas", "3", "--server", first.url)
    assert done.returncode == 0, done.stderr
    wait_until_well(first)
    first.kill()
    assert read_all(second, "t", 360) == list(range(360))
    assert {group: committed_offsets(second, group, "t") for group in groups} == before
    assert not (first.data / "meta.db").exists()
    assert (first.data / "before-adoption" / "meta.db").exists()


def wait_until_well(node: RunningNode) -> None:
    """Return when every partition, of internal topics too, has three replicas in sync."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        done = command(node, "cluster", "partitions", "--json", "--server", node.url)
        partitions = json.loads(done.stdout)["partitions"] if done.returncode == 0 else []
        if partitions and all(len(item["isr"]) == 3 for item in partitions):
            return
        assert time.monotonic() < deadline, done.stdout
        time.sleep(0.2)
