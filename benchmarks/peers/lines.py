"""A client for servers that answer in lines, which costs next to nothing.

It sends the same bytes again and again and only counts the answers, so that it measures
the server: the client libraries for Python would be slower than the servers.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

RECEIVE_SIZE = 1 << 20
PIECES_IN_FLIGHT = 2
SILENCE_SECONDS_MAX = 30


def connect(port: int) -> socket.socket:
    """Connect to a server of this machine."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=SILENCE_SECONDS_MAX)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Pumped(NamedTuple):
    """What became of a turn."""

    requests: int
    seconds: float


@dataclass(slots=True)
class Pipe:
    """A connection, and what is sent over it again and again."""

    connection: socket.socket
    piece: bytes
    """Several requests in a row."""
    requests: int
    """How many there are in a piece."""
    answers: Callable[[bytes], int]
    """How many answers the bytes hold that came; it raises where one is an error."""
    edge: int = 0
    """How many bytes at the end may be the first half of what `answers` looks for."""
    waiting: int = 0
    sent: int = 0
    kept: bytes = field(default=b"")

    def send(self) -> None:
        """Send one piece."""
        self.connection.sendall(self.piece)
        self.waiting += self.requests
        self.sent += self.requests

    def fill(self) -> None:
        """Send pieces until enough are in flight."""
        while self.waiting + self.requests <= PIECES_IN_FLIGHT * self.requests:
            self.send()

    def receive(self) -> None:
        """Take what came."""
        data = self.connection.recv(RECEIVE_SIZE)
        if not data:
            raise ConnectionError("the server closed the connection")
        # The rest is too short to contain a response that was already counted.
        data = self.kept + data
        self.waiting -= self.answers(data)
        self.kept = data[-self.edge :] if self.edge else b""


def pipelined(pipe: Pipe, pieces: int) -> None:
    """Send a piece so many times, and wait for the last answer."""
    for _ in range(pieces):
        pipe.send()
        while pipe.waiting:
            pipe.receive()


def pump(pipes: Sequence[Pipe], seconds: float) -> Pumped:
    """Send for so long, then wait for the last answers."""
    began = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for pipe in pipes:
            selector.register(pipe.connection, selectors.EVENT_READ, pipe)
            pipe.fill()
        while any(pipe.waiting for pipe in pipes):
            ready = selector.select(SILENCE_SECONDS_MAX)
            if not ready:
                raise ConnectionError(f"no answer for {SILENCE_SECONDS_MAX} s")
            for key, _ in ready:
                key.data.receive()
                if time.perf_counter() - began < seconds:
                    key.data.fill()
    return Pumped(sum(pipe.sent for pipe in pipes), time.perf_counter() - began)
