"""A peer in a process of its own: found, started, waited for, and stopped."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from measure.peers import PeerMissing
from measure.usage import cpu_seconds

READY_SECONDS_MAX = 60
"""A JVM on a busy machine takes ten."""
STOP_SECONDS_MAX = 20
_LOOK_SECONDS = 0.05
_LAST_WORDS = 500
"""Length of a server's output that is shown if it does not start."""


@dataclass(frozen=True, slots=True)
class PeerProcess:
    """A peer that runs on this machine."""

    pid: int
    port: int
    version: str

    def cpu_seconds(self) -> float:
        """What it has used of the processors up to now, with all processes below it."""
        return cpu_seconds(self.pid)


def found(program: str, package: str) -> str:
    """Return where a program of Debian is."""
    path = shutil.which(program)
    if path is None:
        raise PeerMissing(
            f"{program} is not on the PATH; as root, run: apt-get install --yes {package}"
        )
    return path


def said(*command: str) -> str:
    """Return what a command that ends soon prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def free_port() -> int:
    """Return a free port. If another process takes it first, the start fails."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(
    command: Sequence[str],
    folder: Path,
    port: int,
    *,
    version: str,
    is_ready: Callable[[], bool],
    variables: Mapping[str, str] | None = None,
) -> Iterator[PeerProcess]:
    """Run a server in its folder until the block ends. What it says goes into a file there."""
    log = folder / "said.txt"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=variables, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        wait_until_ready(process, is_ready, log)
        yield PeerProcess(process.pid, port, version)
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_until_ready(
    process: subprocess.Popen[bytes], is_ready: Callable[[], bool], log: Path
) -> None:
    """Wait until a server is ready; raise `PeerMissing` with its last words if it ends."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    while not is_ready():
        if process.poll() is not None:
            raise PeerMissing(f"it ended at once, and said: {_last_words(log)}")
        if time.monotonic() > deadline:
            raise PeerMissing(f"not ready after {READY_SECONDS_MAX} s, said: {_last_words(log)}")
        time.sleep(_LOOK_SECONDS)


def _last_words(log: Path) -> str:
    return " ".join(log.read_text(errors="replace")[-_LAST_WORDS:].split())
