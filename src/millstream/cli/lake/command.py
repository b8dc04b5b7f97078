"""`millstream lake`."""

from __future__ import annotations

import threading
from typing import Any

import click

from millstream.cli.jobs.command import bootstrap_option
from millstream.cli.support.command_group import CommandGroup
from millstream.cli.support.kafka_security import kafka_security, kafka_security_options
from millstream.cli.support.options import json_option, one_line_errors, progress_bar
from millstream.cli.support.output import print_table, to_json
from millstream.config.schema import MIB

_FILE_MIB = 128

table_option = click.option(
    "--table",
    metavar="URI",
    help="Delta table of the topic: a directory, or an address of an object store such as"
    " s3://bucket/prefix, whose credentials are taken from its environment variables. The default"
    " is the table that `enable` has set.",
)

file_size_option = click.option(
    "--file-mib",
    type=click.IntRange(1, 1024),
    default=_FILE_MIB,
    show_default=True,
    help="Size of a Parquet file in MiB, about.",
)


@click.group(cls=CommandGroup)
def lake() -> None:
    """Write topics to Delta tables.

    A table has every committed record of a topic once, and says itself up to which offsets. Spark,
    Polars, DuckDB and others read it without a node. Requires `millstream[lake]`.

    \b
    Example:
        millstream lake write orders --table ./lake/orders
    """


@lake.command()
@click.argument("topic")
@click.option(
    "--table",
    metavar="URI",
    required=True,
    help="Delta table of the topic: a directory, or an address of an object store such as"
    " s3://bucket/prefix. Is created if there is none.",
)
@click.option(
    "--required/--not-required",
    "is_required",
    default=None,
    help="Whether retention waits for the table: no record leaves the log before it is there. The"
    " default leaves that as it is, for a new table without waiting.",
)
@bootstrap_option
@kafka_security_options
@json_option
def enable(
    *, topic: str, table: str, is_required: bool | None, bootstrap: str, as_json: bool
) -> None:
    """Create the table of a topic, and note its address in the topic.

    Readers find the table in the config millstream.lake.table then, and other `lake` commands do
    not need --table. Nothing is written yet. A directory is noted with its absolute path.

    \b
    Exit status:
        0  enabled, or it was already
        1  failed, for instance because the table belongs to another topic
        2  wrong usage

    \b
    Example:
        millstream lake enable orders --table s3://lake/orders --required
    """
    from millstream.clients.kafka.client import KafkaClient  # noqa: PLC0415 - slow to import.
    from millstream.lake.topic_table import enable_lake  # noqa: PLC0415 - slow, with what it needs.

    with one_line_errors(), KafkaClient(bootstrap, security=kafka_security()) as client:
        address = enable_lake(client, topic, table, is_required=is_required)
    _report({"topic": topic, "table": address}, as_json=as_json)


@lake.command()
@click.argument("topic")
@bootstrap_option
@kafka_security_options
@json_option
def disable(*, topic: str, bootstrap: str, as_json: bool) -> None:
    """Remove the address of its table from a topic. The table itself stays.

    Retention does not wait for it any more.

    \b
    Exit status:
        0  disabled, or there was no address
        1  failed
        2  wrong usage

    \b
    Example:
        millstream lake disable orders
    """
    from millstream.clients.kafka.client import KafkaClient  # noqa: PLC0415 - slow to import.
    from millstream.lake.topic_table import disable_lake  # noqa: PLC0415 - slow, with what it needs.

    with one_line_errors(), KafkaClient(bootstrap, security=kafka_security()) as client:
        address = disable_lake(client, topic)
    _report({"topic": topic, "table": address}, as_json=as_json)


@lake.command()
@click.argument("topic")
@table_option
@click.option(
    "--every",
    "every_seconds",
    type=click.FloatRange(min=1),
    metavar="SECONDS",
    help="Go on until it is stopped, writing at most once in so many seconds. The default is to"
    " write once.",
)
@file_size_option
@bootstrap_option
@kafka_security_options
@json_option
def write(
    *,
    topic: str,
    table: str | None,
    every_seconds: float | None,
    file_mib: int,
    bootstrap: str,
    as_json: bool,
) -> None:
    """Write what a topic has and its table has not.

    Creates the table if there is none. Can be stopped and repeated at any time: nothing is written
    twice, and nothing is left out. If records were deleted by retention before they were written,
    it fails and names them.

    \b
    Exit status:
        0  written
        1  failed; what was committed stays
        2  wrong usage

    \b
    Example:
        millstream lake write orders --table ./lake/orders --every 60
    """
    from millstream.clients.kafka.client import KafkaClient  # noqa: PLC0415 - slow to import.
    from millstream.lake.topic_table import table_of  # noqa: PLC0415 - slow, with what it needs.
    from millstream.lake.writer import LakeWriter  # noqa: PLC0415 - slow, with what it needs.

    never = threading.Event()
    with one_line_errors(), KafkaClient(bootstrap, security=kafka_security()) as client:
        table = table_of(client, topic, table)
        writer = LakeWriter(client, topic, table, file_bytes=file_mib * MIB)
        while True:
            with progress_bar("write", is_bytes=False) as bar:
                done = writer.run(progress=bar.update)
            if done.commits or every_seconds is None:
                _report(done._asdict(), as_json=as_json)
            if every_seconds is None:
                return
            never.wait(every_seconds)


