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
    """List all topics by name, with how much they hold.

    A `-` stands where a topic was not used since the node started, and only opening it would tell.

    \b
    Exit status:
        0  listed, if there was anything to list
        1  no node answers
        2  wrong usage

    \b
    Example:
        millstream topic list --json
    """  # noqa: D301 - click's mark for lines to leave as they are.
    with connected(server) as node:
        found = node.pages("/v1/topics", "topics", {"sizes": "true"})
    if as_json:
        click.echo(to_json({"topics": found}, indent=2))
    elif found:
        head = ("TOPIC", "PARTITIONS", "DURABILITY", *_SIZES.values())
        print_table(head, [_cells(one) for one in found])
    else:
        click.echo("There is no topic yet; `millstream topic create NAME` makes one.", err=True)


def _cells(topic: dict[str, Any]) -> list[object]:
    sizes = topic["sizes"] or {}
    numbers = [sizes.get(field, "-") for field in _SIZES]
    return [topic["name"], topic["partition_count"], topic["durability"], *numbers]
