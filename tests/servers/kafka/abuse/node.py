"""A node that runs as a process, observed from outside."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from millstream.protocols.kafka.messages.metadata import MetadataRequest
from tests.servers.kafka.client import RawClient

ROOT = Path(__file__).parents[4]
TIMEOUT_S = 30
MIB = 1024 * 1024


class Node:
    """A running process. It must never log an internal error."""

    def __init__(
        self, process: subprocess.Popen[str], log: Path, bootstrap: str, http: str
    ) -> None:
        self._process = process
        self._log = log
        self.bootstrap = bootstrap
        self.http = http

    def memory_bytes(self) -> int:
        """Return the resident memory of the process."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024

    def anonymous_bytes(self) -> int:
        """Return the resident memory that no file backs: the system cannot take it back."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("RssAnon:"))
        return int(line.split()[1]) * 1024

    def said(self) -> str:
        """Return everything that the node has logged."""
        return self._log.read_text()

    def client(self, **settings: Any) -> RawClient:
        return RawClient(self.bootstrap, **settings)

    def check(self) -> None:
        """Fail unless the node runs, serves, and logged no internal error."""
        assert self._process.poll() is None, self.said()[-3000:]
        serve_once(self)
        said = self.said()
        assert "Traceback" not in said, said[said.index("Traceback") - 300 :][:5000]


def serve_once(node: Node) -> None:
    """Fail unless a new client gets a response."""
    with node.client(timeout=TIMEOUT_S) as client:
        answer = client.call(MetadataRequest(topics=()))
        assert len(answer.brokers) == 1


@contextlib.contextmanager
def running_node(directory: Path, **settings: Any) -> Iterator[Node]:
    """Run a node during the block.

    At the end it must be healthy, stop cleanly, and leave valid files.
    """
    log = directory / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.servers.kafka.abuse.node_process",
                str(directory / "data"),
                json.dumps(settings),
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    assert process.stdout is not None
    try:
        lines = dict(iter(lambda: tuple(process.stdout.readline().split()), ("ready",)))
        node = Node(process, log, lines["kafka"], lines["http"])
        yield node
        node.check()
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0, node.said()[-3000:]
        verify(directory / "data")
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def verify(data: Path) -> None:
    """Fail unless every file in a data directory is valid."""
    command = [Path(sys.executable).with_name("millstream"), "segments", "verify", "--data", data]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def wait_until(is_done: Callable[[], bool], *, seconds: float = TIMEOUT_S) -> None:
    """Poll until a condition outside this process holds."""
    deadline = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < deadline, f"what was waited for did not happen in {seconds} s"
        time.sleep(0.01)
