"""Redis with an append-only file, which is what keeps a stream across a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from peers.lines import connect
from peers.processes import PeerProcess, found, free_port, said, serving


@contextmanager
def running_redis(folder: Path) -> Iterator[PeerProcess]:
    """Run Redis with its data in a new folder. When it syncs is set for each turn."""
    program = found("redis-server", "redis-server")
    folder.mkdir()
    port = free_port()
    command = [
        *(program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder)),
        *("--appendonly", "yes", "--save", "", "--daemonize", "no", "--loglevel", "warning"),
        # No rewriting of the file in the middle of a turn: better for Redis than its default.
        *("--auto-aof-rewrite-percentage", "0"),
    ]
    version = said(program, "--version").split()[2].removeprefix("v=")
    with serving(
        command,
        folder,
        port,
        version=f"Redis {version}, append-only file",
        is_ready=partial(_is_ready, port),
    ) as server:
        yield server


def command(*words: bytes | str | int) -> bytes:
    """Return a command as it goes over the wire."""
    texts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(texts) + b"".join(b"$%d\r\n%b\r\n" % (len(t), t) for t in texts)


def ask(port: int, *words: bytes | str | int) -> bytes:
    """Send a command that is answered with one line, and return that line."""
    with connect(port) as connection:
        connection.sendall(command(*words))
        answer = connection.recv(65_536)
    if answer.startswith(b"-"):
        raise RuntimeError(f"Redis answers {words} with {answer.decode().strip()}")
    return answer


def ids(data: bytes) -> int:
    """Count the ids in a response: each is a string with its length in front."""
    if data.startswith(b"-") or b"\r\n-" in data:
        raise RuntimeError(f"Redis answers {data[:200]!r}")
    return data.count(b"$")


def _is_ready(port: int) -> bool:
    try:
        return ask(port, "PING") == b"+PONG\r\n"
    except (OSError, RuntimeError):
        return False
