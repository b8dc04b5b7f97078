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
    """List all groups with their lag.

    LAG is the number of records in all partitions after the committed offsets.

    \b
    Exit status:
        0  listed
        1  no node answers
        2  wrong usage

    \b
    Example:
        millstream group list
    """
    with connected(server) as node:
        groups = node.pages("/v1/groups", "groups")
    if as_json:
        click.echo(to_json({"groups": groups}, indent=2))
    elif groups:
        print_table(
            list(_COLUMNS.values()), [[group[name] for name in _COLUMNS] for group in groups]
        )
    else:
        click.echo(
            "There are no groups. A group is created when a consumer joins or commits.", err=True
        )
