"""`millstream cluster breaker`."""

from __future__ import annotations

import click

from millstream.cli.cluster.tables import NONE
from millstream.cli.support.confirmation import confirm_or_exit, yes_option
from millstream.cli.support.exit import Exit
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, printable, to_json


@click.command()
@click.argument("action", type=click.Choice(["trip", "reset"]))
@click.argument("node_id", metavar="NODE", type=click.IntRange(min=0))
@click.option(
    "--here",
    "is_here",
    is_flag=True,
    help="Change it at the node at --server only, instead of at all live nodes.",
)
@yes_option
@server_option
@json_option
@click.pass_context
def breaker(
    context: click.Context,
    *,
    action: str,
    node_id: int,
    is_here: bool,
    is_sure: bool,
    server: str,
    as_json: bool,
) -> None:
    """Stop all requests of the other nodes to a node, or allow them again.

    Each node has a circuit breaker for each other one. It opens by itself when a node does not
    answer. `trip` opens it until `reset`: for a node that answers, but wrongly or too late. Hand
    over first what the node leads, for example with `millstream cluster reassign`: its followers
    cannot fetch from it any more and leave the ISR. `trip` asks for confirmation.

    \b
    Exit status:
        0  all nodes that were asked have done it
        1  a node could not be asked, not confirmed, or no node answers
        2  wrong usage

    \b
    Example:
        millstream cluster breaker reset 3
    """
    with connected(server) as node:
        if action == "trip":
            nodes = node.ask("GET", "/v1/cluster", field="nodes")["nodes"]
            leads = sum(item["leaders"] for item in nodes if item["node_id"] == node_id)
            confirm_or_exit(
                f"Send no more requests to node {node_id}, which leads {leads} partitions?",
                is_sure=is_sure,
            )
        body = {"action": action, "everywhere": not is_here}
        path = f"/v1/cluster/nodes/{node_id}/breaker"
        answer = node.ask("POST", path, body, field="breakers")
    if as_json:
        click.echo(to_json(answer, indent=2))
    else:
        rows = [
            [item["node_id"], node_id, item["breaker"] or NONE, printable(item["error"] or "")]
            for item in answer["breakers"]
        ]
        print_table(["FROM", "TO", "BREAKER", "ERROR"], rows)
    is_done = all(item["error"] is None for item in answer["breakers"])
    context.exit(Exit.DONE if is_done else Exit.FAILED)
