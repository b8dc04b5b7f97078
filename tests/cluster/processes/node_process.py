"""Nodes of a cluster as processes that can be killed and started again, and a real etcd."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from millstream.testing.etcd import free_ports, running_etcd

MILLSTREAM = str(Path(sys.executable).with_name("millstream"))
ROOT = Path(__file__).parents[3]

COMMAND_SECONDS_MAX = 300.0
"""Limit of a command; far longer than any takes on a busy machine."""


class NodeProcess:
    """A node of a cluster. It keeps its ports and its data when it is started again."""

    def __init__(
        self, directory: Path, node_id: int, etcd: Sequence[str], ports: Sequence[int]
    ) -> None:
        """Make a node; without `etcd`, which may be set later, it is alone."""
        self.node_id = node_id
        self.bootstrap, self.http, self._peer = (f"127.0.0.1:{port}" for port in ports)
        self.data = directory / str(node_id)
        self._log = directory / f"{node_id}.log"
        self.etcd = etcd
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start the node, and return when clients are served."""
        command = [MILLSTREAM, "serve", "--data", str(self.data)]
        options = ["--kafka", self.bootstrap, "--http", self.http]
        with self._log.open("a") as errors:
            self._process = subprocess.Popen(
                command + options,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env={**os.environ, **self.settings},
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == "ready\n":
                return
        raise AssertionError(f"node {self.node_id} did not start:\n{self.said()}")

    @property
    def settings(self) -> dict[str, str]:
        """Environment variables by which it is one of a cluster, if it is."""
        if not self.etcd:
            return {"MILLSTREAM_NODE_ID": str(self.node_id)}
        return {
            "MILLSTREAM_NODE_ID": str(self.node_id),
            "MILLSTREAM_CLUSTER_ETCD": ",".join(self.etcd),
            "MILLSTREAM_CLUSTER_PEER": self._peer,
        }

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command with the settings of the node, and return how it ended."""
        return subprocess.run(
            [MILLSTREAM, *arguments],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, **self.settings},
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )

    def said(self) -> str:
        """Return the end of its log."""
        return self._log.read_text()[-3000:]

    def kill(self) -> None:
        """Kill the process; it must not have ended by itself."""
        process = self._take()
        process.kill()
        assert process.wait() == -signal.SIGKILL, self.said()

    def stop(self) -> None:
        """Ask the process to end, which it has to do cleanly."""
        process = self._take()
        process.terminate()
        assert process.wait(60) == 0, self.said()

    def close(self) -> None:
        """End the process if there is one, whatever state a test left it in."""
        if self._process is not None:
            process = self._take()
            process.kill()
            process.wait()

    def _take(self) -> subprocess.Popen[str]:
        process, self._process = self._process, None
        assert process is not None, "it was started"
        assert process.stdout is not None
        process.stdout.close()
        return process


class ClusterProcesses:
    """An etcd and several nodes."""

    def __init__(self, nodes: Sequence[NodeProcess]) -> None:
        self.nodes = {node.node_id: node for node in nodes}

    @property
    def bootstrap(self) -> str:
        """Addresses for Kafka clients."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    def start(self) -> None:
        """Start all nodes at once, and return when all of them serve clients."""
        threads = [threading.Thread(target=node.start) for node in self.nodes.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def cluster_processes(directory: Path, count: int = 3) -> Iterator[ClusterProcesses]:
    """Run an etcd and nodes for the duration of the block."""
    with running_etcd(directory) as etcd:
        ports = free_ports(3 * count)
        cluster = ClusterProcesses(
            [
                NodeProcess(directory, number + 1, etcd.endpoints, ports[3 * number :][:3])
                for number in range(count)
            ]
        )
        try:
            cluster.start()
            yield cluster
        finally:
            for node in cluster.nodes.values():
                node.close()
