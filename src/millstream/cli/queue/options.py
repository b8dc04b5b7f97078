"""The settings of a queue as options, and how a queue is printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from millstream.cli.support.output import printable
from millstream.cli.support.settings import MILLISECONDS

F = TypeVar("F", bound=Callable[..., Any])

COUNTS = ("ready", "leased", "delayed", "acked", "dead")
"""States of a job, in the order in which it may go through them."""

_OPTIONS = (
    click.option(
        "--lease-ms",
        type=MILLISECONDS,
        metavar="TIME",
        help="How long a job belongs to who claimed it: 30s, or a number of milliseconds.",
    ),
    click.option(
        "--deliveries-max",
        type=click.IntRange(min=1),
        metavar="N",
        help="How often a job is handed out before it is a dead letter.",
    ),
    click.option(
        "--dead-letter",
        metavar="TOPIC",
        help="The topic for dead letters; by default the queue's name and `-dead`.",
    ),
    click.option(
        "--claim-window-ms",
        type=MILLISECONDS,
        metavar="TIME",
        help="How long claims are gathered, to be served evenly.",
    ),
)


def queue_options(command: F) -> F:
    """Give a command the options that set a queue; `given_settings` takes them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def given_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was said of a queue."""
    return {name: value for name, value in options.items() if value is not None}


def settings_line(queue: Mapping[str, Any]) -> str:
    """Return what a queue is set to on one line, with nothing that a terminal would obey."""
    window = f", claim window {queue['claim_window_ms']} ms" if queue["claim_window_ms"] else ""
    return printable(
        f"{queue['name']}: lease {queue['lease_ms']} ms, {queue['deliveries_max']} deliveries,"
        f" then to {queue['dead_letter']}{window}"
    )
