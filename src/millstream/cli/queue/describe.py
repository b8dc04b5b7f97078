"""`millstream queue describe`."""

from __future__ import annotations

import click

from millstream.cli.queue.options import COUNTS, settings_line
from millstream.cli.support.completions import queue_argument
from millstream.cli.support.node_api import connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, to_json

_COUNTS = ("enqueued", *COUNTS, "delivered", "removed")


@click.command()
@queue_argument
@server_option
@json_option
def describe(*, name: str, server: str, as_json: bool) -> None:
    """Show what a queue is set to, and how many jobs are in which state.

    ENQUEUED counts all that ever came; it is what READY, LEASED, DELAYED, ACKED and DEAD come to.
    DELIVERED counts how often jobs were handed out, REMOVED those that went with their records.

    \b
    Exit status:
        0  here it is
        1  there is no such queue, or no node answers
        2  wrong usage

    \b
    Example:
        millstream queue describe mail
    """  # noqa: D301 - click's mark for lines to leave as they are.
    with connected(server) as node:
        found = node.ask("GET", path_of("queues", name), field="lease_ms")
    if as_json:
        click.echo(to_json(found, indent=2))
        return
    click.echo(settings_line(found))
    print_table([one.upper() for one in _COUNTS], [[found[one] for one in _COUNTS]])
