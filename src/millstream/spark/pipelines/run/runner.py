"""A pipeline that runs: a query for each target, watched until all end or are told to."""

from __future__ import annotations

import functools
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.errors import InvalidPipeline, SparkFailed
from millstream.spark.pipelines.definition.pipeline import Pipeline
from millstream.spark.pipelines.definition.table import is_url
from millstream.spark.pipelines.definition.target import Target
from millstream.spark.pipelines.run.cause import cause_of
from millstream.spark.pipelines.run.progress import BatchProgress, batch_of
from millstream.spark.pipelines.run.query import start_query
from millstream.spark.pipelines.run.views import make_views
from millstream.storage.disk.filesystem import OsFilesystem

LOOK_SECONDS = 0.2
"""How often queries are looked at: often enough for eyes, and far below what Spark keeps of reports
(the last 100 batches of a query)."""

STOP_SECONDS = 0.02
"""How often queries are looked at that are to stop between two batches."""

STARTS_MAX = 4
"""How often a query is started whose Python did not come up in time."""

_SLOW_START = "Python worker failed to connect back"
"""How a query fails whose Python process takes longer than Spark's ten seconds to come up, as on a
machine that has far too much to do. Nothing has happened yet, or nothing that is not repeated."""

_NO_BATCH = ("Initializing", "Getting offsets", "Waiting")
"""How the status of a query begins while it looks for something to do. All else is a batch."""


def run(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    observe: Callable[[BatchProgress], None],
    stop: threading.Event,
    is_once: bool = False,
) -> None:
    """Run a pipeline until all its queries end, or until `stop` is set.

    `observe` is told of each batch, after it is done. With `is_once`, what is there now is worked
    off and no more. When `stop` is set, batches that run are finished first. Raises
    `SparkFailed` where a query fails; the others are stopped the same way.
    """
    # Views are of a session: in one of its own, no other pipeline can take their names.
    session = spark.newSession()
    queries = _Queries(observe)
    with _locked(pipeline):
        try:
            queries.start(session, pipeline, is_once=is_once)
            while not stop.is_set() and queries.are_running():
                stop.wait(LOOK_SECONDS)
                queries.report()
            queries.finish()
        finally:
            queries.abandon()


@contextmanager
def _locked(pipeline: Pipeline) -> Iterator[None]:
    """Keep others from running the same checkpoints, where they are on this machine's disks."""
    if is_url(directory := pipeline.checkpoint_directory):
        yield
        return
    os.makedirs(directory, exist_ok=True)
    lock = OsFilesystem().lock(os.path.join(directory, "lock"))
    try:
        yield
    finally:
        lock.release()


class TargetQuery:
    """The query of one target, and which of its batches were told of."""

    def __init__(self, target: Target, start: Callable[[], StreamingQuery]) -> None:
        self.target = target
        self.query = start()
        self._start = start
        self._starts = 1
        self._last = -1

    def new_batches(self) -> list[BatchProgress]:
        """Return the batches that are done and were not returned before."""
        found = []
        for report in self.query.recentProgress:
            batch = batch_of(self.target.name, json.loads(report.json))
            if batch is not None and batch.batch > self._last:
                self._last = batch.batch
                found.append(batch)
        return found

    def is_in_a_batch(self) -> bool:
        """Whether a batch runs now, and is not only looked for."""
        if not self.query.isActive:
            return False
        status = self.query.status
        return bool(status["isTriggerActive"]) and not status["message"].startswith(_NO_BATCH)

    def has_failed(self) -> bool:
        """Whether it has ended, and not because it was told to or was done."""
        return not self.query.isActive and self.query.exception() is not None

    def start_again_if_slow(self) -> None:
        """Start it again if it failed only because its Python did not come up in time."""
        if (
            self._starts < STARTS_MAX
            and self.has_failed()
            and _SLOW_START in str(self.query.exception())
        ):
            self._starts += 1
            self.query = self._start()


class _Queries:
    """All queries of a pipeline, started together and stopped together."""

    def __init__(self, observe: Callable[[BatchProgress], None]) -> None:
        self._observe = observe
        self._queries: list[TargetQuery] = []

    def start(self, spark: SparkSession, pipeline: Pipeline, *, is_once: bool) -> None:
        """Start a query for each target."""
        views = make_views(spark, pipeline)
        for target in pipeline.targets:
            start = functools.partial(start_query, pipeline, target, views, is_once=is_once)
            try:
                self._queries.append(TargetQuery(target, start))
            except PySparkException as error:
                raise InvalidPipeline(f"targets.{target.name}: {cause_of(str(error))}") from error

    def are_running(self) -> bool:
        """Whether there is something to wait for, and nothing has failed."""
        for one in self._queries:
            one.start_again_if_slow()
        return any(one.query.isActive for one in self._queries) and not any(
            one.has_failed() for one in self._queries
        )

    def report(self) -> None:
        """Tell of the batches that are done."""
        for one in self._queries:
            for batch in one.new_batches():
                self._observe(batch)

    def finish(self) -> None:
        """Stop each query between two batches, and raise what has failed.

        Where one batch follows the other without a pause, the next may have begun: it is broken
        off, and will be run again from its beginning.
        """
        self.report()
        left = self._queries
        pause = threading.Event()
        while left := [one for one in left if not self._is_stopped(one)]:
            pause.wait(STOP_SECONDS)
        for one in self._queries:
            if (error := one.query.exception()) is not None:
                cause = cause_of(str(error))
                raise SparkFailed(f"target {one.target.name} failed: {cause}") from error

    def _is_stopped(self, one: TargetQuery) -> bool:
        """Stop a query if it is between two batches; return whether it is stopped."""
        batches = one.new_batches()
        for batch in batches:
            self._observe(batch)
        if one.is_in_a_batch() and not batches:
            return False
        one.query.stop()
        for batch in one.new_batches():
            self._observe(batch)
        return True

    def abandon(self) -> None:
        """Stop all queries at once."""
        for one in self._queries:
            one.query.stop()
