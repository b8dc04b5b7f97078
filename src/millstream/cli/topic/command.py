"""`millstream topic`."""

from __future__ import annotations

import click

from millstream.cli.support.command_group import CommandGroup

VERBS = {
    "append": "millstream.cli.topic.append:append",
    "create": "millstream.cli.topic.create:create",
    "delete": "millstream.cli.topic.delete:delete",
    "delete-records": "millstream.cli.topic.delete_records:delete_records",
    "describe": "millstream.cli.topic.describe:describe",
    "list": "millstream.cli.topic.list:list_topics",
    "search": "millstream.cli.topic.search:search",
    "set": "millstream.cli.topic.set:set_topic",
    "tail": "millstream.cli.topic.tail:tail",
}


@click.group(cls=CommandGroup, verbs=VERBS)
def topic() -> None:
    """Create, write, read and delete topics.

    \b
    Example:
        millstream topic create orders --partitions 3
    """
