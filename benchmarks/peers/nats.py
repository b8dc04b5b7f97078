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

from peers.cluster_processes import PeerCluster, PeerNode, serving_together
from peers.lines import SILENCE_SECONDS_MAX, connect
from peers.processes import PeerProcess, found, free_port, said, serving

SYNC_VERSION_MIN = (2, 10)
"""Older servers sync every two minutes, which cannot be configured."""

CLUSTER_NODES = 3
_INBOX = "_INBOX.bench"
ANSWER = b'{"stream":'
"""How the acknowledgement of a publication begins."""
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


@contextmanager
def running_nats_cluster(folder: Path) -> Iterator[PeerCluster]:
    """Run three servers with JetStream, with its defaults: synced every two minutes."""
    program = found("nats-server", "nats-server")
    version = said(program, "--version").rpartition("v")[2]
    routes = [free_port() for _ in range(CLUSTER_NODES)]
    known = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in routes)
    nodes = []
    for number, route in enumerate(routes, 1):
        place = folder / str(number)
        place.mkdir(parents=True)
        settings, port = place / "server.conf", free_port()
        settings.write_text(
            f"""server_name: "{number}"
listen: "127.0.0.1:{port}"
jetstream {{
  store_dir: "{place}"
}}
cluster {{
  name: bench
  listen: "127.0.0.1:{route}"
  routes: [{known}]
}}
"""
        )
        nodes.append(PeerNode(str(number), [program, "--config", str(settings)], place, port))
    text = f"{CLUSTER_NODES} of nats-server {version}, streams with 3 replicas, else its defaults"
    with serving_together(nodes, text, is_complete) as server:
        yield server


def is_complete(node: PeerNode) -> bool:
    """Whether a server answers for JetStream; in a cluster, that needs a leader."""
    return _is_ready(node.port)


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


def ask(port: int, subject: str, body: Any, *, seconds: float = SILENCE_SECONDS_MAX) -> Any:
    """Ask JetStream for something, and return its answer, which comes within so many seconds."""
    content = json.dumps(body).encode()
    with open_connection(port, _INBOX) as connection:
        connection.settimeout(seconds)
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
        ask(port, "$JS.API.INFO", {}, seconds=1)  # Without a leader there is no answer.
    except (OSError, ValueError, RuntimeError):
        return False
    return True
