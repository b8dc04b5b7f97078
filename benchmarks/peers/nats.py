"""NATS with JetStream, which keeps streams in files."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from measure.peers import PeerMissing

from peers.lines import connect
from peers.processes import PeerProcess, found, free_port, said, serving

SYNC_VERSION_MIN = (2, 10)
"""Older servers sync every two minutes, which cannot be configured."""

_INBOX = "_INBOX.bench"
_HELLO = b'CONNECT {"verbose":false,"pedantic":false,"protocol":1}\r\n'


def running_nats(folder: Path) -> AbstractContextManager[PeerProcess]:
    """Run NATS with its defaults: acknowledged data is synced every two minutes."""
    return _running(folder, "")


def running_nats_synced(folder: Path) -> AbstractContextManager[PeerProcess]:
    """Run NATS so that acknowledged data is on disk."""
    return _running(folder, "always")


@contextmanager
def _running(folder: Path, sync: str) -> Iterator[PeerProcess]:
    program = found("nats-server", "nats-server")
    version = said(program, "--version").rpartition("v")[2]
    if sync and tuple(map(int, version.split(".")[:2])) < SYNC_VERSION_MIN:
        wanted = ".".join(map(str, SYNC_VERSION_MIN))
        raise PeerMissing(f"nats-server {version} has no sync_interval, which came with {wanted}")
    folder.mkdir()
    port = free_port()
    settings = folder / "server.conf"
    line = f"sync_interval: {sync}" if sync else ""
    settings.write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{\n  store_dir: "{folder}"\n  {line}\n}}\n'
    )
    with serving(
        [program, "--config", str(settings)],
        folder,
        port,
        version=f"nats-server {version}, {line or 'its default sync_interval'}",
        is_ready=partial(_is_ready, port),
    ) as server:
        yield server


def open_connection(port: int, inbox: str) -> socket.socket:
    """Connect and subscribe to the inbox of the acknowledgements."""
    connection = connect(port)
    connection.sendall(_HELLO + b"SUB %b 1\r\nPING\r\n" % inbox.encode())
    received = b""
    while b"PONG\r\n" not in received:
        piece = connection.recv(65_536)
        if not piece:
            raise ConnectionError("NATS closed the connection")
        received += piece
    return connection


def ask(port: int, subject: str, body: Any) -> Any:
    """Ask JetStream for something, and return its answer."""
    content = json.dumps(body).encode()
    with open_connection(port, _INBOX) as connection:
        connection.sendall(publication(subject, content, _INBOX))
        with connection.makefile("rb") as answers:
            for line in answers:
                if line.startswith(b"MSG "):
                    answer = json.loads(answers.read(int(line.split()[-1])))
                    break
            else:
                raise ConnectionError("NATS closed the connection")
    if "error" in answer:
        raise RuntimeError(f"JetStream answers {subject} with {answer['error']}")
    return answer


def publication(subject: str, content: bytes, inbox: str) -> bytes:
    """Return a message as it goes over the wire, to be acknowledged to an inbox."""
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), inbox.encode(), len(content), content)


def _is_ready(port: int) -> bool:
    try:
        ask(port, "$JS.API.INFO", {})
    except (OSError, ValueError):
        return False
    return True
