"""`millstream cluster reassign`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from millstream.cli.cluster.move_progress import wait_option, wait_until_moved
from millstream.cli.cluster.partition_names import (
    INTERNAL_PREFIX,
    PartitionArgument,
    described_partitions,
    is_moving,
    moving,
    partitions_argument,
    partitions_of,
)
from millstream.cli.cluster.replica_choice import choose_replicas
from millstream.cli.cluster.tables import print_moves
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import to_json


def _replicas(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> list[int] | None:
    if text is None:
        return None
    words = text.split(",")
    if not all(word.strip().isascii() and word.strip().isdigit() for word in words):
        raise click.BadParameter(f"must be node ids separated by commas, got {text!r}")
    return [int(word) for word in words]


@click.command()
@partitions_argument(is_required=False)
@click.option("--all", "is_all", is_flag=True, help="All partitions of all topics of clients.")
@click.option(
    "--to",
    "replicas",
    metavar="NODE,NODE,...",
    callback=_replicas,
    help="Nodes that should have the replicas. The first is the preferred leader.",
)
@click.option(
    "--replicas",
    "count",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of replicas. The nodes are chosen: those with the fewest replicas, in different"
    " racks; leaders are spread.",
)
@click.option("--cancel", is_flag=True, help="Cancel the moves in progress instead.")
@wait_option
@server_option
@json_option
def reassign(
    *,
    chosen: tuple[PartitionArgument, ...],
    is_all: bool,
    replicas: list[int] | None,
    count: int | None,
    cancel: bool,
    is_waiting: bool,
    server: str,
    as_json: bool,
) -> None:
    """Move partitions to other nodes, or change the number of their replicas.

    New replicas copy the records and join the ISR before old ones are removed, so nothing is less
    safe meanwhile.

    \b
    Exit status:
        0  moved, or begun with --no-wait
        1  not possible, or no node answers
        2  wrong usage

    \b
    Example:
        millstream cluster reassign orders/0 --to 1,2,4
    """
    if (replicas is not None) + (count is not None) + cancel != 1:
        raise click.UsageError("one of --to, --replicas and --cancel is needed")
    if is_all == bool(chosen):
        raise click.UsageError("either topics or --all is needed")
    with connected(server) as node:
        if is_all:
            names_of_all = {item["topic"] for item in partitions_of(node)}
            chosen = tuple(
                PartitionArgument(name, None)
                for name in sorted(names_of_all)
                if not name.startswith(INTERNAL_PREFIX)
            )
        partitions = described_partitions(node, chosen)
        targets: Sequence[Sequence[int] | None] = [replicas] * len(partitions)
        if count is not None:
            nodes = node.ask("GET", "/v1/cluster", field="nodes")["nodes"]
            targets = choose_replicas(partitions, count, nodes, partitions_of(node))
        names = [
            {"topic": item["topic"], "partition": item["partition"], "replicas": target}
            for item, target in zip(partitions, targets, strict=True)
            if (is_moving(item) if cancel else target != item["replicas"])
        ]
        answer: Any = {"moves": []}
        if names:
            answer = node.ask("POST", "/v1/cluster/reassign", {"partitions": names}, field="moves")
        if is_waiting and names:
            wait_until_moved("moving", lambda: moving(described_partitions(node, chosen)))
    if as_json:
        click.echo(to_json(answer, indent=2))
    elif answer["moves"]:
        print_moves(answer["moves"])
    else:
        click.echo("Nothing is being moved.", err=True)
