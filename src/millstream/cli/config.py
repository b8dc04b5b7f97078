"""`millstream config`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import click

from millstream.cli.support.command_group import CommandGroup
from millstream.cli.support.node_options import configuration_of, node_options
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, to_json
from millstream.config.keys import KEYS, TABLES, ConfigKey
from millstream.config.loader import Configuration
from millstream.config.origins import FromDefault, FromFile, FromHostName, FromVariable, Origin
from millstream.config.values import display_value, json_value, toml_value
from millstream.observe.logging.printable import printable


@click.group(cls=CommandGroup)
def config() -> None:
    """Show and check the settings of a node.

    Settings come from a file, environment variables and options; later sources win.

    \b
    Example:
        millstream config show --all
    """


@config.command()
@click.option("--all", "is_all", is_flag=True, help="Show defaults too.")
@click.option("--toml", "as_toml", is_flag=True, help="Print a file that --config accepts.")
@json_option
@node_options
def show(*, is_all: bool, as_toml: bool, as_json: bool, **options: Any) -> None:
    """Show the settings, and where each value comes from.

    Takes all options of `serve` and shows the settings that such a node would have.

    \b
    Exit status:
        0  shown
        1  the settings are invalid
        2  wrong usage

    \b
    Example:
        millstream config show --config /etc/millstream.toml
    """
    if as_toml and as_json:
        raise click.UsageError("--toml and --json cannot be combined")
    configuration = configuration_of(options)
    _warn(configuration)
    keys = [key for key in KEYS.values() if is_all or key.path in configuration.origins]
    if as_json:
        click.echo(to_json([_as_json(configuration, key) for key in keys], indent=2))
    elif as_toml:
        click.echo("\n".join(_toml(configuration, keys)))
    elif keys:
        rows = [
            (key.path, display_value(key, configuration.value(key)), str(configuration.origin(key)))
            for key in keys
        ]
        print_table(("KEY", "VALUE", "FROM"), rows)
    else:
        click.echo("No settings given; --all shows the defaults.", err=True)


@config.command()
@click.argument("file", required=False)
@node_options
def check(*, file: str | None, **options: Any) -> None:
    """Check the settings of a node.

    FILE is the file to check, instead of --config. Environment variables and options are included,
    as for `serve`. Each problem is reported with its value, its source and the allowed values. No
    node is started and nothing is changed.

    \b
    Exit status:
        0  no problems
        1  the settings are invalid
        2  wrong usage

    \b
    Example:
        millstream config check /etc/millstream.toml
    """
    if file and options["config"]:
        raise click.UsageError("FILE and --config cannot be combined")
    configuration = configuration_of({**options, "config": file or options["config"]})
    _warn(configuration)
    source = f" ({configuration.file} read)" if configuration.file else " (no file read)"
    click.echo(printable(f"{len(configuration.origins)} settings, no problems{source}"))


def _warn(configuration: Configuration) -> None:
    for warning in configuration.warnings:
        click.echo(f"Warning: {printable(warning)}", err=True)


def _as_json(configuration: Configuration, key: ConfigKey) -> dict[str, Any]:
    return {
        "key": key.path,
        "value": json_value(configuration.value(key)),
        "default": json_value(key.default),
        "from": _origin(configuration.origin(key)),
    }


def _origin(origin: Origin) -> dict[str, Any]:
    if isinstance(origin, FromDefault):
        return {"kind": "default"}
    if isinstance(origin, FromFile):
        return {"kind": "file", "file": origin.place, "line": origin.line}
    if isinstance(origin, FromHostName):
        return {"kind": "host name", "name": origin.host_name}
    return {
        "kind": "variable" if isinstance(origin, FromVariable) else "flag",
        "name": origin.place,
    }


def _toml(configuration: Configuration, keys: list[ConfigKey]) -> Iterator[str]:
    """Yield the lines of a file that sets all `keys`, with their sources as comments."""
    for table, below in groupby(keys, key=lambda key: key.table):
        yield f"[{table}]  # {TABLES[table]}"
        for key in below:
            value = toml_value(key, configuration.value(key))
            yield f"{key.name} = {value}  # {printable(str(configuration.origin(key)))}"
        yield ""
