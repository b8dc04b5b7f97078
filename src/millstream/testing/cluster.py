"""A real cluster on free ports of this machine, for tests: etcd, and each node a process.

    with running_cluster(tmp_path) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        ...
        cluster.nodes[cluster.leader("orders", 0)].kill()
        ...
        cluster.start()
        cluster.wait_until_in_sync()
        cluster.check_replicas("orders")

Data and logs are below the directory. etcd must be installed, see `millstream.testing.etcd`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path

from millstream.clients.kafka.client import KafkaClient
from millstream.errors import MillstreamError
from millstream.protocols.kafka.messages.metadata import (
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millstream.testing.etcd import RunningEtcd, free_ports, running_etcd
from millstream.testing.replica_files import compare_replicas

STOP_SECONDS_MAX = 60.0
HEAL_SECONDS_MAX = 120.0
"""How long a cluster may take to elect leaders and to get all replicas in sync. Tests share slow
machines: this is no figure of the product.
"""

LOG_SIZE_SHOWN = 3000
PORTS_PER_NODE = 3

_POLL_SECONDS = 0.05
_CALL_SECONDS_MAX = 30.0


class NodeFailed(Exception):
    """A node did not start, ended by itself, or did not stop cleanly."""


class ReplicasDiffer(Exception):
    """Replicas of a partition do not have the same records."""


class RunningNode:
    """A node of a cluster. It keeps its ports and its data when it is started again."""

    def __init__(
        self,
        node_id: int,
        directory: Path,
        ports: Sequence[int],
        settings: Mapping[str, str],
    ) -> None:
        """`settings` are by key, such as `cluster.rack`, as after `millstream serve --set`."""
        self.node_id = node_id
        self.data = directory / f"node-{node_id}"
        """Its data directory."""
        self.log = directory / f"node-{node_id}.log"
        """What it writes to standard error."""
        self.bootstrap, self._http, self._peer = (f"127.0.0.1:{port}" for port in ports)
        self.settings = dict(settings)
        """Settings for the next start."""
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """URL for HTTP clients."""
        return f"http://{self._http}"

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None, "it was started"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the node, and return when it serves clients."""
        assert not self.is_running, f"node {self.node_id} runs"
        command = [
            *(sys.executable, "-m", "millstream.cli.main", "serve"),
            f"--data={self.data}",
            f"--node-id={self.node_id}",
            f"--kafka={self.bootstrap}",
            f"--http={self._http}",
            f"--peer={self._peer}",
            *(f"--set={key}={value}" for key, value in self.settings.items()),
        ]
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MILLSTREAM_")}
        with self.log.open("a") as errors:
            self._process = subprocess.Popen(  # noqa: S603 - our own command.
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=self.log.parent,  # Without a configuration file.
                env=environment,
            )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line == "ready\n":
                return
        self.close()
        raise NodeFailed(f"node {self.node_id} did not start:\n{self.last_words()}")

    def last_words(self) -> str:
        """Return the end of its log."""
        return self.log.read_text()[-LOG_SIZE_SHOWN:]

    def kill(self) -> None:
        """Kill it, as a crash would (`kill -9`). Raises `NodeFailed` if it had ended before."""
        process = self._take()
        process.kill()
        if process.wait() != -signal.SIGKILL:
            raise NodeFailed(f"node {self.node_id} had ended by itself:\n{self.last_words()}")

    def stop(self) -> None:
        """Stop it cleanly. Raises `NodeFailed` if it does not end, or with an error."""
        process = self._take()
        process.terminate()
        try:
            status = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise NodeFailed(f"node {self.node_id} does not stop:\n{self.last_words()}") from None
        if status != 0:
            message = f"node {self.node_id} ended with status {status}"
            raise NodeFailed(f"{message}:\n{self.last_words()}")

    def pause(self) -> None:
        """Stop it from running (SIGSTOP), while its connections stay open, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

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


class RunningCluster:
    """An etcd and several nodes."""

    def __init__(self, etcd: RunningEtcd, nodes: Sequence[RunningNode]) -> None:
        self.etcd = etcd
        self.nodes = {node.node_id: node for node in nodes}
        """The nodes by their ids, from 1 on."""

    @property
    def bootstrap(self) -> str:
        """Addresses for Kafka clients: `bootstrap.servers`."""
        return ",".join(node.bootstrap for node in self.nodes.values())

    @property
    def urls(self) -> list[str]:
        """URLs for HTTP clients."""
        return [node.url for node in self.nodes.values()]

    def start(self) -> None:
        """Start all nodes that do not run, at once; return when they serve clients."""
        self._all(RunningNode.start, [node for node in self.nodes.values() if not node.is_running])

    def kill(self) -> None:
        """Kill all nodes that run, at once."""
        self._all(RunningNode.kill, [node for node in self.nodes.values() if node.is_running])

    def stop(self) -> None:
        """Stop all nodes that run, at once and cleanly."""
        self._all(RunningNode.stop, [node for node in self.nodes.values() if node.is_running])

    @staticmethod
    def _all(action: Callable[[RunningNode], None], nodes: Sequence[RunningNode]) -> None:
        with ThreadPoolExecutor(max_workers=max(1, len(nodes))) as threads:
            list(threads.map(action, nodes))

    # Where partitions are.

    def partitions(self, topic: str) -> dict[int, MetadataResponsePartition]:
        """Return leader, replicas and in-sync replicas of each partition."""
        return {
            partition.partition_index: partition
            for described in self._describe([topic])
            for partition in described.partitions
        }

    def leader(self, topic: str, partition: int) -> int:
        """Return the node that leads a partition; wait until there is one that runs."""
        deadline = time.monotonic() + HEAL_SECONDS_MAX
        while True:
            leader = self.partitions(topic)[partition].leader_id
            if leader in self.nodes and self.nodes[leader].is_running:
                return leader
            if time.monotonic() > deadline:
                raise NodeFailed(f"partition {partition} of {topic} has no leader")
            time.sleep(_POLL_SECONDS)

    def wait_until_in_sync(self, seconds: float = HEAL_SECONDS_MAX) -> None:
        """Wait until all replicas of all partitions are in sync, also of internal ones."""
        deadline = time.monotonic() + seconds
        while behind := self._out_of_sync():
            if time.monotonic() > deadline:
                raise NodeFailed(f"not in sync after {seconds:g} s: {', '.join(behind[:10])}")
            time.sleep(_POLL_SECONDS)

    def _out_of_sync(self) -> list[str]:
        try:
            topics = self._describe(None)
        except MillstreamError as error:
            return [str(error)]
        return [
            f"{topic.name}-{partition.partition_index} (leader {partition.leader_id},"
            f" replicas {list(partition.replica_nodes)}, in sync {list(partition.isr_nodes)})"
            for topic in topics
            for partition in topic.partitions
            if partition.leader_id < 0 or set(partition.isr_nodes) != set(partition.replica_nodes)
        ]

    def _describe(self, names: Sequence[str] | None) -> Sequence[MetadataResponseTopic]:
        with KafkaClient(self.bootstrap, timeout_s=_CALL_SECONDS_MAX) as client:
            return client.cluster.call_with_retries(
                lambda deadline: client.cluster.describe(names, deadline).topics
            )

    def check_replicas(self, *topics: str, seconds: float = 30.0) -> None:
        """Wait until all replicas of these topics have the same bytes, or raise `ReplicasDiffer`.

        Compares the segments of every partition file by file. Nothing may be
        written meanwhile, and the topics must not be compacted: each node compacts on its own.
        """
        deadline = time.monotonic() + seconds
        while True:
            differences = [
                difference
                for topic in topics
                for index, partition in self.partitions(topic).items()
                for difference in compare_replicas(
                    [self.nodes[node_id].data for node_id in partition.replica_nodes], topic, index
                )
            ]
            if not differences:
                return
            if time.monotonic() > deadline:
                raise ReplicasDiffer("; ".join(differences[:10]))
            time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def running_cluster(
    directory: str | PathLike[str],
    *,
    nodes: int = 3,
    settings: Mapping[str, str] | None = None,
    racks: Sequence[str] = (),
) -> Iterator[RunningCluster]:
    """Run an etcd and nodes, with their data below `directory`, for the duration of the block.

    `settings` are those of all nodes, by key; `racks` are the racks of the nodes, in order.
    """
    with running_etcd(directory) as etcd:
        ports = free_ports(PORTS_PER_NODE * nodes)
        cluster = RunningCluster(
            etcd,
            [
                RunningNode(
                    index + 1,
                    Path(directory),
                    ports[PORTS_PER_NODE * index :][:PORTS_PER_NODE],
                    {
                        "cluster.etcd": ",".join(etcd.endpoints),
                        **({"cluster.rack": racks[index]} if racks else {}),
                        **(settings or {}),
                    },
                )
                for index in range(nodes)
            ],
        )
        try:
            cluster.start()
            yield cluster
        finally:
            for node in cluster.nodes.values():
                node.close()
