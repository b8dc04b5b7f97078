"""A client that costs next to nothing, so that the server is measured.

It builds its requests once and sends the same bytes again and again.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from millstream.protocols.kafka.apis import APIS
from millstream.protocols.kafka.codec.message import decode, encode
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
from millstream.protocols.kafka.messages.topics import (
    CreateTopicsRequest,
    CreateTopicsRequestConfig,
    CreateTopicsRequestTopic,
    CreateTopicsResponse,
    DeleteTopicsRequest,
)

BY_REQUEST = {api.request: api for api in APIS.values()}
PRODUCE_VERSION = 9
FETCH_VERSION = 12
RECEIVE_SIZE = 4 * 1024 * 1024
LEADER_SECONDS_MAX = 30

LONE_SIZE = 171
"""A batch of one record of 100 bytes."""


def framed(request: object, version: int) -> bytes:
    """Return a request as it goes over the wire."""
    api = BY_REQUEST[type(request)]
    header = struct.pack(">hhih", api.key, version, 1, 5) + b"bench"
    header += b"\0" if version >= api.versions.flexible else b""
    body = header + encode(request, version)
    return struct.pack(">i", len(body)) + body


def produce_frame(topic: str, batch: bytes, *, acks: int, partition: int = 0) -> bytes:
    """Return a request that produces one batch."""
    part = ProduceRequestPartition(index=partition, records=memoryview(batch))
    one = ProduceRequestTopic(name=topic, partition_data=(part,))
    return framed(ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=(one,)), PRODUCE_VERSION)


def connect(port: int) -> socket.socket:
    """Connect to a server of this machine."""
    connection = socket.create_connection(("127.0.0.1", port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive_frame(connection: socket.socket) -> bytes:
    """Return the next answer, without its size."""
    size = int.from_bytes(_exactly(connection, 4))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the server closed the connection")
        data += piece
    return bytes(data)


def call(port: int, request: object, version: int) -> object:
    """Send one request on a connection of its own, and return the answer."""
    api = BY_REQUEST[type(request)]
    with connect(port) as connection:
        connection.sendall(framed(request, version))
        body = receive_frame(connection)
    start = 5 if version >= api.versions.flexible else 4
    return decode(api.response, memoryview(body)[start:], version)


def make_topic(
    port: int,
    *,
    partitions: int = 1,
    name: str = "",
    configs: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Create a topic, under a name of its own unless one is given."""
    name = name or f"bench-{os.urandom(6).hex()}"
    wanted = CreateTopicsRequestTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=tuple(
            CreateTopicsRequestConfig(name=key, value=value) for key, value in configs.items()
        ),
    )
    answer = call(port, CreateTopicsRequest(topics=(wanted,), timeout_ms=30_000), 5)
    assert isinstance(answer, CreateTopicsResponse)
    assert answer.topics[0].error_code == 0, answer.topics[0]
    return name


def delete_topic(port: int, name: str) -> None:
    """Delete a topic, so that the disk does not fill up."""
    call(port, DeleteTopicsRequest(topic_names=(name,), timeout_ms=30_000), 5)


def answer_size(port: int, frame: bytes) -> int:
    """Send a request once, and return how large its answer is, with its size in front."""
    with connect(port) as connection:
        connection.sendall(frame)
        answer = receive_frame(connection)
    return len(answer) + 4


def await_leader(port: int, frame: bytes) -> None:
    """Send a request that produces one batch until it is accepted: a new topic may take a while."""
    deadline = time.monotonic() + LEADER_SECONDS_MAX
    while code := _produce_error(port, frame):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the server refuses to take a batch, with error {code}")
        time.sleep(0.01)


def _produce_error(port: int, frame: bytes) -> int:
    with connect(port) as connection:
        connection.sendall(frame)
        answer = memoryview(receive_frame(connection))
    found = decode(BY_REQUEST[ProduceRequest].response, answer[5:], PRODUCE_VERSION)
    code: int = found.responses[0].partition_responses[0].error_code
    return code


