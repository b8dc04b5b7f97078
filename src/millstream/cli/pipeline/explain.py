"""`millstream pipeline explain`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from millstream.cli.pipeline.options import file_argument, parse_conf, spark_options
from millstream.cli.support.kafka_security import given_security
from millstream.cli.support.options import one_line_errors


@click.command()
@file_argument
@spark_options
def explain(
    *, file: str, master: str | None, conf: Sequence[str], bootstrap: str | None, log_level: str
) -> None:
    """Print how Spark would run a pipeline, without running it.

    For each target: its sources, its destination, its checkpoint, and the logical and physical
    plans of Spark.

    \b
    Exit status:
        0  printed
        1  the pipeline cannot run
        2  wrong usage

    \b
    Example:
        millstream pipeline explain orders.toml
    """
    settings = parse_conf(conf)
    with one_line_errors():
        from millstream.spark.pipelines.definition.load import load  # noqa: PLC0415 - Spark is slow to import.

        pipeline = load(file)
        from millstream.spark.pipelines.run.command import pipeline_session, with_overrides  # noqa: PLC0415

        pipeline = with_overrides(
            pipeline,
            master=master,
            bootstrap=bootstrap,
            conf=settings,
            security=given_security(),
        )
        with pipeline_session(pipeline, log_level=log_level) as spark:
            from millstream.spark.pipelines.run.plan import plans  # noqa: PLC0415

            for plan in plans(spark, pipeline):
                click.echo(plan)
