"""What runs pipelines from a command: a session of Spark's, with what the command line said."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from millstream.spark.pipelines.definition.pipeline import Pipeline
from millstream.spark.session import running_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def with_overrides(
    pipeline: Pipeline, *, master: str | None, bootstrap: str | None, conf: Mapping[str, str]
) -> Pipeline:
    """Return a pipeline with what was said elsewhere than in its file, which wins."""
    return dataclasses.replace(
        pipeline,
        master=master or pipeline.master,
        bootstrap=bootstrap or pipeline.bootstrap,
        conf={**pipeline.conf, **conf},
    )


@contextmanager
def pipeline_session(pipeline: Pipeline, *, log_level: str) -> Iterator[SparkSession]:
    """Give a session to run a pipeline in, which says no more than `log_level` by itself."""
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
    """Keep PySpark from logging errors of queries and functions, which it raises as well."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - Spark is slow to import.

    logging.getLogger("py4j").setLevel(logging.CRITICAL + 1)
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)


def _defaults(master: str) -> dict[str, str]:
    """Return settings that fit pipelines better than Spark's, which are made for large batches."""
    if not master.startswith("local"):
        return {}
    # A task for each processor: 200, as Spark has it, would be mostly start-up for small batches.
    # A query that has state keeps the number that it was first run with.
    return {"spark.sql.shuffle.partitions": str(os.cpu_count() or 1)}
