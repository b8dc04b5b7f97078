"""A web site in front of a node: its own page, and the node's routes under the same host name.

That is how a page reaches a node: pages of other sites may not (no CORS).
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

PAGE = b"<!doctype html><title>site</title>"


class Site:
    """Serves a page at `/`, and forwards everything else byte by byte."""

    def __init__(self, node_url: str) -> None:
        place = urlsplit(node_url)
        self._node = (place.hostname, place.port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/"
        self._passed: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Cut all connections to the node, as a network failure does."""
        passed, self._passed = self._passed, []
        for one in passed:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                piece = client.recv(65_536)
                if not piece:
                    return
                head += piece
            if not head.startswith(b"GET /v1/"):
                answer = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n"
                client.sendall(answer + b"Content-Length: %d\r\n\r\n%s" % (len(PAGE), PAGE))
                return
            with socket.create_connection(self._node) as node:
                self._passed += [client, node]
                node.sendall(head)
                threading.Thread(target=_pass, args=(client, node), daemon=True).start()
                _pass(node, client)


def _pass(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65_536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)


@contextmanager
def running_site(node_url: str) -> Iterator[Site]:
    """Run a site in front of a node."""
    site = Site(node_url)
    try:
        yield site
    finally:
        site.close()
