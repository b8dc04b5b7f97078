"""Watchers of a topic, and how long an append takes to reach them.

    watchers.py PORT TOPIC WATCHERS COUNT

Appends one record after the other; each goes out when all watchers have the one before. Prints the
milliseconds from sending an append to the end of its event, at the median and at the 99th of 100.
"""

from __future__ import annotations

import selectors
import socket
import statistics
import sys
import time

from load import connect, post, size_of  # type: ignore[import-not-found]

SETTLE_SECONDS_MAX = 30.0

_END = b"\n\n\r\n"


def watch(port: int, topic: str) -> socket.socket:
    """Watch a topic; returns once the stream has begun."""
    connection: socket.socket = connect(port)
    connection.settimeout(SETTLE_SECONDS_MAX)
    connection.sendall(f"GET /v1/events?topic={topic} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    data = b""
    while not data.endswith(_END):  # The first event says where the watcher stands.
        piece = connection.recv(65_536)
        if not piece:
            raise ConnectionError(f"the server ended the stream: {data[:500]!r}")
        data += piece
    return connection


def measure(port: int, topic: str, watchers: int, count: int) -> list[float]:
    """Return how long each append took to each watcher, in seconds."""
    sockets = [watch(port, topic) for _ in range(watchers)]
    writer = connect(port)
    request = post(f"/v1/topics/{topic}/records", b'{"records":[{"value":{"n":1}}]}')
    took: list[float] = []
    with selectors.DefaultSelector() as selector:
        for one in (*sockets, writer):
            one.settimeout(SETTLE_SECONDS_MAX)
            selector.register(one, selectors.EVENT_READ)
        for _ in range(count):
            data = dict.fromkeys((*sockets, writer), b"")
            waiting = set(data)
            began = time.perf_counter()
            writer.sendall(request)
            while waiting:
                for key, _ in selector.select(SETTLE_SECONDS_MAX):
                    one = key.fileobj
                    assert isinstance(one, socket.socket)
                    data[one] += one.recv(65_536)
                    if one is writer:
                        if size_of(data[one]):
                            waiting.discard(one)
                    elif b"event: records" in data[one] and data[one].endswith(_END):
                        took.append(time.perf_counter() - began)
                        waiting.discard(one)
    for one in (*sockets, writer):
        one.close()
    return took


if __name__ == "__main__":
    found = measure(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    quantiles = statistics.quantiles(found, n=100)
    print(statistics.median(found) * 1000, quantiles[98] * 1000)
