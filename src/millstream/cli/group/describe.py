"""`millstream group describe`."""

from __future__ import annotations

from typing import Any

import click

from millstream.cli.support.completions import group_argument
from millstream.cli.support.node_api import connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, printable, to_json

_OFFSETS = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "committed": "COMMITTED",
    "end": "END",
    "lag": "LAG",
    "member": "MEMBER",
}
_MEMBERS = {
    "id": "MEMBER",
    "instance_id": "INSTANCE",
    "client_id": "CLIENT",
    "host": "HOST",
    "partitions": "PARTITIONS",
}


@click.command()
@group_argument
@click.option(
    "--members",
    "is_members",
    is_flag=True,
    help="Show members and their partitions instead of offsets.",
)
@server_option
@json_option
def describe(*, name: str, is_members: bool, server: str, as_json: bool) -> None:
    """Show the committed offsets, the lag and the readers of a group.

    COMMITTED is the next offset that the group will read, END the end of the partition, LAG the
    difference. A `-` means that nothing is committed, or that the partition has no reader.

    \b
    Exit status:
        0  shown
        1  the group does not exist, or no node answers
        2  wrong usage

    \b
    Example:
        millstream group describe billing
    """
    with connected(server) as node:
        group = node.ask("GET", path_of("groups", name), field="offsets")
    if as_json:
        click.echo(to_json(group, indent=2))
        return
    count = len(group["members"])
    members = f"{count} member{'' if count == 1 else 's'}"
    click.echo(
        printable(f"{name}: {group['kind']}, {group['state']}, {members}, lag {group['lag']}")
    )
    if is_members:
        print_table(list(_MEMBERS.values()), [_member_cells(row) for row in group["members"]])
    else:
        print_offsets(group["offsets"])


def print_offsets(offsets: list[dict[str, Any]]) -> None:
    """Print the committed offsets of a group, if it has any."""
    if not offsets:
        return
    columns = {key: name for key, name in _OFFSETS.items() if key in offsets[0]}
    rows = [["-" if row[key] is None else row[key] for key in columns] for row in offsets]
    print_table(list(columns.values()), rows)


def _member_cells(row: dict[str, Any]) -> list[object]:
    parts = ", ".join(
        f"{partition['topic']}:{partition['partition']}" for partition in row["partitions"]
    )
    return [row["id"], row["instance_id"] or "-", row["client_id"], row["host"], parts or "-"]
