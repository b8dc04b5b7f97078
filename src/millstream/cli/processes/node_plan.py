"""Settings of each node process of `millstream serve --processes`.

The command reads the settings once and writes a file for each process, `DIR/node-1.toml`. So a
process that is started again later has the same settings as the others.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from millstream.cli.processes.addresses import free_ports
from millstream.cli.processes.child_process import without_variables
from millstream.config.cpus import deal_cpus
from millstream.config.keys import CONFIG_VARIABLE, KEYS, VARIABLES
from millstream.config.loader import Configuration
from millstream.config.origins import FromHostName
from millstream.config.schema import PORT_MAX, Endpoint, EventFormat
from millstream.config.values import toml_value
from millstream.errors import InvalidConfig

LOCAL_REPLICAS = 1
"""Replicas of topics if all processes are on one machine: others would be on the same disk."""

_LOOPBACK = Endpoint("127.0.0.1", 0)

_SERVERS = {
    "kafka.listen": "Kafka",
    "http.listen": "HTTP",
    "native.listen": "native",
    "cluster.peer": "peer",
}
"""Keys of the listeners, with the names of their servers."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """One node process."""

    node_id: int
    directory: str
    settings: Mapping[str, Any]
    """Values of settings that are not the default, by key."""

    @property
    def name(self) -> str:
        return f"node-{self.node_id}"

    @property
    def config_file(self) -> str:
        """Path of the file with the settings."""
        return f"{self.directory}.toml"

    def command(self) -> list[str]:
        """Return the command that runs the node."""
        return [sys.executable, "-m", "millstream.cli.main", "serve", "--config", self.config_file]

    def environment(self) -> dict[str, str]:
        """Return the environment of the process: without settings, which are in its file."""
        return without_variables(CONFIG_VARIABLE, *VARIABLES)

    def toml(self) -> str:
        """Return the content of the file with the settings."""
        keys = [key for key in KEYS.values() if key.path in self.settings]
        lines = [f"# Written by millstream serve --processes at its start, for {self.name}."]
        for table, below in itertools.groupby(keys, key=lambda key: key.table):
            lines.append(f"[{table}]")
            lines += [f"{key.name} = {toml_value(key, self.settings[key.path])}" for key in below]
        return "\n".join(lines) + "\n"


def plan_nodes(
    configuration: Configuration, *, etcd: str | None, format_: EventFormat, host_name: str
) -> list[NodePlan]:
    """Return the processes of a configuration that has `node.processes`.

    `etcd` is the URL of the local etcd; None if the configuration names another one.
    """
    config = configuration.node
    count = config.processes
    assert count is not None, "several processes are configured"
    if isinstance(configuration.origins.get("node.id"), FromHostName):
        raise InvalidConfig(
            "--node-id must be set with --processes and --etcd: the id of the first process, of"
            " which the others have the next ones; the number of the host name is not used"
        )
    own: dict[str, Any] = {"node.processes": None, "logging.format": format_}
    if etcd is not None:
        own["cluster.etcd"] = (etcd,)
        if "topics.replicas" not in configuration.origins:
            own["topics.replicas"] = LOCAL_REPLICAS
    elif config.cluster.rack is None:
        # Replicas on one machine are lost together, so they are spread over machines.
        own["cluster.rack"] = host_name
    shares = deal_cpus(config.cpus, count)
    plans = []
    for index, servers in enumerate(_listeners(configuration, count)):
        node_id = config.broker.node_id + index
        directory = os.path.join(os.path.abspath(config.data), f"node-{node_id}")
        values = {path: configuration.value(KEYS[path]) for path in configuration.origins}
        values |= own | servers
        values |= {"node.id": node_id, "node.data": directory, "node.cpus": shares[index]}
        plans.append(NodePlan(node_id, directory, values))
    return plans


def _listeners(configuration: Configuration, count: int) -> Iterator[dict[str, Endpoint]]:
    """Yield the addresses of each process: the ports after those of the process before.

    A port 0 is replaced by a free one, which the process keeps when it is started again.
    """
    config = configuration.node
    bases = {"kafka.listen": config.kafka, "http.listen": config.http}
    bases["cluster.peer"] = (
        config.cluster.peer if "cluster.peer" in configuration.origins else _LOOPBACK
    )
    for path, value in (
        ("native.listen", config.native),
        ("kafka.advertise", config.advertised),
        ("cluster.peer_advertised", config.cluster.peer_advertised),
    ):
        if value is not None:
            bases[path] = value
    for path, base in bases.items():
        if base.port and base.port + count - 1 > PORT_MAX:
            raise InvalidConfig(
                f"{path} must have a port of at most {PORT_MAX - count + 1} with {count} processes,"
                f" which use the ports after it, got {base.port}"
            )
    _check_apart({path: bases[path] for path in _SERVERS if path in bases}, count)
    # Peers look up each other's ports in etcd; clients may have theirs in a configuration.
    chosen = ("kafka.listen", "http.listen", "native.listen")
    picked = [path for path in chosen if path in bases and not bases[path].port]
    free = iter(free_ports(count * len(picked)))
    for index in range(count):
        yield {
            path: Endpoint(base.host, next(free) if path in picked else _nth(base.port, index))
            for path, base in bases.items()
        }


def _nth(port: int, index: int) -> int:
    return port + index if port else 0


def _check_apart(bases: Mapping[str, Endpoint], count: int) -> None:
    """Raise `InvalidConfig` if two servers would have the same port in different processes."""
    for (path, base), (other_path, other) in itertools.combinations(bases.items(), 2):
        if base.port and other.port and abs(base.port - other.port) < count:
            raise InvalidConfig(
                f"{path} is {base} and {other_path} is {other}, and with {count} processes each"
                f" server has {count} ports in a row: the {_SERVERS[path]} and the"
                f" {_SERVERS[other_path]} ports overlap"
            )
