"""`millstream cluster elect`."""

from __future__ import annotations

import click

from millstream.cli.cluster.partition_names import (
    PartitionArgument,
    described_partitions,
    partitions_argument,
)
from millstream.cli.cluster.tables import listed
from millstream.cli.support.confirmation import confirm_or_exit, yes_option
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, to_json


@click.command()
@partitions_argument()
@click.option(
    "--unclean",
    is_flag=True,
    help="Elect a replica that is not in sync, if no other is left. Committed records are lost.",
)
@click.option(
    "--leader",
    type=click.IntRange(min=0),
    metavar="NODE",
    help="The replica to elect uncleanly.  [default: the first live one]",
)
@yes_option
@server_option
@json_option
def elect(
    *,
    chosen: tuple[PartitionArgument, ...],
    unclean: bool,
    leader: int | None,
    is_sure: bool,
    server: str,
    as_json: bool,
) -> None:
    """Let the preferred replicas lead again; or, with --unclean, any replica.

    The controller moves leaderships back by itself, slowly. An unclean election is the last resort
    if all replicas in sync are lost for good: it asks for confirmation.

    \b
    Exit status:
        0  the partitions have their leaders
        1  not possible, not confirmed, or no node answers
        2  wrong usage

    \b
    Example:
        millstream cluster elect orders/0
    """
    if leader is not None and not unclean:
        raise click.UsageError("--leader needs --unclean")
    with connected(server) as node:
        partitions = described_partitions(node, chosen)
        if unclean:
            confirm_or_exit(
                f"Elect leaders of {len(partitions)} partitions although committed records may be"
                " lost?",
                is_sure=is_sure,
            )
        names = [{"topic": item["topic"], "partition": item["partition"]} for item in partitions]
        body = {"partitions": names, "unclean": unclean, "leader": leader}
        answer = node.ask("POST", "/v1/cluster/elect", body, field="elections")
    if as_json:
        click.echo(to_json(answer, indent=2))
        return
    rows = [
        [
            item["topic"],
            item["partition"],
            item["leader"],
            item["leader_epoch"],
            "elected" if item["is_elected"] else "led already",
            listed(item["former_isr"]),
        ]
        for item in answer["elections"]
    ]
    print_table(["TOPIC", "PARTITION", "LEADER", "EPOCH", "RESULT", "LOST_WITH"], rows)
