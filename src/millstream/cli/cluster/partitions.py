"""`millstream cluster partitions`."""

from __future__ import annotations

import click

from millstream.cli.cluster.partition_names import partitions_of
from millstream.cli.cluster.tables import partition_state, print_partitions, print_problems
from millstream.cli.support.completions import complete_topics
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import to_json


@click.command()
@click.argument("topic", metavar="[TOPIC]", default="", shell_complete=complete_topics)
@click.option("--unwell", is_flag=True, help="Only partitions that need attention.")
@server_option
@json_option
def partitions(*, topic: str, unwell: bool, server: str, as_json: bool) -> None:
    """List partitions with their leaders, replicas and lag.

    LAG is that of the slowest replica, in records and seconds; `-` if the leader does not answer.

    \b
    Exit status:
        0  listed
        1  the topic does not exist, or no node answers
        2  wrong usage

    \b
    Example:
        millstream cluster partitions orders
    """
    with connected(server) as node:
        found = partitions_of(node, topic)
    if unwell:
        found = [item for item in found if item["problems"] or partition_state(item) != "well"]
    if as_json:
        click.echo(to_json({"partitions": found}, indent=2))
        return
    print_partitions(found)
    for item in found:
        name = f"{item['topic']}/{item['partition']}"
        print_problems(f"{name}: {problem}" for problem in item["problems"])
