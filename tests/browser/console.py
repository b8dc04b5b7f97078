"""The console in a browser, and a node with data to show."""

from __future__ import annotations

import base64
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import Consumer, TopicPartition

from millstream.testing.broker import RunningBroker
from tests.browser.chromium import Chromium
from tests.browser.page import Page
from tests.servers.http.calls import ask

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
"""Folder of the screenshots of a test run."""


@contextmanager
def console(chromium: Chromium, url: str, view: str = "#/overview") -> Iterator[Page]:
    """Open the console; at the end, check that it contacted only the node and had no errors."""
    with chromium.page(f"{url}/{view}") as page:
        page.look()
        yield page
        outside = [one for one in page.requests if not one.startswith((url, "about:", "data:"))]
        assert outside == []
        assert page.complaints == []


def go(page: Page, view: str) -> None:
    """Go to another view, as a link does."""
    page.run(f"void (location.hash = {json.dumps(view)})")


def append(node: RunningBroker, topic: str, *records: dict[str, Any]) -> None:
    """Append records over HTTP; the topic is created if it does not exist."""
    body = json.dumps({"records": records}).encode()
    answer = ask(node.url, "POST", f"/v1/topics/{topic}/records", body)
    assert answer.status == 201, answer.body


def put(node: RunningBroker, path: str, body: Any = None) -> None:
    answer = ask(node.url, "PUT", path, json.dumps(body or {}).encode())
    assert answer.status in (200, 201), answer.body


def claim(node: RunningBroker, queue: str, worker: str, count: int) -> None:
    body = json.dumps({"worker": worker, "max": count}).encode()
    answer = ask(node.url, "POST", f"/v1/queues/{queue}/claim", body)
    assert answer.status == 200, answer.body


def bury(node: RunningBroker, queue: str, count: int) -> None:
    """Create a queue with dead letters."""
    put(node, f"/v1/queues/{queue}", {"deliveries_max": 1})
    append(node, queue, *({"key": f"k{n}", "value": {"n": n}} for n in range(count)))
    body = json.dumps({"max": count}).encode()
    jobs = ask(node.url, "POST", f"/v1/queues/{queue}/claim", body).json["jobs"]
    body = json.dumps({"receipts": [job["receipt"] for job in jobs]}).encode()
    assert ask(node.url, "POST", f"/v1/queues/{queue}/nack", body).status == 200
    while ask(node.url, "GET", f"/v1/queues/{queue}").json["dead"] < count:
        pass


AVRO = json.dumps(
    {
        "type": "record",
        "name": "Reading",
        "fields": [
            {"name": "sensor", "type": "string"},
            {"name": "count", "type": "long"},
            {"name": "place", "type": ["null", "string"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    }
)


def avro(number: int) -> bytes:
    """Return a reading in Avro's binary encoding."""
    writer = fastavro.parse_schema(json.loads(AVRO))
    data = io.BytesIO()
    reading = {
        "sensor": f"s-{number}",
        "count": 9_007_199_254_740_993 + number,
        "place": None if number % 2 else "Köln",
        "at": 1_763_240_000_000 + number,
    }
    fastavro.schemaless_writer(data, writer, reading)
    return data.getvalue()


def packed(data: bytes) -> dict[str, str]:
    """Return bytes as JSON values have them."""
    return {"base64": base64.b64encode(data).decode()}


@contextmanager
def writing(node: RunningBroker, topic: str) -> Iterator[None]:
    """Write records into a topic in the background."""
    is_over = threading.Event()

    def write() -> None:
        number = 0
        while not is_over.is_set():
            append(node, topic, *({"key": f"k{n}", "value": {"n": number + n}} for n in range(50)))
            number += 50

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def consumer(
    node: RunningBroker, group: str, topic: str, *, client: str = "worker"
) -> Iterator[Consumer]:
    """Run a consumer in a group; yields when it has its partitions."""
    config = {
        "bootstrap.servers": node.bootstrap,
        "group.id": group,
        "client.id": client,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    joined = Consumer(config)
    try:
        joined.subscribe([topic])
        while not joined.assignment():
            joined.poll(0.05)
        yield joined
    finally:
        joined.close()


def commit(joined: Consumer, topic: str, partition: int, offset: int) -> None:
    place = TopicPartition(topic, partition, offset)
    joined.commit(offsets=[place], asynchronous=False)


KEY_ATTEMPTS_MAX = 20


@contextmanager
def typing(page: Page) -> Iterator[None]:
    """Focus the search field, and leave it afterwards."""
    is_focused = "document.activeElement.matches('[data-search]')"
    for _ in range(KEY_ATTEMPTS_MAX):
        page.press("/")  # Lost if the page draws itself again at this moment.
        if page.run(f"new Promise(done => setTimeout(() => done({is_focused}), 100))"):
            break
    page.until(is_focused)
    yield
    page.run("document.activeElement.blur()")


def texts(page: Page, selector: str) -> list[str]:
    """Return the texts of all elements that a selector finds."""
    script = f"[...document.querySelectorAll({json.dumps(selector)})].map(one => one.textContent)"
    found: list[str] = page.run(script)
    return found
