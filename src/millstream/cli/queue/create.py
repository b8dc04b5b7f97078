"""`millstream queue create`."""

from __future__ import annotations

from typing import Any

import click

from millstream.cli.queue.options import given_settings, queue_options, settings_line
from millstream.cli.support.completions import new_queue_argument
from millstream.cli.support.node_api import connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import printable, to_json
from millstream.errors import InvalidRequest, UnknownQueue


@click.command()
@new_queue_argument
@queue_options
@click.option(
    "--if-absent",
    is_flag=True,
    help="Succeed without changes if the queue exists.",
)
@server_option
@json_option
def create(*, name: str, if_absent: bool, server: str, as_json: bool, **options: Any) -> None:
    """Create a queue, and its topic if it does not exist.

    If the topic exists, all its records become jobs. Settings that are not given have the node's
    defaults. An existing queue is not changed; use `queue set`.

    \b
    Exit status:
        0  created
        1  the queue exists, the node refused, or no node answers
        2  wrong usage

    \b
    Example:
        millstream queue create mail --lease-ms 1min --deliveries-max 3
    """
    path = path_of("queues", name)
    with connected(server) as node:
        try:
            answer, is_new = node.ask("GET", path, field="lease_ms"), False
        except UnknownQueue:
            answer, is_new = node.ask("PUT", path, given_settings(options), field="lease_ms"), True
        if not is_new and not if_absent:
            raise InvalidRequest(f"queue {name!r} already exists; `queue set` changes it")
    if as_json:
        click.echo(to_json({"created": is_new, **answer}, indent=2))
    elif is_new:
        click.echo(f"created {settings_line(answer)}")
    else:
        click.echo(printable(f"{name} already exists, unchanged"), err=True)
