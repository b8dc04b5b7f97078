"""Spark session and settings for commands that run pipelines."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millstream.clients.kafka.security import absolute_files
from millstream.spark.pipelines.definition.pipeline import Pipeline
from millstream.spark.session import running_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def with_overrides(
    pipeline: Pipeline,
    *,
    master: str | None,
    bootstrap: str | None,
    conf: Mapping[str, str],
    security: Mapping[str, str] | None = None,
) -> Pipeline:
    """Return a pipeline with settings of the command line, which override its file."""
    return dataclasses.replace(
        pipeline,
        master=master or pipeline.master,
        bootstrap=bootstrap or pipeline.bootstrap,
        conf={**pipeline.conf, **conf},
        security={**pipeline.security, **absolute_files(security or {})},
    )


@contextmanager
def pipeline_session(pipeline: Pipeline, *, log_level: str) -> Iterator[SparkSession]:
    """Yield a session for a pipeline, with Spark's log level."""
    with running_session(
        f"millstream pipeline {pipeline.name}",
        pipeline.master,
        {**_defaults(pipeline.master), **pipeline.conf},
    ) as spark:
        spark.sparkContext.setLogLevel(log_level.upper())
        if log_level == "off":
            _silence_python()
        yield spark


def _silence_python() -> None:
    """Keep PySpark from logging errors that it also raises."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - Spark is slow to import.

    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def _defaults(master: str) -> dict[str, str]:
    """Return settings for small batches; Spark's defaults are for large ones."""
    if not master.startswith("local"):
        return {}
    # One task per processor: with Spark's default of 200, small batches are mostly overhead. A
    # stateful query keeps the number of its first run.
    return {"spark.sql.shuffle.partitions": str(os.cpu_count() or 1)}
