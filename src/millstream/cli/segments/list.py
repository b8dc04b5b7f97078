"""`millstream segments list`."""

from __future__ import annotations

from typing import Any

import click

from millstream.cli.support.options import data_option, json_option, one_line_errors
from millstream.cli.support.output import print_table, time_text, to_json
from millstream.storage.disk.filesystem import Filesystem, OsFilesystem
from millstream.storage.files.names import STATE_DIRECTORY, LogName
from millstream.storage.inspect.catalog import (
    SegmentFiles,
    check_directory,
    log_directory,
    log_names,
    store_paths,
    summarize_segment,
    survey_partition,
)

_COLUMNS = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "base_offset": "BASE",
    "next_offset": "NEXT",
    "records": "RECORDS",
    "batches": "BATCHES",
    "bytes": "BYTES",
    "first_timestamp_ms": "FIRST TIME",
    "last_timestamp_ms": "LAST TIME",
    "sealed": "SEALED",
    "cold": "COLD",
    "leader_epoch": "EPOCH",
    "generation": "GENERATION",
}

_TRIES_MAX = 5
"""How often the files of a partition are listed again if a running node changes them."""


@click.command("list")
@data_option
@click.option("--topic", metavar="NAME", help="Show only the segments of this topic.")
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    metavar="N",
    help="Show only the segments of this partition.",
)
@json_option
def list_segments(data: str, topic: str | None, partition: int | None, *, as_json: bool) -> None:
    """List segments with their offsets, sizes and times.

    An unsealed segment is scanned; of a damaged one, the intact part is counted. A compacted or
    rewritten segment has a generation above 0; its inputs are not listed. Internal state is listed
    after the topics, as `__state/NAME`. Reads only, and can run beside a running node.

    \b
    Exit status:
        0  listed
        1  the directory does not exist, or cannot be read
        2  wrong usage

    \b
    Example:
        millstream segments list --data ./millstream-data --topic orders --json
    """
    filesystem = OsFilesystem()
    with one_line_errors():
        check_directory(filesystem, data)
        rows = [
            row
            for path in store_paths(filesystem, data)
            for name in log_names(filesystem, path)
            if topic in (None, shown := _shown(name, is_state=path != data))
            if partition in (None, name.partition)
            for row in _rows(filesystem, log_directory(path, name), shown, name.partition)
        ]
    if as_json:
        click.echo(to_json(rows, indent=2))
    else:
        print_table(list(_COLUMNS.values()), [_cells(row) for row in rows])


def _shown(name: LogName, *, is_state: bool) -> str:
    """Return the display name of a log's topic. Topic names contain no slash."""
    return f"{STATE_DIRECTORY}/{name.topic}" if is_state else name.topic


def _rows(
    filesystem: Filesystem, directory: str, topic: str, partition: int
) -> list[dict[str, Any]]:
    """Return the rows of a partition's segments.

    A segment that vanished since it was listed was deleted or rewritten: list again.
    """
    for _ in range(_TRIES_MAX):
        segments = [
            files
            for files in survey_partition(filesystem, directory).segments
            if files.has_log or files.is_cold
        ]
        rows = [_row(filesystem, files) for files in segments]
        listed = [{"topic": topic, "partition": partition, **row} for row in rows if row]
        if all(rows):
            break
    return listed


def _row(filesystem: Filesystem, files: SegmentFiles) -> dict[str, Any] | None:
    """Return the row of a segment, or None if it vanished."""
    try:
        summary = summarize_segment(filesystem, files)
    except FileNotFoundError:
        return None
    is_empty = summary.record_count == 0
    return {
        "base_offset": summary.base_offset,
        "next_offset": summary.next_offset,
        "records": summary.record_count,
        "batches": summary.batch_count,
        "bytes": summary.size,
        "first_timestamp_ms": None if is_empty else summary.timestamp_min,
        "last_timestamp_ms": None if is_empty else summary.timestamp_max,
        "sealed": "seal" in files.suffixes,
        "cold": files.is_cold,
        "leader_epoch": summary.leader_epoch,
        "generation": files.generation,
    }


def _cells(row: dict[str, Any]) -> list[object]:
    shown = {
        **row,
        "first_timestamp_ms": time_text(row["first_timestamp_ms"]),
        "last_timestamp_ms": time_text(row["last_timestamp_ms"]),
        "sealed": "yes" if row["sealed"] else "no",
        "cold": "yes" if row["cold"] else "no",
    }
    return [shown[name] for name in _COLUMNS]
