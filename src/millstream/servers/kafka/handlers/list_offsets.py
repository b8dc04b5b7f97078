"""ListOffsets: looks up an offset by timestamp, or by a negative special value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from millstream.broker.partition.partition import Partition
from millstream.broker.partition.results import OffsetAndTimestamp
from millstream.errors import InvalidRequest, MillstreamError, UnsupportedVersion
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsResponse,
    ListOffsetsResponsePartition,
    ListOffsetsResponseTopic,
)
from millstream.servers.kafka.handlers.replica_ids import check_not_replica
from millstream.servers.kafka.request_context import RequestContext

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_NOT_TIERED = -6

SINCE = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_NOT_TIERED: 11,
}
"""The first version that supports a special value."""

READ_COMMITTED = 1


async def list_offsets(request: ListOffsetsRequest, context: RequestContext) -> ListOffsetsResponse:
    """Look up one offset in each partition of the request."""
    counts = Counter(
        (topic.name, part.partition_index) for topic in request.topics for part in topic.partitions
    )
    is_committed_only = request.isolation_level == READ_COMMITTED
    topics = []
    for topic in request.topics:
        results = []
        for requested in topic.partitions:
            try:
                check_not_replica(request.replica_id)
                if counts[topic.name, requested.partition_index] > 1:
                    raise InvalidRequest(f"partition {requested.partition_index} is repeated")
                context.require_topic(topic.name)
                partition = context.broker.topics.partition(topic.name, requested.partition_index)
                position = await _find(partition, requested, context.version, is_committed_only)
                results.append(_answer(requested.partition_index, position))
            except MillstreamError as error:
                results.append(
                    ListOffsetsResponsePartition(
                        partition_index=requested.partition_index, error_code=code_of(error)
                    )
                )
        topics.append(ListOffsetsResponseTopic(name=topic.name, partitions=tuple(results)))
    return ListOffsetsResponse(throttle_time_ms=context.throttle_ms, topics=tuple(topics))


async def _find(
    partition: Partition,
    requested: ListOffsetsRequestPartition,
    version: int,
    is_committed_only: bool,  # noqa: FBT001 - passed by name.
) -> OffsetAndTimestamp | None:
    mark = requested.timestamp
    if mark < 0 and version < SINCE.get(mark, version + 1):
        raise UnsupportedVersion(f"timestamp {mark} is not supported in version {version}")
    await partition.open()
    partition.check_leader(requested.current_leader_epoch)
    await partition.settle()
    offsets = partition.offsets
    if mark >= 0:
        return await offsets.at_timestamp(mark, is_committed_only=is_committed_only)
    if mark == MAX_TIMESTAMP:
        return await offsets.max_timestamp(is_committed_only=is_committed_only)
    if mark == LATEST:
        return offsets.latest(is_committed_only=is_committed_only)
    found: dict[int, Callable[[], OffsetAndTimestamp | None]] = {
        EARLIEST: offsets.earliest,
        EARLIEST_LOCAL: offsets.earliest_local,
        LATEST_TIERED: offsets.latest_tiered,
        EARLIEST_NOT_TIERED: offsets.earliest_not_tiered,
    }
    return found[mark]()


def _answer(index: int, position: OffsetAndTimestamp | None) -> ListOffsetsResponsePartition:
    if position is None:
        return ListOffsetsResponsePartition(partition_index=index)
    return ListOffsetsResponsePartition(
        partition_index=index,
        timestamp=position.timestamp_ms,
        offset=position.offset,
        leader_epoch=position.leader_epoch,
    )
