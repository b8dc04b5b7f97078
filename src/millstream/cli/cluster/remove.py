"""`millstream cluster remove`."""

from __future__ import annotations

import click

from millstream.cli.cluster.move_progress import MoveProgress, wait_option, wait_until_moved
from millstream.cli.cluster.partition_names import names_query
from millstream.cli.cluster.tables import print_moves
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import to_json


@click.command()
@click.argument("node_id", metavar="NODE", type=click.IntRange(min=0))
@click.option(
    "--shrink", is_flag=True, help="Let partitions lose a replica if the other nodes are too few."
)
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Show the moves without making them.")
@click.option("--cancel", is_flag=True, help="Keep the node instead.")
@wait_option
@server_option
@json_option
def remove(
    *,
    node_id: int,
    shrink: bool,
    is_dry_run: bool,
    cancel: bool,
    is_waiting: bool,
    server: str,
    as_json: bool,
) -> None:
    """Move all replicas away from a node, which can then be stopped for good.

    The node may be alive or lost. It gets no new replicas meanwhile. Stop it when no replica is
    left.

    \b
    Exit status:
        0  no replica is left, or the moves have begun with --no-wait
        1  not possible, or no node answers
        2  wrong usage

    \b
    Example:
        millstream cluster remove 4
    """
    path = f"/v1/cluster/nodes/{node_id}"
    query = names_query(shrink=shrink, dry_run=is_dry_run, cancel=cancel)
    with connected(server) as node:
        answer = node.ask("DELETE", path + query, field="replicas_left")
        if is_waiting and not is_dry_run and not cancel:
            again = path + names_query(shrink=shrink)
            wait_until_moved(
                f"removing node {node_id}",
                lambda: MoveProgress(
                    int(node.ask("DELETE", again, field="replicas_left")["replicas_left"])
                ),
            )
            answer["replicas_left"] = 0
    if as_json:
        click.echo(to_json(answer, indent=2))
        return
    if answer["moves"]:
        print_moves(answer["moves"])
    if cancel:
        click.echo(f"node {node_id} stays", err=True)
    elif answer["replicas_left"]:
        click.echo(f"node {node_id} has {answer['replicas_left']} replicas", err=True)
    else:
        click.echo(f"node {node_id} has no replicas left and can be stopped", err=True)
