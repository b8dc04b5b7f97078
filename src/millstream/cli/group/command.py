"""`millstream group`."""

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
    """Show and change consumer groups and their offsets.

    \b
    Example:
        millstream group describe billing
    """
