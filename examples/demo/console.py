"""Chapter 4: the web console, with traffic to watch."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from urllib.request import urlopen

from clicks import TIMEOUT_SECONDS, TOPIC, clicks, make_producer
from confluent_kafka import Consumer
from node import Node
from output import explain, show

import millstream

CLICKS_PER_SECOND = 40
READ_PER_SECOND = 30
"""A little less than is written, so that the group has a lag."""

QUEUE = "mail"


def present(node: Node) -> None:
    """Show the console, with traffic until Ctrl-C on a terminal, and stop the node."""
    explain("Open the console: rates, topics, a live tail, groups, queues, pipelines, health.")
    with urlopen(f"{node.url}/", timeout=TIMEOUT_SECONDS) as page:
        assert page.status == 200, page.status
    show(f"{node.url}/")
    explain("Endpoints for programs:")
    for path in ("/health/ready", "/metrics", "/openapi.json", f"/v1/topics/{TOPIC}"):
        show(f"curl {node.url}{path}")
    if sys.stdin.isatty() and sys.stdout.isatty():
        wait(node)
    explain(
        "Send SIGTERM: the node answers requests in flight, commits, seals its segments and exits."
    )
    show(f"exit status {node.end(signal.SIGTERM)}")


def wait(node: Node) -> None:
    """Send clicks and jobs until Ctrl-C."""
    explain("Clicks and jobs are now sent continuously. Press Ctrl-C to end the demo.")
    try:
        with traffic(node):
            threading.Event().wait()
    except KeyboardInterrupt:
        print()


@contextmanager
def traffic(node: Node) -> Iterator[None]:
    """Send and read clicks, and put and process jobs, a few per second."""
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
            thread.join(TIMEOUT_SECONDS)


def send(node: Node, is_over: threading.Event) -> None:
    """Send more clicks."""
    producer = make_producer(node.bootstrap)
    for first in count(1_000_000, CLICKS_PER_SECOND):
        for click in clicks(first, first + CLICKS_PER_SECOND):
            producer.produce(TOPIC, **click)
        producer.poll(0)
        if is_over.wait(1):
            break
    producer.flush(TIMEOUT_SECONDS)


def read(node: Node, is_over: threading.Event) -> None:
    """Read the clicks as a consumer group, a little slower than they are sent."""
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
    """Process jobs; every tenth one fails and is delivered again."""
    with millstream.Client(node.url) as client:
        queue = client.create_queue(QUEUE)
        while not is_over.wait(1):
            for job in queue.claim(4, lease_ms=20_000):
                if job.value["number"] % 10:
                    job.ack()
                else:
                    job.nack(delay_ms=5_000)


if __name__ == "__main__":
    sys.exit("this is a part of the demo, which runs with: make demo")
