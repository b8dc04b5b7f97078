"""Measures how long a client of the Kafka server waits while others abuse the node.

    python benchmarks/neighbour.py                        every abuse
    python benchmarks/neighbour.py --abuse small-requests --seconds 10

A neighbour appends a record and fetches it again, one request at a time. Its latency is measured in
one run without and with an abuser, in turns, so that both see the same machine. The abusers:

- unread-fetches: 60 connections that fetch 55 MB of a growing segment, and read nothing;
- waiting-fetches: 4,500 fetches that wait for a minute, over 100 connections;
- small-requests: 200 connections that send 10,000 small requests each, and read nothing.

An abuser is a process of its own, as its clients would be on another machine; on a machine with few
cores it takes time from the node. The ratio of the two p99 is to be at most 2.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from paths import fetch_frame, produce_frame, record_batch

TOPIC, BUSY, QUIET = "neighbour", "busy", "quiet"
CONNECT_SECONDS_MAX = 30.0
RECEIVE_BUFFER = 4096


class Client:
    """One connection with one request at a time."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=120)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: bytes) -> bytes:
        """Return the response to a request."""
        self.socket.sendall(request)
        size = int.from_bytes(self._read(4))
        return self._read(size)

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            if not (piece := self.socket.recv(size - len(data))):
                raise ConnectionError("the node closed the connection")
            data += piece
        return bytes(data)


def metadata_frame(topics: tuple[str, ...]) -> bytes:
    """Return Metadata, version 4, which creates topics that do not exist."""
    body = len(topics).to_bytes(4)
    for topic in topics:
        body += len(topic).to_bytes(2) + topic.encode()
    return _framed(3, 4, body + b"\1")


def api_versions_frame() -> bytes:
    return _framed(18, 0, b"")


def unread_fetch_frame(topic: str, *, size_max: int, wait_ms: int) -> bytes:
    """Return Fetch, version 4: partition 0 from offset 0 on."""
    body = (-1).to_bytes(4, signed=True) + wait_ms.to_bytes(4) + (1).to_bytes(4)
    body += size_max.to_bytes(4) + b"\0" + (1).to_bytes(4)
    body += len(topic).to_bytes(2) + topic.encode() + (1).to_bytes(4)
    return _framed(1, 4, body + bytes(4) + bytes(8) + size_max.to_bytes(4))


def _framed(key: int, version: int, body: bytes) -> bytes:
    client_id = b"neighbour"
    head = key.to_bytes(2) + version.to_bytes(2) + (7).to_bytes(4)
    head += len(client_id).to_bytes(2) + client_id
    return (len(head) + len(body)).to_bytes(4) + head + body


# The abusers.


def unread_fetches(address: tuple[str, int]) -> None:
    _abuse(address, 60, unread_fetch_frame(BUSY, size_max=55 << 20, wait_ms=1000))


def waiting_fetches(address: tuple[str, int]) -> None:
    _abuse(address, 100, unread_fetch_frame(QUIET, size_max=1 << 20, wait_ms=60_000) * 45)


def small_requests(address: tuple[str, int]) -> None:
    _abuse(address, 200, api_versions_frame() * 10_000)


ABUSES: dict[str, Callable[[tuple[str, int]], None]] = {
    "unread-fetches": unread_fetches,
    "waiting-fetches": waiting_fetches,
    "small-requests": small_requests,
}


def _abuse(address: tuple[str, int], count: int, data: bytes) -> None:
    """Send the same from many connections, read nothing, and stay until the process is ended."""
    selector = selectors.DefaultSelector()
    for _ in range(count):
        connection = socket.create_connection(address, timeout=30)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        connection.settimeout(0)
        selector.register(connection, selectors.EVENT_WRITE, [0])
    while selector.get_map():
        for key, _ in selector.select():
            sent: list[int] = key.data
            try:
                sent[0] += key.fileobj.send(data[sent[0] : sent[0] + 65536])  # type: ignore[union-attr]
            except BlockingIOError:
                continue
            except ConnectionError:
                sent[0] = len(data)
            if sent[0] == len(data):
                selector.unregister(key.fileobj)
                _KEPT.append(key.fileobj)
    signal.pause()


_KEPT: list[Any] = []
"""Connections that have sent everything, and stay open."""


# The measurement.


@contextlib.contextmanager
def running_node(data: str) -> Iterator[tuple[tuple[str, int], int]]:
    """Run a node; yield its address and its process."""
    command = [
        str(Path(sys.executable).with_name("millstream")),
        *("serve", "--data", data, "--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0"),
    ]
    node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert node.stdout is not None
    try:
        for line in node.stdout:
            if found := re.search(r"kafka\s+\S*?([\d.]+):(\d+)", line):
                yield (found[1], int(found[2])), node.pid
                return
        raise SystemExit("the node did not start")
    finally:
        node.terminate()
        node.wait()


def latencies(client: Client, requests: list[bytes], seconds: float) -> list[float]:
    """Send the requests in turn for some seconds; return how many milliseconds each took."""
    end, taken = time.perf_counter() + seconds, []
    while time.perf_counter() < end:
        for request in requests:
            began = time.perf_counter()
            client.send(request)
            taken.append((time.perf_counter() - began) * 1000)
    return taken


def anonymous_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def measure(name: str, seconds: float, turns: int) -> None:
    """Print the latencies of the neighbour without and with the abuser, and their ratio."""
    with tempfile.TemporaryDirectory() as data, running_node(data) as (address, pid):
        client = Client(address)
        client.send(metadata_frame((TOPIC, BUSY, QUIET)))
        time.sleep(1.0)
        large = produce_frame(BUSY, [record_batch([bytes(900_000)])], acks=-1)
        for _ in range(80):
            client.send(large)
        requests = [
            produce_frame(TOPIC, [record_batch([bytes(100)])], acks=-1),
            fetch_frame(TOPIC, 0, 1000),
        ]
        latencies(client, requests, 1.0)
        alone: list[float] = []
        beside: list[float] = []
        before, most = anonymous_mib(pid), 0.0
        for _ in range(turns):
            alone += latencies(client, requests, seconds)
            abuser = multiprocessing.Process(target=ABUSES[name], args=(address,))
            abuser.start()
            try:
                beside += latencies(client, requests, seconds)
                most = max(most, anonymous_mib(pid))
            finally:
                abuser.kill()
                abuser.join()
            latencies(client, requests, 1.0)
        p50, p99 = quantiles(alone)
        p50_beside, p99_beside = quantiles(beside)
        print(
            f"{name:16} {len(alone):7} {p50:7.2f} {p99:8.2f} {len(beside):7} {p50_beside:7.2f}"
            f" {p99_beside:8.2f} {p99_beside / p99:6.1f} {most - before:7.0f}",
            flush=True,
        )


def quantiles(taken: list[float]) -> tuple[float, float]:
    return statistics.median(taken), sorted(taken)[int(len(taken) * 0.99)]


def main() -> int:
    parser = argparse.ArgumentParser(description="How long others wait while clients abuse a node.")
    parser.add_argument("--abuse", action="append", choices=list(ABUSES))
    parser.add_argument("--seconds", type=float, default=5.0, help="of each part of each turn")
    parser.add_argument("--turns", type=int, default=2)
    arguments = parser.parse_args()
    print("abuse            requests p50 ms  p99 ms  beside   p50 ms   p99 ms  ratio  MiB")
    for name in arguments.abuse or list(ABUSES):
        measure(name, arguments.seconds, arguments.turns)
    return 0


if __name__ == "__main__":
    sys.exit(main())
