"""Settings of a queue as options, and their output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from millstream.cli.support.output import printable
from millstream.cli.support.settings import MILLISECONDS

F = TypeVar("F", bound=Callable[..., Any])

COUNTS = ("ready", "leased", "delayed", "acked", "dead")
"""States of a job."""

_OPTIONS = (
    click.option(
        "--lease-ms",
        type=MILLISECONDS,
        metavar="TIME",
        help="Lease time of a claimed job: 30s, or a number of milliseconds.",
    ),
    click.option(
        "--deliveries-max",
        type=click.IntRange(min=1),
        metavar="N",
        help="Number of deliveries after which a job is moved to the dead-letter topic.",
    ),
    click.option(
        "--dead-letter",
        metavar="TOPIC",
        help="Dead-letter topic. The default is the name of the queue with the suffix `-dead`.",
    ),
    click.option(
        "--claim-window-ms",
        type=MILLISECONDS,
        metavar="TIME",
        help="Time for which claims are collected, to serve them evenly.",
    ),
)


def queue_options(command: F) -> F:
    """Add the options that set a queue; pass them to `given_settings`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def given_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that were given."""
    return {name: value for name, value in options.items() if value is not None}


def settings_line(queue: Mapping[str, Any]) -> str:
    """Return the settings of a queue on one line, with control characters escaped."""
    window = f", claim window {queue['claim_window_ms']} ms" if queue["claim_window_ms"] else ""
    return printable(
        f"{queue['name']}: lease {queue['lease_ms']} ms, {queue['deliveries_max']} deliveries,"
        f" then to {queue['dead_letter']}{window}"
    )
