"""Options for records, shared by `topic append` and `queue put`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--key", metavar="TEXT", help="Key of the record, or of all records."),
    click.option("--value", metavar="TEXT", help="Value of one record, instead of input."),
    click.option(
        "--header",
        "headers",
        metavar="NAME=VALUE",
        multiple=True,
        help="Header of the record, or of all records. Can be repeated.",
    ),
    click.option(
        "--partition",
        type=click.IntRange(min=0),
        metavar="N",
        help="Partition to append to. The default is the partition of the key.",
    ),
    click.option(
        "--format",
        "line_format",
        type=click.Choice(["text", "json", "raw"]),
        default="text",
        show_default=True,
        help="Format of the input: one value per line, one JSON record per line, or one value"
        " in total.",
    ),
    click.option(
        "--key-separator",
        metavar="TEXT",
        help="Separator of key and value on each line: KEY:VALUE with `:`.",
    ),
    click.option(
        "--file",
        "path",
        type=click.Path(exists=True, dir_okay=False, readable=True),
        help="File to read instead of standard input; shows a progress bar.",
    ),
)


def append_options(command: F) -> F:
    """Add the options for records; pass them to `input_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
