"""Options and helpers shared by several commands."""

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

VARIABLES = frozenset(
    {
        "MILLSTREAM_BOOTSTRAP",
        "MILLSTREAM_CA_FILE",
        "MILLSTREAM_CERT_FILE",
        "MILLSTREAM_DATA",
        "MILLSTREAM_KEY_FILE",
        "MILLSTREAM_PASSWORD",
        "MILLSTREAM_PASSWORD_FILE",
        "MILLSTREAM_SASL_MECHANISM",
        "MILLSTREAM_SECURITY_PROTOCOL",
        "MILLSTREAM_SERVER",
        "MILLSTREAM_TOKEN",
        "MILLSTREAM_TOKEN_FILE",
        "MILLSTREAM_USER",
    }
)
"""Environment variables of commands, besides the settings of a node."""

data_option = click.option(
    "--data",
    metavar="DIR",
    envvar="MILLSTREAM_DATA",
    default="./millstream-data",
    show_default=True,
    show_envvar=True,
    help="Data directory of a node.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn an error into one line and exit status 1.

    A closed pipe is not reported; click ends the command silently.
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
    """Progress of a command, shown if there is a bar."""

    def __init__(self, bar: Progress | None, task: str = "") -> None:
        self.done = 0
        self._bar = bar
        self._task = bar.add_task(task, total=None) if bar else None

    def update(self, done: int, total: int) -> None:
        """Record that `done` of `total` bytes or things are done."""
        self.done = done
        if self._bar and self._task is not None:
            self._bar.update(self._task, completed=done, total=total)

    def describe(self, text: str) -> None:
        """Change the text before the bar."""
        if self._bar and self._task is not None:
            self._bar.update(self._task, description=text)

    def after(self, before: int) -> Callable[[int, int], None]:
        """Return an `update` for work that follows `before` bytes of other work."""
        return lambda done, total: self.update(before + done, before + total)


@contextmanager
def progress_bar(task: str, *, is_bytes: bool = True) -> Iterator[ProgressBar]:
    """Show progress on standard error if it is a terminal: of bytes, or of a number of things.

    Print nothing while the bar is shown: it would break the lines.
    """
    if not sys.stderr.isatty():
        yield ProgressBar(None)
        return
    # Only here: a node, which shows no bar, should not wait for these to be loaded.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    columns: list[ProgressColumn] = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
    ]
    columns += [DownloadColumn(), TransferSpeedColumn()] if is_bytes else [MofNCompleteColumn()]
    columns.append(TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        yield ProgressBar(bar, task)
