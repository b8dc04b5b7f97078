"""What the commands share that run Spark for a pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

file_argument = click.argument(
    "file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, readable=True)
)

master_option = click.option(
    "--master",
    metavar="URL",
    help="Which Spark runs it, instead of what the file says: local[2], spark://HOST:PORT, yarn.",
)

conf_option = click.option(
    "--conf",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting of Spark, on top of those in the file. Can be given several times.",
)

bootstrap_option = click.option(
    "--bootstrap",
    metavar="HOST:PORT",
    help="Where the node is, instead of what the file says (default 127.0.0.1:9092).",
)

log_level_option = click.option(
    "--log-level",
    type=click.Choice(["off", "error", "warn", "info", "debug"]),
    default="off",
    show_default=True,
    help="How much Spark itself says on standard error; the cause of a failure is always told.",
)


def spark_options(command: F) -> F:
    """Add the options that say which Spark runs a pipeline, and how."""
    for option in (log_level_option, bootstrap_option, conf_option, master_option):
        command = option(command)
    return command


def parse_conf(pairs: Sequence[str]) -> dict[str, str]:
    """Read settings of the form KEY=VALUE; a wrong one ends the command."""
    found = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"found {pair!r}, needed is KEY=VALUE", param_hint="--conf")
        found[key.strip()] = value
    return found
