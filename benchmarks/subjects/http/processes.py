"""Servers and clients in separate processes: a node, its limit, and their load."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from measure.peers import PeerServer

from subjects.kafka.processes import ServerProcess, node_command, running

_HERE = Path(__file__).parent


class Load(NamedTuple):
    """What became of some load: how long it took, and what the server used of the processors."""

    seconds: float
    cpu_seconds: float


@contextmanager
def node(data: Path) -> Iterator[ServerProcess]:
    """Run a node, reached by HTTP."""
    with running(node_command(data), "http http://127.0.0.1:") as server:
        yield server


@contextmanager
def empty(size: int) -> Iterator[ServerProcess]:
    """Run a server that answers everything with so many bytes, and does nothing else."""
    command = [sys.executable, str(_HERE / "empty.py"), str(size)]
    with running(command, "port ") as server:
        yield server


@contextmanager
def fan(file: Path, size: int) -> Iterator[ServerProcess]:
    """Run a server that syncs what it is sent, and tells all who watch."""
    command = [sys.executable, str(_HERE / "fan.py"), str(file), str(size)]
    with running(command, "port ") as server:
        yield server


def load(server: ServerProcess | PeerServer, clients: Sequence[Sequence[object]]) -> Load:
    """Run clients of `load.py` at the same time, each with its arguments, and wait for all."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(_HERE / "load.py"), *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for arguments in clients
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        used, began = server.cpu_seconds(), time.perf_counter()
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            assert process.stdout is not None
            float(process.stdout.readline())
        return Load(time.perf_counter() - began, server.cpu_seconds() - used)
    finally:
        for process in processes:
            process.kill()
            process.communicate()
