"""A cluster on this machine: etcd and several nodes as processes, with data that is kept.

DIR/etcd          data of etcd
DIR/node-1 ...    data directories of the nodes
DIR/logs          what they write to standard error
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from millstream.cli.processes.addresses import check_port, free_ports, read_addresses
from millstream.cli.processes.child_process import ChildProcess, without_variables
from millstream.cli.processes.etcd_process import start_etcd, wait_until_healthy

STOP_SECONDS_MAX = 40.0
"""How long a node may take to stop: its own limit is 25 s by default."""

PORT_STEP = 100
"""Distance of the ports of two nodes."""

ETCD_PORT, ETCD_PEER_PORT = 2379, 2380
KAFKA_PORT, PEER_PORT, HTTP_PORT = 9092, 9093, 8080

_NODE_VARIABLES = ("MILLSTREAM_ADVERTISE", "MILLSTREAM_ADVERTISE_PEER", "MILLSTREAM_CONFIG")
"""Variables that are meant for one node and would be wrong for several."""


class DevNode(NamedTuple):
    """A node that runs, with the addresses that it printed."""

    node_id: int
    process: ChildProcess
    addresses: dict[str, str]
    """Address of each server, by its name."""


class DevCluster:
    """Processes of a cluster on this machine."""

    def __init__(
        self, directory: Path, *, has_free_ports: bool = False, settings: Sequence[str] = ()
    ) -> None:
        """`settings` are arguments of `--set`, for all nodes."""
        self.directory = directory
        self.nodes: list[DevNode] = []
        self.etcd_url = ""
        self._has_free_ports = has_free_ports
        self._settings = settings
        self._etcd: ChildProcess | None = None
        self._starting: list[ChildProcess] = []

    def start_etcd(self) -> None:
        """Start etcd, and wait until it answers."""
        logs = self.directory / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        ports = free_ports(2) if self._has_free_ports else (ETCD_PORT, ETCD_PEER_PORT)
        for port in ports:
            check_port("etcd", port)
        self._etcd = start_etcd(
            self.directory / "etcd", logs / "etcd.log", port=ports[0], peer_port=ports[1]
        )
        wait_until_healthy(self._etcd, ports[0])
        self.etcd_url = f"http://127.0.0.1:{ports[0]}"

    def start_nodes(self, count: int) -> None:
        """Start nodes, and wait until all of them are ready."""
        if not self._has_free_ports:
            for index in range(count):
                for name, port in self._ports(index).items():
                    check_port(f"{name} server of node {index + 1}", port)
        self._starting = [self._start_node(index) for index in range(count)]
        for index, process in enumerate(self._starting):
            self.nodes.append(DevNode(index + 1, process, read_addresses(process)))

    def _ports(self, index: int) -> dict[str, int]:
        ports = {"kafka": KAFKA_PORT, "http": HTTP_PORT, "peer": PEER_PORT}
        step = PORT_STEP * index
        return {name: 0 if self._has_free_ports else port + step for name, port in ports.items()}

    def _start_node(self, index: int) -> ChildProcess:
        name = f"node-{index + 1}"
        command = [
            sys.executable,
            "-m",
            "millstream.cli.main",
            "serve",
            f"--data={self.directory / name}",
            f"--node-id={index + 1}",
            f"--etcd={self.etcd_url}",
            "--cluster-name=dev",
            *(f"--{name}=127.0.0.1:{port}" for name, port in self._ports(index).items()),
            *(f"--set={setting}" for setting in self._settings),
        ]
        return ChildProcess(
            name,
            command,
            self.directory / "logs" / f"{name}.log",
            environment=without_variables(*_NODE_VARIABLES),
            is_read=True,
        )

    def ended(self) -> list[DevNode]:
        """Return the nodes that have ended since the last call."""
        ended = [node for node in self.nodes if not node.process.is_running]
        self.nodes = [node for node in self.nodes if node.process.is_running]
        return ended

    @property
    def is_etcd_running(self) -> bool:
        return self._etcd is not None and self._etcd.is_running

    def stop(self) -> list[str]:
        """Stop all nodes, then etcd; return the names of those that had to be killed."""
        deadline = time.monotonic() + STOP_SECONDS_MAX
        for process in self._starting:
            process.terminate()
        killed = [process.name for process in self._starting if not process.wait(deadline)]
        self._starting, self.nodes = [], []
        if self._etcd is not None:
            self._etcd.terminate()
            if not self._etcd.wait(time.monotonic() + STOP_SECONDS_MAX):
                killed.append("etcd")
            self._etcd = None
        return killed
