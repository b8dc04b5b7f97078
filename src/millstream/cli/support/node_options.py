"""Options that configure a node, shared by `serve` and `config`."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import click

from millstream.cli.support.options import VARIABLES
from millstream.config.keys import CONFIG_VARIABLE, KEYS, ConfigKey, ConfigKeyType
from millstream.config.loader import Configuration, ConfigurationError, load_configuration
from millstream.config.sources import FILE_NAME
from millstream.config.values import display_value
from millstream.observe.logging.printable import printable

F = TypeVar("F", bound=Callable[..., Any])

_HELP = {
    "node.data": "Data directory. The node stores all its files there.",
    "kafka.listen": "Address of the Kafka server. Port 0 picks a free port.",
    "http.listen": "Address of the HTTP server, which also serves health and metrics. Port 0"
    " picks a free port.",
    "native.listen": "Address of the native server, such as 127.0.0.1:1992. The default is none."
    " Port 0 picks a free port.",
    "kafka.advertise": "Address that is returned to Kafka clients, if it differs from --kafka.",
    "topics.durability": "Default durability class of topics.",
    "topics.partitions": "Default number of partitions of a new topic.",
    "topics.auto_create": "Create a topic when a client asks for one that does not exist.",
    "node.id": "Id of the node, which it keeps for life and no other node of its cluster has."
    " The default in a cluster is the number at the end of the host name.",
    "cluster.etcd": "URLs of etcd, separated by commas: http://10.0.0.1:2379. The node becomes one"
    " of the cluster that has its metadata there; without it, the node is alone.",
    "cluster.name": "Id of the cluster, the same on all of its nodes.",
    "cluster.peer": "Address on which the node listens for other nodes of its cluster. Port 0 picks"
    " a free port.",
    "cluster.peer_advertised": "Address that other nodes connect to, if it differs from --peer.",
    "cluster.rack": "Rack, zone or site of the node. Replicas are spread over them.",
    "node.processes": "Run several node processes that form a local cluster, each with a data"
    " directory below --data. The ports of the first are those of --kafka, --http and --native;"
    " each other process has the next ones.",
    "node.cpus": "Processors that the node may run on: 0-3,6. With --processes, each process gets"
    " its part of them. The default is all that the system allows.",
    "node.insecure": "Allow connections from other machines although there is no authentication.",
    "logging.level": "Log level on standard error.",
    "logging.format": "Format of log lines: JSON objects, text for people, or `auto`: `pretty`"
    " on a terminal, otherwise `json`.",
}
"""Help text of each option, in order."""

_METAVARS = {
    ConfigKeyType.PATH: "DIR",
    ConfigKeyType.SERVER_URLS: "URLS",
    ConfigKeyType.CLUSTER_NAME: "NAME",
    ConfigKeyType.LABEL: "NAME",
    ConfigKeyType.CPUS: "LIST",
}

_NAMES = {path: KEYS[path].flag.removeprefix("--").replace("-", "_") for path in _HELP}


def node_options(command: F) -> F:
    """Add the options that configure a node; pass them to `configuration_of`."""
    for path in reversed(_HELP):
        command = _option(KEYS[path])(command)
    command = click.option(
        "--set",
        "pairs",
        metavar="KEY=VALUE",
        multiple=True,
        help="Set any setting by its name in the file: kafka.connections_max=5000. Can be"
        " repeated.",
    )(command)
    return click.option(
        "--config",
        metavar="FILE",
        help=f"File to read settings from.  [env var: {CONFIG_VARIABLE}; default: ./{FILE_NAME} if"
        " there is one]",
    )(command)


def _option(key: ConfigKey) -> Callable[[F], F]:
    name, default = key.flag, "" if key.default is None else display_value(key, key.default)
    settings: dict[str, Any] = {"metavar": _METAVARS.get(key.kind, "HOST:PORT")}
    if key.kind is ConfigKeyType.SWITCH:
        settings = {"is_flag": True, "default": None}
        default = name.removeprefix("--") if key.default else ""
        name += f"/--no-{default}" if default else ""
    elif key.kind is ConfigKeyType.CHOICE:
        settings = {"type": click.Choice([choice.value for choice in key.choices])}
    elif key.kind is ConfigKeyType.COUNT:
        settings = {"type": int}
    notes = f"env var: {key.short_variable or key.variable}" + (
        f"; default: {default}" if default else ""
    )
    return click.option(name, _NAMES[key.path], help=f"{_HELP[key.path]}  [{notes}]", **settings)


def configuration_of(options: dict[str, Any]) -> Configuration:
    """Return the configuration from file, environment and options; a problem ends the command."""
    context = click.get_current_context()
    try:
        return load_configuration(
            environment=os.environ,
            config=options["config"],
            flags={p: options[name] for p, name in _NAMES.items() if options[name] is not None},
            pairs=options["pairs"],
            others=VARIABLES,
            host_name=socket.gethostname(),
        )
    except ConfigurationError as error:
        for problem in error.problems:
            click.echo(f"Error: {printable(problem)}", err=True)
        context.exit(1)
