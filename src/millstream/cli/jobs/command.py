"""`millstream jobs`: maintenance that walks over much data, on Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, TypeVar

import click

from millstream.cli.segments.reindex import report_reindexed
from millstream.cli.segments.verify import report_findings
from millstream.cli.support.command_group import CommandGroup
from millstream.cli.support.options import data_option, json_option, one_line_errors, progress_bar
from millstream.cli.support.output import printable, to_json
from millstream.spark.maintenance.topics import TABLE_FORMATS, JobTarget, RangeEdge
from millstream.spark.session import running_session

F = TypeVar("F", bound=Callable[..., Any])

_APP = "millstream jobs"

_STATE_HELP = (
    "Where to note which segments are finished, so that the same command goes on after it was"
    " ended. All workers must be able to write there."
)

state_option = click.option("--state", metavar="DIR", help=_STATE_HELP)

bootstrap_option = click.option(
    "--bootstrap",
    metavar="HOST:PORT",
    envvar="MILLSTREAM_BOOTSTRAP",
    default="127.0.0.1:9092",
    show_default=True,
    show_envvar=True,
    help="The Kafka door of the node.",
)

job_id_option = click.option(
    "--job-id",
    metavar="ID",
    help="What the node knows the job by. Give the one of a run that failed, to repeat it without"
    " writing anything twice. A new one is made up, and told, where there is none.",
)


def spark_options(command: F) -> F:
    """Add the options that say which Spark a command runs on."""
    master = click.option(
        "--master",
        metavar="URL",
        default="local[*]",
        show_default=True,
        help="The Spark master to run on.",
    )
    conf = click.option(
        "--conf",
        metavar="KEY=VALUE",
        multiple=True,
        callback=lambda _context, _option, pairs: dict(map(_pair, pairs)),
        help="A setting of Spark. Can be repeated.",
    )
    return master(conf(command))


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"found {text!r}, needed is KEY=VALUE")
    return key, value


@click.group(cls=CommandGroup)
def jobs() -> None:
    """Run maintenance over much data, on Spark.

    Every job can be repeated: it goes on, or finds that all is done. Needs `millstream[spark]` and
    Java 17 or newer.

    \b
    Example:
        millstream jobs verify --data ./millstream-data --master spark://driver:7077
    """  # noqa: D301 - click's mark for lines to leave as they are.


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
    """Check every byte of a data directory, a task for each segment.

    Finds and prints what `millstream segments verify` does, and works beside a running node. The
    directory has to be at the same path for all workers.

    \b
    Exit status:
        0  sound
        1  damaged, or could not be checked
        2  wrong usage

    \b
    Example:
        millstream jobs verify --data ./millstream-data --state ./verify-state
    """  # noqa: D301 - click's mark for lines to leave as they are.
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
    help="Derive every index anew, to trust none of the old; without it, only those that are"
    " missing or wrong.",
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
    """Derive missing or damaged indexes and seals anew, a task for each segment.

    Does what `millstream segments reindex` does. Stop the node first. The directory has to be at
    the same path for all workers, and they must be able to write there.

    \b
    Exit status:
        0  every index and seal is in order now
        1  a log is damaged, or something else is that could not be derived
        2  wrong usage

    \b
    Example:
        millstream jobs reindex --data ./millstream-data
    """  # noqa: D301 - click's mark for lines to leave as they are.
    from millstream.spark.maintenance import segments  # noqa: PLC0415 - slow, with what it needs.

    with (
        one_line_errors(),
        running_session(_APP, master, conf) as spark,
        progress_bar("reindex") as bar,
    ):
        done = segments.reindex(spark, data, is_all=is_all, state=state, progress=bar.update)
    context.exit(report_reindexed(done, as_json=as_json))


@jobs.command()
@click.option("--from", "source", metavar="TOPIC", required=True, help="The topic to read.")
@click.option("--to", "topic", metavar="TOPIC", required=True, help="The topic to write.")
@click.option("--start", metavar="OFFSET|TIME", help="Where to begin; else with the first record.")
@click.option("--end", metavar="OFFSET|TIME", help="Where to stop, before that; else at the end.")
@click.option(
    "--partition-by",
    type=click.Choice(["key", "same"]),
    default="key",
    show_default=True,
    help="Which partition a record goes to: that of its key, or the one it came from.",
)
@bootstrap_option
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
    """Write a range of one topic into another, exactly once.

    An offset counts in every partition; a time is as ISO 8601 has it, in UTC where it names no
    zone. What is written becomes visible in one step, when the job is done.

    \b
    Exit status:
        0  all is written
        1  nothing of it is to be seen; the same --job-id repeats it
        2  wrong usage

    \b
    Example:
        millstream jobs replay --from orders --to orders-again --start 2026-01-31T00:00:00Z
    """  # noqa: D301 - click's mark for lines to leave as they are.
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
    "--table", metavar="PATH|NAME", required=True, help="A file or directory, or a table of Spark."
)
@click.option(
    "--format",
    "table_format",
    type=click.Choice(TABLE_FORMATS),
    help="What the files are, where their names do not say it.",
)
@click.option("--to", "topic", metavar="TOPIC", required=True, help="The topic to write.")
@click.option("--key", metavar="COLUMN", help="What becomes the key; else there is none.")
@click.option("--value", metavar="COLUMN", help="What becomes the value.")
@click.option(
    "--value-json", is_flag=True, help="Make all columns the value, as JSON; so without --value."
)
@bootstrap_option
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
    """Write a table into a topic, a record for each row, exactly once.

    Parquet, ORC, CSV (whose first line names the columns) and JSON (an object on each line), or
    any table that Spark knows by name. What is written becomes visible in one step, when the job
    is done.

    \b
    Exit status:
        0  all is written
        1  nothing of it is to be seen; the same --job-id repeats it
        2  wrong usage

    \b
    Example:
        millstream jobs backfill --table ./orders.parquet --to orders --key customer
    """  # noqa: D301 - click's mark for lines to leave as they are.
    from millstream.spark.maintenance import topics  # noqa: PLC0415 - slow, with what it needs.

    if value is not None and value_json:
        raise click.UsageError("found --value and --value-json, allowed is one of them")
    target = _target(bootstrap, topic, job_id)
    with one_line_errors(), running_session(_APP, master, conf) as spark:
        topics.backfill(spark, table, target, table_format=table_format, key=key, value=value)
    _tell(target, as_json=as_json)


def _target(bootstrap: str, topic: str, job_id: str | None) -> JobTarget:
    target = JobTarget(bootstrap=bootstrap, topic=topic, job_id=job_id or str(uuid.uuid4()))
    if job_id is None:
        click.echo(f"job id: {target.job_id}", err=True)
    return target


def _tell(target: JobTarget, *, as_json: bool) -> None:
    if as_json:
        click.echo(to_json({"topic": target.topic, "job_id": target.job_id}))
    else:
        click.echo(printable(f"written to {target.topic} as job {target.job_id}"), err=True)
