"""Chapter 1: a node is killed while it writes, and loses no acknowledged record."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from pathlib import Path

from clicks import PARTITIONS, TIMEOUT_SECONDS, TOPIC, clicks, make_producer, read_all
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, NewTopic
from node import Node
from output import explain, run, show

EVENTS = 35_000
KILL_AFTER = 10_000


def present(node: Node, directory: Path) -> None:
    """Fill a topic with clicks, through a crash."""
    explain("Create a topic for clicks with the admin client of confluent-kafka.")
    show(f"> admin.create_topics([NewTopic({TOPIC!r}, {PARTITIONS}, 1)])")
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(TIMEOUT_SECONDS)
    send_through_a_kill(node)
    check(node, directory)


def send_through_a_kill(node: Node) -> None:
    """Send all clicks, kill the node while it writes, and start it again."""
    explain(
        f"Send {EVENTS:,} clicks with its producer. Meanwhile, kill the node with SIGKILL and start"
        " it again. The producer is idempotent: it repeats records that were not acknowledged, and"
        " the node recognises those that it has stored."
    )
    first = next(clicks(0, 1))
    show(f"> producer.produce({TOPIC!r}, key={first['key']!r},\n>     value={first['value']!r})")
    producer = make_producer(node.bootstrap)
    acked = 0

    def on_delivery(error: object, _: Message) -> None:
        nonlocal acked
        assert error is None, error
        acked += 1

    started = time.perf_counter()
    is_killed = False
    for sent, event in enumerate(clicks(0, EVENTS), start=1):
        producer.produce(TOPIC, **event, on_delivery=on_delivery)
        producer.poll(0)
        while acked < KILL_AFTER and sent == EVENTS:
            producer.poll(0.001)
        if acked >= KILL_AFTER and not is_killed:
            is_killed = True
            status, waiting = node.end(signal.SIGKILL), len(producer)
            show(f"killed, exit status {status}: {acked:,} acknowledged, {waiting:,} in flight")
            node.start()
    assert producer.flush(TIMEOUT_SECONDS) == 0
    show(f"all {acked:,} acknowledged, after {time.perf_counter() - started:.1f} s")


def check(node: Node, directory: Path) -> None:
    """Check that every click is stored once, and that all checksums are valid."""
    explain("Check that every click is stored once: read all records, then verify all checksums.")
    records = read_all(node.bootstrap, TOPIC, PARTITIONS)
    counts = Counter(json.loads(record.value())["number"] for record in records)
    lost, duplicates = EVENTS - len(counts), counts.total() - len(counts)
    show(f"{counts.total():,} records of {EVENTS:,} clicks: {lost} lost, {duplicates} duplicates")
    assert (lost, duplicates) == (0, 0)
    run("segments", "verify", "--data", "data", directory=directory)
