"""Spark's plans of a pipeline, as text."""

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
    """Yield Spark's plan for each target, without reading or writing records."""
    views = make_views(spark.newSession(), pipeline)
    for target in pipeline.targets:
        out = io.StringIO()
        try:
            # Without the select, Spark refuses to explain a plain SQL query over a stream.
            rows = rows_of(target, views).select("*")
            with contextlib.redirect_stdout(out):  # Spark prints the plan.
                rows.explain(mode="extended")
        except PySparkException as error:
            raise InvalidPipeline(f"targets.{target.name}: {cause_of(str(error))}") from error
        yield f"{_head(pipeline, target)}\n{out.getvalue()}"


def _head(pipeline: Pipeline, target: Target) -> str:
    return (
        f"target {target.name}: {read_by(target)} -> {place_of(target)}, {target.mode},"
        f" checkpoint {pipeline.checkpoint_of(target)}"
    )
