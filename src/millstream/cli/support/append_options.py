"""The options by which records are given, which `topic append` and `queue put` share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--key", metavar="TEXT", help="Key of the record, or of all of them."),
    click.option("--value", metavar="TEXT", help="Value of one record, in the place of input."),
    click.option(
        "--header",
        "headers",
        metavar="NAME=VALUE",
        multiple=True,
        help="A header of the record, or of all of them. Can be repeated.",
    ),
    click.option(
        "--partition",
        type=click.IntRange(min=0),
        metavar="N",
        help="Where they go; without it, to where their keys belong.",
    ),
    click.option(
        "--format",
        "line_format",
        type=click.Choice(["text", "json", "raw"]),
        default="text",
        show_default=True,
        help="What the input is: a value a line, a record as JSON a line, or one value in all.",
    ),
    click.option(
        "--key-separator",
        metavar="TEXT",
        help="What stands between key and value on each line of text: KEY:VALUE with `:`.",
    ),
    click.option(
        "--file",
        "path",
        type=click.Path(exists=True, dir_okay=False, readable=True),
        help="File to read in the place of standard input; shows how far it is.",
    ),
)


def append_options(command: F) -> F:
    """Give a command the options by which records are given; `input_of` takes them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
