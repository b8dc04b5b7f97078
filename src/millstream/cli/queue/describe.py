"""`millstream queue describe`."""

from __future__ import annotations

import click

from millstream.cli.queue.options import COUNTS, settings_line
from millstream.cli.support.completions import queue_argument
from millstream.cli.support.node_api import connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, to_json

_COUNTS = ("enqueued", *COUNTS, "delivered", "removed", "damaged")


@click.command()
@queue_argument
@server_option
@json_option
def describe(*, name: str, server: str, as_json: bool) -> None:
    """Show the settings of a queue and the number of jobs by state.

    ENQUEUED counts all jobs ever added; it equals READY + LEASED + DELAYED + ACKED + DEAD.
    DELIVERED counts deliveries, REMOVED the jobs whose records were deleted.

    \b
    Exit status:
        0  shown
        1  the queue does not exist, or no node answers
        2  wrong usage

    \b
    Example:
        millstream queue describe mail
    """
    with connected(server) as node:
        queue = node.ask("GET", path_of("queues", name), field="lease_ms")
    if as_json:
        click.echo(to_json(queue, indent=2))
        return
    click.echo(settings_line(queue))
    print_table([count.upper() for count in _COUNTS], [[queue[count] for count in _COUNTS]])