def send_pipelined(port: int, frame: bytes, count: int, *, answer: int, window: int) -> None:
    """Send a request `count` times, with at most `window` unanswered; each answer is as large."""
    with connect(port) as connection:
        sent = answered = 0
        received = 0
        burst = max(1, window // 2)
        while answered < count:
            free = min(window - (sent - answered), count - sent)
            if free >= burst or (free and sent + free == count):
                connection.sendall(frame * free if len(frame) < 65_536 else frame)
                sent += free if len(frame) < 65_536 else 1
                continue
            received += len(connection.recv(1 << 20))
            answered = received // answer


def send_in_turns(port: int, frame: bytes, count: int, *, answer: int, connections: int) -> None:
    """Send a request `count` times over many connections, each with one request in flight."""
    with selectors.DefaultSelector() as selector:
        sockets = [connect(port) for _ in range(connections)]
        missing = dict.fromkeys(sockets, answer)
        sent = 0
        for one in sockets:
            one.setblocking(False)  # noqa: FBT003
            selector.register(one, selectors.EVENT_READ)
            one.sendall(frame)
            sent += 1
        done = 0
        while done < count:
            for key, _ in selector.select():
                one = key.fileobj
                assert isinstance(one, socket.socket)
                missing[one] -= len(one.recv(65_536))
                if missing[one] == 0:
                    done += 1
                    missing[one] = answer
                    if sent < count:
                        one.sendall(frame)
                        sent += 1
        for one in sockets:
            one.close()


def send_one_by_one(port: int, frame: bytes, count: int) -> list[float]:
    """Send a request `count` times in sequence; return the time of each, in seconds."""
    return send_each(port, [frame] * count)


def send_each(port: int, frames: Sequence[bytes]) -> list[float]:
    """Send requests in sequence; return the time of each, in seconds."""
    took = []
    with connect(port) as connection:
        for frame in frames:
            started = time.perf_counter()
            connection.sendall(frame)
            receive_frame(connection)
            took.append(time.perf_counter() - started)
    return took


def fetch_all(port: int, topic: str, *, records: int, size_max: int) -> int:
    """Read a topic from its start, as a consumer would; return how many bytes came."""
    buffer = memoryview(bytearray(size_max + RECEIVE_SIZE))
    total = offset = 0
    with connect(port) as connection:
        while offset < records:
            part = FetchRequestPartition(
                partition=0, fetch_offset=offset, partition_max_bytes=size_max
            )
            request = FetchRequest(
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=size_max,
                topics=(FetchRequestTopic(topic=topic, partitions=(part,)),),
            )
            connection.sendall(framed(request, FETCH_VERSION))
            size = int.from_bytes(_exactly(connection, 4))
            filled = 0
            while filled < size:
                filled += connection.recv_into(buffer[filled:size])
            total += size
            offset = _next_offset(buffer[:size])
    return total


def _next_offset(answer: memoryview) -> int:
    """Return the offset after the last batch of an answer with one partition."""
    found = decode(BY_REQUEST[FetchRequest].response, answer[5:], FETCH_VERSION)
    records = found.responses[0].partitions[0].records
    position, offset = 0, -1
    while position < len(records):
        base, length = struct.unpack_from(">qi", records, position)
        (delta,) = struct.unpack_from(">i", records, position + 23)
        offset, position = base + delta + 1, position + 12 + length
    return offset


def pour(port: int, size: int, turns: Sequence[int]) -> int:
    """Have bytes sent by the server that only sends, in as many turns; return how many came."""
    buffer = memoryview(bytearray(RECEIVE_SIZE))
    with connect(port) as connection:
        for turn in turns:
            connection.sendall(struct.pack(">q", turn))
            left = turn
            while left > 0:
                left -= connection.recv_into(buffer)
    return size
