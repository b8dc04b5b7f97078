"""`millstream group reset`."""

from __future__ import annotations

from typing import Any

import click

from millstream.cli.group.describe import print_offsets
from millstream.cli.support.completions import complete_topics, group_argument
from millstream.cli.support.confirmation import confirm_or_exit, yes_option
from millstream.cli.support.node_api import connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import to_json
from millstream.cli.support.times import timestamp_of


def _to(_context: click.Context, _parameter: click.Parameter, text: str) -> Any:
    """Return the target in the form of the HTTP API."""
    if text in ("earliest", "latest"):
        return text
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return {"timestamp": timestamp_of(text)}
    except ValueError:
        raise click.BadParameter(
            f"must be earliest, latest, an offset or an ISO 8601 time, got {text!r}"
        ) from None


@click.command()
@group_argument
@click.option(
    "--topic",
    metavar="TOPIC",
    required=True,
    shell_complete=complete_topics,
    help="Topic to reset.",
)
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="Reset only this partition. Required with an offset if the topic has several partitions.",
)
@click.option(
    "--to",
    "place",
    metavar="earliest|latest|OFFSET|TIME",
    required=True,
    callback=_to,
    help="New position: the first record, the end, an offset, or the first record at or after a"
    " time (UTC unless it has a zone).",
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
    """Reset the committed offsets of a group in a topic.

    Stop its consumers first: a group with members cannot be reset. A group that does not exist is
    created.

    \b
    Exit status:
        0  reset
        1  the group has members, the topic or offset does not exist, it was not confirmed, or no
           node answers
        2  wrong usage

    \b
    Example:
        millstream group reset billing --topic orders --to 2026-01-31T00:00:00Z
    """
    scope = topic if partition is None else f"{topic} partition {partition}"
    confirm_or_exit(f"Reset the offsets of {name} in {scope}?", is_sure=is_sure)
    body = {"topic": topic, "to": place}
    if partition is not None:
        body["partition"] = partition
    with connected(server) as node:
        answer = node.ask("PUT", f"{path_of('groups', name)}/offsets", body, field="offsets")
    if as_json:
        click.echo(to_json(answer, indent=2))
    else:
        print_offsets(answer["offsets"])
