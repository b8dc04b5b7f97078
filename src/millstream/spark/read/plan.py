"""What there is to read, asked of a place: partitions, their bounds, and what was lost."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping

from millstream.clients.partition import OffsetBounds, RecordSource
from millstream.config.schema import MIB
from millstream.errors import DataLost, OffsetOutOfRange, UnknownTopic
from millstream.records.topic_partition import TopicPartition
from millstream.spark.options import ReadOptions, TopicSelection
from millstream.spark.read.positions import Offsets
from millstream.spark.read.ranges import OffsetRange, ReadTask, gather, split

logger = logging.getLogger(__name__)

TASK_BYTES_MIN = 4 * MIB
"""What is worth a task of its own: some milliseconds of decoding, against tens for the task."""


def find_partitions(place: RecordSource, selection: TopicSelection) -> list[TopicPartition]:
    """Return the partitions that are to be read, in order; at least one where they are named."""
    if selection.assigned is not None:
        _check_assigned(place, selection.assigned)
        return sorted(selection.assigned)
    if selection.pattern is not None:
        pattern = re.compile(selection.pattern)
        topics = [one for one in place.topics().values() if pattern.fullmatch(one.name)]
    else:
        topics = list(place.topics(selection.names).values())
    return sorted(
        TopicPartition(topic.name, number) for topic in topics for number in range(topic.partitions)
    )


def _check_assigned(place: RecordSource, assigned: Iterable[TopicPartition]) -> None:
    topics = place.topics(sorted({one.topic for one in assigned}))
    for one in assigned:
        if one.partition >= (count := topics[one.topic].partitions):
            raise UnknownTopic(
                f"{one.topic} has {count} partitions, and no partition {one.partition}"
            )


def resolve_start(
    place: RecordSource,
    start: Offsets,
    bounds: Mapping[TopicPartition, OffsetBounds],
    options: ReadOptions,
) -> tuple[Offsets, Offsets]:
    """Return from where each partition can be read, and how many offsets were lost before that.

    Raises `DataLost` where something was and the query is to fail then.
    """
    settled, lost = dict(start), {}
    for one, offset in start.items():
        if reason := _loss(place, one, offset, bounds[one], options):
            if options.fail_on_data_loss:
                raise DataLost(f"{reason}; failOnDataLoss=false would go on without")
            logger.warning("%s: going on without", reason)
            lost[one] = max(0, bounds[one].start - offset)
            settled[one] = bounds[one].start
    return settled, lost


def _loss(
    place: RecordSource,
    where: TopicPartition,
    start: int,
    bounds: OffsetBounds,
    options: ReadOptions,
) -> str | None:
    """Say what is not there any more, if something is not.

    What was deleted on purpose reads as if it had never been, so a start below the bounds is no
    loss as such: the place has to be asked.
    """
    if start > bounds.end:
        return (
            f"{where} was read up to offset {start} and ends at {bounds.end}: it was made anew, or"
            " restored from an older copy"
        )
    if start >= bounds.start:
        return None
    try:
        next(place.stretches(where, start, bounds.end, isolation=options.isolation), None)
    except OffsetOutOfRange:
        return (
            f"offsets {start} to {bounds.start - 1} of {where} were evicted by retention before"
            " they were read"
        )
    return None


def make_tasks(
    place: RecordSource, start: Offsets, end: Offsets, options: ReadOptions
) -> list[ReadTask]:
    """Return the tasks that together read all from `start` to `end`."""
    ranges = [
        OffsetRange(one, start[one], end[one]) for one in sorted(end) if start[one] < end[one]
    ]
    offset_bytes = place.offset_bytes(
        {one.where: OffsetBounds(one.start, one.end) for one in ranges}
    )
    pieces = split(
        ranges,
        offset_bytes=offset_bytes,
        partition_bytes=options.partition_bytes,
        partitions_min=options.partitions_min,
    )
    # Who asks for many tasks has more to do with the records than to read them.
    task_bytes_min = 0 if options.partitions_min > 1 else TASK_BYTES_MIN
    return gather(
        pieces,
        offset_bytes=offset_bytes,
        task_bytes_min=min(task_bytes_min, options.partition_bytes),
    )
