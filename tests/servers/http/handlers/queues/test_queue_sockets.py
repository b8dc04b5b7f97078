"""Queues over real sockets: clients that disconnect or do not read, and a node that stops."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from millstream.config.schema import HttpConfig
from millstream.testing.broker import RunningBroker, running_broker
from tests.servers.http.calls import ask

QUEUE = "mail"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path, http_server=HttpConfig(output_ms_max=200)) as running:
        assert ask(running.url, "PUT", f"/v1/queues/{QUEUE}", b'{"lease_ms": 600000}').status == 201
        yield running


@contextmanager
def sent(node: RunningBroker, method: str, path: str, body: bytes = b"") -> Iterator[socket.socket]:
    """Return a connection on which a request was sent and nothing was read."""
    parts = urlsplit(node.url)
    with socket.create_connection((parts.hostname, parts.port)) as connection:
        head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        yield connection


def wait_until(node: RunningBroker, *, waiting: int) -> None:
    """Wait until so many claims are waiting."""
    until = threading.Event()

    async def look() -> None:
        if node.server.broker.queues.get(QUEUE).waiting == waiting:
            until.set()

    while not until.is_set():
        node.run(look())


def append(node: RunningBroker, *values: Any) -> None:
    body = json.dumps({"records": [{"value": value} for value in values]}).encode()
    assert ask(node.url, "POST", f"/v1/topics/{QUEUE}/records", body).status == 201


def claim(node: RunningBroker) -> list[dict[str, Any]]:
    return ask(node.url, "POST", f"/v1/queues/{QUEUE}/claim", b'{"max": 100}').json["jobs"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("POST", "claim", b'{"wait_ms": 60000}'), ("GET", "work?max=5", b"")],
)
def test_a_client_that_went_away_stands_in_line_no_more(
    node: RunningBroker, method: str, path: str, body: bytes
) -> None:
    with sent(node, method, f"/v1/queues/{QUEUE}/{path}", body):
        wait_until(node, waiting=1)
    wait_until(node, waiting=0)
    append(node, "a")
    [job] = claim(node)
    assert job["deliveries"] == 1


def test_a_worker_that_does_not_read_is_cut_off_and_others_get_the_rest(
    node: RunningBroker,
) -> None:
    """The buffers of a connection take only a part of the 20 MB."""
    jobs = 40
    for _ in range(jobs // 2):
        append(node, *["x" * 500_000] * 2)
    with sent(node, "GET", f"/v1/queues/{QUEUE}/work?max={jobs}"):
        while not cut_off(node):
            pass
    wait_until(node, waiting=0)
    counts = ask(node.url, "GET", f"/v1/queues/{QUEUE}").json
    assert counts["leased"] + counts["ready"] == jobs
    assert counts["leased"] > 0
    assert counts["ready"] > 0


def cut_off(node: RunningBroker) -> bool:
    """Return whether a connection was closed because it was not read."""
    metrics = ask(node.url, "GET", "/metrics").body.decode()
    return 'millstream_http_closed_connections_total{reason="output"} 1.0\n' in metrics


def test_streams_end_when_the_node_stops(tmp_path: Path) -> None:
    with running_broker(tmp_path) as node:
        ask(node.url, "PUT", f"/v1/queues/{QUEUE}")
        connection = http.client.HTTPConnection(urlsplit(node.url).netloc, timeout=30)
        connection.request("GET", f"/v1/queues/{QUEUE}/work")
        stream = connection.getresponse()
        waiting = threading.Thread(
            target=ask,
            args=(node.url, "POST", f"/v1/queues/{QUEUE}/claim", b'{"wait_ms": 60000}'),
        )
        waiting.start()
        wait_until(node, waiting=2)
    with stream:
        assert stream.read().decode().endswith('event: end\ndata: {"reason":"stopping"}\n\n')
    connection.close()
    waiting.join(30)
    assert not waiting.is_alive()
