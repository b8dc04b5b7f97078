"""`millstream group`: how far consumers have read, and where they go on."""

from __future__ import annotations

import click

from millstream.cli.support.command_group import CommandGroup

VERBS = {
    "delete": "millstream.cli.group.delete:delete",
    "describe": "millstream.cli.group.describe:describe",
    "list": "millstream.cli.group.list:list_groups",
    "reset": "millstream.cli.group.reset:reset",
}


@click.group(cls=CommandGroup, verbs=VERBS)
def group() -> None:
    """See and set how far groups have read.

    \b
    Example:
        millstream group describe billing
    """  # noqa: D301 - click's mark for lines to leave as they are.
