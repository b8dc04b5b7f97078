"""What the machine can do at best, as servers: each is the least that could do the job.

    limits.py floor FILE     receives, and writes what it received to a file
    limits.py echo SIZE      answers each frame with SIZE bytes, on the event loop that a node has
    limits.py pour           sends the requested number of bytes
    limits.py idle           sends back what it receives, on the event loop that a node has

Each prints `port N` and runs until it is ended.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import struct
import sys

import uvloop

BUFFER_SIZE = 256 * 1024
PIECE = bytes(1024 * 1024)


def main() -> None:
    kind, *arguments = sys.argv[1:]
    servers = {"floor": serve_floor, "echo": serve_echo, "pour": serve_pour, "idle": serve_idle}
    servers[kind](*arguments)


def _listen() -> socket.socket:
    listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
    print(f"port {listening.getsockname()[1]}", flush=True)
    return listening


def serve_floor(path: str) -> None:
    """Receive and write: what a server of logs cannot do without."""
    listening = _listen()
    buffer = memoryview(bytearray(BUFFER_SIZE))
    while True:
        connection, _ = listening.accept()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        while count := connection.recv_into(buffer):
            os.write(descriptor, buffer[:count])
        os.close(descriptor)
        connection.sendall(b"!")
        connection.close()


class Echo(asyncio.BufferedProtocol):
    """Cuts frames, and answers each with as many bytes as a node would."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._buffer = memoryview(bytearray(BUFFER_SIZE))
        self._filled = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's.
        """Say where the next bytes go."""
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Answer the complete frames."""
        end = self._filled + nbytes
        position = count = 0
        while end - position >= 4:
            after = position + 4 + struct.unpack_from(">i", self._buffer, position)[0]
            if after > end:
                break
            position, count = after, count + 1
        if count:
            self._transport.write(self._answer * count)  # type: ignore[attr-defined]
        rest = end - position
        self._buffer[:rest] = self._buffer[position:end]
        self._filled = rest


def serve_echo(size: str) -> None:
    """Answer frames on an event loop, and do nothing else."""
    answer = struct.pack(">i", int(size) - 4) + bytes(int(size) - 4)

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(
            lambda: Echo(answer), sock=_listen()
        )
        await server.serve_forever()

    uvloop.run(run())


def serve_pour() -> None:
    """Send as many bytes as the client's eight say, from memory."""
    listening = _listen()
    while True:
        connection, _ = listening.accept()
        while asked := connection.recv(8):
            (left,) = struct.unpack(">q", asked)
            while left > 0:
                piece = PIECE if left >= len(PIECE) else PIECE[:left]
                connection.sendall(piece)
                left -= len(piece)
        connection.close()


class Mirror(asyncio.Protocol):
    """A connection that holds nothing of its own."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Send it back."""
        self._transport.write(data)  # type: ignore[attr-defined]


def serve_idle() -> None:
    """Keep connections, and do nothing for them but what they ask for."""

    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(Mirror, sock=_listen())
        await server.serve_forever()

    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    uvloop.run(run())


if __name__ == "__main__":
    main()
