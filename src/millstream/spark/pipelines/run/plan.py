"""What Spark would do, in words."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from millstream.errors import InvalidPipeline
from millstream.spark.pipelines.definition.graph import read_by
from millstream.spark.pipelines.definition.pipeline import Pipeline
from millstream.spark.pipelines.definition.target import Target, place_of
from millstream.spark.pipelines.run.cause import cause_of
from millstream.spark.pipelines.run.query import rows_of
from millstream.spark.pipelines.run.views import make_views


def plans(spark: SparkSession, pipeline: Pipeline) -> Iterator[str]:
    """Walk over the targets, each with what Spark plans for it; nothing is read or written."""
    views = make_views(spark.newSession(), pipeline)
    for target in pipeline.targets:
        out = io.StringIO()
        try:
            # Of a plain SQL query Spark does not see in time that it is a stream, and refuses.
            rows = rows_of(target, views).select("*")
            with contextlib.redirect_stdout(out):  # Spark prints it, and returns nothing.
                rows.explain(mode="extended")
        except PySparkException as error:
            raise InvalidPipeline(f"targets.{target.name}: {cause_of(str(error))}") from error
        yield f"{_head(pipeline, target)}\n{out.getvalue()}"


def _head(pipeline: Pipeline, target: Target) -> str:
    return (
        f"target {target.name}: {read_by(target)} -> {place_of(target)}, {target.mode},"
        f" checkpoint {pipeline.checkpoint_of(target)}"
    )
