"""Nodes with both servers, clients that hold connections, and the descriptors they need."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from subjects.kafka.processes import ServerProcess, node_command

HOLD = Path(__file__).with_name("hold.py")

DESCRIPTORS = 25_250
"""10,000 connections over HTTP and some more are four in ten of that, which is what they may be."""


SPARE_DESCRIPTORS = 100

SETTLE_SECONDS_MAX = 30.0
SETTLE_SECONDS = 0.5
IDLE_CPU_SECONDS = 0.01
"""A node that has nothing to do uses less than this in `SETTLE_SECONDS`."""


class NodeProcess(NamedTuple):
    """A node, and where it is reached."""

    pid: int
    kafka: int
    http: int

    @property
    def resident_bytes(self) -> int:
        """What it holds of the machine's memory."""
        return ServerProcess(self.pid, 0).resident_bytes()

    @property
    def peak_bytes(self) -> int:
        """The most that it ever held."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        raise LookupError(f"process {self.pid} has no VmHWM")

    def settle(self) -> None:
        """Return when it has nothing left to do, or after some seconds."""
        server = ServerProcess(self.pid, 0)
        until = time.monotonic() + SETTLE_SECONDS_MAX
        used = -1.0
        while (now := server.cpu_seconds()) - used > IDLE_CPU_SECONDS and time.monotonic() < until:
            used = now
            time.sleep(SETTLE_SECONDS)


@contextmanager
def running_node(data: Path, *options: str) -> Iterator[NodeProcess]:
    """Run a node with both servers."""
    process = subprocess.Popen(node_command(data, *options), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ports = {}
        for line in process.stdout:
            if line == "ready\n":
                break
            listener, _, address = line.strip().partition(" ")
            ports[listener] = int(address.rpartition(":")[2])
        yield NodeProcess(process.pid, ports["kafka"], ports["http"])
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate()


@contextmanager
def held(kind: str, port: int, *arguments: object) -> Iterator[int]:
    """Run a client of `hold.py` until the block ends; gives the number that it said."""
    process = subprocess.Popen(
        [sys.executable, str(HOLD), kind, str(port), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("held "):
            raise RuntimeError(f"{HOLD.name} {kind} ended before it held its connections")
        yield int(line.removeprefix("held "))
    finally:
        process.kill()
        process.communicate()


def allowed_connections(wanted: int, share: float) -> int:
    """Return how many connections a node can hold here, at most `wanted`.

    `share` of its descriptors may be connections of that kind, and some are for its files.
    """
    return min(wanted, int(share * _descriptors()) - SPARE_DESCRIPTORS)


def _descriptors() -> int:
    """How many descriptors a child may have: more than we have where we may raise that."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard >= DESCRIPTORS:
        return hard
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, DESCRIPTORS))
    except (ValueError, OSError):
        return hard
    return DESCRIPTORS
