"""A stream of topics: which offsets each micro-batch has.

The position of a stream is kept by Spark in the checkpoint, as JSON:

    {"orders": {"0": 1500, "1": 230}, "(lost)": {"orders-0": 17}}

For each partition the offset to read next. `(lost)`, which can be no topic's name, counts the
offsets that retention took before they were read, since the query began, once there are any.
"""

from __future__ import annotations

import json
import logging
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
from millstream.errors import DataLost
from millstream.records.topic_partition import TopicPartition
from millstream.spark.options import ReadOptions
from millstream.spark.read.plan import find_partitions, make_tasks, resolve_start
from millstream.spark.read.positions import Offsets, resolve
from millstream.spark.read.ranges import ReadTask, limit_bytes, limit_records
from millstream.spark.source_cache import open_source
from millstream.spark.topic_values import TopicValues

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

LOST = "(lost)"

StreamPosition = dict[str, Any]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads on from where the last micro-batch ended; new partitions from their beginning."""

    def __init__(self, options: ReadOptions, values: TopicValues, columns: StructType) -> None:
        self._options = options
        self._values = values
        self._columns = columns
        self._target: Offsets | None = None
        """Where everything ends, if only what is there now is to be read."""

    @property
    def _place(self) -> RecordSource:
        return open_source(self._options.place)

    def initialOffset(self) -> StreamPosition:  # noqa: N802 - Spark's name, as all that follow.
        """Return where a query begins that has no checkpoint."""
        bounds = self._bounds()
        start = resolve(
            self._options.starting, list(bounds), bounds, self._place, name="startingOffsets"
        )
        return encode_position(start, {})

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return how much a micro-batch may have."""
        if (records_max := self._options.records_per_trigger_max) is not None:
            return ReadMaxRows(records_max)
        if (bytes_max := self._options.bytes_per_trigger_max) is not None:
            return ReadMaxBytes(bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: StreamPosition, limit: ReadLimit) -> StreamPosition:  # noqa: N802
        """Return where the next micro-batch ends."""
        read, lost = decode_position(start)
        bounds = self._bounds()
        begin = self._begin(read, bounds)
        begin, newly_lost = resolve_start(self._place, begin, bounds, self._options)
        end = self._limited(begin, self._end(begin, bounds), limit)
        return encode_position(end, Counter(lost) + Counter(newly_lost))

    def reportLatestOffset(self) -> StreamPosition:  # noqa: N802
        """Return how far the topics reach: what Spark shows beside how far it has read."""
        return encode_position({one: its.end for one, its in self._bounds().items()}, {})

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Take note of what there is now; what comes later is not read."""
        self._target = {one: its.end for one, its in self._bounds().items()}

    def partitions(self, start: StreamPosition, end: StreamPosition) -> list[InputPartition]:
        """Return what each task of a micro-batch reads.

        What was lost since the batch was bounded is for the tasks to find out.
        """
        begin, _ = decode_position(start)
        ends, _ = decode_position(end)
        if new := [one for one in ends if one not in begin]:
            bounds = self._place.bounds(new, isolation=self._options.isolation)
            begin |= {one: its.start for one, its in bounds.items()}
        return [*make_tasks(self._place, begin, ends, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one task reads."""
        # Tasks alone decode: who plans does without what that needs.
        from millstream.spark.read.row_reader import RowReader  # noqa: PLC0415

        assert isinstance(partition, ReadTask)
        reading = RowReader(options=self._options, values=self._values, columns=self._columns)
        return reading.rows(partition)

    def _bounds(self) -> dict[TopicPartition, OffsetBounds]:
        where = find_partitions(self._place, self._options.selection)
        return self._place.bounds(where, isolation=self._options.isolation)

    def _begin(self, read: Offsets, bounds: Mapping[TopicPartition, OffsetBounds]) -> Offsets:
        """Return where to read on in each partition that there is."""
        if gone := sorted(str(one) for one in read if one not in bounds):
            reason = f"{', '.join(gone)} were read, and are not there any more"
            if self._options.fail_on_data_loss:
                raise DataLost(f"{reason}; failOnDataLoss=false would go on without")
            logger.warning("%s: going on without", reason)
        return {one: read.get(one, its.start) for one, its in bounds.items()}

    def _end(self, begin: Offsets, bounds: Mapping[TopicPartition, OffsetBounds]) -> Offsets:
        """Return how far can be read; never back, and not beyond what was there at the start."""
        ends = {one: its.end for one, its in bounds.items()}
        if self._target is not None:
            ends = {one: min(end, self._target.get(one, begin[one])) for one, end in ends.items()}
        return {one: max(end, begin[one]) for one, end in ends.items()}

    def _limited(self, begin: Offsets, end: Offsets, limit: ReadLimit) -> Offsets:
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
        waiting = {one: OffsetBounds(begin[one], end[one]) for one in end if begin[one] < end[one]}
        return limit_bytes(begin, end, bytes_max, self._place.offset_bytes(waiting))


def encode_position(offsets: Offsets, lost: Mapping[TopicPartition, int]) -> StreamPosition:
    """Return a position as Spark keeps it."""
    found: StreamPosition = {}
    for one in sorted(offsets):
        found.setdefault(one.topic, {})[str(one.partition)] = offsets[one]
    if lost:
        found[LOST] = {str(one): lost[one] for one in sorted(lost)}
    return found


def decode_position(position: StreamPosition) -> tuple[Offsets, dict[TopicPartition, int]]:
    """Return the offsets of a position, and how many were lost before them."""
    offsets = {
        TopicPartition(topic, int(number)): offset
        for topic, partitions in position.items()
        if topic != LOST
        for number, offset in partitions.items()
    }
    lost = {}
    for name, count in position.get(LOST, {}).items():
        topic, _, number = name.rpartition("-")
        lost[TopicPartition(topic, int(number))] = count
    return offsets, lost


def lag(progress: Mapping[str, Any]) -> dict[str, int]:
    """Return how many offsets each partition is behind, of the `source` part of a progress.

    `query.lastProgress["sources"][0]` is one; Spark gives its positions as JSON or as text.
    """

    def offsets(name: str) -> Offsets:
        position = progress.get(name) or {}
        return decode_position(json.loads(position) if isinstance(position, str) else position)[0]

    read = offsets("endOffset")
    return {
        str(one): max(0, end - read.get(one, 0)) for one, end in offsets("latestOffset").items()
    }
