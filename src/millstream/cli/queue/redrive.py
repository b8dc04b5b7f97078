"""`millstream queue redrive`."""

from __future__ import annotations

import click

from millstream.cli.support.completions import queue_argument
from millstream.cli.support.node_api import PATIENCE_S_LONG, connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import printable, to_json

PAGE = 1_000
"""Dead letters that one request moves."""


@click.command()
@queue_argument
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Move at most this many dead letters, the oldest first. Default: all.",
)
@server_option
@json_option
def redrive(*, name: str, limit: int | None, server: str, as_json: bool) -> None:
    """Move dead letters back to their queue as new jobs.

    Each becomes a job at least once: if the node fails in between, repeating the command can make a
    second job of a letter.

    \b
    Exit status:
        0  moved
        1  the queue does not exist, another record is in the way, or no node answers
        2  wrong usage

    \b
    Example:
        millstream queue redrive mail
    """
    moved, remaining = 0, 1
    with connected(server, patience_s=PATIENCE_S_LONG) as node:
        while remaining and moved != limit:
            body = {"max": PAGE if limit is None else min(PAGE, limit - moved)}
            answer = node.ask("POST", f"{path_of('queues', name)}/redrive", body, field="moved")
            moved += answer["moved"]
            remaining = answer["remaining"]
            if not answer["moved"]:
                break
    found = {"moved": moved, "remaining": remaining}
    words = f"{moved} dead letters moved to {name}, {remaining} remaining"
    click.echo(to_json(found) if as_json else printable(words))
