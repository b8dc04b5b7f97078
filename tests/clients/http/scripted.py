"""A server that sends scripted replies: bytes, silence, or a closed connection."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Self

Reply = bytes | Callable[[socket.socket], None]


class Seen(NamedTuple):
    """A received request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def answer(status: int, body: Any = None, **headers: str) -> bytes:
    """Return the bytes of a response; the body is encoded as JSON unless it is bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Whatever", f"content-length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def refusal(status: int, code: str, detail: Any = None, **headers: str) -> bytes:
    """Return the bytes of an error response in the format of a node."""
    shape = {"code": code, "message": f"because of {code}", "detail": detail}
    return answer(status, {"error": shape}, **headers)


def hang_up(connection: socket.socket) -> None:
    """Close the connection without a response."""


class ScriptedNode:
    """Sends the replies in order, over any number of connections, and repeats the last one."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = list(replies)
        self.seen: list[Seen] = []
        self._lock = threading.Lock()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._sockets: list[socket.socket] = [self._listening]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[..., None], *args: Any) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                self._sockets.append(connection)
                self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as file:
            while (seen := _read(file)) is not None:
                with self._lock:
                    self.seen.append(seen)
                    reply = self._replies[0]
                    if len(self._replies) > 1:
                        self._replies.pop(0)
                if callable(reply):
                    reply(connection)
                    with contextlib.suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)
                    return
                connection.sendall(reply)


def _read(file: Any) -> Seen | None:
    first = file.readline().decode()
    if not first:
        return None
    method, path, _ = first.split()
    headers = {}
    while (line := file.readline().decode().strip()) != "":
        name, _, value = line.partition(": ")
        headers[name] = value
    body = file.read(int(headers.get("content-length", 0)))
    return Seen(method, path, headers, body)
