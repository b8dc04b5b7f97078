"""`millstream transactions abort`."""

from __future__ import annotations

import click

from millstream.cli.support.confirmation import confirm_or_exit, yes_option
from millstream.cli.support.node_api import connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import printable, to_json


@click.command()
@click.argument("name", metavar="ID")
@yes_option
@server_option
@json_option
def abort(*, name: str, is_sure: bool, server: str, as_json: bool) -> None:
    """Abort the open transaction of a transactional id.

    Its records are never committed, and readers continue behind them. Its producer is fenced: what
    it still sends is refused. Transactions end by themselves after their timeout.

    \b
    Exit status:
        0  aborted, or no transaction was open
        1  the transactional id does not exist, it was not confirmed, or no node answers
        2  wrong usage

    \b
    Example:
        millstream transactions abort billing-1 --yes
    """
    confirm_or_exit(
        f"Abort the open transaction of {name}? Its records are never committed.", is_sure=is_sure
    )
    with connected(server) as node:
        aborted = node.ask("POST", f"{path_of('transactions', name)}/abort", field="state")
    click.echo(to_json(aborted) if as_json else printable(f"{name}: {aborted['state']}"))
