"""`millstream access whoami`."""

from __future__ import annotations

import click

from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import printable, to_json


@click.command()
@server_option
@json_option
def whoami(server: str, *, as_json: bool) -> None:
    """Show as whom the node sees you.

    \b
    Exit status:
        0  shown
        1  the token is not valid, or no node answers
        2  wrong usage

    \b
    Example:
        millstream access whoami --token-file alice.token
    """
    with connected(server) as node:
        answer = node.ask("GET", "/v1/access/whoami", field="principal")
    if as_json:
        click.echo(to_json(answer))
        return
    token = "" if answer["token"] is None else f", token {answer['token']}"
    note = "" if answer["enabled"] else "; the node has no logins, everyone may do everything"
    click.echo(printable(f"{answer['principal']} from {answer['host']}{token}{note}"))
