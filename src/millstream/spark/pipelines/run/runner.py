"""Runner of a pipeline: one query per target, observed until all end or are stopped."""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from millstream.errors import InvalidPipeline, SparkFailed
from millstream.spark.pipelines.definition.pipeline import Pipeline
from millstream.spark.pipelines.definition.target import Target
from millstream.spark.pipelines.run.cause import cause_of
from millstream.spark.pipelines.run.checkpoints import held_checkpoints
from millstream.spark.pipelines.run.progress import BatchProgress, batch_of
from millstream.spark.pipelines.run.query import start_query
from millstream.spark.pipelines.run.views import make_views
from millstream.spark.session import prepare_streams

POLL_SECONDS = 0.2
"""Interval between polls of the queries: short for a user, and far below the time in which
Spark drops reports (it keeps the last 100 batches of a query). """

STOP_POLL_SECONDS = 0.02
"""Interval between polls of queries that are to stop between two batches."""

STARTS_MAX = 4
"""Limit on starts of a query, which is restarted if its Python process did not start in time."""

_SLOW_START = "Python worker failed to connect back"
"""Error of a query whose Python process takes longer than Spark's ten seconds to start, as on an
overloaded machine. Nothing was done yet, or only work that is repeated.
"""

_NO_BATCH = ("Initializing", "Getting offsets", "Waiting")
"""Prefixes of a query's status while it looks for new records. Any other status is a batch."""


def run(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    observe: Callable[[BatchProgress], None],
    stop: threading.Event,
    is_once: bool = False,
) -> None:
    """Run a pipeline until all its queries end, or until `stop` is set.

    `observe` is called with each completed batch. With `is_once`, the queries process the present
    records and end. When `stop` is set, running batches are finished first. Raises `SparkFailed` if
    a query fails; the others are stopped in the same way.
    """
    # Views belong to a session: in its own one, their names cannot collide with others.
    session = spark.newSession()
    queries = _Queries(observe)
    with held_checkpoints(session, pipeline):
        prepare_streams(session)
        try:
            queries.start(session, pipeline, is_once=is_once)
            while not stop.is_set() and queries.are_running():
                stop.wait(POLL_SECONDS)
                queries.report()
            queries.finish()
        finally:
            queries.abandon()


class TargetQuery:
    """The query of one target, and the last batch that was reported."""

    def __init__(self, target: Target, start: Callable[[], StreamingQuery]) -> None:
        self.target = target
        self.query = start()
        self._start = start
        self._starts = 1
        self._last = -1

    def new_batches(self) -> list[BatchProgress]:
        """Return completed batches that were not returned before."""
        batches = []
        for report in self.query.recentProgress:
            batch = batch_of(self.target.name, json.loads(report.json))
            if batch is not None and batch.batch > self._last:
                self._last = batch.batch
                batches.append(batch)
        return batches

    def is_processing(self) -> bool:
        """Whether a batch is running. Looking for new records does not count."""
        if not self.query.isActive:
            return False
        status = self.query.status
        return bool(status["isTriggerActive"]) and not status["message"].startswith(_NO_BATCH)

    def has_failed(self) -> bool:
        """Whether the query ended with an error."""
        return not self.query.isActive and self.query.exception() is not None

    def restart_if_slow(self) -> None:
        """Restart the query if it failed only because its Python process did not start in time."""
        if (
            self._starts < STARTS_MAX
            and self.has_failed()
            and _SLOW_START in str(self.query.exception())
        ):
            self._starts += 1
            self.query = self._start()


class _Queries:
    """All queries of a pipeline, which start and stop together."""

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
        """Whether a query is running and none has failed."""
        for query in self._queries:
            query.restart_if_slow()
        return any(query.query.isActive for query in self._queries) and not any(
            query.has_failed() for query in self._queries
        )

    def report(self) -> None:
        """Report completed batches."""
        for query in self._queries:
            for batch in query.new_batches():
                self._observe(batch)

    def finish(self) -> None:
        """Stop each query between two batches, and raise the error of one that failed.

        If batches follow each other without a pause, the next one may have started: it is
        interrupted, and the next run repeats it from its start.
        """
        self.report()
        running = self._queries
        pause = threading.Event()
        while running := [query for query in running if not self._is_stopped(query)]:
            pause.wait(STOP_POLL_SECONDS)
        for query in self._queries:
            if (error := query.query.exception()) is not None:
                cause = cause_of(str(error))
                raise SparkFailed(f"target {query.target.name} failed: {cause}") from error

    def _is_stopped(self, query: TargetQuery) -> bool:
        """Stop a query if it is between two batches; return whether it is stopped."""
        batches = query.new_batches()
        for batch in batches:
            self._observe(batch)
        if query.is_processing() and not batches:
            return False
        query.query.stop()
        for batch in query.new_batches():
            self._observe(batch)
        return True

    def abandon(self) -> None:
        """Stop all queries at once."""
        for query in self._queries:
            query.query.stop()
