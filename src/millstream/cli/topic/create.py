"""`millstream topic create`."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

import click

from millstream.cli.support.completions import new_topic_argument
from millstream.cli.support.node_api import NodeApi, connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import printable, to_json
from millstream.cli.support.settings import (
    BYTES,
    MILLISECONDS,
    settings_line,
    settings_of,
    topic_body,
)
from millstream.errors import TopicExists, UnknownTopic


@click.command()
@new_topic_argument
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many partitions it has: as many as can be read side by side. A topic only grows.",
)
@click.option(
    "--durability",
    type=click.Choice(["ephemeral", "memory", "disk", "fsync"]),
    help="What an acknowledgement promises.",
)
@click.option(
    "--retention-ms",
    type=MILLISECONDS,
    metavar="TIME",
    help="How long records are kept at least: 7d, 12h, or a number of milliseconds; -1 for ever.",
)
@click.option(
    "--retention-bytes",
    type=BYTES,
    metavar="SIZE",
    help="How large a partition may grow: 10GiB, or a number of bytes; -1 without limit.",
)
@click.option(
    "--retention-records",
    type=click.IntRange(min=-1),
    metavar="N",
    help="How many records a partition may hold; -1 without limit.",
)
@click.option(
    "--cleanup",
    type=click.Choice(["delete", "compact", "compact,delete"]),
    help="How old records go: by age and size, all but the latest of each key, or both.",
)
@click.option(
    "--config",
    "pairs",
    metavar="KEY=VALUE",
    multiple=True,
    help="Any config of a topic, by Kafka's name: max.message.bytes=2MiB. Can be repeated.",
)
@click.option(
    "--if-absent",
    is_flag=True,
    help="Where there is a topic of that name, leave it as it is and be content.",
)
@server_option
@json_option
def create(
    *,
    name: str,
    partitions: int | None,
    durability: str | None,
    retention_ms: int | None,
    retention_bytes: int | None,
    retention_records: int | None,
    cleanup: str | None,
    pairs: Sequence[str],
    if_absent: bool,
    server: str,
    as_json: bool,
) -> None:
    """Make a topic.

    What is not said is as the node has it by default. A topic that is there already is not
    changed; `topic set` does that.

    \b
    Exit status:
        0  the topic is there
        1  there was one already, the node does not allow it, or no node answers
        2  wrong usage

    \b
    Example:
        millstream topic create orders --partitions 3 --retention-ms 7d
    """  # noqa: D301 - click's mark for lines to leave as they are.
    body = topic_body(
        pairs,
        hint="--config",
        partitions=partitions,
        durability=durability,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        retention_records=retention_records,
        cleanup=cleanup,
    )
    with connected(server) as node:
        is_there = _is_there(node, name)
        if is_there and not if_absent:
            raise TopicExists(f"there is a topic {name!r} already; `topic set` changes it")
        found = None if is_there else node.tell("PUT", path_of("topics", name), body, field="name")
        if found is not None and found.status != HTTPStatus.CREATED:
            # Someone else was quicker, and the request changed theirs.
            raise TopicExists(f"topic {name!r} was made by someone else just now, and set so")
        shown = found.body if found else node.ask("GET", path_of("topics", name), field="name")
    if as_json:
        click.echo(to_json({"created": found is not None, **settings_of(shown)}, indent=2))
    elif found is None:
        click.echo(printable(f"{name} is there already, as it was"), err=True)
    else:
        click.echo(f"created {settings_line(shown)}")


def _is_there(node: NodeApi, name: str) -> bool:
    try:
        node.ask("GET", path_of("topics", name), field="name")
    except UnknownTopic:
        return False
    return True
