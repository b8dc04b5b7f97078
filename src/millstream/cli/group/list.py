"""`millstream group list`."""

from __future__ import annotations

import click

from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, to_json

_COLUMNS = {
    "group": "GROUP",
    "kind": "KIND",
    "state": "STATE",
    "members": "MEMBERS",
    "partitions": "PARTITIONS",
    "lag": "LAG",
}


@click.command("list")
@server_option
@json_option
def list_groups(*, server: str, as_json: bool) -> None:
    """List all groups, with how far they are behind.

    LAG is how many records of all its partitions a group has not read yet, by what it committed.

    \b
    Exit status:
        0  listed, if there was anything to list
        1  no node answers
        2  wrong usage

    \b
    Example:
        millstream group list
    """  # noqa: D301 - click's mark for lines to leave as they are.
    with connected(server) as node:
        found = node.pages("/v1/groups", "groups")
    if as_json:
        click.echo(to_json({"groups": found}, indent=2))
    elif found:
        print_table(list(_COLUMNS.values()), [[one[name] for name in _COLUMNS] for one in found])
    else:
        click.echo("There is no group yet: consumers make them by committing.", err=True)
