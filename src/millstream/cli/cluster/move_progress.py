"""Waits until replicas have moved or caught up: a bar on a terminal, lines otherwise.

moving: 3 of 12 done, 52428800 bytes left to copy
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import click

from millstream.cli.support.options import progress_bar
from millstream.cli.support.output import printable

POLL_SECONDS = 0.5
LINE_SECONDS = 5.0
"""Least time between two lines: a move that takes an hour fills no log."""

wait_option = click.option(
    "--wait/--no-wait",
    "is_waiting",
    default=True,
    show_default=True,
    help="Wait until everything has moved, and show the progress: a bar on a terminal, otherwise"
    " lines on standard error. Ctrl-C ends the waiting, not the moves.",
)


class MoveProgress(NamedTuple):
    """What is left to do."""

    left: int
    """Partitions or replicas that are not where they should be."""
    bytes_left: int = 0
    """Bytes of whole segments that have still to be copied for them, as far as nodes told it."""


def bytes_left_of(partitions: Iterable[Any]) -> int:
    """Return how many bytes the replicas of partitions have still to copy."""
    return sum(
        follower.get("resync_bytes_left") or 0
        for partition in partitions
        for follower in partition["followers"]
    )


def wait_until_moved(
    task: str,
    measure: Callable[[], MoveProgress],
    *,
    timeout_s: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> MoveProgress:
    """Return when nothing is left, or after `timeout_s`; return what is left then."""
    began = clock()
    progress = measure()
    total = progress.left
    lines = None if sys.stderr.isatty() else _Lines(clock)
    with progress_bar(task, is_bytes=False) as bar:
        while progress.left and (timeout_s is None or clock() - began < timeout_s):
            total = max(total, progress.left)
            bar.describe(_text(task, progress))
            bar.update(total - progress.left, total)
            if lines is not None:
                lines.show(_line(task, total, progress))
            sleep(POLL_SECONDS)
            progress = measure()
    if lines is not None and total:
        lines.show(_line(task, total, progress), is_last=True)
    return progress


def _text(task: str, progress: MoveProgress) -> str:
    copying = f", {progress.bytes_left} bytes left to copy" if progress.bytes_left else ""
    return f"{task}{copying}"


def _line(task: str, total: int, progress: MoveProgress) -> str:
    copying = f", {progress.bytes_left} bytes left to copy" if progress.bytes_left else ""
    return f"{task}: {total - progress.left} of {total} done{copying}"


class _Lines:
    """Writes a line when the progress has changed, and not too often."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._shown: str | None = None
        self._shown_at = 0.0

    def show(self, line: str, *, is_last: bool = False) -> None:
        now = self._clock()
        is_due = self._shown is None or is_last or now - self._shown_at >= LINE_SECONDS
        if line != self._shown and is_due:
            self._shown, self._shown_at = line, now
            click.echo(printable(line), err=True)
