"""Processes that print `ready`, and the time until then."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from subjects.kafka.processes import ServerProcess

PYTHON = (sys.executable, "-c", "print('ready', flush=True); input()")
"""Python alone: nothing is imported but what Python itself needs."""

IMPORTS = (
    *(sys.executable, "-c"),
    "import millstream.cli.main, millstream.node, millstream.cli.support.start_report;"
    " print('ready', flush=True); input()",
)
"""All that a node imports, and nothing of what it does."""


class Start(NamedTuple):
    """How a process started."""

    seconds: float
    """From before it was made to its `ready`, as a user would wait for it."""
    cpu_seconds: float
    resident_bytes: int
    process: ServerProcess
    """Its port is not known."""

    def figures(self, name: str) -> dict[str, float]:
        """Return seconds and CPU under a name."""
        return {name: self.seconds, f"{name} CPU": self.cpu_seconds}


@contextmanager
def started(command: Sequence[str], *, end: int = signal.SIGTERM) -> Iterator[Start]:
    """Start a process, yield the time until it was ready, and end it with a signal."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line == "ready\n":
                break
        else:
            raise RuntimeError(f"{command} ended before it was ready")
        seconds = time.perf_counter() - began
        server = ServerProcess(process.pid, 0)
        yield Start(seconds, server.cpu_seconds(), server.resident_bytes(), server)
    finally:
        process.send_signal(end)
        process.communicate()


def time_start(command: Sequence[str], name: str, *, end: int = signal.SIGTERM) -> dict[str, float]:
    """Start a process and end it; return seconds and CPU under a name."""
    with started(command, end=end) as start:
        return start.figures(name)
