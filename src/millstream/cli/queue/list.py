"""`millstream queue list`."""

from __future__ import annotations

import click

from millstream.cli.queue.options import COUNTS
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, to_json


@click.command("list")
@server_option
@json_option
def list_queues(*, server: str, as_json: bool) -> None:
    """List all queues with the number of jobs by state.

    READY jobs wait for a worker, LEASED jobs belong to one, DELAYED jobs become ready later, ACKED
    jobs are done, DEAD jobs were moved to the dead-letter topic.

    \b
    Exit status:
        0  listed
        1  no node answers
        2  wrong usage

    \b
    Example:
        millstream queue list
    """
    with connected(server) as node:
        queues = node.ask("GET", "/v1/queues", field="queues")["queues"]
    if as_json:
        click.echo(to_json({"queues": queues}, indent=2))
    elif queues:
        head = ["QUEUE", *(name.upper() for name in COUNTS)]
        print_table(head, [[queue["name"], *(queue[name] for name in COUNTS)] for queue in queues])
    else:
        click.echo("There are no queues; `millstream queue create NAME` creates one.", err=True)
