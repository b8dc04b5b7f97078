"""`millstream topic tail`."""

from __future__ import annotations

import re
from typing import Any

import click

from millstream.cli.support.completions import topic_argument
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option

_FROM = re.compile(r"latest|earliest|-?[0-9]{1,18}")


def _from(_context: click.Context, _parameter: click.Parameter, text: str) -> str:
    if not _FROM.fullmatch(text) or text == "-0":
        raise click.BadParameter(f"must be earliest, latest, an offset or -N, got {text!r}")
    return text


@click.command()
@topic_argument
@click.option(
    "--from",
    "start",
    metavar="earliest|latest|OFFSET|-N",
    default="latest",
    show_default=True,
    callback=_from,
    help="Start position: the first record, the end, an offset, or N offsets before the end of"
    " each partition.",
)
@click.option(
    "--follow/--no-follow",
    "follows",
    default=True,
    show_default=True,
    help="Wait for new records, or stop at the current end of the topic.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop after this number of records.",
)
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="Show only this partition. Required with an offset if the topic has several partitions.",
)
@click.option(
    "--values",
    "is_values",
    is_flag=True,
    help="Print only values, one per line. Control characters are escaped on a terminal only.",
)
@server_option
@json_option
def tail(*, name: str, server: str, is_values: bool, as_json: bool, **options: Any) -> None:
    """Print the records of a topic, and follow it.

    A line has partition and offset, time, key and value, with control characters escaped. With
    --json, each record is a JSON object on one line, as read by `topic append --format json`.
    Records that retention deleted before they could be read are reported on standard error.

    A lost connection is reopened and continues at the same position.

    \b
    Exit status:
        0  the limit or, with --no-follow, the end was reached
        1  the topic does not exist or was deleted, or no node answers
        2  wrong usage
        130  interrupted by Ctrl-C

    \b
    Example:
        millstream topic tail orders --from -10
    """
    if is_values and as_json:
        raise click.UsageError("--values and --json cannot be combined")
    from millstream.cli.topic.topic_tail import TopicTail, printer  # noqa: PLC0415 - not for --help.

    with connected(server) as node:
        tail = TopicTail(node.client, name, **options)
        tail.run(printer(is_values=is_values, as_json=as_json))
