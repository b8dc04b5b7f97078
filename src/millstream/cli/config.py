"""`millstream config`: what a node would be set to, and what is wrong with that."""

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
from millstream.config.origins import FromDefault, FromFile, FromVariable, Origin
from millstream.config.values import display_value, json_value, toml_value
from millstream.observe.logging.formatter import printable


@click.group(cls=CommandGroup)
def config() -> None:
    """See and check the settings of a node.

    They come from a file, from variables and from options, of which the later win.

    \b
    Example:
        millstream config show --all
    """  # noqa: D301 - click's mark for lines to leave as they are.


@config.command()
@click.option("--all", "is_all", is_flag=True, help="Show what has its default too.")
@click.option("--toml", "as_toml", is_flag=True, help="Print it as a file that --config takes.")
@json_option
@node_options
def show(*, is_all: bool, as_toml: bool, as_json: bool, **options: Any) -> None:
    """Show what is set, and where it came from.

    Takes all options of `serve`, and shows what a node that is started with them would have.

    \b
    Exit status:
        0  shown
        1  something is wrong with the settings
        2  wrong usage

    \b
    Example:
        millstream config show --config /etc/millstream.toml
    """  # noqa: D301
    if as_toml and as_json:
        raise click.UsageError("--toml and --json cannot both be.")
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
        click.echo("Nothing is set: all is as it is by default, which --all shows.", err=True)


@config.command()
@click.argument("file", required=False)
@node_options
def check(*, file: str | None, **options: Any) -> None:
    """Say what is wrong with the settings of a node.

    FILE is the file to check, in the place of --config. Variables and options count too, as they
    would for `serve`. Everything that is wrong is named with its value, where it came from, and
    what is allowed. Nothing is started, and nothing touched.

    \b
    Exit status:
        0  nothing is wrong
        1  something is
        2  wrong usage

    \b
    Example:
        millstream config check /etc/millstream.toml
    """  # noqa: D301
    if file and options["config"]:
        raise click.UsageError("FILE and --config cannot both be.")
    configuration = configuration_of({**options, "config": file or options["config"]})
    _warn(configuration)
    where = f" ({configuration.file} read)" if configuration.file else " (no file read)"
    click.echo(printable(f"{len(configuration.origins)} set, nothing is wrong{where}"))


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
    return {
        "kind": "variable" if isinstance(origin, FromVariable) else "flag",
        "name": origin.place,
    }


def _toml(configuration: Configuration, keys: list[ConfigKey]) -> Iterator[str]:
    """Yield the lines of a file that sets all `keys`, with where each value came from."""
    for table, below in groupby(keys, key=lambda key: key.table):
        yield f"[{table}]  # {TABLES[table]}"
        for key in below:
            value = toml_value(key, configuration.value(key))
            yield f"{key.name} = {value}  # {printable(str(configuration.origin(key)))}"
        yield ""
