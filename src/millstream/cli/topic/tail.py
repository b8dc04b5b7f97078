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
        raise click.BadParameter(f"found {text!r}, needed is earliest, latest, an offset, or -N")
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
    help="Where to begin: with the first record, after the last, at an offset, or N offsets before"
    " the end of each partition.",
)
@click.option(
    "--follow/--no-follow",
    "follows",
    default=True,
    show_default=True,
    help="Whether to wait for what comes, or to end where the topic ends now.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="End after so many records.",
)
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="Show only this partition. An offset means something in one partition only.",
)
@click.option(
    "--values",
    "is_values",
    is_flag=True,
    help="Print values alone, one a line: as they are, save on a terminal.",
)
@server_option
@json_option
def tail(*, name: str, server: str, is_values: bool, as_json: bool, **options: Any) -> None:
    """Print the records of a topic, and go on with those that come.

    A line has partition and offset, time, key and value, with control characters escaped. With
    --json each record is an object on a line of its own, which `topic append --format json` takes.
    Records that retention took before they could be shown are told on standard error.

    A connection that breaks is made anew, and goes on where it was.

    \b
    Exit status:
        0  as many as were wanted, or all that there is with --no-follow
        1  there is no such topic, it was deleted, or no node answers
        2  wrong usage
        130  ended by Ctrl-C, which is how --follow ends

    \b
    Example:
        millstream topic tail orders --from -10
    """  # noqa: D301 - click's mark for lines to leave as they are.
    if is_values and as_json:
        raise click.UsageError("--values and --json cannot both be.")
    from millstream.cli.topic.topic_tail import TopicTail, printer  # noqa: PLC0415 - not for --help.

    with connected(server) as node:
        tail = TopicTail(node.client, name, **options)
        tail.run(printer(is_values=is_values, as_json=as_json))
