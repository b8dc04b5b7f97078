"""`millstream topic describe`."""

from __future__ import annotations

from typing import Any

import click

from millstream.cli.connect import call, server_option, topic_path
from millstream.cli.options import json_option
from millstream.cli.output import print_table, to_json

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


@click.command()
@click.argument("name")
@server_option
@json_option
def describe(name: str, server: str, *, as_json: bool) -> None:
    """Show how far the partitions of a topic reach, and what went or waits to go.

    FIRST is the first offset that can be read, FLOOR the one before which retention took all, END
    the one that the next record gets. DELETED counts records that were deleted by their key and
    are still in a file; RECLAIMABLE is how many bytes they take. GAPS are the offsets of which a
    reader is told that it comes too late for them.

    \b
    Exit status:
        0  here it is
        1  there is no such topic, or no node answers
        2  wrong usage

    \b
    Example:
        millstream topic describe orders --json
    """  # noqa: D301 - click's mark for lines to leave as they are.
    found = call(server, "GET", topic_path(name), field="partitions")
    if as_json:
        click.echo(to_json(found, indent=2))
    else:
        print_table(list(_COLUMNS.values()), [_cells(row) for row in found["partitions"]])


def _cells(row: dict[str, Any]) -> list[object]:
    shown = {**row, "gaps": ", ".join(map(_gap_text, row["gaps"])) or "-"}
    return [shown[name] for name in _COLUMNS]


def _gap_text(gap: dict[str, Any]) -> str:
    return f"{gap['from']}-{gap['to']} {gap['reason']}"
