"""`millstream segments`: look at the files of a data directory, check and clean them."""

from __future__ import annotations

import click

from millstream.cli.compact import compact
from millstream.cli.dump import dump
from millstream.cli.listing import list_segments
from millstream.cli.reindex import reindex
from millstream.cli.verify import verify


@click.group()
def segments() -> None:
    """Look at the files in which logs are kept.

    None of these commands needs a running node; `compact` and `reindex` need it to be stopped.

    \b
    Example:
        millstream segments list --topic orders
    """  # noqa: D301 - click's mark for lines to leave as they are.


segments.add_command(list_segments)
segments.add_command(dump)
segments.add_command(verify)
segments.add_command(reindex)
segments.add_command(compact)
