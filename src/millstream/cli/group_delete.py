"""`millstream group delete`."""

from __future__ import annotations

import click

from millstream.cli.confirming import make_sure, sure_option
from millstream.cli.connect import connected, path_of, server_option
from millstream.cli.names import group_argument
from millstream.cli.options import json_option
from millstream.cli.output import printable, to_json


@click.command()
@group_argument
@sure_option
@server_option
@json_option
def delete(*, name: str, is_sure: bool, server: str, as_json: bool) -> None:
    """Forget a group, and how far it has read.

    Stop its consumers first: a group with members stays.

    \b
    Exit status:
        0  it is forgotten
        1  it has members, there is no such group, it was not confirmed, or no node answers
        2  wrong usage

    \b
    Example:
        millstream group delete billing --yes
    """  # noqa: D301 - click's mark for lines to leave as they are.
    make_sure(f"Forget the group {name}, and how far it has read?", is_sure=is_sure)
    with connected(server) as node:
        node.ask("DELETE", path_of("groups", name))
    click.echo(to_json({"deleted": name}) if as_json else printable(f"deleted {name}"))
