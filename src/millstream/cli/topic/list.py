"""`millstream topic list`."""

from __future__ import annotations

from typing import Any

import click

from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, to_json

_SIZES = {"records": "RECORDS", "bytes": "BYTES", "segments": "SEGMENTS"}


@click.command("list")
@server_option
@json_option
def list_topics(*, server: str, as_json: bool) -> None:
    """List all topics with their sizes.

    A `-` means that the topic was not opened since the node started.

    \b
    Exit status:
        0  listed
        1  no node answers
        2  wrong usage

    \b
    Example:
        millstream topic list --json
    """
    with connected(server) as node:
        topics = node.pages("/v1/topics", "topics", {"sizes": "true"})
    if as_json:
        click.echo(to_json({"topics": topics}, indent=2))
    elif topics:
        head = ("TOPIC", "PARTITIONS", "DURABILITY", *_SIZES.values())
        print_table(head, [_cells(topic) for topic in topics])
    else:
        click.echo("There are no topics; `millstream topic create NAME` creates one.", err=True)


def _cells(topic: dict[str, Any]) -> list[object]:
    sizes = topic["sizes"] or {}
    numbers = [sizes.get(field, "-") for field in _SIZES]
    return [topic["name"], topic["partition_count"], topic["durability"], *numbers]
