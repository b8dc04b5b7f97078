"""Reader of a stream: the offsets of each micro-batch.

Spark stores the position of a stream in its checkpoint, as JSON:

    {"orders": {"0": 1500, "1": 230},
     "(lost)": {"orders-0": 17},
     "(topics)": {"orders": "x3Jd0QmnRkK8m2Yv1pTq5w"}}

For each partition, the offset to read next. `(lost)`, which is not a valid topic name, counts the
offsets that retention deleted before they were read, since the query started, if there are any.
`(topics)` has the ids of the topics, if they are known: a topic that is deleted and created again
has another one, and is lost data. Positions of earlier releases have none.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from millstream.clients.partition import OffsetBounds, RecordSource
from millstream.errors import DataLost, InvalidConfig, UnknownTopic
from millstream.records.cursor import decode_topic_id, encode_topic_id
from millstream.records.topic_partition import TopicPartition
from millstream.spark.options import ReadOptions
from millstream.spark.read.plan import (
    TopicIds,
    find_existing,
    find_partitions,
    make_tasks,
    resolve_start,
)
from millstream.spark.read.positions import Offsets, resolve
from millstream.spark.read.ranges import ReadTask, limit_bytes, limit_records
from millstream.spark.source_cache import open_source
from millstream.spark.topic_values import TopicValues

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.spark.read.history import UnionSource

logger = logging.getLogger(__name__)

LOST = "(lost)"
TOPICS = "(topics)"

StreamPosition = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads from the end of the last micro-batch; new partitions from their first record."""

    def __init__(self, options: ReadOptions, values: TopicValues, columns: StructType) -> None:
        self._options = options
        self._values = values
        self._columns = columns
        self._target: Offsets | None = None
        """End of the last micro-batch, for a query that reads only the present records."""
        self._union: UnionSource | None = None
        """The last one that was opened."""

    @property
    def _source(self) -> RecordSource:
        return open_source(self._options.source)

    def initialOffset(self) -> StreamPosition:  # noqa: N802 - Spark's name, as below.
        """Return the start position of a query that has no checkpoint."""
        topic_ids, bounds = self._bounds()
        source: RecordSource = self._source
        if self._options.history is not None:
            source = self._open_union(topic_ids)
            bounds = source.bounds(list(topic_ids), isolation=self._options.isolation)
        start = resolve(
            self._options.starting, list(bounds), bounds, source, name="startingOffsets"
        )
        return encode_position(start, {}, _by_topic(topic_ids))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum size of a micro-batch."""
        if (records_max := self._options.records_per_trigger_max) is not None:
            return ReadMaxRows(records_max)
        if (bytes_max := self._options.bytes_per_trigger_max) is not None:
            return ReadMaxBytes(bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: StreamPosition, limit: ReadLimit) -> StreamPosition:  # noqa: N802
        """Return the end position of the next micro-batch."""
        read, lost, read_ids = decode_position(start)
        topic_ids, bounds = self._bounds_again()
        read = self._without_recreated(read, read_ids, _by_topic(topic_ids))
        begin = self._begin(read, bounds)
        source, bounds = self._with_history(topic_ids, begin, bounds)
        begin, newly_lost = resolve_start(
            source,
            begin,
            bounds,
            self._options,
            is_same=lambda partition: partition.topic in read_ids,
        )
        end = self._limited(source, begin, self._end(begin, bounds), limit)
        if source is self._union:
            assert self._union is not None
            newly_lost = Counter(newly_lost) + Counter(self._union.lost(begin, end))
        return encode_position(end, Counter(lost) + Counter(newly_lost), _by_topic(topic_ids))

    def reportLatestOffset(self) -> StreamPosition:  # noqa: N802
        """Return the ends of the topics, which Spark shows beside the position of the query."""
        topic_ids, bounds = self._bounds()
        ends = {partition: bound.end for partition, bound in bounds.items()}
        return encode_position(ends, {}, _by_topic(topic_ids))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Store the current ends; later records are not read."""
        _, bounds = self._bounds()
        self._target = {partition: bound.end for partition, bound in bounds.items()}

    def partitions(self, start: StreamPosition, end: StreamPosition) -> list[InputPartition]:
        """Return the tasks of a micro-batch.

        Offsets that are lost after the batch was bounded are detected by the tasks.
        """
        begin, _, begin_ids = decode_position(start)
        ends, _, end_ids = decode_position(end)
        recreated = _recreated(begin_ids, end_ids)
        begin = {at: offset for at, offset in begin.items() if at.topic not in recreated}
        if new := [partition for partition in ends if partition not in begin]:
            begin |= dict.fromkeys(new, 0)
            if not self._options.fail_on_data_loss:  # What is missing was counted before.
                bounds = self._source.bounds(new, isolation=self._options.isolation)
                begin |= {partition: bound.start for partition, bound in bounds.items()}
        topic_ids = {partition: end_ids.get(partition.topic) for partition in ends}
        past, begin = self._history_tasks(topic_ids, begin, ends)
        return [*past, *make_tasks(self._source, begin, ends, self._options, topic_ids)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of a task."""
        # Only tasks decode; processes that plan do not load what decoding needs.
        from millstream.spark.read.row_reader import RowReader  # noqa: PLC0415

        assert isinstance(partition, ReadTask)
        reader = RowReader(options=self._options, values=self._values, columns=self._columns)
        return reader.rows(partition)

    def _bounds(self) -> tuple[TopicIds, dict[TopicPartition, OffsetBounds]]:
        topic_ids = find_partitions(self._source, self._options.selection)
        bounds = self._source.bounds(list(topic_ids), isolation=self._options.isolation)
        return topic_ids, bounds

    def _open_union(self, topic_ids: TopicIds) -> UnionSource:
        # With what reads tables, which other queries do not need.
        from millstream.spark.read.history import open_union  # noqa: PLC0415

        self._union = open_union(self._source, self._options, topic_ids)
        return self._union

    def _with_history(
        self, topic_ids: TopicIds, begin: Offsets, log: dict[TopicPartition, OffsetBounds]
    ) -> tuple[RecordSource, dict[TopicPartition, OffsetBounds]]:
        """Return the source and the bounds with the tables, if the logs lack what is read next.

        A query that has arrived at the ends of the logs does not open a table any more.
        """
        if self._options.history is None or all(
            offset >= log[partition].start for partition, offset in begin.items()
        ):
            return self._source, log
        union = self._open_union(topic_ids)
        return union, union.bounds(list(log), isolation=self._options.isolation)

    def _history_tasks(
        self, topic_ids: TopicIds, begin: Offsets, end: Offsets
    ) -> tuple[list[ReadTask], Offsets]:
        """Return the tasks that read tables, and where the logs are to be read from.

        What a table has is read from there: the first time that a query asks, and as long as it is
        behind the table. After that, only what the logs have lost.
        """
        if self._options.history is None:
            return [], begin
        is_behind = self._union is None or any(
            offset < (self._union.position(partition) or 0) for partition, offset in begin.items()
        )
        if not is_behind:
            log = self._source.bounds(list(end), isolation=self._options.isolation)
            if all(begin[partition] >= log[partition].start for partition in end):
                return [], begin
        return self._open_union(topic_ids).history_tasks(begin, end, self._options)

    def _bounds_again(self) -> tuple[TopicIds, dict[TopicPartition, OffsetBounds]]:
        """Return the bounds in a query that runs: a topic that is gone was deleted."""
        try:
            return self._bounds()
        except UnknownTopic as error:
            reason = f"a topic that is read was deleted: {error}"
            if self._options.fail_on_data_loss:
                raise DataLost(
                    f"{reason}; set failOnDataLoss=false to continue without it"
                ) from error
            logger.warning("%s; continuing without it", reason)
        existing = find_existing(self._source, self._options.selection)
        return existing, self._source.bounds(list(existing), isolation=self._options.isolation)

    def _without_recreated(
        self, read: Offsets, before: Mapping[str, uuid.UUID], now: Mapping[str, uuid.UUID]
    ) -> Offsets:
        """Return the offsets without those of topics that were deleted and created again.

        Those are read from their start, unless lost data fails the query.
        """
        recreated = _recreated(before, now)
        for topic in sorted(recreated):
            reason = (
                f"topic {topic} was deleted and created again (id {before[topic]}, now"
                f" {now[topic]}): what was not read of the deleted one is lost"
            )
            if self._options.fail_on_data_loss:
                raise DataLost(
                    f"{reason}; set failOnDataLoss=false to read the new one from its start"
                )
            logger.warning("%s; reading the new one from its start", reason)
        return {partition: at for partition, at in read.items() if partition.topic not in recreated}

    def _begin(self, read: Offsets, bounds: Mapping[TopicPartition, OffsetBounds]) -> Offsets:
        """Return the offset to read next in each partition that exists."""
        if gone := sorted(str(partition) for partition in read if partition not in bounds):
            reason = f"partitions that were read do not exist any more: {', '.join(gone)}"
            if self._options.fail_on_data_loss:
                raise DataLost(f"{reason}; set failOnDataLoss=false to continue without them")
            logger.warning("%s; continuing without them", reason)
        # A new partition is read from its first record, whether or not that still exists.
        return {partition: read.get(partition, 0) for partition in bounds}

    def _end(self, begin: Offsets, bounds: Mapping[TopicPartition, OffsetBounds]) -> Offsets:
        """Return the end of each partition, not before `begin` and not after the target."""
        ends = {partition: bound.end for partition, bound in bounds.items()}
        if self._target is not None:
            ends = {
                partition: min(end, self._target.get(partition, begin[partition]))
                for partition, end in ends.items()
            }
        return {partition: max(end, begin[partition]) for partition, end in ends.items()}

    def _limited(
        self, source: RecordSource, begin: Offsets, end: Offsets, limit: ReadLimit
    ) -> Offsets:
        if isinstance(limit, ReadAllAvailable):
            return end
        if isinstance(limit, ReadMaxRows):
            end = limit_records(begin, end, limit.max_rows)
        bytes_max = (
            limit.max_bytes
            if isinstance(limit, ReadMaxBytes)
            else self._options.bytes_per_trigger_max
        )
        if bytes_max is None:
            return end
        waiting = {
            partition: OffsetBounds(begin[partition], end[partition])
            for partition in end
            if begin[partition] < end[partition]
        }
        return limit_bytes(begin, end, bytes_max, source.offset_bytes(waiting))


def _by_topic(topic_ids: TopicIds) -> dict[str, uuid.UUID]:
    """Return the ids that are known, by topic."""
    return {partition.topic: id_ for partition, id_ in topic_ids.items() if id_ is not None}


def _recreated(before: Mapping[str, uuid.UUID], now: Mapping[str, uuid.UUID]) -> set[str]:
    """Return the topics that have another id now; one that is not known is not compared."""
    return {topic for topic, id_ in before.items() if now.get(topic, id_) != id_}


def encode_position(
    offsets: Offsets, lost: Mapping[TopicPartition, int], topic_ids: Mapping[str, uuid.UUID]
) -> StreamPosition:
    """Return a position in the form that Spark stores."""
    position: StreamPosition = {}
    for partition in sorted(offsets):
        position.setdefault(partition.topic, {})[str(partition.partition)] = offsets[partition]
    if lost:
        position[LOST] = {str(partition): lost[partition] for partition in sorted(lost)}
    if topic_ids:
        position[TOPICS] = {name: encode_topic_id(topic_ids[name]) for name in sorted(topic_ids)}
    return position


def decode_position(
    position: StreamPosition,
) -> tuple[Offsets, dict[TopicPartition, int], dict[str, uuid.UUID]]:
    """Return the offsets of a position, the numbers of lost offsets, and the ids of the topics."""
    offsets = {
        TopicPartition(topic, int(number)): offset
        for topic, partitions in position.items()
        if topic not in (LOST, TOPICS)
        for number, offset in partitions.items()
    }
    lost = {}
    for name, count in position.get(LOST, {}).items():
        topic, _, number = name.rpartition("-")
        lost[TopicPartition(topic, int(number))] = count
    topic_ids = {}
    for topic, text in position.get(TOPICS, {}).items():
        if (topic_id := decode_topic_id(text)) is None:
            raise InvalidConfig(f"position has id {text!r} for topic {topic}: not a topic id")
        topic_ids[topic] = topic_id
    return offsets, lost, topic_ids


def lag(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return the lag of each partition in offsets, from a source in a progress report of Spark.

    `query.lastProgress["sources"][0]` is such a source. Positions in it are JSON or text.
    """

    def offsets(name: str) -> Offsets:
        position = progress.get(name) or {}
        return decode_position(json.loads(position) if isinstance(position, str) else position)[0]

    read = offsets("endOffset")
    return {
        str(partition): max(0, end - read.get(partition, 0))
        for partition, end in offsets("latestOffset").items()
    }
