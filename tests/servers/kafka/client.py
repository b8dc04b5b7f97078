"""A client that sends exactly the given requests in the given versions."""

from __future__ import annotations

import socket
import ssl
import struct
from collections import deque
from typing import Any, Self

from millstream.protocols.kafka.apis import APIS, Api
from millstream.protocols.kafka.codec.message import decode, encode
from millstream.protocols.kafka.messages.produce import (
    ProduceRequest,
    ProduceRequestPartition,
    ProduceRequestTopic,
)
from millstream.records.build import build_batch
from millstream.records.record import Record

BY_REQUEST = {api.request: api for api in APIS.values()}
NOW_MS = 1_700_000_000_000


class RawClient:
    """One connection."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "raw",
        timeout: float = 20.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=timeout)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self._client_id = client_id
        self._next = 0
        self._sent: deque[tuple[int, Api, int]] = deque()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def call(self, request: Any, version: int | None = None) -> Any:
        """Send a request, and return the response."""
        self.send(request, version)
        return self.receive()

    def send(self, request: Any, version: int | None = None, *, is_answered: bool = True) -> None:
        """Send a request and do not wait."""
        api = BY_REQUEST[type(request)]
        version = api.versions.last if version is None else version
        self._next += 1
        self.socket.sendall(frame(request, version, self._next, client_id=self._client_id))
        if is_answered:
            self._sent.append((self._next, api, version))

    def receive(self) -> Any:
        """Return the response to the oldest pending request."""
        number, api, version = self._sent.popleft()
        body = self.receive_frame()
        assert struct.unpack_from(">i", body)[0] == number, "answers come in order"
        is_flexible = version >= api.versions.flexible and api.key != 18
        return decode(api.response, memoryview(body)[5 if is_flexible else 4 :], version)

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def is_closed_by_peer(self) -> bool:
        """Whether the node closed the connection."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError(f"closed after {len(data)} of {size} bytes")
            data += piece
        return data


def frame(request: Any, version: int, number: int, *, client_id: str = "raw") -> bytes:
    """Return one encoded request."""
    api = BY_REQUEST[type(request)]
    name = client_id.encode()
    header = struct.pack(">hhih", api.key, version, number, len(name)) + name
    header += b"\0" if version >= api.versions.flexible else b""
    body = header + encode(request, version)
    return struct.pack(">i", len(body)) + body


def batch_of(*values: bytes | None, key: bytes | None = None, **fields: Any) -> bytes:
    """Return a batch with one record for each value."""
    return build_batch([Record(value, key=key) for value in values], now_ms=NOW_MS, **fields)


def produce_request(
    topic: str, batch: bytes | None, *, partition: int = 0, acks: int = -1, **fields: Any
) -> ProduceRequest:
    """Return a request that produces one batch."""
    part = ProduceRequestPartition(index=partition, records=batch)
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=(ProduceRequestTopic(name=topic, partition_data=(part,)),),
        **fields,
    )
