"""Clients that hold connections, in a process of their own.

    hold.py kafka PORT COUNT               each asks once what the node can do, and then waits
    hold.py http PORT COUNT                each asks once, and keeps the connection
    hold.py sse PORT COUNT                 each watches a topic in which nothing happens
    hold.py echo PORT COUNT                each sends a byte and is sent it back
    hold.py flood-http PORT COUNT EACH     each sends EACH requests and never reads an answer
    hold.py flood-kafka PORT COUNT EACH    the same at the Kafka server

Prints `held N` once all of them are there: N connections, or N bytes that the server took. Then it
waits for its end.
"""

from __future__ import annotations

import resource
import select
import socket
import struct
import sys
import time

SETTLE_SECONDS = 2.0
"""A server that took nothing from anyone for so long will not take more."""

TOPIC = "watched"

_VERSIONS = struct.pack(">ihhih", 4 + 6 + 5, 18, 0, 1, 5) + b"bench"
_GET = b"GET /v1/topics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
_WATCH = f"GET /v1/events?topic={TOPIC} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()

REQUESTS = {"kafka": _VERSIONS, "http": _GET, "sse": _WATCH, "echo": b"x"}


def connect(port: int) -> socket.socket:
    """Connect to a server of this machine."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def hold(kind: str, port: int, count: int) -> list[socket.socket]:
    """Open connections that each made one request and read what came."""
    sockets = []
    for _ in range(count):
        connection = connect(port)
        connection.sendall(REQUESTS[kind])
        answer = connection.recv(65_536)
        if not answer or b"HTTP/1.1 503" in answer:
            raise ConnectionError(f"after {len(sockets)} connections: {answer[:300]!r}")
        sockets.append(connection)
    return sockets


def flood(request: bytes, port: int, count: int, each: int) -> tuple[list[socket.socket], int]:
    """Send as much as the server takes, and read nothing."""
    left = {connect(port): memoryview(request * each) for _ in range(count)}
    sockets = list(left)
    sent = 0
    for one in sockets:
        one.setblocking(False)  # noqa: FBT003
    poll = select.poll()
    by_number = {one.fileno(): one for one in sockets}
    for number in by_number:
        poll.register(number, select.POLLOUT)
    until = time.monotonic() + SETTLE_SECONDS
    while left and time.monotonic() < until:
        for number, event in poll.poll(100):
            one = by_number[number]
            if event & (select.POLLERR | select.POLLHUP):
                poll.unregister(number)
                left.pop(one, None)
                continue
            size = one.send(left[one])
            sent += size
            until = time.monotonic() + SETTLE_SECONDS
            left[one] = left[one][size:]
            if not left[one]:
                poll.unregister(number)
                del left[one]
    return sockets, sent


def main() -> None:
    """Do what the arguments say."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kind, port, *numbers = sys.argv[1:]
    if kind.startswith("flood-"):
        request = REQUESTS[kind.removeprefix("flood-")]
        sockets, said = flood(request, int(port), *map(int, numbers))
    else:
        sockets = hold(kind, int(port), int(numbers[0]))
        said = len(sockets)
    print(f"held {said}", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
