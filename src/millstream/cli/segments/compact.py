"""`millstream segments compact`."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from millstream.cli.support.options import data_option, json_option, one_line_errors, progress_bar
from millstream.cli.support.output import print_table, printable, to_json
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.storage.inspect.catalog import check_directory

if TYPE_CHECKING:
    from millstream.cli.segments.offline_run import OfflinePlan, OfflineResult

_DONE = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "bytes_before": "BYTES",
    "bytes_after": "AFTER",
    "records_before": "RECORDS",
    "records_after": "AFTER",
    "segments_before": "SEGMENTS",
    "segments_after": "AFTER",
}
_PLANNED = {
    "topic": "TOPIC",
    "partition": "PARTITION",
    "evicted_segments": "EVICTED SEGMENTS",
    "evicted_records": "RECORDS",
    "evicted_bytes": "BYTES",
    "reasons": "BY",
    "deleted_records": "DELETED RECORDS",
    "reclaimable_bytes": "BYTES",
    "uncompacted_bytes": "UNCOMPACTED BYTES",
}


@click.command()
@data_option
@click.option("--topic", metavar="NAME", help="Process only the logs of this topic.")
@click.option(
    "--dry-run",
    "is_dry",
    is_flag=True,
    help="Print what would be deleted and rewritten, and change nothing.",
)
@json_option
@click.pass_context
def compact(
    context: click.Context, data: str, *, topic: str | None, is_dry: bool, as_json: bool
) -> None:
    """Run retention and compaction now, as a node does in the background.

    Stop the node first. Deletes expired segments according to the settings of their topics, removes
    deleted records from the files, keeps the latest record of each key in compacted topics, and
    merges small segments. Prints one line per changed log. Logs of an embedded store, whose
    settings are in its program and not in the directory, are only reclaimed and merged.

    The directory is opened as a node opens it, even for a dry run: unfinished writes of a crash are
    repaired.

    \b
    Exit status:
        0  all logs were processed
        1  some could not be processed, or the directory could not be opened
        2  wrong usage

    \b
    Example:
        millstream segments compact --data ./millstream-data --topic orders --dry-run
    """
    logging.basicConfig(stream=sys.stderr, level=logging.ERROR, format="%(message)s")
    with one_line_errors():
        check_directory(OsFilesystem(), data)
        # This needs far more than the other commands do, which would all wait for it.
        from millstream.cli.segments.offline_run import OfflineRun  # noqa: PLC0415

        with progress_bar("compact") as bar:
            run = OfflineRun(data, topic, progress=bar.update)
            results: Sequence[OfflineResult | OfflinePlan]
            results = asyncio.run(run.plan()) if is_dry else asyncio.run(run.run())
    columns = _PLANNED if is_dry else _DONE
    rows = [_row(result) for result in results]
    if as_json:
        click.echo(to_json(rows, indent=2))
    elif rows:
        print_table(list(columns.values()), [_cells(row, columns) for row in rows])
    for name, error in run.failures:
        click.echo(printable(f"{name}: {error}"), err=True)
    words = "would change" if is_dry else "changed"
    click.echo(
        f"{run.log_count} logs checked: {len(rows)} {words}, {len(run.failures)} failed",
        err=True,
    )
    context.exit(1 if run.failures else 0)


def _row(result: OfflineResult | OfflinePlan) -> dict[str, Any]:
    row = result._asdict()
    name = row.pop("name")
    return {"topic": name.topic, "partition": name.partition, **row}


def _cells(row: dict[str, Any], columns: dict[str, str]) -> list[object]:
    shown = {**row, "reasons": ", ".join(row.get("reasons", ())) or "-"}
    return [shown[name] for name in columns]
