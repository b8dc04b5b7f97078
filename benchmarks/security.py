"""Measures what logins and TLS cost a node, beside one without them.

    python benchmarks/security.py gate              small requests, with logins off and on
    python benchmarks/security.py tls               produces and fetches of 1 MB, by TLS and plain

The gate is measured in instructions, counted as `paths.py` does, since it is less than the noise
of times. TLS is measured in CPU of the process, user and system, in rounds that take turns: the
machine may have other work. The limit of TLS is that of the `ssl` module, which
encrypts and decrypts the same bytes in a loop.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import paths

from millstream.protocols.kafka.apis import APIS
from millstream.protocols.kafka.codec.message import encode
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
)
from millstream.protocols.kafka.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from millstream.records.build import build_batch
from millstream.records.record import Record

TOPIC = "bench"
MILLSTREAM = str(Path(sys.executable).with_name("millstream"))
PRODUCE, FETCH = 0, 1
PIPELINED = 50
SIZE = 1_000_000


class MeasuredNode:
    """A node in a process, and one connection to it."""

    def __init__(self, folder: Path, *options: str, tls: ssl.SSLContext | None = None) -> None:
        folder.mkdir()
        self.data = str(folder / "data")
        self._tls = tls
        command = [MILLSTREAM, "serve", "--data", self.data, "--kafka", "127.0.0.1:0"]
        self.process = subprocess.Popen(
            [*command, "--http", "127.0.0.1:0", "--log-level", "error", *options],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        places: dict[str, str] = {}
        for line in self.process.stdout:
            if line == "ready\n":
                break
            places |= dict([line.split()[:2]]) if len(line.split()) > 1 else {}
        self._http = places["http"].partition("://")[2].rstrip("/")
        self._ask("PUT", f"/v1/topics/{TOPIC}", {"durability": "memory"})
        host, _, port = places["kafka"].rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)

    def _ask(self, method: str, path: str, body: Any) -> None:
        if self._tls is None:
            connection = http.client.HTTPConnection(self._http)
        else:
            connection = http.client.HTTPSConnection(self._http, context=self._tls)
        connection.request(method, path, json.dumps(body))
        response = connection.getresponse()
        text = response.read()
        assert response.status < 300, text
        connection.close()

    def cpu_seconds(self) -> float:
        """User and system time of the process so far, to the nanosecond."""
        return time.clock_gettime(~self.process.pid << 3 | 2)

    def send(self, frame: bytes, count: int) -> None:
        """Send a request many times, some of them ahead of the responses."""
        for start in range(0, count, PIPELINED):
            number = min(PIPELINED, count - start)
            self.socket.sendall(frame * number if len(frame) < 10_000 else frame)
            for index in range(number):
                (size,) = struct.unpack(">i", self._exactly(4))
                self._exactly(size)
                if len(frame) >= 10_000 and index + 1 < number:
                    self.socket.sendall(frame)

    def _exactly(self, size: int) -> memoryview:
        data = memoryview(bytearray(size))
        done = 0
        while done < size:
            if not (read := self.socket.recv_into(data[done:])):
                raise ConnectionError("the node closed the connection")
            done += read
        return data

    def close(self) -> None:
        self.socket.close()
        self.process.terminate()
        self.process.wait()


def frame_of(key: int, request: Any, version: int) -> bytes:
    assert version < APIS[key].versions.flexible
    body = bytes(encode(request, version))
    head = struct.pack(">hhi", key, version, 1) + struct.pack(">h", 5) + b"bench"
    return struct.pack(">i", len(head) + len(body)) + head + body


def produce_frame(size: int) -> bytes:
    batch = build_batch([Record(os.urandom(size))], now_ms=int(time.time() * 1000))
    part = ProduceRequestPartition(index=0, records=memoryview(batch))
    topic = ProduceRequestTopic(name=TOPIC, partition_data=(part,))
    return frame_of(PRODUCE, ProduceRequest(acks=1, timeout_ms=1000, topic_data=(topic,)), 8)


def fetch_frame(size: int) -> bytes:
    part = FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=size)
    topic = FetchRequestTopic(topic=TOPIC, partitions=(part,))
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=size, topics=(topic,))
    return frame_of(FETCH, request, 11)


def rounds(
    nodes: dict[str, MeasuredNode], frame: bytes, count: int, turns: int
) -> dict[str, float]:
    """Return the CPU seconds of each request, the median of the rounds."""
    seconds: dict[str, list[float]] = {name: [] for name in nodes}
    for turn in range(turns + 1):
        for name, node in nodes.items():
            before = node.cpu_seconds()
            node.send(frame, count)
            if turn:  # The first one warms up.
                seconds[name].append((node.cpu_seconds() - before) / count)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


GATES = {
    "logins off": (),
    "logins on": ("access.enabled=true", "access.super_users=ANONYMOUS"),
    "and caps": (
        "access.enabled=true",
        "access.super_users=ANONYMOUS",
        "limits.connections_per_user=10",
        "limits.live_connections_per_user=10",
        "limits.requests_per_user=1000",
    ),
}
"""Settings of the nodes that are compared. The first decision for a topic is remembered by the
connection, and takes the same time for a super user as for others."""


def gate(folder: Path, names: Sequence[str]) -> None:
    """Count the instructions of small requests, which do not depend on other work."""
    loads = [load for load in paths.LOADS if load.name in names]
    costs: dict[str, dict[str, float]] = {}
    for gate_name, settings in GATES.items():
        options = [part for setting in settings for part in ("--set", setting)]
        measured = paths.measure_in_one_server(loads, paths.INSTRUCTIONS, folder, options)
        costs[gate_name] = dict(measured)
    without = costs["logins off"]
    for name in without:
        for gate_name, found in costs.items():
            added = 100 * (found[name] / without[name] - 1)
            print(f"{name:14} {gate_name:12} {found[name]:9,.0f} instructions {added:+.1f} %")
    print("goal of logins on: 3 % of a small produce")


def tls(folder: Path, count: int, turns: int) -> None:
    folder.mkdir(exist_ok=True)
    certificate = folder / "node.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=node", "-addext", "subjectAltName=IP:127.0.0.1",
         "-keyout", str(certificate), "-out", str(folder / "node.crt")],
        check=True, capture_output=True,
    )  # fmt: skip
    certificate.write_text(certificate.read_text() + (folder / "node.crt").read_text())
    certificate.chmod(0o600)
    context = ssl.create_default_context(cafile=str(folder / "node.crt"))
    files = ("--set", f"tls.cert_file={certificate}", "--set", f"tls.key_file={certificate}")
    # Before there are connections: they would be closed if no request came for so long.
    limit = openssl_seconds(certificate, context, SIZE)
    nodes: dict[str, MeasuredNode] = {}
    with ExitStack() as stack:
        for name, options, used in (("plain", (), None), ("tls", files, context)):
            nodes[name] = MeasuredNode(folder / name, *options, tls=used)
            stack.callback(nodes[name].close)
        compare(nodes, limit, count, turns)


def compare(nodes: dict[str, MeasuredNode], limit: float, count: int, turns: int) -> None:
    size = SIZE
    per_gb = 1e9 / size
    for words, frame in (("produce 1 MB", produce_frame(size)), ("fetch 1 MB", fetch_frame(size))):
        cost = rounds(nodes, frame, count, turns)
        added = cost["tls"] - cost["plain"]
        print(
            f"{words}: CPU of the node per GB: plain {cost['plain'] * per_gb:.2f} s,"
            f" TLS {cost['tls'] * per_gb:.2f} s; TLS adds {added * per_gb:.2f} s,"
            f" the limit is {limit * per_gb:.2f} s; {limit / added if added > 0 else 1:.2f} of it"
        )


def openssl_seconds(certificate: Path, context: ssl.SSLContext, size: int) -> float:
    """Return the CPU seconds that the `ssl` module takes for one side of `size` bytes."""
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(str(certificate))
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = server_context.wrap_bio(up, down, server_side=True)
    client = context.wrap_bio(down, up, server_hostname="127.0.0.1")
    ends: list[Callable[[], None]] = [client.do_handshake, server.do_handshake]
    for _ in range(4):
        for shake in ends:
            try:
                shake()
            except ssl.SSLWantReadError:
                continue
    data, count = os.urandom(size), 100
    before = time.process_time()
    for _ in range(count):
        client.write(data)
        done = 0
        while done < size:
            done += len(server.read(256 * 1024))
    # Both sides were in this process, and a node is one of them.
    return (time.process_time() - before) / count / 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["gate", "tls"])
    parser.add_argument("--requests", type=int, help="of each round of tls; default: 100")
    parser.add_argument("--rounds", type=int, default=7, help="of tls; default: %(default)s")
    parser.add_argument("--load", action="append", metavar="NAME", help="of gate, as of paths.py")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.what == "gate":
            gate(Path(folder), arguments.load or ["produce-1", "http-post-1"])
        else:
            tls(Path(folder), arguments.requests or 100, arguments.rounds)


if __name__ == "__main__":
    main()
