"""Planning of a read: partitions, start offsets, detection of lost records, tasks."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from millstream.clients.partition import Isolation, OffsetBounds, RecordSource
from millstream.config.schema import MIB
from millstream.errors import DataLost, OffsetOutOfRange, UnknownTopic
from millstream.records.topic_partition import TopicPartition
from millstream.spark.options import ReadOptions, TopicSelection
from millstream.spark.read.positions import Offsets
from millstream.spark.read.ranges import OffsetRange, ReadTask, gather, split

logger = logging.getLogger(__name__)

TASK_BYTES_MIN = 4 * MIB
"""Smallest size that is worth a task: decoding takes some milliseconds, and a task costs tens."""


TopicIds: TypeAlias = dict[TopicPartition, uuid.UUID | None]
"""The id of each partition's topic; `None` if the source does not know it."""


def find_partitions(source: RecordSource, selection: TopicSelection) -> TopicIds:
    """Return the partitions to read, sorted; raises `UnknownTopic` for a name without a topic."""
    if selection.assigned is not None:
        return _assigned(source, selection.assigned)
    if selection.pattern is not None:
        pattern = re.compile(selection.pattern)
        topics = [topic for topic in source.topics().values() if pattern.fullmatch(topic.name)]
    else:
        topics = list(source.topics(selection.names).values())
    ids = {topic.name: topic.id for topic in topics}
    partitions = sorted(
        TopicPartition(topic.name, number) for topic in topics for number in range(topic.partitions)
    )
    return {partition: ids[partition.topic] for partition in partitions}


def find_existing(source: RecordSource, selection: TopicSelection) -> TopicIds:
    """Return those of the partitions to read that exist, sorted."""
    found: TopicIds = {}
    wanted = None if selection.assigned is None else set(selection.assigned)
    names = selection.names or sorted({partition.topic for partition in wanted or ()})
    for name in names:
        try:
            partitions = find_partitions(source, TopicSelection(names=(name,)))
        except UnknownTopic:
            continue
        found |= {at: id_ for at, id_ in partitions.items() if wanted is None or at in wanted}
    return dict(sorted(found.items()))


def _assigned(source: RecordSource, assigned: Iterable[TopicPartition]) -> TopicIds:
    topics = source.topics(sorted({partition.topic for partition in assigned}))
    for partition in assigned:
        if partition.partition >= (count := topics[partition.topic].partitions):
            raise UnknownTopic(
                f"partition of topic {partition.topic} must be between 0 and {count - 1}, got"
                f" {partition.partition}"
            )
    return {partition: topics[partition.topic].id for partition in sorted(assigned)}


def resolve_start(
    source: RecordSource,
    start: Offsets,
    bounds: Mapping[TopicPartition, OffsetBounds],
    options: ReadOptions,
    *,
    is_same: Callable[[TopicPartition], bool] = lambda _: True,
) -> tuple[Offsets, Offsets]:
    """Return the first readable offset of each partition, and the number of offsets lost before it.

    Raises `DataLost` if offsets were lost and `failOnDataLoss` is set. Otherwise a partition that
    ends before its start offset is read from its end, because what is before was read or not asked
    for; but from its start if it may belong to another topic, as `is_same` tells.
    """
    settled, lost = dict(start), {}
    for partition, offset in start.items():
        if reason := _loss(source, partition, offset, bounds[partition], options):
            if options.fail_on_data_loss:
                raise DataLost(f"{reason}; set failOnDataLoss=false to continue without them")
            logger.warning("%s; continuing without them", reason)
            first, end = bounds[partition]
            lost[partition] = max(0, first - offset)
            settled[partition] = end if offset > end and is_same(partition) else first
    return settled, lost


def _loss(
    source: RecordSource,
    partition: TopicPartition,
    start: int,
    bounds: OffsetBounds,
    options: ReadOptions,
) -> str | None:
    """Return a description of the records that were lost, or `None`.

    Records deleted by a user are not a loss, so a start below the bounds is not enough: the source
    has to be asked.
    """
    if start > bounds.end:
        end = bounds.end
        if options.isolation is Isolation.READ_COMMITTED:
            # A reader of uncommitted records may have been here, beyond an open transaction.
            stored = source.bounds([partition], isolation=Isolation.READ_UNCOMMITTED)
            end = stored[partition].end
        if start <= end:
            return None
        return (
            f"{partition} was to be read from offset {start} and ends at {end}: it was deleted and"
            " created again, or restored from an older copy, or the offset is wrong"
        )
    if start >= bounds.start:
        return None
    try:
        next(source.chunks(partition, start, bounds.end, isolation=options.isolation), None)
    except OffsetOutOfRange:
        return (
            f"offsets {start} to {bounds.start - 1} of {partition} were deleted by retention before"
            " they were read"
        )
    return None


def make_tasks(
    source: RecordSource, start: Offsets, end: Offsets, options: ReadOptions, topic_ids: TopicIds
) -> list[ReadTask]:
    """Return the tasks that together read all offsets from `start` to `end`.

    Each fails if the topic is not the one of `topic_ids` by then.
    """
    ranges = [
        OffsetRange(partition, start[partition], end[partition], topic_ids.get(partition))
        for partition in sorted(end)
        if start[partition] < end[partition]
    ]
    offset_bytes = source.offset_bytes(
        {range_.partition: OffsetBounds(range_.start, range_.end) for range_ in ranges}
    )
    return divide(ranges, offset_bytes, options)


def divide(
    ranges: Iterable[OffsetRange],
    offset_bytes: Mapping[TopicPartition, float],
    options: ReadOptions,
    *,
    finish: Callable[[OffsetRange], OffsetRange] = lambda piece: piece,
) -> list[ReadTask]:
    """Return tasks of the size in the options. `finish` completes each piece of a range."""
    pieces = split(
        ranges,
        offset_bytes=offset_bytes,
        partition_bytes=options.partition_bytes,
        partitions_min=options.partitions_min,
    )
    # A caller that asks for many tasks does more with the records than read them, so small tasks
    # are worth their overhead.
    task_bytes_min = 0 if options.partitions_min > 1 else TASK_BYTES_MIN
    return gather(
        map(finish, pieces),
        offset_bytes=offset_bytes,
        task_bytes_min=min(task_bytes_min, options.partition_bytes),
    )
