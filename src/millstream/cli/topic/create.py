"""`millstream topic create`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from millstream.cli.support.completions import new_topic_argument
from millstream.cli.support.node_api import connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import printable, to_json
from millstream.cli.support.settings import (
    BYTES,
    MILLISECONDS,
    settings_line,
    settings_of,
    topic_body,
)
from millstream.errors import TopicExists


@click.command()
@new_topic_argument
@click.option(
    "--partitions",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of partitions, the limit of parallel readers in a group. It can only be"
    " increased.",
)
@click.option(
    "--replicas",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of replicas of each partition, at most one per node. Later, `cluster reassign`"
    " changes it.  [default: 3, or the number of nodes if that is less]",
)
@click.option(
    "--durability",
    type=click.Choice(["ephemeral", "memory", "disk", "fsync"]),
    help="Durability class: when a record is acknowledged.",
)
@click.option(
    "--retention-ms",
    type=MILLISECONDS,
    metavar="TIME",
    help="Minimum time to keep records: 7d, 12h, or a number of milliseconds; -1 for no limit.",
)
@click.option(
    "--retention-bytes",
    type=BYTES,
    metavar="SIZE",
    help="Maximum size of a partition: 10GiB, or a number of bytes; -1 for no limit.",
)
@click.option(
    "--retention-records",
    type=click.IntRange(min=-1),
    metavar="N",
    help="Maximum number of records in a partition; -1 for no limit.",
)
@click.option(
    "--cleanup",
    type=click.Choice(["delete", "compact", "compact,delete"]),
    help="How old records are removed: by age and size, by compaction (latest record of each"
    " key), or both.",
)
@click.option(
    "--config",
    "pairs",
    metavar="KEY=VALUE",
    multiple=True,
    help="Topic config by its Kafka name: max.message.bytes=2MiB. Can be repeated.",
)
@click.option(
    "--if-absent",
    is_flag=True,
    help="Succeed without changes if the topic exists.",
)
@server_option
@json_option
def create(
    *,
    name: str,
    partitions: int | None,
    replicas: int | None,
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
    """Create a topic.

    Settings that are not given have the node's defaults. An existing topic is not changed; use
    `topic set`.

    \b
    Exit status:
        0  created
        1  the topic exists, the node refused, or no node answers
        2  wrong usage

    \b
    Example:
        millstream topic create orders --partitions 3 --retention-ms 7d
    """
    body = topic_body(
        pairs,
        hint="--config",
        partitions=partitions,
        replicas=replicas,
        durability=durability,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        retention_records=retention_records,
        cleanup=cleanup,
    )
    with connected(server) as node:
        path = path_of("topics", name)
        try:
            # Sent twice, it would report its own topic as one that existed.
            answer = node.tell(
                "PUT", f"{path}?create_only=true", body, field="name", is_repeatable=False
            )
            topic, is_new = answer.body, True
        except TopicExists:
            if not if_absent:
                raise TopicExists(
                    f"topic {name!r} already exists; `topic set` changes it"
                ) from None
            topic, is_new = node.ask("GET", path, field="name"), False
    if as_json:
        click.echo(to_json({"created": is_new, **settings_of(topic)}, indent=2))
    elif not is_new:
        click.echo(printable(f"{name} already exists, unchanged"), err=True)
    else:
        click.echo(f"created {settings_line(topic)}")
