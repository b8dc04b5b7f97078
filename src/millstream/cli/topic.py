"""`millstream topic`: make topics, write to them, look at them, delete from them."""

from __future__ import annotations

import click

from millstream.cli.nouns import Noun

VERBS = {
    "append": "millstream.cli.topic_append:append",
    "create": "millstream.cli.topic_create:create",
    "delete": "millstream.cli.topic_delete:delete",
    "delete-records": "millstream.cli.topic_delete_records:delete_records",
    "describe": "millstream.cli.topic_describe:describe",
    "list": "millstream.cli.topic_list:list_topics",
    "set": "millstream.cli.topic_set:set_topic",
    "tail": "millstream.cli.topic_tail:tail",
}


@click.group(cls=Noun, verbs=VERBS)
def topic() -> None:
    """Make, write, read and delete topics.

    \b
    Example:
        millstream topic create orders --partitions 3
    """  # noqa: D301 - click's mark for lines to leave as they are.
