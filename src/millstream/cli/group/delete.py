"""`millstream group delete`."""

from __future__ import annotations

import click

from millstream.cli.support.completions import group_argument
from millstream.cli.support.confirmation import confirm_or_exit, yes_option
from millstream.cli.support.node_api import connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import printable, to_json


@click.command()
@group_argument
@yes_option
@server_option
@json_option
def delete(*, name: str, is_sure: bool, server: str, as_json: bool) -> None:
    """Delete a group and its committed offsets.

    Stop its consumers first: a group with members cannot be deleted.

    \b
    Exit status:
        0  deleted
        1  the group has members or does not exist, it was not confirmed, or no node answers
        2  wrong usage

    \b
    Example:
        millstream group delete billing --yes
    """
    confirm_or_exit(f"Delete the group {name} and its committed offsets?", is_sure=is_sure)
    with connected(server) as node:
        node.ask("DELETE", path_of("groups", name))
    click.echo(to_json({"deleted": name}) if as_json else printable(f"deleted {name}"))
