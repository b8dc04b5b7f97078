"""The options by which a node is configured, which `serve` and `config` share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from millstream.cli.support.options import VARIABLES
from millstream.config.keys import CONFIG_VARIABLE, KEYS, ConfigKey, ConfigKeyType
from millstream.config.loader import Configuration, ConfigurationError, load_configuration
from millstream.config.sources import FILE_NAME
from millstream.config.values import display_value
from millstream.observe.logging.formatter import printable

F = TypeVar("F", bound=Callable[..., Any])

_HELP = {
    "node.data": "Data directory: what the node keeps lies there, and nothing else.",
    "kafka.listen": "Where Kafka clients connect. Port 0 picks a free one.",
    "http.listen": "Where HTTP clients connect, health and metrics among it. Port 0 picks a free"
    " one.",
    "kafka.advertise": "What Kafka clients are told to connect to, if not the address that --kafka"
    " names.",
    "topics.durability": "What an acknowledgement promises in topics that do not say it"
    " themselves.",
    "topics.partitions": "Partitions of a topic that is created without saying how many.",
    "topics.auto_create": "Whether a topic that a client asks for is made when there is none.",
    "node.insecure": "Let others than this machine connect, although nobody has to log in.",
    "logging.level": "How much is said on standard error while the node runs.",
    "logging.format": "How it is said: one JSON object a line, lines for people, or what suits"
    " standard error: `pretty` on a terminal, else `json`.",
}
"""What each option is for, in the order in which they are listed."""

_NAMES = {path: KEYS[path].flag.removeprefix("--").replace("-", "_") for path in _HELP}


def node_options(command: F) -> F:
    """Give a command the options by which a node is configured; `configuration_of` takes them."""
    for path in reversed(_HELP):
        command = _option(KEYS[path])(command)
    command = click.option(
        "--set",
        "pairs",
        metavar="KEY=VALUE",
        multiple=True,
        help="Set anything, by the name that it has in the file: kafka.connections_max=5000. Can"
        " be given more than once.",
    )(command)
    return click.option(
        "--config",
        metavar="FILE",
        help=f"File to read settings from.  [env var: {CONFIG_VARIABLE}; default: ./{FILE_NAME} if"
        " there is one]",
    )(command)


def _option(key: ConfigKey) -> Callable[[F], F]:
    name, default = key.flag, "" if key.default is None else display_value(key, key.default)
    settings: dict[str, Any] = {"metavar": "DIR" if key.kind is ConfigKeyType.PATH else "HOST:PORT"}
    if key.kind is ConfigKeyType.SWITCH:
        settings = {"is_flag": True, "default": None}
        default = name.removeprefix("--") if key.default else ""
        name += f"/--no-{default}" if default else ""
    elif key.kind is ConfigKeyType.CHOICE:
        settings = {"type": click.Choice([choice.value for choice in key.choices])}
    elif key.kind is ConfigKeyType.COUNT:
        settings = {"type": int}
    notes = f"env var: {key.short_variable}" + (f"; default: {default}" if default else "")
    return click.option(name, _NAMES[key.path], help=f"{_HELP[key.path]}  [{notes}]", **settings)


def configuration_of(options: dict[str, Any]) -> Configuration:
    """Return what the file, the variables and these options say; what is wrong ends the command."""
    context = click.get_current_context()
    try:
        return load_configuration(
            environment=os.environ,
            config=options["config"],
            flags={p: options[name] for p, name in _NAMES.items() if options[name] is not None},
            pairs=options["pairs"],
            others=VARIABLES,
        )
    except ConfigurationError as error:
        for problem in error.problems:
            click.echo(f"Error: {printable(problem)}", err=True)
        context.exit(1)
