"""Spark: a streaming query that copies a topic while another load writes it.

It needs pyspark and Java, and takes a while to start, so rounds of chaos run it only on demand.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from millstream.testing.cluster.history import CopyHistory
from millstream.testing.cluster.loads.confluent import PARTITIONS
from millstream.testing.cluster.loads.load import Load
from millstream.testing.cluster.reading import WAIT_SECONDS, read_content

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

POLL_SECONDS = 0.1
WORKER_LATE = "Python worker failed to connect back"
"""Spark gives a Python process ten seconds to start, which no setting changes, and ends the query
if a busy machine takes longer. Then the query is started again, as its user would do.
"""

QUERY_STARTS_MAX = 20


class SparkLoad(Load):
    """Structured streaming from one topic to another, exactly once. A micro-batch is a success."""

    wait_seconds = 5 * WAIT_SECONDS
    """On a busy machine the first batches, each with several Python processes, take minutes."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, source: str, target: str, checkpoint: Path
    ) -> None:
        super().__init__()
        self._spark = spark
        self._bootstrap = bootstrap
        self._source = source
        self._target = target
        self._checkpoint = checkpoint
        self._query: StreamingQuery | None = None
        self._starts = 0

    def run(self) -> None:
        query = self._start()
        batch = -1
        while not self.is_stopping:
            if (error := query.exception()) is not None:
                self._tolerate(error)
                query = self._start()
            if (last := _last_batch(query)) > batch:
                batch = last
                self.succeeded()
            time.sleep(POLL_SECONDS)

    def _start(self) -> StreamingQuery:
        self._starts += 1
        # Spark looks for data sources in the session of the thread; each thread of Python has its
        # own in the JVM, and there is no public call that sets it.
        spark: Any = self._spark
        spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)  # noqa: SLF001
        server = {"bootstrap.servers": self._bootstrap}
        rows = (
            self._spark.readStream.format("millstream")
            .options(**server, topic=self._source, startingOffsets="earliest")
            .load()
        )
        self._query = (
            rows.select("value")
            .writeStream.format("millstream")
            .options(**server, topic=self._target, checkpointLocation=str(self._checkpoint))
            .start()
        )
        return self._query

    def _tolerate(self, error: Exception) -> None:
        """Raise an error of a query, unless starting it again is the answer."""
        if WORKER_LATE not in str(error) or self._starts >= QUERY_STARTS_MAX:
            raise error

    def history(self) -> CopyHistory:
        """Copy what is left, when nothing is written any more, and return both topics."""
        query = self._query
        assert query is not None, "it was started"
        while True:
            try:
                query.processAllAvailable()
            except StreamingQueryException as error:
                self._tolerate(error)
                query = self._start()
            else:
                query.stop()
                break
        return CopyHistory(
            topic=self._target,
            source=read_content(self._bootstrap, self._source, PARTITIONS).records,
            content=read_content(self._bootstrap, self._target, PARTITIONS),
        )


def _last_batch(query: StreamingQuery) -> int:
    progress: Any = query.lastProgress
    return -1 if progress is None else int(progress["batchId"])
