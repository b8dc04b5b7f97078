"""`millstream topic describe`."""

from __future__ import annotations

from typing import Any

import click

from millstream.cli.support.completions import topic_argument
from millstream.cli.support.node_api import connected, path_of, server_option
from millstream.cli.support.options import json_option
from millstream.cli.support.output import print_table, time_text, to_json
from millstream.cli.support.settings import settings_line

_COLUMNS = {
    "partition": "PARTITION",
    "first_live_offset": "FIRST",
    "eviction_floor": "FLOOR",
    "head": "END",
    "count": "RECORDS",
    "bytes": "BYTES",
    "segments": "SEGMENTS",
    "deleted": "DELETED",
    "reclaimable_bytes": "RECLAIMABLE",
    "gaps": "GAPS",
}
_SEGMENTS = {
    "partition": "PARTITION",
    "base_offset": "BASE",
    "end_offset": "END",
    "records": "RECORDS",
    "bytes": "BYTES",
    "first_timestamp": "FIRST TIME",
    "last_timestamp": "LAST TIME",
    "state": "STATE",
    "deleted": "DELETED",
    "reclaimable_bytes": "RECLAIMABLE",
}


@click.command()
@topic_argument
@click.option(
    "--segments",
    "is_segments",
    is_flag=True,
    help="Show segments instead of partitions.",
)
@server_option
@json_option
def describe(*, name: str, is_segments: bool, server: str, as_json: bool) -> None:
    """Show the settings, offsets and sizes of a topic.

    FIRST is the first readable offset, FLOOR the offset up to which retention has deleted records,
    END the offset of the next record. DELETED counts records that were deleted by key and are still
    in a file; RECLAIMABLE is their size in bytes. GAPS are the offsets that late readers are told
    about. A `-` means that the partition was not opened since the node started.

    \b
    Exit status:
        0  shown
        1  the topic does not exist, or no node answers
        2  wrong usage

    \b
    Example:
        millstream topic describe orders --json
    """
    path = path_of("topics", name)
    with connected(server) as node:
        topic = node.ask("GET", path, field="partitions")
        segments = node.pages(f"{path}/segments", "segments") if is_segments else []
    if as_json:
        shown = {"segments": segments} if is_segments else topic
        click.echo(to_json(shown, indent=2))
        return
    click.echo(settings_line(topic))
    if is_segments:
        print_table(list(_SEGMENTS.values()), [_segment_cells(row) for row in segments])
    else:
        print_table(list(_COLUMNS.values()), [_cells(row) for row in topic["partitions"]])


def _cells(row: dict[str, Any]) -> list[object]:
    shown = {**row, "gaps": ", ".join(map(_gap_text, row["gaps"])) or "-"}
    return [shown[name] for name in _COLUMNS]


def _gap_text(gap: dict[str, Any]) -> str:
    return f"{gap['from']}-{gap['to']} {gap['reason']}"


def _segment_cells(row: dict[str, Any]) -> list[object]:
    times = {name: time_text(row[name]) for name in ("first_timestamp", "last_timestamp")}
    shown = {**row, **times}
    return ["-" if shown[name] is None else shown[name] for name in _SEGMENTS]
