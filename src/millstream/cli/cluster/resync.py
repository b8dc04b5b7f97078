"""`millstream cluster resync`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click

from millstream.cli.cluster.move_progress import (
    MoveProgress,
    bytes_left_of,
    wait_option,
    wait_until_moved,
)
from millstream.cli.cluster.partition_names import (
    PartitionArgument,
    described_partitions,
    partitions_argument,
    partitions_of,
)
from millstream.cli.cluster.tables import NONE
from millstream.cli.support.exit import Exit
from millstream.cli.support.node_api import NodeApi, connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, to_json


@click.command()
@partitions_argument(is_required=False)
@wait_option
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="How long to wait.  [default: until all live replicas are in sync]",
)
@server_option
@json_option
@click.pass_context
def resync(
    context: click.Context,
    *,
    chosen: tuple[PartitionArgument, ...],
    is_waiting: bool,
    timeout_s: float | None,
    server: str,
    as_json: bool,
) -> None:
    """Wait until replicas that lack records are in sync, and list those that are not.

    Nodes copy what they lack by themselves: this command starts nothing. Use it between the steps
    of a rolling restart, or after a node was replaced. Replicas on nodes that are gone are listed
    and not waited for. All topics are looked at if none is named.

    \b
    Exit status:
        0  all replicas are in sync
        1  a replica is not in sync, or no node answers
        2  wrong usage

    \b
    Example:
        millstream cluster resync --timeout 600
    """
    with connected(server) as node:
        found = _partitions(node, chosen)
        if is_waiting:

            def measure() -> MoveProgress:
                nonlocal found
                found = _partitions(node, chosen)
                waited_for = [replica for replica in missing_replicas(found) if replica["is_alive"]]
                return MoveProgress(len(waited_for), bytes_left_of(found))

            wait_until_moved("resync", measure, timeout_s=timeout_s)
    missing = list(missing_replicas(found))
    if as_json:
        click.echo(to_json({"replicas": missing}, indent=2))
    elif missing:
        print_table(
            ["TOPIC", "PARTITION", "NODE", "STATE", "LAG", "BYTES_LEFT"],
            [_row(replica) for replica in missing],
        )
    else:
        click.echo("All replicas are in sync.", err=True)
    context.exit(Exit.FAILED if missing else Exit.DONE)


def _partitions(node: NodeApi, chosen: tuple[PartitionArgument, ...]) -> list[Any]:
    return described_partitions(node, chosen) if chosen else partitions_of(node)


def missing_replicas(partitions: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield the replicas that are not in sync, without those that are being removed."""
    for partition in partitions:
        for follower in partition["followers"]:
            if not follower["is_in_sync"] and follower["node_id"] not in partition["removing"]:
                yield {
                    "topic": partition["topic"],
                    "partition": partition["partition"],
                    "node_id": follower["node_id"],
                    "is_alive": follower["is_alive"],
                    "lag_records": follower["lag_records"],
                    "resync_bytes_left": follower["resync_bytes_left"],
                }


def _row(replica: dict[str, Any]) -> list[object]:
    is_copying = replica["resync_bytes_left"] is not None
    state = "copying" if is_copying else "behind"
    return [
        replica["topic"],
        replica["partition"],
        replica["node_id"],
        state if replica["is_alive"] else "gone",
        NONE if replica["lag_records"] is None else replica["lag_records"],
        replica["resync_bytes_left"] if is_copying else NONE,
    ]
