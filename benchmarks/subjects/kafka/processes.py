"""Servers in separate processes, and their cost: a node and its limits."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from measure.profiling import profiled
from measure.usage import cpu_seconds, resident_bytes

LIMITS = Path(__file__).with_name("limits.py")


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server that listens on a port of this machine."""

    pid: int
    port: int

    def cpu_seconds(self) -> float:
        """What it has used of the processors up to now, with all processes below it."""
        return cpu_seconds(self.pid)

    def resident_bytes(self) -> int:
        """What it holds of the machine's memory, with all processes below it."""
        return resident_bytes(self.pid)


@contextmanager
def node(data: Path, *options: str) -> Iterator[ServerProcess]:
    """Run a node, as a user would."""
    with running(node_command(data, *options), "kafka 127.0.0.1:") as server:
        yield server


def node_command(data: Path, *options: str) -> list[str]:
    """Return what a user would type."""
    return [
        *(str(Path(sys.executable).with_name("millstream")), "serve", "--data", str(data)),
        *("--kafka", "127.0.0.1:0", "--http", "127.0.0.1:0", "--log-level", "error", *options),
    ]


@contextmanager
def limit(kind: str, *arguments: str) -> Iterator[ServerProcess]:
    """Run one of the servers of `limits.py`."""
    with running([sys.executable, str(LIMITS), kind, *arguments], "port ") as server:
        yield server


@contextmanager
def running(
    command: list[str], announcement: str, *, end: int = signal.SIGTERM
) -> Iterator[ServerProcess]:
    """Run a server until the block ends; it says on a line that begins so where it listens."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(announcement):
                with profiled(process.pid, Path(command[0]).name):
                    yield ServerProcess(process.pid, int(line.removeprefix(announcement)))
                break
        else:
            raise RuntimeError(f"{command} ended without saying where it listens")
    finally:
        process.send_signal(end)
        process.wait()
