"""`millstream jobs`."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import click

from millstream.cli.segments.reindex import report_reindexed
from millstream.cli.segments.verify import report_findings
from millstream.cli.support.command_group import CommandGroup
from millstream.cli.support.kafka_security import kafka_security, kafka_security_options
from millstream.cli.support.options import data_option, json_option, one_line_errors, progress_bar
from millstream.cli.support.output import printable, to_json
from millstream.config.schema import MIB
from millstream.spark.maintenance.topics import TABLE_FORMATS, JobTarget, RangeEdge
from millstream.spark.session import running_session

F = TypeVar("F", bound=Callable[..., Any])

_APP = "millstream jobs"

_STATE_HELP = (
    "Directory that records finished segments, so that the same command can resume. All workers"
    " must be able to write to it."
)

state_option = click.option("--state", metavar="DIR", help=_STATE_HELP)

bootstrap_option = click.option(
    "--bootstrap",
    metavar="HOST:PORT",
    envvar="MILLSTREAM_BOOTSTRAP",
    default="127.0.0.1:9092",
    show_default=True,
    show_envvar=True,
    help="Kafka address of the node.",
)

job_id_option = click.option(
    "--job-id",
    metavar="ID",
    help="Id of the job. To repeat a failed run without writing anything twice, give its id."
    " The default is a new id, which is printed.",
)


def spark_options(command: F) -> F:
    """Add the options that choose a Spark master and its settings."""
    master = click.option(
        "--master",
        metavar="URL",
        default="local[*]",
        show_default=True,
        help="Spark master.",
    )
    conf = click.option(
        "--conf",
        metavar="KEY=VALUE",
        multiple=True,
        callback=lambda _context, _option, pairs: dict(map(_pair, pairs)),
        help="Spark setting. Can be repeated.",
    )
    return master(conf(command))


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"must be KEY=VALUE, got {text!r}")
    return key, value


@click.group(cls=CommandGroup)
def jobs() -> None:
    """Run maintenance jobs on Spark.

    Every job can be repeated: it resumes, or finds that everything is done. Requires
    `millstream[spark]` and Java 17 or newer.

    \b
    Example:
        millstream jobs verify --data ./millstream-data --master spark://driver:7077
    """


@jobs.command()
@data_option
@state_option
@spark_options
@json_option
@click.pass_context
def verify(
    context: click.Context,
    *,
    data: str,
    state: str | None,
    master: str,
    conf: dict[str, str],
    as_json: bool,
) -> None:
    """Verify every byte of a data directory, one task per segment.

    Finds and prints the same as `millstream segments verify`, and can run beside a running node.
    The directory must have the same path on all workers.

    \b
    Exit status:
        0  no damage
        1  damaged, or could not be checked
        2  wrong usage

    \b
    Example:
        millstream jobs verify --data ./millstream-data --state ./verify-state
    """
    from millstream.spark.maintenance import segments  # noqa: PLC0415 - slow, with what it needs.

    with (
        one_line_errors(),
        running_session(_APP, master, conf) as spark,
        progress_bar("verify") as bar,
    ):
        findings = segments.verify(spark, data, state=state, progress=bar.update)
    context.exit(report_findings(findings, size=bar.done, as_json=as_json))


@jobs.command()
@data_option
@click.option(
    "--all",
    "is_all",
    is_flag=True,
    help="Rebuild all indexes, not only those that are missing or wrong.",
)
@state_option
@spark_options
@json_option
@click.pass_context
def reindex(
    context: click.Context,
    *,
    data: str,
    state: str | None,
    master: str,
    conf: dict[str, str],
    is_all: bool,
    as_json: bool,
) -> None:
    """Rebuild missing or damaged indexes and seals, one task per segment.

    Does the same as `millstream segments reindex`. Stop the node first. The directory must have the
    same path on all workers and be writable.

    \b
    Exit status:
        0  all indexes and seals are valid
        1  a log is damaged, or something could not be rebuilt
        2  wrong usage

    \b
    Example:
        millstream jobs reindex --data ./millstream-data
    """
    from millstream.spark.maintenance import segments  # noqa: PLC0415 - slow, with what it needs.

    with (
        one_line_errors(),
        running_session(_APP, master, conf) as spark,
        progress_bar("reindex") as bar,
    ):
        done = segments.reindex(spark, data, is_all=is_all, state=state, progress=bar.update)
    context.exit(report_reindexed(done, as_json=as_json))


@jobs.command()
@click.argument("topic")
@click.option(
    "--table",
    metavar="URI",
    help="Delta table of the topic, which all executors can write to. The default is the table that"
    " `millstream lake enable` has set.",
)
@click.option(
    "--file-mib",
    type=click.IntRange(1, 1024),
    default=128,
    show_default=True,
    help="Size of a Parquet file in MiB, about.",
)
@bootstrap_option
@kafka_security_options
@spark_options
@json_option
def lake(
    *,
    topic: str,
    table: str | None,
    file_mib: int,
    bootstrap: str,
    master: str,
    conf: dict[str, str],
    as_json: bool,
) -> None:
    """Write what a topic has and its lake table has not, in parallel.

    Commits as `millstream lake write` does, exactly once: either can go on where the other one has
    stopped. Requires `millstream[lake]` too.

    \b
    Exit status:
        0  written
        1  failed; what was committed stays
        2  wrong usage

    \b
    Example:
        millstream jobs lake orders --table s3://lake/orders --master spark://driver:7077
    """
    from millstream.clients.kafka.client import KafkaClient  # noqa: PLC0415 - slow to import.
    from millstream.lake.topic_table import table_of  # noqa: PLC0415 - slow, with what it needs.
    from millstream.spark.maintenance.lake import write_lake  # noqa: PLC0415
    from millstream.spark.options import SourceOptions  # noqa: PLC0415

    security = kafka_security()
    options = SourceOptions(bootstrap=bootstrap, security=security)
    with one_line_errors():
        with KafkaClient(bootstrap, security=security) as client:
            uri = table_of(client, topic, table)
        with (
            running_session(_APP, master, conf) as spark,
            progress_bar("lake", is_bytes=False) as bar,
        ):
            done = write_lake(
                spark, options, topic, uri, file_bytes=file_mib * MIB, progress=bar.update
            )
    values = done._asdict()
    click.echo(to_json(values) if as_json else ", ".join(f"{k}: {v}" for k, v in values.items()))


@jobs.command()
@click.option("--from", "source", metavar="TOPIC", required=True, help="Topic to read.")
@click.option("--to", "topic", metavar="TOPIC", required=True, help="Topic to write.")
@click.option(
    "--start", metavar="OFFSET|TIME", help="Start of the range. The default is the first record."
)
@click.option(
    "--end",
    metavar="OFFSET|TIME",
    help="End of the range, exclusive. The default is the end of the topic.",
)
@click.option(
    "--partition-by",
    type=click.Choice(["key", "same"]),
    default="key",
    show_default=True,
    help="Target partition of a record: by its key, or the same as its source partition.",
)
@bootstrap_option
@kafka_security_options
@job_id_option
@spark_options
@json_option
def replay(
    *,
    source: str,
    topic: str,
    start: str | None,
    end: str | None,
    partition_by: str,
    bootstrap: str,
    job_id: str | None,
    master: str,
    conf: dict[str, str],
    as_json: bool,
) -> None:
    """Copy a range of one topic to another, exactly once.

    An offset applies to every partition; a time is ISO 8601, in UTC unless it has a zone. All
    copied records become visible together when the job is done.

    \b
    Exit status:
        0  copied
        1  failed; no record is visible, and the same --job-id repeats the job
        2  wrong usage

    \b
    Example:
        millstream jobs replay --from orders --to orders-again --start 2026-01-31T00:00:00Z
    """
    from millstream.spark.maintenance import topics  # noqa: PLC0415 - slow, with what it needs.

    target = _target(bootstrap, topic, job_id)
    with one_line_errors():
        edges = {
            "start": RangeEdge.parse(start) if start else None,
            "end": RangeEdge.parse(end) if end else None,
        }
        with running_session(_APP, master, conf) as spark:
            keeps_partition = partition_by == "same"
            topics.replay(spark, source, target, **edges, keeps_partition=keeps_partition)
    _tell(target, as_json=as_json)


@jobs.command()
@click.option(
    "--table", metavar="PATH|NAME", required=True, help="File, directory, or name of a Spark table."
)
@click.option(
    "--format",
    "table_format",
    type=click.Choice(TABLE_FORMATS),
    help="Format of the files, if their names do not tell.",
)
@click.option("--to", "topic", metavar="TOPIC", required=True, help="Topic to write.")
@click.option("--key", metavar="COLUMN", help="Column to store as the key. The default is no key.")
@click.option("--value", metavar="COLUMN", help="Column to store as the value.")
@click.option(
    "--value-json",
    is_flag=True,
    help="Store all columns as a JSON value. The default without --value.",
)
@bootstrap_option
@kafka_security_options
@job_id_option
@spark_options
@json_option
def backfill(
    *,
    table: str,
    table_format: str | None,
    topic: str,
    key: str | None,
    value: str | None,
    bootstrap: str,
    job_id: str | None,
    master: str,
    conf: dict[str, str],
    value_json: bool,
    as_json: bool,
) -> None:
    """Write a table into a topic, one record per row, exactly once.

    Reads Parquet, ORC, CSV (the first line has the column names) and JSON (one object per line), or
    any table that Spark knows by name. All records become visible together when the job is done.

    \b
    Exit status:
        0  written
        1  failed; no record is visible, and the same --job-id repeats the job
        2  wrong usage

    \b
    Example:
        millstream jobs backfill --table ./orders.parquet --to orders --key customer
    """
    from millstream.spark.maintenance import topics  # noqa: PLC0415 - slow, with what it needs.

    if value is not None and value_json:
        raise click.UsageError("--value and --value-json cannot be combined")
    target = _target(bootstrap, topic, job_id)
    with one_line_errors(), running_session(_APP, master, conf) as spark:
        topics.backfill(spark, table, target, table_format=table_format, key=key, value=value)
    _tell(target, as_json=as_json)


def _target(bootstrap: str, topic: str, job_id: str | None) -> JobTarget:
    target = JobTarget(
        bootstrap=bootstrap,
        topic=topic,
        job_id=job_id or str(uuid.uuid4()),
        security=kafka_security(),
    )
    if job_id is None:
        click.echo(f"job id: {target.job_id}", err=True)
    return target


def _tell(target: JobTarget, *, as_json: bool) -> None:
    if as_json:
        click.echo(to_json({"topic": target.topic, "job_id": target.job_id}))
    else:
        click.echo(printable(f"written to {target.topic} as job {target.job_id}"), err=True)
