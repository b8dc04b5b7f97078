"""The last chapter: the console, with something to see in it until you have seen enough."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from urllib.request import urlopen

from clicks import PATIENCE, TOPIC, clicks, make_producer
from confluent_kafka import Consumer
from node import Node
from telling import say, show

import millstream

CLICKS_PER_SECOND = 40
READ_PER_SECOND = 30
"""A little less than is written, so that there is a lag to watch."""

QUEUE = "mail"


def tell(node: Node) -> None:
    """Show the console, keep it busy where somebody looks, and stop the node."""
    say("The node in your browser: rates, topics, a live tail, groups, queues, pipelines, health.")
    with urlopen(f"{node.url}/", timeout=PATIENCE) as page:
        assert page.status == 200, page.status
    show(f"{node.url}/")
    say("And for programs:")
    for path in ("/health/ready", "/metrics", "/openapi.json", f"/v1/topics/{TOPIC}"):
        show(f"curl {node.url}{path}")
    if sys.stdin.isatty() and sys.stdout.isatty():
        wait(node)
    say("SIGTERM: the node answers what is under way, commits, seals its segments and ends.")
    show(f"exit status {node.end(signal.SIGTERM)}")


def wait(node: Node) -> None:
    """Keep clicks and jobs coming until Ctrl-C."""
    say("Clicks and jobs keep coming, so that there is something to see. Ctrl-C ends it all.")
    try:
        with traffic(node):
            threading.Event().wait()
    except KeyboardInterrupt:
        print()


@contextmanager
def traffic(node: Node) -> Iterator[None]:
    """Have clicks sent and read, and jobs put and done, a few in each second."""
    is_over = threading.Event()
    tasks = (send, read, put, work)
    threads = [threading.Thread(target=task, args=(node, is_over), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join(PATIENCE)


def send(node: Node, is_over: threading.Event) -> None:
    """Send clicks that go on where the story ended."""
    producer = make_producer(node.bootstrap)
    for first in count(1_000_000, CLICKS_PER_SECOND):
        for click in clicks(first, first + CLICKS_PER_SECOND):
            producer.produce(TOPIC, **click)
        producer.poll(0)
        if is_over.wait(1):
            break
    producer.flush(PATIENCE)


def read(node: Node, is_over: threading.Event) -> None:
    """Read the clicks as a group does, and not quite as fast."""
    settings = {"bootstrap.servers": node.bootstrap, "group.id": "dashboard", "log_level": 0}
    consumer = Consumer({**settings, "auto.offset.reset": "latest"})
    consumer.subscribe([TOPIC])
    while not is_over.wait(1):
        consumer.consume(READ_PER_SECOND, timeout=1)
    consumer.close()


def put(node: Node, is_over: threading.Event) -> None:
    """Put jobs into a queue, in bursts."""
    with millstream.Client(node.url) as client:
        queue = client.create_queue(QUEUE)
        for number in count():
            queue.put({"to": f"user-{number % 500}@example.org", "number": number})
            if is_over.wait(0.2 if number % 50 else 5):
                break


def work(node: Node, is_over: threading.Event) -> None:
    """Do jobs; every tenth one fails and comes back."""
    with millstream.Client(node.url) as client:
        queue = client.create_queue(QUEUE)
        while not is_over.wait(1):
            for job in queue.claim(4, lease_ms=20_000):
                if job.value["number"] % 10:
                    job.ack()
                else:
                    job.nack(delay_ms=5_000)


if __name__ == "__main__":
    sys.exit("this is a part of the demo: make demo")
