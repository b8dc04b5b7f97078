"""`millstream queue purge`."""

from __future__ import annotations

import click

from millstream.cli.support.completions import queue_argument
from millstream.cli.support.confirmation import confirm_or_exit, yes_option
from millstream.cli.support.node_api import PATIENCE_S_LONG, connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import printable, to_json


@click.command()
@queue_argument
@yes_option
@server_option
@json_option
def purge(*, name: str, is_sure: bool, server: str, as_json: bool) -> None:
    """Permanently delete the dead letters of a queue. Its jobs remain.

    \b
    Exit status:
        0  deleted
        1  the queue does not exist, another record is in the way, it was not confirmed, or no node
           answers
        2  wrong usage

    \b
    Example:
        millstream queue purge mail --yes
    """
    confirm_or_exit(f"Permanently delete the dead letters of queue {name}?", is_sure=is_sure)
    with connected(server, patience_s=PATIENCE_S_LONG) as node:
        answer = node.ask("DELETE", f"{path_of('queues', name)}/dead_letters", field="purged")
    words = f"{answer['purged']} dead letters of {name} deleted"
    click.echo(to_json(answer) if as_json else printable(words))
