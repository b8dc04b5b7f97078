"""Union reads: history of topics from their lake tables, the rest from their logs.

    offsets of a query ─► before the position of the table ─► tasks that read its files
                       └► from there on                    ─► tasks that read the log

The position belongs to one version of the table, so no record is missing and none is there twice.
A table has committed records only, and so have the reads that use it.

If retention deletes records of the log between the planning of a task and its read, the task finds
them in a newer version of the table.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from millstream.clients.partition import (
    BatchChunk,
    Isolation,
    OffsetBounds,
    RecordSource,
    TopicDescription,
)
from millstream.errors import DataLost, InvalidConfig, OffsetOutOfRange
from millstream.lake.deletions import TopicDeletions
from millstream.lake.history import TableHistory, history_rows
from millstream.lake.table import LakeTable
from millstream.lake.topic_table import configured_table
from millstream.records.topic_partition import TopicPartition
from millstream.spark.options import AUTO, ReadOptions
from millstream.spark.read.plan import TopicIds, divide
from millstream.spark.read.positions import Offsets
from millstream.spark.read.ranges import HistoryFiles, OffsetRange, ReadTask

logger = logging.getLogger(__name__)


class UnionSource:
    """A `RecordSource` whose topics begin where their tables begin.

    Only the records of the log can be read as chunks; `history_tasks` has the others.
    """

    def __init__(
        self,
        source: RecordSource,
        load: Callable[[], Mapping[str, TableHistory]],
        *,
        fail_on_data_loss: bool,
    ) -> None:
        """Use the tables that `load` returns in their newest versions, by topic."""
        self._source = source
        self._load = load
        self._histories = load()
        self._fail_on_data_loss = fail_on_data_loss
        self._log: dict[TopicPartition, OffsetBounds] = {}

    def topics(self, names: Sequence[str] | None = None) -> dict[str, TopicDescription]:
        """Return the topics of the log."""
        return self._source.topics(names)

    def bounds(
        self, partitions: Sequence[TopicPartition], *, isolation: Isolation
    ) -> dict[TopicPartition, OffsetBounds]:
        """Return the readable offsets of table and log together."""
        self._log = self._source.bounds(partitions, isolation=isolation)
        while self._has_gap() and self._reload():
            # The lake was written, and retention went on, since the tables were opened.
            self._log = self._source.bounds(partitions, isolation=isolation)
        return {
            partition: OffsetBounds(self._start(partition, log), log.end)
            for partition, log in self._log.items()
        }

    def _has_gap(self) -> bool:
        return any(
            position < log.start
            for partition, log in self._log.items()
            if (position := self.position(partition)) is not None
        )

    def _reload(self) -> bool:
        """Open the tables again; return whether one of them has more."""
        before = {topic: history.positions for topic, history in self._histories.items()}
        self._histories = self._load()
        return before != {topic: history.positions for topic, history in self._histories.items()}

    def _start(self, partition: TopicPartition, log: OffsetBounds) -> int:
        position = self.position(partition)
        if position is None:
            return log.start
        if position > log.end:
            raise DataLost(
                f"the lake has {partition} up to offset {position}, and the log ends at"
                f" {log.end}: the log was restored from an older copy"
            )
        return min(log.start, self._histories[partition.topic].start(partition.partition))

    def lost(self, start: Offsets, end: Offsets) -> Offsets:
        """Return how many offsets between table and log are lost, of those from `start` to `end`.

        Raises `DataLost` if there are any, unless that is allowed. For partitions of `bounds`.
        """
        lost: Offsets = {}
        for partition, log in self._log.items():
            if partition not in end or (gap := self._gap(partition, log)) is None:
                continue
            first, last = max(gap.start, start[partition]), min(gap.end, end[partition])
            if first < last:
                raise_or_warn(
                    f"offsets {first} to {last - 1} of {partition} were deleted by retention before"
                    " they were written to the lake",
                    is_raised=self._fail_on_data_loss,
                )
                lost[partition] = last - first
        return lost

    def history(self, topic: str) -> TableHistory | None:
        """Return the history of a topic; `None` if it has no table."""
        return self._histories.get(topic)

    def position(self, partition: TopicPartition) -> int | None:
        """Return where the table ends; `None` if it has nothing of the partition."""
        history = self._histories.get(partition.topic)
        return None if history is None else history.positions.get(partition.partition)

    def _gap(self, partition: TopicPartition, log: OffsetBounds) -> OffsetBounds | None:
        """Return the offsets between table and log that retention has deleted."""
        position = self.position(partition)
        if position is None or position >= log.start:
            return None
        try:
            chunks = self._source.chunks(
                partition, position, log.end, isolation=Isolation.READ_COMMITTED
            )
            next(iter(chunks), None)
        except OffsetOutOfRange as error:
            return OffsetBounds(position, error.start)
        return None  # Deleted on request, which is no loss.

    def offsets_at(
        self, partitions: Sequence[TopicPartition], timestamp_ms: int
    ) -> dict[TopicPartition, int | None]:
        """Return the first offset of table and log with this timestamp or a later one."""
        found: dict[TopicPartition, int | None] = {}
        for partition in partitions:
            if self.position(partition) is not None:
                history = self._histories[partition.topic]
                offset = history.offset_at(partition.partition, timestamp_ms)
                if offset is not None:
                    found[partition] = offset
        others = [partition for partition in partitions if partition not in found]
        return found | (self._source.offsets_at(others, timestamp_ms) if others else {})

    def offset_bytes(
        self, partitions: Mapping[TopicPartition, OffsetBounds]
    ) -> dict[TopicPartition, float]:
        """Return the approximate bytes of an offset in each range."""
        past = {
            partition: self._histories[partition.topic].offset_bytes(
                partition.partition, bounds.start, min(bounds.end, position)
            )
            for partition, bounds in partitions.items()
            if (position := self.position(partition)) is not None and bounds.start < position
        }
        others = {at: bounds for at, bounds in partitions.items() if at not in past}
        return past | (self._source.offset_bytes(others) if others else {})

    def chunks(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: Isolation,
        topic_id: uuid.UUID | None = None,
    ) -> Iterator[BatchChunk]:
        """Read the log."""
        return self._source.chunks(partition, start, end, isolation=isolation, topic_id=topic_id)

    def close(self) -> None:
        """Do nothing: the source belongs to the process."""

    def history_tasks(
        self, start: Offsets, end: Offsets, options: ReadOptions
    ) -> tuple[list[ReadTask], Offsets]:
        """Return the tasks that read the tables, and where the log is to be read from."""
        ranges, log_start = [], dict(start)
        for partition in sorted(end):
            position = self.position(partition)
            if position is None or start[partition] >= min(position, end[partition]):
                continue
            log_start[partition] = min(position, end[partition])
            first = max(
                start[partition], self._histories[partition.topic].start(partition.partition)
            )
            ranges.append(OffsetRange(partition, first, log_start[partition]))
        offset_bytes = {
            range_.partition: self._histories[range_.partition.topic].offset_bytes(
                range_.partition.partition, range_.start, range_.end
            )
            for range_ in ranges
        }
        tasks = divide(ranges, offset_bytes, options, finish=self._with_files)
        return tasks, log_start

    def _with_files(self, range_: OffsetRange) -> OffsetRange:
        history = self._histories[range_.partition.topic]
        paths = history.files(range_.partition.partition, range_.start, range_.end)
        return replace(range_, history=HistoryFiles(history.uri, paths, history.deletions))


def open_union(source: RecordSource, options: ReadOptions, topic_ids: TopicIds) -> UnionSource:
    """Open the newest versions of the tables of all topics."""
    assert options.history is not None
    topics = {partition.topic: id_ for partition, id_ in topic_ids.items()}
    if options.history != AUTO and len(topics) > 1:
        raise InvalidConfig(
            f"history must be auto to read several topics, {sorted(topics)}, got"
            f" {options.history!r}: a table has one topic"
        )
    uris = {topic: _table_uri(source, options, topic) for topic in topics}

    def load() -> dict[str, TableHistory]:
        histories = {}
        for topic, uri in uris.items():
            if uri is not None:
                table = LakeTable.open(uri)
                table.check_topic(topic, topics[topic])
                count = 1 + max(at.partition for at in topic_ids if at.topic == topic)
                deletions = TopicDeletions(source, topic).pending(table)
                histories[topic] = TableHistory(table, count, deletions)
        return histories

    return UnionSource(source, load, fail_on_data_loss=options.fail_on_data_loss)


def rows_of_range(range_: OffsetRange, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a range of a table, as decoded records."""
    assert range_.history is not None
    yield from history_rows(
        range_.history.table,
        range_.history.paths,
        range_.partition.partition,
        OffsetBounds(range_.start, range_.end),
        columns=columns,
        deletions=range_.history.deletions,
    )


