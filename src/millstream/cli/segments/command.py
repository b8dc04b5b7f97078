"""`millstream segments`."""

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
    """Inspect, check and clean the files of a data directory.

    No running node is needed; `compact` and `reindex` require the node to be stopped.

    \b
    Example:
        millstream segments list --topic orders
    """
