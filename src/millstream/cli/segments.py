"""`millstream segments`: look at the files of a data directory, check and clean them."""

from __future__ import annotations

import click

from millstream.cli.nouns import Noun

VERBS = {
    "compact": "millstream.cli.compact:compact",
    "dump": "millstream.cli.dump:dump",
    "list": "millstream.cli.listing:list_segments",
    "reindex": "millstream.cli.reindex:reindex",
    "verify": "millstream.cli.verify:verify",
}


@click.group(cls=Noun, verbs=VERBS)
def segments() -> None:
    """Look at the files in which logs are kept.

    None of these commands needs a running node; `compact` and `reindex` need it to be stopped.

    \b
    Example:
        millstream segments list --topic orders
    """  # noqa: D301 - click's mark for lines to leave as they are.
