"""The sinks: exactly once, for batches and for streams.

    task attempt   a transactional producer of its own, `<publisher>/<partition>/<attempt>`, writes
                   straight into the target partitions and leaves its transaction open
    driver         one request: commit the transactions of the attempts that Spark counts, abort
                   the other ones of this publisher, and remember that (publisher, sequence) is done

The node decides all of that with one durable write, so there is no moment at which a part is done.
Whatever dies, and whenever:

    a task                 its transaction is not chosen: aborted with the decision, or by the next
                           attempt under the same id, or by its timeout
    the driver, before     nothing was published. The batch is run again by the restarted query,
                           under the same ids, which ends what was left
    the driver, after      the batch is run again, and its publication is answered as done: what it
                           wrote the second time is aborted
    the node               what it had answered is durable; the rest is asked again

A stream's publisher is the id that its checkpoint holds, its sequence the micro-batch's number. A
batch write is a publisher of its own, by the option `jobId` or a new name, with the one sequence 0
or that of the option `jobSequence`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from millstream.errors import InvalidConfig, UnknownTopic
from millstream.spark.options import WriteOptions
from millstream.spark.topic_values import TopicValues, find_values
from millstream.spark.write.sink_schema import check_sink
from millstream.spark.write.task_transaction import TaskTransaction

if TYPE_CHECKING:
    import pyarrow as pa

# Spark has a Python process for each step of a write: to make a writer, to write, to commit. What
# one of them alone needs is imported where it is used.

QUERY_ID = "sql.streaming.queryId"
"""The property of a task that holds the id of its query: the same over restarts."""


TASKS_MAX = 10_000
"""Tasks of one write: the transactions that a node takes in one publication."""


@dataclass(frozen=True, slots=True)
class SinkCommitMessage(WriterCommitMessage):
    """What a task tells the driver."""

    publisher: str
    share: TaskTransaction | None
    """`None` where it had no rows."""


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch: all of it is seen, or nothing."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._values = _checked(options, schema, overwrite=overwrite)
        # Quoted, so that no job's prefix covers another's ids.
        self._publisher = f"spark-job/{quote(options.job_id, safe='')}"
        self._sequence = options.job_sequence or 0
        self._is_final = options.job_sequence is None

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Write the rows of a task."""
        return _write(self._options, self._values, self._publisher, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish what the tasks wrote."""
        if shares := _shares(messages):
            _publish(
                self._options, self._publisher, self._sequence, shares, is_final=self._is_final
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # noqa: ARG002
        """Give up what the tasks wrote."""
        _publish(
            self._options,
            self._publisher,
            self._sequence,
            [],
            is_final=self._is_final,
            committed=False,
        )


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream: all of each micro-batch is seen, once, or nothing of it yet."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._values = _checked(options, schema, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Write the rows of a task of a micro-batch."""
        query_id = _task().getLocalProperty(QUERY_ID)
        assert query_id, "Spark tells the tasks of a stream which query they are of"
        return _write(self._options, self._values, f"spark-query/{query_id}", iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish what the tasks wrote."""
        shares = _shares(messages)
        for publisher in _publishers(messages) if shares else ():
            _publish(self._options, publisher, batchId, shares)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Give up what the tasks wrote, as far as it is known whose they were."""
        for publisher in _publishers(messages):
            _publish(self._options, publisher, batchId, [], committed=False)


def _checked(options: WriteOptions, schema: StructType, *, overwrite: bool) -> TopicValues:
    """Return what is known of the values, once rows of this schema can be written."""
    if overwrite:
        raise InvalidConfig("mode is overwrite, and a topic only grows: allowed is append")
    if "value" in schema.fieldNames():
        check_sink(schema, options)
        return TopicValues(options.value)
    from millstream.spark.source_cache import open_client  # noqa: PLC0415

    values = find_values(open_client(options.place), _declaring(options), options.value)
    check_sink(schema, options, is_typed=values.is_typed)
    return values


def _declaring(options: WriteOptions) -> list[str]:
    """Return the topics whose declarations count: rows may go to others, and none is made here."""
    from millstream.spark.source_cache import open_client  # noqa: PLC0415

    if options.topic is None:
        return []
    try:
        return list(open_client(options.place).topics([options.topic]))
    except UnknownTopic:
        return []


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "a sink writes in tasks of Spark"
    return task


def _write(
    options: WriteOptions, values: TopicValues, publisher: str, rows: Iterator[pa.RecordBatch]
) -> SinkCommitMessage:
    from millstream.spark.source_cache import open_client  # noqa: PLC0415
    from millstream.spark.write.task import write_rows  # noqa: PLC0415

    task = _task()
    if task.partitionId() >= TASKS_MAX:
        raise InvalidConfig(
            f"the write has more than {TASKS_MAX} tasks, which are published at once: coalesce"
            " makes it fewer"
        )
    transactional_id = f"{publisher}/{task.partitionId()}/{task.attemptNumber()}"
    share = write_rows(
        open_client(options.place),
        rows,
        transactional_id=transactional_id,
        options=options,
        values=values,
    )
    return SinkCommitMessage(publisher, share)


def _publish(
    options: WriteOptions,
    publisher: str,
    sequence: int,
    shares: Sequence[TaskTransaction],
    *,
    is_final: bool = False,
    committed: bool = True,
) -> None:
    from millstream.clients.kafka.publication import TransactionToPublish, publish  # noqa: PLC0415
    from millstream.spark.source_cache import open_client  # noqa: PLC0415

    publish(
        open_client(options.place),
        publisher=publisher,
        sequence=sequence,
        prefix=f"{publisher}/",
        chosen=[TransactionToPublish(share.transactional_id, share.identity) for share in shares],
        is_final=is_final,
        committed=committed,
    )


def _messages(messages: Sequence[WriterCommitMessage | None]) -> list[SinkCommitMessage]:
    return [message for message in messages if isinstance(message, SinkCommitMessage)]


def _shares(messages: Sequence[WriterCommitMessage | None]) -> list[TaskTransaction]:
    return [one.share for one in _messages(messages) if one.share is not None]


def _publishers(messages: Sequence[WriterCommitMessage | None]) -> set[str]:
    """Return who published: one, or nobody where no task has come to its end."""
    return {one.publisher for one in _messages(messages)}
