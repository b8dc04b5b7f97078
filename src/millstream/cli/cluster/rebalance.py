"""`millstream cluster rebalance`."""

from __future__ import annotations

import click

from millstream.cli.cluster.move_progress import wait_option, wait_until_moved
from millstream.cli.cluster.partition_names import moving, partitions_of
from millstream.cli.cluster.tables import print_moves
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import to_json

MOVES_MAX = 1_000


@click.command()
@click.option(
    "--moves",
    "moves_max",
    type=click.IntRange(1, MOVES_MAX),
    default=100,
    show_default=True,
    metavar="N",
    help="Maximum number of replicas to move.",
)
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Show the moves without making them.")
@wait_option
@server_option
@json_option
def rebalance(
    *, moves_max: int, is_dry_run: bool, is_waiting: bool, server: str, as_json: bool
) -> None:
    """Move replicas from the nodes with the most data to those with the least.

    Use it after adding a node. Replicas stay spread over racks.

    \b
    Exit status:
        0  moved, or begun with --no-wait, or nothing to move
        1  no node answers
        2  wrong usage

    \b
    Example:
        millstream cluster rebalance --dry-run
    """
    body = {"moves_max": moves_max, "dry_run": is_dry_run}
    with connected(server) as node:
        answer = node.ask("POST", "/v1/cluster/rebalance", body, field="moves")
        if is_waiting and not is_dry_run and answer["moves"]:
            wait_until_moved("moving", lambda: moving(partitions_of(node)))
    if as_json:
        click.echo(to_json(answer, indent=2))
    elif answer["moves"]:
        print_moves(answer["moves"])
    else:
        click.echo("The nodes are balanced.", err=True)
