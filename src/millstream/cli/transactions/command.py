"""`millstream transactions`."""

from __future__ import annotations

import click

from millstream.cli.support.command_group import CommandGroup

VERBS = {
    "abort": "millstream.cli.transactions.abort:abort",
    "describe": "millstream.cli.transactions.describe:describe",
    "list": "millstream.cli.transactions.list:list_transactions",
}


@click.group(cls=CommandGroup, verbs=VERBS)
def transactions() -> None:
    """Show transactions, and abort those that hold back readers of committed records.

    \b
    Example:
        millstream transactions list --open
    """
