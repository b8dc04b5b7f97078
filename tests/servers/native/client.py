"""A native client for tests: one socket, frames in and out."""

from __future__ import annotations

import json
import socket
import urllib.request
from typing import Any, Self

import msgspec

from millstream.protocols.native import operations as ops
from millstream.protocols.native.frame import (
    HEADER_SIZE,
    Checksum,
    Frame,
    NativeFrameHeader,
    NativeFrameKind,
    control_frame,
    decode_header,
    ingest_frame,
    payload_length,
)
from millstream.protocols.native.record_set import RAW, typed_record

PATIENCE_S = 60.0


class Refused(Exception):
    """An error frame."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__(body["message"])
        self.code = body["code"]
        self.message = body["message"]
        self.details = body["details"]


class Backpressure(Exception):
    """A Backpressure frame."""


class CatchingUp(Exception):
    """The client is past the end."""

    def __init__(self, end: int) -> None:
        super().__init__(end)
        self.end = end


def get_text(broker: Any, path: str) -> str:
    """Return what the HTTP server of a node answers."""
    with urllib.request.urlopen(f"{broker.url}{path}", timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode()
    return text


def get_json(broker: Any, path: str) -> Any:
    return json.loads(get_text(broker, path))


def metric(broker: Any, name: str) -> float:
    """Return a metric of a node; the name has its labels."""
    values = dict(line.rsplit(" ", 1) for line in get_text(broker, "/metrics").splitlines())
    return float(values[name])


class NativeClient:
    """A connection. It sends what it is told, also what no client should send."""

    def __init__(self, address: Any, *, checksum: Checksum = Checksum.CRC32C) -> None:
        self.socket = socket.create_connection(tuple(address), timeout=PATIENCE_S)
        self.checksum = checksum
        self._batch_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    # Frames.

    def send(self, frame: Frame) -> None:
        self.socket.sendall(frame.to_bytes(self.checksum))

    def receive(self) -> tuple[NativeFrameHeader, bytes]:
        """Return the next frame; raises `EOFError` if the connection is closed."""
        head = self._exactly(HEADER_SIZE)
        payload = self._exactly(payload_length(head, 0))
        return decode_header(head), payload

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            if not chunk:
                raise EOFError
            data += chunk
        return bytes(data)

    def is_closed(self) -> bool:
        """Return whether the node closes the connection without another byte."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def answer(self) -> tuple[NativeFrameHeader, bytes]:
        """Return the next answer; raise what it reports."""
        header, payload = self.receive()
        if header.kind is NativeFrameKind.BACKPRESSURE:
            raise Backpressure
        if header.kind is NativeFrameKind.CONTROL and header.opcode == ops.Reply.ERROR:
            raise Refused(msgspec.json.decode(payload))
        return header, payload

    def call(
        self, operation: ops.NativeOperation, body: bytes = b""
    ) -> tuple[NativeFrameHeader, bytes]:
        self.send(control_frame(operation, *([body] if body else [])))
        return self.answer()

    # Operations.

    def create(self, name: str, retention: ops.Retention | None = None) -> dict[str, Any]:
        operation = ops.NativeOperation.CREATE_TOPIC
        if retention is not None:
            operation = ops.NativeOperation.CREATE_TOPIC_WITH_RETENTION
        _, payload = self.call(operation, ops.create_topic_body(ops.CreateTopic(name, retention)))
        return msgspec.json.decode(payload)

    def get(self, number: int) -> dict[str, Any]:
        _, payload = self.call(ops.NativeOperation.GET_TOPIC, ops.topic_id_body(number))
        return msgspec.json.decode(payload)

    def topics(self) -> dict[str, int]:
        _, payload = self.call(ops.NativeOperation.LIST_TOPICS)
        return {topic["name"]: topic["id"] for topic in msgspec.json.decode(payload)["topics"]}

    def ingest_frame(self, topic: int, *values: bytes) -> Frame:
        self._batch_id += 1
        payload = b"".join(typed_record(RAW, value) for value in values)
        return ingest_frame(self._batch_id, payload, record_count=len(values), topic_id=topic)

    def ingest(self, topic: int, *values: bytes) -> None:
        """Append values; return when they are acknowledged."""
        frame = self.ingest_frame(topic, *values)
        self.send(frame)
        header, _ = self.answer()
        assert (header.kind, header.batch_id) == (NativeFrameKind.ACK, frame.header.batch_id)

    def ingest_payload(self, topic: int, payload: bytes, *, count: int = 1, flags: int = 0) -> None:
        self._batch_id += 1
        frame = ingest_frame(self._batch_id, payload, record_count=count, topic_id=topic)
        self.send(frame._replace(header=frame.header._replace(flags=frame.header.flags | flags)))
        header, _ = self.answer()
        assert (header.kind, header.batch_id) == (NativeFrameKind.ACK, self._batch_id)

    def fetch(self, topic: int, offset: int, max_bytes: int = 1 << 20) -> tuple[ops.Fetched, bytes]:
        header, payload = self.call(
            ops.NativeOperation.FETCH, ops.fetch_body(ops.Fetch(topic, offset, max_bytes))
        )
        if header.opcode == ops.Reply.CATCHING_UP:
            raise CatchingUp(int.from_bytes(payload, "little"))
        assert header.opcode == ops.Reply.FETCH
        fetched, data = ops.read_fetched(payload)
        return fetched, bytes(data)

    def subscribe(self, topic: int, offset: int, consumer: int = 1) -> int:
        body = ops.subscribe_body(ops.Subscribe(topic, offset, 65536, consumer))
        header, payload = self.call(ops.NativeOperation.SUBSCRIBE, body)
        assert header.opcode == ops.Reply.SUBSCRIBE
        assert payload[:8] == consumer.to_bytes(8, "little")
        return int.from_bytes(payload[8:], "little")

    def unsubscribe(self, topic: int, consumer: int = 1) -> None:
        body = ops.unsubscribe_body(ops.Unsubscribe(topic, consumer))
        header, _ = self.call(ops.NativeOperation.UNSUBSCRIBE, body)
        assert (header.kind, header.batch_id) == (NativeFrameKind.ACK, consumer)

    def commit(self, topic: int, offset: int, consumer: int = 1) -> None:
        body = ops.commit_offset_body(ops.CommitOffset(topic, consumer, offset))
        header, payload = self.call(ops.NativeOperation.COMMIT_OFFSET, body)
        assert header.opcode == ops.Reply.COMMIT
        assert payload == ops.consumer_offset_body(consumer, offset)

    def authenticate(self, token: str) -> tuple[bool, str]:
        header, payload = self.call(ops.NativeOperation.AUTHENTICATE, token.encode())
        assert header.opcode == ops.Reply.AUTHENTICATE
        return payload[0] == 1, payload[1:].decode()
