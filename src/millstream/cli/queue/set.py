"""`millstream queue set`."""

from __future__ import annotations

from typing import Any

import click

from millstream.cli.queue.options import given_settings, queue_options, settings_line
from millstream.cli.support.completions import queue_argument
from millstream.cli.support.node_api import connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import to_json


@click.command("set")
@queue_argument
@queue_options
@server_option
@json_option
def set_queue(*, name: str, server: str, as_json: bool, **options: Any) -> None:
    """Change settings of a queue. Other settings keep their values.

    \b
    Exit status:
        0  changed
        1  the queue does not exist, the node refused, or no node answers
        2  wrong usage

    \b
    Example:
        millstream queue set mail --deliveries-max 10
    """
    body = given_settings(options)
    if not body:
        raise click.UsageError("Nothing to change: give at least one option")
    path = path_of("queues", name)
    with connected(server) as node:
        node.ask("GET", path, field="lease_ms")  # PUT would create a missing queue.
        answer = node.ask("PUT", path, body, field="lease_ms")
    click.echo(to_json(answer, indent=2) if as_json else settings_line(answer))
