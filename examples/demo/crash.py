"""The first chapter: a node is killed while it writes, and nothing is lost."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from pathlib import Path

from clicks import PARTITIONS, PATIENCE, TOPIC, clicks, make_producer, read_all
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, NewTopic
from node import Node
from telling import run, say, show

EVENTS = 35_000
KILL_AFTER = 10_000


def tell(node: Node, directory: Path) -> None:
    """Fill a topic with clicks, through a crash."""
    say("A topic for clicks, made by the admin client of confluent-kafka.")
    show(f"> admin.create_topics([NewTopic({TOPIC!r}, {PARTITIONS}, 1)])")
    admin = AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(PATIENCE)
    send_through_a_kill(node)
    check(node, directory)


def send_through_a_kill(node: Node) -> None:
    """Send all clicks, kill the node while it writes, and start it again."""
    say(
        f"Its producer sends {EVENTS:,} clicks. In the middle the node is killed with SIGKILL and"
        " started again. The producer is idempotent: it sends again what was not acknowledged,"
        " and the node recognises what it has."
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
            show(f"killed, exit status {status}: {acked:,} acknowledged, {waiting:,} under way")
            node.start()
    assert producer.flush(PATIENCE) == 0
    show(f"all {acked:,} acknowledged, after {time.perf_counter() - started:.1f} s")


def check(node: Node, directory: Path) -> None:
    """Show that every click is there once, and that every byte is sound."""
    say("Is every click there, once? A consumer counts, and every checksum is looked at.")
    records = read_all(node.bootstrap, TOPIC, PARTITIONS)
    found = Counter(json.loads(record.value())["number"] for record in records)
    lost, doubled = EVENTS - len(found), found.total() - len(found)
    show(f"{found.total():,} records of {EVENTS:,} clicks: {lost} lost, {doubled} doubled")
    assert (lost, doubled) == (0, 0)
    run("segments", "verify", "--data", "data", directory=directory)
