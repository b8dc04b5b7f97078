"""`millstream chaos`."""

from __future__ import annotations

import click

from millstream.cli.support.command_group import CommandGroup

VERBS = {"run": "millstream.cli.chaos.run:run"}


@click.group(cls=CommandGroup, verbs=VERBS)
def chaos() -> None:
    """Watch what clients lose while you break things.

    \b
    Example:
        millstream chaos run --rate 200 --duration 300
    """
