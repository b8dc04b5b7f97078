"""`millstream cluster nodes`."""

from __future__ import annotations

import click

from millstream.cli.cluster.tables import print_nodes
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import to_json


@click.command()
@server_option
@json_option
def nodes(*, server: str, as_json: bool) -> None:
    """List the nodes of the cluster.

    DRIFT_MS is how far the clock of a node is ahead of that of the node that answers.

    \b
    Exit status:
        0  listed
        1  no node answers
        2  wrong usage

    \b
    Example:
        millstream cluster nodes --json
    """
    with connected(server) as node:
        answer = node.ask("GET", "/v1/cluster", field="nodes")
    if as_json:
        click.echo(to_json({"nodes": answer["nodes"]}, indent=2))
    else:
        print_nodes(answer["nodes"])
