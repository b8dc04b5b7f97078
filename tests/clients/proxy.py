"""A TCP proxy that cuts connections after a given number of bytes, for repeatable faults."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import NamedTuple

_PIECE = 65536


class Limits(NamedTuple):
    """Bytes that one connection passes before it is cut; `None` is unlimited."""

    to_client: int | None = None
    to_node: int | None = None


class Proxy:
    """Forwards to a port. The first connections have the given `limits`, all others none."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.limits: list[Limits] = []
        """Each new connection takes the first entry."""
        self.cut = 0
        """Number of connections that were cut."""
        self.sent = 0
        """Number of bytes sent to clients."""
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        _end(self._listening)
        for one in list(self._sockets):
            _end(one)
        for thread in self._threads:
            thread.join()

    def cut_all(self):
        """Cut all open connections."""
        for one in list(self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _start(self, work, *args):
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            limits = self.limits.pop(0) if self.limits else Limits()
            node = socket.create_connection(self._target)
            self._sockets |= {client, node}
            self._start(self._pump, node, client, limits.to_client, True)
            self._start(self._pump, client, node, limits.to_node, False)

    def _pump(self, source, target, limit, is_to_client):
        left = limit
        with contextlib.suppress(OSError):
            while left != 0:
                data = source.recv(_PIECE if left is None else min(left, _PIECE))
                if not data:
                    break
                self.sent += len(data) if is_to_client else 0  # Before the client can have them.
                target.sendall(data)
                left = None if left is None else left - len(data)
            self.cut += left == 0
        for one in (source, target):
            _end(one)


def _end(one):
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
