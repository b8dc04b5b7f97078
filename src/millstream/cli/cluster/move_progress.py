"""Waits until replicas have moved, with a progress bar."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from millstream.cli.support.options import progress_bar

POLL_SECONDS = 0.5

wait_option = click.option(
    "--wait/--no-wait",
    "is_waiting",
    default=True,
    show_default=True,
    help="Wait until everything has moved, and show the progress. Ctrl-C ends the waiting, not the"
    " moves.",
)


def wait_until_moved(
    task: str, left: Callable[[], int], *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Return when nothing is left to move."""
    total = remaining = left()
    with progress_bar(task, is_bytes=False) as bar:
        while remaining:
            bar.update(total - remaining, total)
            sleep(POLL_SECONDS)
            remaining = left()
            total = max(total, remaining)
