"""`millstream cluster status`."""

from __future__ import annotations

from typing import Any

import click

from millstream.cli.cluster.tables import print_nodes, print_problems, print_warnings
from millstream.cli.support.exit import Exit
from millstream.cli.support.node_api import connected, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import printable, to_json


@click.command()
@server_option
@json_option
@click.pass_context
def status(context: click.Context, *, server: str, as_json: bool) -> None:
    """Show whether the cluster is well: its nodes, and the partitions that are not.

    \b
    Exit status:
        0  every partition has a leader and all its replicas in sync
        1  something is not well, or no node answers
        2  wrong usage

    \b
    Example:
        millstream cluster status
    """
    with connected(server) as node:
        answer = node.ask("GET", "/v1/cluster", field="nodes")
    if as_json:
        click.echo(to_json(answer, indent=2))
    else:
        click.echo(printable(_summary(answer)))
        print_nodes(answer["nodes"])
        print_problems(answer["problems"])
        print_warnings(answer.get("warnings", ()))
    context.exit(Exit.DONE if is_well(answer) else Exit.FAILED)


def is_well(answer: Any) -> bool:
    """Return whether nothing in a cluster needs attention."""
    counts = ("offline", "under_min_insync", "under_replicated")
    return not any(answer[name] for name in counts) and not answer["problems"]


def _summary(answer: Any) -> str:
    controller = "no controller"
    if answer["controller"] is not None:
        controller = f"controller is node {answer['controller']}"
    words = {
        "offline": "without a leader",
        "under_min_insync": "with too few replicas in sync",
        "under_replicated": "with a replica behind",
        "reassigning": "moving",
    }
    found = [f"{answer[name]} {text}" for name, text in words.items() if answer[name]]
    if answer["resyncing"]:
        found.append(
            f"{answer['resyncing']} being copied to node {answer['node_id']},"
            f" {answer['resync_bytes_left']} bytes left"
        )
    partitions = ", ".join(found) or "all replicas in sync"
    return (
        f"cluster {answer['cluster']}: {len(answer['nodes'])} nodes, {controller};"
        f" {answer['partitions']} partitions, {partitions}"
    )
