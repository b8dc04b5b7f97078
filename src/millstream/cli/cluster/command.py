"""`millstream cluster`."""

from __future__ import annotations

import click

from millstream.cli.support.command_group import CommandGroup

VERBS = {
    "adopt": "millstream.cli.cluster.adopt:adopt",
    "breaker": "millstream.cli.cluster.breaker:breaker",
    "dev": "millstream.cli.cluster.dev:dev",
    "elect": "millstream.cli.cluster.elect:elect",
    "nodes": "millstream.cli.cluster.nodes:nodes",
    "partitions": "millstream.cli.cluster.partitions:partitions",
    "reassign": "millstream.cli.cluster.reassign:reassign",
    "rebalance": "millstream.cli.cluster.rebalance:rebalance",
    "remove": "millstream.cli.cluster.remove:remove",
    "resync": "millstream.cli.cluster.resync:resync",
    "status": "millstream.cli.cluster.status:status",
}


@click.group(cls=CommandGroup, verbs=VERBS)
def cluster() -> None:
    """Look at a cluster, move its replicas, or run one on this machine.

    Any node answers for the whole cluster. A node without a cluster is shown as a cluster of one.

    \b
    Example:
        millstream cluster status
    """