def moved_range(
    source: RecordSource, options: ReadOptions, range_: OffsetRange
) -> OffsetRange | None:
    """Return the first part of a range as one of the newest table; `None` if that has none of it.

    For records that were in the log when the query was planned, and were deleted by retention.
    """
    if options.history is None:
        return None
    uri = _table_uri(source, options, range_.partition.topic)
    if uri is None:
        return None
    table = LakeTable.open(uri)
    if range_.topic_id is not None:
        table.check_topic(range_.partition.topic, range_.topic_id)
    number = range_.partition.partition
    deletions = TopicDeletions(source, range_.partition.topic).pending(table)
    history = TableHistory(table, number + 1, deletions)
    end = min(history.positions.get(number, 0), range_.end)
    if end <= range_.start or history.start(number) > range_.start:
        return None
    paths = history.files(number, range_.start, end)
    return replace(range_, end=end, history=HistoryFiles(uri, paths, history.deletions))


def _table_uri(source: RecordSource, options: ReadOptions, topic: str) -> str | None:
    return configured_table(source, topic) if options.history == AUTO else options.history


def raise_or_warn(reason: str, *, is_raised: bool) -> None:
    """Raise `DataLost`, or log that the query goes on without some records."""
    if is_raised:
        raise DataLost(f"{reason}; set failOnDataLoss=false to continue without them")
    logger.warning("%s; continuing without them", reason)
