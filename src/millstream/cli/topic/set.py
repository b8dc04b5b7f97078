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
    help="Have this be as the node has it by default. Can be repeated.",
)
@server_option
@json_option
def set_topic(
    *, name: str, pairs: Sequence[str], unset: Sequence[str], server: str, as_json: bool
) -> None:
    """Change what a topic is set to, and leave the rest of it as it is.

    Keys are `partitions`, `durability`, `retention_ms`, `retention_bytes`, `retention_records`,
    `discard`, `cleanup`, or any config of a topic by Kafka's name. Times and sizes may have a unit.
    All of it happens, or nothing.

    \b
    Exit status:
        0  it is set so
        1  there is no such topic, the node does not allow it, or no node answers
        2  wrong usage

    \b
    Example:
        millstream topic set orders partitions=6 retention.ms=30d --unset max.message.bytes
    """  # noqa: D301 - click's mark for lines to leave as they are.
    body = topic_body(pairs, unset, hint="KEY=VALUE")
    if not body:
        raise click.UsageError("What is to change? Say it as KEY=VALUE, or with --unset")
    with connected(server) as node:
        path = path_of("topics", name)
        node.ask("GET", path, field="name")  # A topic that is not there is not to be made.
        found = node.ask("PUT", path, body, field="name")
    click.echo(to_json(settings_of(found), indent=2) if as_json else settings_line(found))
