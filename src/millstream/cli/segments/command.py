"""`millstream segments`: look at the files of a data directory, check and clean them."""

from __future__ import annotations

import click

from millstream.cli.support.command_group import CommandGroup

VERBS = {
    "compact": "millstream.cli.segments.compact:compact",
    "dump": "millstream.cli.segments.dump:dump",
    "list": "millstream.cli.segments.list:list_segments",
    "reindex": "millstream.cli.segments.reindex:reindex",
    "verify": "millstream.cli.segments.verify:verify",
}


@click.group(cls=CommandGroup, verbs=VERBS)
def segments() -> None:
    """Look at the files in which logs are kept.

    None of these commands needs a running node; `compact` and `reindex` need it to be stopped.

    \b
    Example:
        millstream segments list --topic orders
    """  # noqa: D301 - click's mark for lines to leave as they are.
