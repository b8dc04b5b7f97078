"""`millstream topic delete`."""

from __future__ import annotations

import click

from millstream.cli.support.completions import topic_argument
from millstream.cli.support.confirmation import confirm_or_exit, yes_option
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import printable, to_json


@click.command()
@topic_argument
@yes_option
@server_option
@json_option
def delete(*, name: str, is_sure: bool, server: str, as_json: bool) -> None:
    """Permanently delete a topic with all its records.

    Asks for confirmation on a terminal and shows how much would be deleted. Use `topic
    delete-records` to delete some records only.

    \b
    Exit status:
        0  deleted
        1  the topic does not exist, it was not confirmed, or no node answers
        2  wrong usage

    \b
    Example:
        millstream topic delete orders --yes
    """
    with connected(server) as node:
        topic = node.client.topic(name)
        if not is_sure:
            description = topic.describe()
            what = f"{description.count:,} records, {description.bytes:,} bytes"
            confirm_or_exit(f"Permanently delete the topic {name} ({what})?", is_sure=is_sure)
        topic.delete()
    click.echo(to_json({"deleted": name}) if as_json else printable(f"deleted {name}"))
