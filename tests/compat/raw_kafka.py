"""The two Kafka requests that move batches, by hand, so that no client touches the bytes.

request    size, api, version, correlation, client id, body
response   size, correlation, body
"""

from __future__ import annotations

import socket
import struct

_PRODUCE, _PRODUCE_VERSION = 0, 3
_FETCH, _FETCH_VERSION = 1, 4
_TIMEOUT_S = 30
_SIZE_MAX = 16 * 1024 * 1024
_CORRELATION = 1


class RawKafka:
    """A connection to one broker, for partition 0 of any topic."""

    def __init__(self, host: str, port: int) -> None:
        self._socket = socket.create_connection((host, port), timeout=_TIMEOUT_S)

    def close(self) -> None:
        self._socket.close()

    def produce(self, topic: str, batch: bytes) -> int:
        """Append one batch, and return the offset that the broker gave it."""
        body = struct.pack(">hhi", -1, -1, _TIMEOUT_S * 1000)  # No transaction; all replicas.
        body += _one_partition(topic) + struct.pack(">i", len(batch)) + batch
        answer = self._ask(_PRODUCE, _PRODUCE_VERSION, body)
        partition = 4 + 2 + len(topic) + 4
        _, error, offset = struct.unpack_from(">ihq", answer, partition)
        assert error == 0, f"broker answers produce with error {error}"
        return offset

    def fetch(self, topic: str, offset: int) -> bytes:
        """Return the batches from `offset` on, as the broker stores them."""
        body = struct.pack(">iiiib", -1, _TIMEOUT_S * 1000, 1, _SIZE_MAX, 0)
        body += _one_partition(topic) + struct.pack(">qi", offset, _SIZE_MAX)
        answer = self._ask(_FETCH, _FETCH_VERSION, body)
        partition = 4 + 4 + 2 + len(topic) + 4
        _, error, _, _, aborted = struct.unpack_from(">ihqqi", answer, partition)
        assert error == 0, f"broker answers fetch with error {error}"
        position = partition + 26 + 16 * max(aborted, 0)
        (size,) = struct.unpack_from(">i", answer, position)
        return answer[position + 4 : position + 4 + size]

    def _ask(self, api: int, version: int, body: bytes) -> bytes:
        request = struct.pack(">hhih", api, version, _CORRELATION, -1) + body
        self._socket.sendall(struct.pack(">i", len(request)) + request)
        (size,) = struct.unpack(">i", self._receive(4))
        assert 4 <= size <= 2 * _SIZE_MAX
        answer = self._receive(size)
        assert answer[:4] == struct.pack(">i", _CORRELATION)
        return answer[4:]

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self._socket.recv(size - len(data))
            assert part, "broker closed the connection"
            data += part
        return data


def _one_partition(topic: str) -> bytes:
    name = topic.encode()
    return struct.pack(">ih", 1, len(name)) + name + struct.pack(">ii", 1, 0)