@lake.command()
@click.argument("topic")
@table_option
@bootstrap_option
@kafka_security_options
@json_option
def status(*, topic: str, table: str | None, bootstrap: str, as_json: bool) -> None:
    """Show how far a table is behind its topic.

    \b
    Exit status:
        0  shown
        1  the topic or the table cannot be read
        2  wrong usage

    \b
    Example:
        millstream lake status orders --table ./lake/orders
    """
    from millstream.clients.kafka.client import KafkaClient  # noqa: PLC0415 - slow to import.
    from millstream.lake.topic_table import table_of  # noqa: PLC0415 - slow, with what it needs.
    from millstream.lake.writer import LakeWriter  # noqa: PLC0415 - slow, with what it needs.

    with one_line_errors(), KafkaClient(bootstrap, security=kafka_security()) as client:
        table = table_of(client, topic, table)
        partitions = LakeWriter(client, topic, table).lag()
    if as_json:
        rows = [
            {
                "partition": lag.partition,
                "position": lag.position,
                "log_start": lag.log.start,
                "log_end": lag.log.end,
                "lag": lag.offsets,
            }
            for lag in partitions
        ]
        click.echo(to_json({"topic": topic, "table": table, "partitions": rows}))
        return
    print_table(
        ["partition", "position", "log start", "log end", "lag"],
        [
            [
                lag.partition,
                "-" if lag.position is None else lag.position,
                lag.log.start,
                lag.log.end,
                lag.offsets,
            ]
            for lag in partitions
        ],
    )


@lake.command()
@click.option("--table", metavar="URI", required=True, help="Delta table of a topic.")
@file_size_option
@json_option
def compact(*, table: str, file_mib: int, as_json: bool) -> None:
    """Merge the small files of a table.

    Readers and writers may go on meanwhile. The old files stay until a vacuum of the table.

    \b
    Exit status:
        0  merged, or there was nothing to merge
        1  the table cannot be read or written
        2  wrong usage

    \b
    Example:
        millstream lake compact --table ./lake/orders
    """
    from millstream.lake.table import LakeTable  # noqa: PLC0415 - slow, with what it needs.

    with one_line_errors():
        opened = LakeTable.open(table)
        counts = opened.compact(file_bytes=file_mib * MIB)
    _report(
        {
            "files_removed": counts["numFilesRemoved"],
            "files_added": counts["numFilesAdded"],
            "version": opened.version,
        },
        as_json=as_json,
    )


@lake.command()
@click.option("--table", metavar="URI", required=True, help="Delta table of a topic.")
@click.option(
    "--keep-hours",
    type=click.IntRange(1, 24 * 365),
    default=168,
    show_default=True,
    help="Age in hours of files that stay, for queries that read an older version and for writers"
    " that have not committed yet.",
)
@json_option
def vacuum(*, table: str, keep_hours: int, as_json: bool) -> None:
    """Remove files that the table does not need any more.

    Those are files from before a compaction or a deletion, and those of writers that crashed. Only
    then the bytes of deleted records are gone from the store.

    \b
    Exit status:
        0  removed, or there was nothing to remove
        1  the table cannot be read or written
        2  wrong usage

    \b
    Example:
        millstream lake vacuum --table ./lake/orders --keep-hours 24
    """
    from millstream.lake.table import LakeTable  # noqa: PLC0415 - slow, with what it needs.

    with one_line_errors():
        removed = LakeTable.open(table).vacuum(keep_hours=keep_hours)
    _report({"files_removed": removed}, as_json=as_json)


def _report(values: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(to_json(values))
    else:
        words = (f"{name.replace('_', ' ')}: {value}" for name, value in values.items())
        click.echo(", ".join(words), err=True)
