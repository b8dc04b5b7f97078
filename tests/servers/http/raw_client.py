"""A client that sends arbitrary bytes to the HTTP server."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

SECONDS_MAX = 60
"""A wait this long is a failure. Nothing is measured."""


@dataclass(frozen=True)
class RawAnswer:
    """One parsed response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]


class RawClient:
    """One connection."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port), timeout=SECONDS_MAX)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def try_to_send(self, data: bytes) -> None:
        """Send data; ignore that the other side may have closed."""
        with contextlib.suppress(OSError):
            self.socket.sendall(data)

    def read_some(self) -> bytes:
        """Return the next bytes; none at the end, clean or not."""
        try:
            return self.socket.recv(65_536)
        except ConnectionError:
            return b""

    def read_all(self) -> bytes:
        """Return everything up to the end of the connection."""
        return b"".join(iter(self.read_some, b""))

    def answers(self) -> list[RawAnswer]:
        """Return all responses up to the end of the connection."""
        return answers_in(self.read_all())

    def answer(self) -> RawAnswer:
        """Return the next response, on a connection that may stay open."""
        came = b""
        while not (found := answers_in(came)):
            piece = self.read_some()
            assert piece, f"no answer came, but {came[:1000]!r}"
            came += piece
        assert len(found) == 1
        return found[0]


@contextlib.contextmanager
def raw_client(url: str) -> Iterator[RawClient]:
    client = RawClient(url)
    try:
        yield client
    finally:
        client.socket.close()


def answers_in(came: bytes) -> list[RawAnswer]:
    """Return the complete responses at the start of some bytes."""
    found = []
    while b"\r\n\r\n" in came:
        head, _, rest = came.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        match = re.fullmatch(r"HTTP/1\.1 (\d{3}) [\w' -]+", first)
        assert match is not None, first
        pairs = [line.split(": ", 1) for line in lines]
        headers = {name.lower(): value for name, value in pairs}
        assert len(headers) == len(pairs), "a header stands there twice"
        size = int(headers.get("content-length", "0"))
        if len(rest) < size:
            break
        found.append(RawAnswer(int(match[1]), headers, rest[:size]))
        came = rest[size:]
    return found
