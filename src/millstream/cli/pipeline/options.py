"""Options shared by the commands that run Spark for a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from millstream.cli.support.kafka_security import kafka_security_options

F = TypeVar("F", bound=Callable[..., Any])

file_argument = click.argument(
    "file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, readable=True)
)

master_option = click.option(
    "--master",
    metavar="URL",
    help="Spark master, instead of the one in the file: local[2], spark://HOST:PORT, yarn.",
)

conf_option = click.option(
    "--conf",
    metavar="KEY=VALUE",
    multiple=True,
    help="Spark setting, in addition to those in the file. Can be repeated.",
)

bootstrap_option = click.option(
    "--bootstrap",
    metavar="HOST:PORT",
    help="Kafka address of the node, instead of the one in the file (default 127.0.0.1:9092).",
)

log_level_option = click.option(
    "--log-level",
    type=click.Choice(["off", "error", "warn", "info", "debug"]),
    default="off",
    show_default=True,
    help="Log level of Spark on standard error. The cause of a failure is always printed.",
)


def spark_options(command: F) -> F:
    """Add the options that choose a Spark master and its settings."""
    options = (
        log_level_option,
        kafka_security_options,
        bootstrap_option,
        conf_option,
        master_option,
    )
    for option in options:
        command = option(command)
    return command


def parse_conf(pairs: Sequence[str]) -> dict[str, str]:
    """Parse KEY=VALUE settings; an invalid one ends the command."""
    settings = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"must be KEY=VALUE, got {pair!r}", param_hint="--conf")
        settings[key.strip()] = value
    return settings
