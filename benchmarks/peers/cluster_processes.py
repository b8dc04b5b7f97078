"""A peer of several processes on this machine, each of which can be killed and started again."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from measure.usage import cpu_seconds

from peers.processes import wait_until_ready

STOP_SECONDS_MAX = 20


class PeerNode:
    """One node of a cluster. It keeps its port and its data when it is started again."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, port: int) -> None:
        self.name = name
        """What the cluster calls it."""
        self.port = port
        self._command = command
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    def start(self) -> None:
        """Start it; it may take a while until it serves anyone."""
        with (self._folder / "said.txt").open("ab") as output:
            self._process = subprocess.Popen(
                self._command, cwd=self._folder, stdout=output, stderr=subprocess.STDOUT
            )

    def wait(self, is_ready: Callable[[], bool]) -> None:
        """Wait until it is ready, as long as it runs."""
        assert self._process is not None, "it was started"
        wait_until_ready(self._process, is_ready, self._folder / "said.txt")

    def kill(self) -> None:
        """Kill it, as a crash would."""
        assert self._process is not None, "it was started"
        self._process.kill()
        self._process.wait()

    def ask_to_stop(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def stop(self) -> None:
        """End it if it runs, one way or the other."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()


class PeerCluster:
    """Nodes that serve together."""

    def __init__(self, nodes: Sequence[PeerNode], version: str) -> None:
        self.nodes = nodes
        self.version = version

    @property
    def port(self) -> int:
        """Where the first one listens."""
        return self.nodes[0].port

    @property
    def bootstrap(self) -> str:
        """Addresses for clients."""
        return ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def node(self, name: str) -> PeerNode:
        """Return the node that the cluster calls so."""
        return next(node for node in self.nodes if node.name == name)

    def cpu_seconds(self) -> float:
        """What all nodes have used of the processors, since each was started last."""
        return sum(cpu_seconds(node.pid) for node in self.nodes)


@contextmanager
def serving_together(
    nodes: Sequence[PeerNode], version: str, is_ready: Callable[[PeerNode], bool]
) -> Iterator[PeerCluster]:
    """Run nodes until the block ends."""
    try:
        for node in nodes:
            node.start()
        for node in nodes:
            node.wait(lambda node=node: is_ready(node))  # type: ignore[misc]
        yield PeerCluster(nodes, version)
    finally:
        for node in nodes:
            node.ask_to_stop()
        for node in nodes:
            node.stop()
