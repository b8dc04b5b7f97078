"""`millstream queue jobs`."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

import click

from millstream.cli.support.completions import queue_argument
from millstream.cli.support.node_api import connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, time_text, to_json

LIMIT = 100
"""Default number of jobs to show."""

_SHOWN_MAX = 60
"""Characters of a value in the table."""


@click.command()
@queue_argument
@click.option(
    "--state",
    type=click.Choice(["ready", "leased", "delayed"]),
    help="Show only jobs in this state.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1, max=1_000),
    metavar="N",
    default=LIMIT,
    show_default=True,
    help="Maximum number of jobs to show.",
)
@server_option
@json_option
def jobs(*, name: str, state: str | None, limit: int, server: str, as_json: bool) -> None:
    """List the unfinished jobs of a queue without claiming them.

    \b
    Exit status:
        0  listed
        1  the queue does not exist, or no node answers
        2  wrong usage

    \b
    Example:
        millstream queue jobs mail --state leased
    """
    query = {"limit": limit} | ({"state": state} if state else {})
    with connected(server) as node:
        path = f"{path_of('queues', name)}/jobs?{urlencode(query)}"
        answer = node.ask("GET", path, field="jobs")
    if as_json:
        click.echo(to_json(answer, indent=2))
        return
    if answer["jobs"]:
        head = ("JOB", "STATE", "DELIVERIES", "IN MS", "WORKER", "TIME", "KEY", "VALUE")
        print_table(head, [_cells(job) for job in answer["jobs"]])
    else:
        click.echo("There are no such jobs.", err=True)
    if answer.get("next") is not None:
        click.echo(f"Only the first {len(answer['jobs'])} are shown.", err=True)


def _cells(job: dict[str, Any]) -> list[object]:
    ready_in_ms = "-" if job["ready_in_ms"] is None else job["ready_in_ms"]
    return [
        f"{job['partition']}:{job['offset']}",
        job["state"],
        job["deliveries"],
        ready_in_ms,
        job["worker"] or "-",
        time_text(job["timestamp"]),
        "-" if job["key"] is None else _short(job["key"]),
        _short(job["value"]),
    ]


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 1]}…"
