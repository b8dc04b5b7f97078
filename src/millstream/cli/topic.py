"""`millstream topic`: look at the topics of a running node, and delete from them."""

from __future__ import annotations

import click

from millstream.cli.delete_records import delete_records
from millstream.cli.describe import describe


@click.group()
def topic() -> None:
    """Look at the topics of a running node, and delete from them.

    \b
    Example:
        millstream topic describe orders
    """  # noqa: D301 - click's mark for lines to leave as they are.


topic.add_command(describe)
topic.add_command(delete_records)
