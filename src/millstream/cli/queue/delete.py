"""`millstream queue delete`."""

from __future__ import annotations

import click

from millstream.cli.support.completions import queue_argument
from millstream.cli.support.confirmation import confirm_or_exit, yes_option
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import printable, to_json


@click.command()
@queue_argument
@yes_option
@server_option
@json_option
def delete(*, name: str, is_sure: bool, server: str, as_json: bool) -> None:
    """Delete a queue with its leases and counts; the topic and its records remain.

    Use `topic delete` to delete the records too.

    \b
    Exit status:
        0  deleted
        1  the queue does not exist, it was not confirmed, or no node answers
        2  wrong usage

    \b
    Example:
        millstream queue delete mail --yes
    """
    with connected(server) as node:
        queue = node.client.queue(name)
        if not is_sure:
            left = queue.counts()
            what = f"{left.ready + left.leased + left.delayed:,} unfinished jobs"
            confirm_or_exit(
                f"Delete the queue {name} ({what})? Its topic remains.", is_sure=is_sure
            )
        queue.delete()
    click.echo(to_json({"deleted": name}) if as_json else printable(f"deleted {name}"))
