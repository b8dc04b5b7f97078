"""`millstream topic set`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from millstream.cli.support.completions import topic_argument
from millstream.cli.support.node_api import connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import to_json
from millstream.cli.support.settings import settings_line, settings_of, topic_body


@click.command("set")
@topic_argument
@click.argument("pairs", metavar="[KEY=VALUE]...", nargs=-1)
@click.option(
    "--unset",
    metavar="KEY",
    multiple=True,
    help="Reset this setting to its default. Can be repeated.",
)
@server_option
@json_option
def set_topic(
    *, name: str, pairs: Sequence[str], unset: Sequence[str], server: str, as_json: bool
) -> None:
    """Change settings of a topic. Other settings keep their values.

    Keys are `partitions`, `durability`, `retention_ms`, `retention_bytes`, `retention_records`,
    `discard`, `cleanup`, or any topic config by its Kafka name. Times and sizes may have a unit.
    Either all changes are made or none.

    \b
    Exit status:
        0  changed
        1  the topic does not exist, the node refused, or no node answers
        2  wrong usage

    \b
    Example:
        millstream topic set orders partitions=6 retention.ms=30d --unset max.message.bytes
    """
    body = topic_body(pairs, unset, hint="KEY=VALUE")
    if not body:
        raise click.UsageError("Nothing to change: give KEY=VALUE or --unset")
    with connected(server) as node:
        path = path_of("topics", name)
        node.ask("GET", path, field="name")  # PUT would create a missing topic.
        answer = node.ask("PUT", path, body, field="name")
    click.echo(to_json(settings_of(answer), indent=2) if as_json else settings_line(answer))
