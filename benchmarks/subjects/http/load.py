"""A client that costs next to nothing, so that the server is measured.

    load.py post PORT FILE COUNT CONNECTIONS     the request in FILE, COUNT times
    load.py work PORT QUEUE COUNT BATCH          claims and acks until COUNT jobs are done
    load.py group PORT STREAM COUNT BATCH        the same with a consumer group of Redis

It prints `ready` once it is connected, begins when a line comes on standard input, and prints the
seconds that it took.
"""

from __future__ import annotations

import os
import re
import selectors
import socket
import sys
import time
from pathlib import Path

RECEIVE_SIZE = 1 << 20

GROUP_VALUE_SIZE = 100

_ENTRIES = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n[^\r]+\r\n\*(\d+)\r\n")
_ID = re.compile(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n")
_VALUE_HEAD = b"$%d\r\n" % GROUP_VALUE_SIZE
_VALUE_LENGTH = len(_VALUE_HEAD) + GROUP_VALUE_SIZE + 2
_LENGTH = re.compile(rb"\r\ncontent-length: (\d+)")
_RECEIPT = re.compile(rb'"receipt":("[^"]+")')


def connect(port: int) -> socket.socket:
    """Connect to a server of this machine."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def post(path: str, body: bytes) -> bytes:
    """Return a request as it goes over the wire."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def size_of(data: bytes | bytearray) -> int:
    """Return how large the answer is that `data` begins with; 0 where that is not known yet."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return 0
    found = _LENGTH.search(data, 0, end)
    if not data.startswith(b"HTTP/1.1 20") or found is None:
        raise RuntimeError(f"the server answered {bytes(data[:1000])!r}")
    return end + 4 + int(found[1])


def ask(connection: socket.socket, request: bytes) -> bytes:
    """Send a request, and return its answer, head and all."""
    connection.sendall(request)
    data = bytearray()
    while not data or len(data) < (size_of(data) or len(data) + 1):
        piece = connection.recv(RECEIVE_SIZE)
        if not piece:
            raise ConnectionError("the server closed the connection")
        data += piece
    return bytes(data)


def post_in_turns(port: int, request: bytes, count: int, connections: int) -> float:
    """Send a request again and again, each connection with one in flight; return the seconds."""
    sockets = [connect(port) for _ in range(connections)]
    data = {one: bytearray() for one in sockets}
    _wait_for_the_start()
    began = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for one in sockets:
            selector.register(one, selectors.EVENT_READ)
            one.sendall(request)
        sent, done = connections, 0
        while done < count:
            for key, _ in selector.select():
                one = key.fileobj
                assert isinstance(one, socket.socket)
                data[one] += one.recv(RECEIVE_SIZE)
                size = size_of(data[one])
                if size and len(data[one]) >= size:
                    data[one] = data[one][size:]
                    done += 1
                    if sent < count:
                        one.sendall(request)
                        sent += 1
    return time.perf_counter() - began


def work(port: int, queue: str, count: int, batch: int) -> float:
    """Claim jobs and ack them until so many are done; return the seconds."""
    claim = post(f"/v1/queues/{queue}/claim", b'{"max":%d,"lease_ms":600000}' % batch)
    done = 0
    with connect(port) as connection:
        _wait_for_the_start()
        began = time.perf_counter()
        while done < count:
            receipts = _RECEIPT.findall(ask(connection, claim))
            if not receipts:
                raise RuntimeError(f"the queue is empty after {done} jobs")
            body = b'{"receipts":[%s]}' % b",".join(receipts)
            ask(connection, post(f"/v1/queues/{queue}/ack", body))
            done += len(receipts)
        return time.perf_counter() - began


def work_in_group(port: int, stream: str, count: int, batch: int) -> float:
    """Read and ack entries of a Redis stream until so many are done; return the seconds.

    The group is called as the stream is; the values are all of `GROUP_VALUE_SIZE` bytes.
    """
    consumer = f"worker-{os.getpid()}"
    group = ("GROUP", stream, consumer, "COUNT", str(batch), "STREAMS", stream, ">")
    read = _redis_command("XREADGROUP", *group)
    done = 0
    with connect(port) as connection:
        _wait_for_the_start()
        began = time.perf_counter()
        while done < count:
            connection.sendall(read)
            ids = [found.decode() for found in _entries(connection)]
            connection.sendall(_redis_command("XACK", stream, stream, *ids))
            if (answer := connection.recv(RECEIVE_SIZE)) != b":%d\r\n" % len(ids):
                raise RuntimeError(f"Redis answers {answer!r}")
            done += len(ids)
        return time.perf_counter() - began


def _redis_command(*words: str) -> bytes:
    texts = [word.encode() for word in words]
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%b\r\n" % (len(t), t) for t in texts)


def _entries(connection: socket.socket) -> list[bytes]:
    """Receive a complete response to XREADGROUP, and return its ids."""
    data = bytearray()
    while True:
        piece = connection.recv(RECEIVE_SIZE)
        data += piece
        if not piece or data.startswith((b"*-1", b"-")):
            raise RuntimeError(f"Redis answers {bytes(data[:200])!r}")
        head = _ENTRIES.match(data)
        ids = _ID.findall(data)
        last = data.rfind(_VALUE_HEAD)
        if head and len(ids) == int(head[1]) and len(data) - last == _VALUE_LENGTH:
            return ids


def _wait_for_the_start() -> None:
    print("ready", flush=True)
    sys.stdin.readline()


def main() -> None:
    """Do what the arguments say."""
    kind, port, what, count, number = sys.argv[1:]
    if kind == "post":
        took = post_in_turns(int(port), Path(what).read_bytes(), int(count), int(number))
    else:
        does = {"work": work, "group": work_in_group}[kind]
        took = does(int(port), what, int(count), int(number))
    print(took, flush=True)


if __name__ == "__main__":
    main()
