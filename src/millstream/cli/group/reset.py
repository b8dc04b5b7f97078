"""`millstream group reset`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click

from millstream.cli.group.describe import print_offsets
from millstream.cli.support.completions import complete_topics, group_argument
from millstream.cli.support.confirmation import confirm_or_exit, yes_option
from millstream.cli.support.node_api import connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import to_json


def _to(_context: click.Context, _parameter: click.Parameter, text: str) -> Any:
    """Return where to go, as the HTTP door takes it."""
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(
            f"found {text!r}, needed is earliest, latest, an offset, or a time by ISO 8601"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return {"timestamp": round(moment.timestamp() * 1000)}


@click.command()
@group_argument
@click.option(
    "--topic",
    metavar="TOPIC",
    required=True,
    shell_complete=complete_topics,
    help="Which topic it is to read elsewhere.",
)
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only in this partition; without it, in all. An offset means something in one only.",
)
@click.option(
    "--to",
    "place",
    metavar="earliest|latest|OFFSET|TIME",
    required=True,
    callback=_to,
    help="Where it goes on: at the first record, after the last, at an offset, or with the first"
    " record that is not older than a time, in UTC where it names no zone.",
)
@yes_option
@server_option
@json_option
def reset(
    *,
    name: str,
    topic: str,
    partition: int | None,
    place: Any,
    is_sure: bool,
    server: str,
    as_json: bool,
) -> None:
    """Have a group go on elsewhere in a topic.

    Stop its consumers first: a group with members says itself how far it is. A group that is not
    there is made.

    \b
    Exit status:
        0  it goes on there
        1  it has members, there is no such topic or offset, it was not confirmed, or no node
           answers
        2  wrong usage

    \b
    Example:
        millstream group reset billing --topic orders --to 2026-01-31T00:00:00Z
    """  # noqa: D301 - click's mark for lines to leave as they are.
    where = topic if partition is None else f"{topic} partition {partition}"
    confirm_or_exit(f"Have {name} go on elsewhere in {where}?", is_sure=is_sure)
    body = {"topic": topic, "to": place}
    if partition is not None:
        body["partition"] = partition
    with connected(server) as node:
        found = node.ask("PUT", f"{path_of('groups', name)}/offsets", body, field="offsets")
    if as_json:
        click.echo(to_json(found, indent=2))
    else:
        print_offsets(found["offsets"])
