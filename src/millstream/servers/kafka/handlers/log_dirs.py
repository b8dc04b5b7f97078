"""DescribeLogDirs: the data directory of the node, with the size of each of its replicas."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable

from millstream.broker.partition.partition import Partition
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.log_dirs import (
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResponsePartition,
    DescribeLogDirsResponseResult,
    DescribeLogDirsResponseTopic,
)
from millstream.servers.kafka.request_context import RequestContext
from millstream.storage.files.names import LogName
from millstream.storage.inspect.log_summary import summarize_log

UNKNOWN_BYTES = -1

ERROR_SINCE = 3
"""The first version with an error of the whole response."""


async def describe_log_dirs(
    request: DescribeLogDirsRequest, context: RequestContext
) -> DescribeLogDirsResponse:
    """Return the data directory with the sizes of partitions: those of the request, or all.

    Unknown topics and partitions are left out, as by Kafka.
    """
    if (refusal := context.cluster_refusal()) is not None:
        code = code_of(refusal)
        refused = DescribeLogDirsResponseResult(error_code=code, log_dir="", topics=())
        return DescribeLogDirsResponse(
            throttle_time_ms=context.throttle_ms,
            error_code=code,
            # Older versions have no other place for an error.
            results=(refused,) if context.version < ERROR_SINCE else (),
        )
    data, total, usable = await asyncio.to_thread(_measure, context.broker.store.path)
    result = DescribeLogDirsResponseResult(
        log_dir=data,
        topics=tuple(
            DescribeLogDirsResponseTopic(
                name=name,
                partitions=tuple(_describe(partition, context) for partition in partitions),
            )
            for name, partitions in _requested(request, context)
        ),
        total_bytes=total,
        usable_bytes=usable,
    )
    return DescribeLogDirsResponse(throttle_time_ms=context.throttle_ms, results=(result,))


def _requested(
    request: DescribeLogDirsRequest, context: RequestContext
) -> Iterable[tuple[str, list[Partition]]]:
    topics = context.broker.topics
    if request.topics is None:
        for topic in topics.all():
            if stored := [p for p in topic.partitions if _is_stored(p, context)]:
                yield topic.name, stored
        return
    for requested in request.topics:
        found = topics.find(requested.topic)
        count = 0 if found is None else len(found.partitions)
        indexes = [index for index in dict.fromkeys(requested.partitions) if 0 <= index < count]
        if found is not None and indexes:
            partitions = [found.partitions[index] for index in indexes]
            yield found.name, [p for p in partitions if _is_stored(p, context)]


def _is_stored(partition: Partition, context: RequestContext) -> bool:
    """Whether this node has a replica of a partition."""
    placement = context.broker.cluster.placement(partition.topic, partition.index)
    return context.broker.node_id in placement.replicas


def _describe(partition: Partition, context: RequestContext) -> DescribeLogDirsResponsePartition:
    summary = summarize_log(context.broker.store, LogName(partition.topic, partition.index))
    lag = 0
    if partition.is_open:
        lag = partition.appender.next_offset - partition.high_watermark
    return DescribeLogDirsResponsePartition(
        partition_index=partition.index,
        partition_size=0 if summary is None else summary.bytes,
        offset_lag=lag,
    )


def _measure(path: str) -> tuple[str, int, int]:
    """Return the directory, the size of its file system, and how much of that is left."""
    path = os.path.abspath(path)
    try:
        stats = os.statvfs(path)
    except OSError:
        return path, UNKNOWN_BYTES, UNKNOWN_BYTES
    return path, stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize
