"""`millstream transactions describe`."""

from __future__ import annotations

import click

from millstream.cli.support.node_api import connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, printable, to_json

_FIELDS = ("state", "producer_id", "producer_epoch", "timeout_ms", "open_ms", "started_ms")


@click.command()
@click.argument("name", metavar="ID")
@server_option
@json_option
def describe(*, name: str, server: str, as_json: bool) -> None:
    """Show a transactional id, and the partitions of its open transaction.

    \b
    Exit status:
        0  shown
        1  the transactional id does not exist, or no node answers
        2  wrong usage

    \b
    Example:
        millstream transactions describe billing-1
    """
    with connected(server) as node:
        found = node.ask("GET", path_of("transactions", name), field="partitions")
    if as_json:
        click.echo(to_json(found, indent=2))
        return
    for field in _FIELDS:
        value = found[field]
        click.echo(printable(f"{field.replace('_', ' ')}: {'-' if value is None else value}"))
    if found["groups"]:
        click.echo(printable(f"groups: {', '.join(found['groups'])}"))
    if found["partitions"]:
        rows = [[each["topic"], each["partition"]] for each in found["partitions"]]
        print_table(["TOPIC", "PARTITION"], rows)
