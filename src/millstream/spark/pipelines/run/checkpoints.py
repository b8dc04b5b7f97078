"""Checkpoints of a pipeline: held by one run at a time, and freed of what a killed run left.

A killed command leaves Spark's Java process behind, which notices it, but may need seconds to end
and until then completes batches. So both hold a lock: the command one that is refused at once,
and its Java process another one that the next run waits for.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from millstream.errors import StoreLocked
from millstream.spark.pipelines.definition.pipeline import Pipeline
from millstream.spark.pipelines.definition.table import is_url
from millstream.storage.disk.filesystem import OsFilesystem

SPARK_LOCK = "spark-lock"
"""File that the Java process of a run locks, beside the `lock` of its command."""

WAIT_SECONDS = 60.0
"""Limit on waiting for the Java process of a killed run."""

POLL_SECONDS = 0.2

logger = logging.getLogger(__name__)


@contextmanager
def held_checkpoints(spark: SparkSession, pipeline: Pipeline) -> Iterator[None]:
    """Hold the checkpoints of a pipeline within the block, ready for its queries.

    If they are on a local disk, other runs are locked out: raises `StoreLocked` if one is running.
    """
    directory = pipeline.checkpoint_directory
    if is_url(directory):
        _remove_leftovers(spark, pipeline)
        yield
        return
    os.makedirs(directory, exist_ok=True)
    lock = OsFilesystem().lock(os.path.join(directory, "lock"))
    try:
        with _locked_by_spark(spark, os.path.join(directory, SPARK_LOCK)):
            _remove_leftovers(spark, pipeline)
            yield
    finally:
        lock.release()


@contextmanager
def _locked_by_spark(spark: SparkSession, path: str) -> Iterator[None]:
    """Lock a file in the Java process of a session, when no other one has it any more."""
    file = _java(spark).java.io.RandomAccessFile(path, "rw")
    try:
        channel = file.getChannel()
        pause = threading.Event()
        polls = int(WAIT_SECONDS / POLL_SECONDS)
        for poll in range(polls + 1):
            if channel.tryLock() is not None:
                break
            if poll == 0:
                logger.warning("waiting for Spark of a run that was killed to end: it has %s", path)
            if poll == polls:
                raise StoreLocked(
                    f"{path} is still locked after {WAIT_SECONDS:.0f} s by the Java process of an"
                    " earlier run that was killed: end that process, and run the pipeline again"
                )
            pause.wait(POLL_SECONDS)
        yield
    finally:
        with contextlib.suppress(Py4JError, OSError):  # If that process is dead, so is its lock.
            file.close()


def _remove_leftovers(spark: SparkSession, pipeline: Pipeline) -> None:
    """Remove files that a killed run left half written in its first batch.

    Spark writes a file under a name that begins with a dot, and renames it. It refuses a
    checkpoint without a batch if it has any file, so a run that was killed before its first rename
    could never be resumed.
    """
    for target in pipeline.targets:
        offsets = _java(spark).org.apache.hadoop.fs.Path(pipeline.checkpoint_of(target), "offsets")
        files = offsets.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())  # noqa: SLF001
        if not files.exists(offsets):
            continue
        paths = [status.getPath() for status in files.listStatus(offsets)]
        if all(path.getName().startswith(".") for path in paths):
            for path in paths:
                files.delete(path, False)  # noqa: FBT003 - Java has no names of arguments.


def _java(spark: SparkSession) -> Any:
    """Return the Java process of a session."""
    return spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no public way.
