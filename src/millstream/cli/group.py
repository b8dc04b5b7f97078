"""`millstream group`: how far consumers have read, and where they go on."""

from __future__ import annotations

import click

from millstream.cli.nouns import Noun

VERBS = {
    "delete": "millstream.cli.group_delete:delete",
    "describe": "millstream.cli.group_describe:describe",
    "list": "millstream.cli.group_list:list_groups",
    "reset": "millstream.cli.group_reset:reset",
}


@click.group(cls=Noun, verbs=VERBS)
def group() -> None:
    """See and set how far groups have read.

    \b
    Example:
        millstream group describe billing
    """  # noqa: D301 - click's mark for lines to leave as they are.
