"""What several commands share."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from millstream.cli.support.output import printable
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from rich.progress import Progress

VARIABLES = frozenset({"MILLSTREAM_BOOTSTRAP", "MILLSTREAM_DATA", "MILLSTREAM_SERVER"})
"""What commands read from the environment, beside the settings of a node."""

data_option = click.option(
    "--data",
    metavar="DIR",
    envvar="MILLSTREAM_DATA",
    default="./millstream-data",
    show_default=True,
    show_envvar=True,
    help="Data directory to look at: the one that a node was started with.",
)

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, for programs to read."
)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """End the command with one line and exit status 1 where something is wrong.

    A pipe that no one reads any more is no error to report; click ends the command quietly.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except MillstreamError as error:
        raise click.ClickException(printable(str(error))) from error
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(printable(f"{name}{error.strerror or error}")) from error


class ProgressBar:
    """How far the work is, counted and, where there is a bar, shown."""

    def __init__(self, bar: Progress | None) -> None:
        self.done = 0
        self._bar = bar
        self._task = bar.add_task("", total=None) if bar else None

    def update(self, done: int, total: int) -> None:
        """Note that `done` bytes of `total` are done."""
        self.done = done
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=done, total=total)

    def after(self, before: int) -> Callable[[int, int], None]:
        """Return an `update` for work that follows on `before` bytes of other work."""
        return lambda done, total: self.update(before + done, before + total)


@contextmanager
def progress_bar(task: str) -> Iterator[ProgressBar]:
    """Show how far the work is, on standard error and only where that is a terminal.

    Print nothing while it shows: the lines would be torn apart.
    """
    if not sys.stderr.isatty():
        yield ProgressBar(None)
        return
    # Only here: a node, which shows no bar, should not wait for these to be loaded.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    columns = (TextColumn(task), BarColumn(), DownloadColumn())
    speed = (TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, *speed, console=console, transient=True) as bar:
        yield ProgressBar(bar)
