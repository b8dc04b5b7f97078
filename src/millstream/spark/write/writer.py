"""Batch and stream writers with exactly-once semantics.

    task attempt   its own transactional producer, `<publisher>/<run>/<partition>/<attempt>`, writes
                   to the target partitions and leaves its transaction open; while it runs, it
                   renews the transactions of all tasks of its run (`lease.py`)
    driver         one request: commit the transactions of the attempts that Spark reports, abort
                   the other ones of this publisher, and store that (publisher, sequence) is done

The node decides all of this with one durable write, so there is no intermediate state. If one of
them crashes:

    a task                 its transaction is not chosen: aborted by the task, with the decision, or
                           when nobody renews it
    the driver, before     nothing was published. The restarted query runs the batch again, and its
                           publication ends the transactions left open
    the driver, after      the batch runs again, and its publication is answered as already done:
                           the second copy is aborted
    the node               its answers are durable; requests without an answer are sent again

The publisher of a stream is the query id in its checkpoint, its sequence the number of the
micro-batch. The publisher of a batch write is the option `jobId` or a new id, with sequence 0 or
the option `jobSequence`.

Python processes of a driver that was killed can work on for seconds. The number of the run in the
ids keeps them from fencing the tasks of the restarted query, and its driver from ending theirs.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from millstream.errors import DataLost, InvalidConfig, UnknownTopic
from millstream.spark.catalog import read_only_columns
from millstream.spark.options import WriteOptions
from millstream.spark.topic_values import TopicValues, find_values
from millstream.spark.write.sink_schema import check_sink
from millstream.spark.write.task_transaction import TaskTransaction

if TYPE_CHECKING:
    import pyarrow as pa

# Spark starts a Python process for each step of a write: to create a writer, to write, to commit.
# Imports that only one of them needs are inside functions.

logger = logging.getLogger(__name__)

QUERY_ID = "sql.streaming.queryId"
"""Property of a task with the id of its query, which stays the same over restarts."""

RUN_ID = "spark.jobGroup.id"
"""Property of a task of a query with the id of its run, which each restart changes."""

TASKS_MAX = 10_000
"""Tasks of one write: the maximum number of transactions in one publication."""


@dataclass(frozen=True, slots=True)
class SinkCommitMessage(WriterCommitMessage):
    """Message of a task to the driver."""

    publisher: str
    run: int
    transaction: TaskTransaction | None
    """`None` if the task had no rows."""


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch atomically."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._values = _checked(options, schema, overwrite=overwrite)
        # Quoted, so that the prefix of one job never matches the ids of another.
        self._publisher = f"spark-job/{quote(options.job_id, safe='')}"
        self._sequence = options.job_sequence or 0
        self._is_numbered = options.job_sequence is not None
        self._run = _number_of(str(uuid.uuid4()))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Write the rows of a task."""
        # The batches of a query use the same ids again and again, and a node keeps few of them.
        run = _run_of(_task()) if self._is_numbered else None
        run = self._run if run is None else run
        return _write(self._options, self._values, self._publisher, run, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish the transactions of the tasks."""
        if transactions := _transactions(messages):
            _publish(
                self._options,
                self._publisher,
                self._sequence,
                transactions,
                is_final=_runs(messages) == {self._run},
            )

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Abort the transactions of the tasks, and none of another run, if the run is known."""
        runs = _runs(messages) or {None if self._is_numbered else self._run}
        for run in runs:
            _publish(
                self._options,
                self._publisher,
                self._sequence,
                [],
                run=run,
                is_final=run == self._run,
                committed=False,
            )


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes each micro-batch of a stream atomically and once."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        self._options = options
        self._values = _checked(options, schema, overwrite=overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Write the rows of a task of a micro-batch."""
        task = _task()
        query_id, run = task.getLocalProperty(QUERY_ID), _run_of(task)
        assert query_id, "Spark sets this property for the tasks of a stream"
        assert run is not None, "Spark sets this property for the tasks of a stream"
        return _write(self._options, self._values, _stream_publisher(query_id), run, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Publish the transactions of the tasks."""
        transactions = _transactions(messages)
        for publisher in _publishers(messages) if transactions else ():
            _publish(self._options, publisher, batchId, transactions)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Abort the transactions of the tasks, as far as their publisher is known.

        Spark does not tell the driver the id of the query. If no task has completed, it is in the
        checkpoint, if that can be read here. Otherwise tasks that failed have aborted their
        transactions, and those of tasks that were killed expire.
        """
        for publisher, run in _owners(messages) or _owners_in(self._options.checkpoint):
            _publish(self._options, publisher, batchId, [], run=run, committed=False)


def _checked(options: WriteOptions, schema: StructType, *, overwrite: bool) -> TopicValues:
    """Check the schema of the rows, and return the declarations of values."""
    if overwrite:
        raise InvalidConfig("mode must be append, got overwrite: a topic cannot be overwritten")
    if options.is_table:
        left_out = read_only_columns(schema.fieldNames())
        schema = StructType([field for field in schema if field.name not in left_out])
    if any(name.lower() == "value" for name in schema.fieldNames()):
        check_sink(schema, options)
        return TopicValues(options.value)
    from millstream.spark.source_cache import open_client  # noqa: PLC0415

    values = find_values(open_client(options.source), _declaring(options), options.value)
    check_sink(schema, options, is_typed=values.is_typed)
    return values


def _declaring(options: WriteOptions) -> list[str]:
    """Return the topics whose declarations apply. A topic is not created here."""
    from millstream.spark.source_cache import open_client  # noqa: PLC0415

    if options.topic is None:
        return []
    try:
        return list(open_client(options.source).topics([options.topic]))
    except UnknownTopic:
        return []


def _task() -> TaskContext:
    task = TaskContext.get()
    assert task is not None, "a sink writes in a Spark task"
    return task


def _write(
    options: WriteOptions,
    values: TopicValues,
    publisher: str,
    run: int,
    rows: Iterator[pa.RecordBatch],
) -> SinkCommitMessage:
    from millstream.spark.source_cache import open_client  # noqa: PLC0415
    from millstream.spark.task_memory import TASK_MEMORY  # noqa: PLC0415
    from millstream.spark.write.lease import TransactionLease  # noqa: PLC0415
    from millstream.spark.write.task import write_rows  # noqa: PLC0415

    TASK_MEMORY.start_task()
    task = _task()
    if task.partitionId() >= TASKS_MAX:
        raise InvalidConfig(
            f"a write must have at most {TASKS_MAX} tasks, because they are published together:"
            " use coalesce to reduce them"
        )
    transactional_id = f"{publisher}/{run}/{task.partitionId()}/{task.attemptNumber()}"
    with TransactionLease(
        lambda: _renew(options, publisher, run),
        lease_ms=options.transaction_lease_ms,
        duration_ms_max=options.transaction_timeout_ms,
    ):
        transaction = write_rows(
            open_client(options.source),
            rows,
            transactional_id=transactional_id,
            options=options,
            values=values,
        )
    return SinkCommitMessage(publisher, run, transaction)


def _run_of(task: TaskContext) -> int | None:
    """Return the number of the run of a query; `None` if the task belongs to none."""
    run_id = task.getLocalProperty(RUN_ID) if task.getLocalProperty(QUERY_ID) else None
    return _number_of(run_id) if run_id else None


def _number_of(run_id: str) -> int:
    """Return a run as a number: what follows the publisher in a transactional id is numbers."""
    return int.from_bytes(blake2b(run_id.encode(), digest_size=6).digest(), "big")


def _renew(options: WriteOptions, publisher: str, run: int) -> None:
    """Renew the transactions of a run. Called in a thread, so with connections of its own."""
    from millstream.clients.kafka.publication import renew  # noqa: PLC0415
    from millstream.spark.source_cache import make_client  # noqa: PLC0415

    with make_client(options.source) as client:
        renew(
            client,
            publisher=publisher,
            prefix=f"{publisher}/{run}/",
            duration_ms_max=options.transaction_timeout_ms,
        )


def _publish(
    options: WriteOptions,
    publisher: str,
    sequence: int,
    transactions: Sequence[TaskTransaction],
    *,
    run: int | None = None,
    is_final: bool = False,
    committed: bool = True,
) -> None:
    """Commit these transactions and abort all others: of the publisher, or of one of its runs."""
    from millstream.clients.kafka.publication import TransactionToPublish, publish  # noqa: PLC0415
    from millstream.spark.source_cache import open_client  # noqa: PLC0415

    result = publish(
        open_client(options.source),
        publisher=publisher,
        sequence=sequence,
        prefix=f"{publisher}/" if run is None else f"{publisher}/{run}/",
        transactions=[
            TransactionToPublish(transaction.transactional_id, transaction.identity)
            for transaction in transactions
        ],
        is_final=is_final,
        committed=committed,
    )
    if not committed or not result.is_repeated:
        return
    if sequence < result.last_sequence:
        raise DataLost(
            f"write {sequence} of {publisher!r} was not done: {result.last_sequence} was written"
            " before, and numbers must ascend. Its checkpoint was rewound or is a new one: continue"
            " with the checkpoint that was used last, or start a new one, with a new jobId if that"
            " is set"
        )
    logger.warning("write %d of %r was done before, and is not done again", sequence, publisher)


def _messages(messages: Sequence[WriterCommitMessage | None]) -> list[SinkCommitMessage]:
    return [message for message in messages if isinstance(message, SinkCommitMessage)]


def _transactions(messages: Sequence[WriterCommitMessage | None]) -> list[TaskTransaction]:
    return [
        message.transaction for message in _messages(messages) if message.transaction is not None
    ]


def _publishers(messages: Sequence[WriterCommitMessage | None]) -> set[str]:
    """Return the publisher; none if no task was completed."""
    return {message.publisher for message in _messages(messages)}


def _runs(messages: Sequence[WriterCommitMessage | None]) -> set[int | None]:
    """Return the run; none if no task was completed."""
    return {message.run for message in _messages(messages)}


def _owners(messages: Sequence[WriterCommitMessage | None]) -> set[tuple[str, int | None]]:
    """Return the publisher and its run; none if no task was completed."""
    return {(message.publisher, message.run) for message in _messages(messages)}


def _stream_publisher(query_id: str) -> str:
    return f"spark-query/{query_id}"


def _owners_in(checkpoint: str | None) -> set[tuple[str, int | None]]:
    """Return the publisher of the stream with this checkpoint, with all of its runs.

    There is none if the checkpoint cannot be read here.
    """
    if checkpoint is None:
        return set()
    location = urlsplit(checkpoint)
    if location.scheme not in ("", "file"):
        return set()
    try:
        stored = json.loads((Path(unquote(location.path)) / "metadata").read_bytes())
        return {(_stream_publisher(stored["id"]), None)}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
