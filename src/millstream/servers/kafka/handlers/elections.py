"""ElectLeaders: elections that operators ask for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from millstream.broker.access.resources import CLUSTER
from millstream.errors import MillstreamError, NoEligibleLeader
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.topics import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    ElectLeadersResponsePartition,
    ElectLeadersResponseTopic,
)
from millstream.servers.kafka.request_context import RequestContext

PREFERRED, UNCLEAN = 0, 1

TYPES_SINCE = 1
"""The first version in which a request says which election it wants."""

AT_ONCE = 64
"""Elections of one request that run at the same time."""


async def elect_leaders(
    request: ElectLeadersRequest, context: RequestContext
) -> ElectLeadersResponse:
    """Let the preferred replica of each partition lead it, or any replica although data is lost.

    If the request names no partitions, the response lists those in which there was something to do.
    """
    kind = request.election_type if context.version >= TYPES_SINCE else PREFERRED
    if kind not in (PREFERRED, UNCLEAN):
        return ElectLeadersResponse(error_code=ErrorCode.INVALID_REQUEST)
    if (refusal := context.cluster_refusal()) is not None:
        return ElectLeadersResponse(
            throttle_time_ms=context.throttle_ms, error_code=code_of(refusal)
        )
    topics: list[tuple[str, Sequence[int]]]
    if request.topic_partitions is None:
        topics = [(t.name, range(t.partition_count)) for t in context.broker.topics.all()]
    else:
        topics = [(t.topic, t.partitions) for t in request.topic_partitions]
    limit = asyncio.Semaphore(AT_ONCE)
    results = await asyncio.gather(
        *(_elect_all(name, indexes, kind, context, limit) for name, indexes in topics)
    )
    if request.topic_partitions is None:
        results = [_needed(result) for result in results]
        results = [result for result in results if result.partition_result]
    return ElectLeadersResponse(
        throttle_time_ms=context.throttle_ms, replica_election_results=tuple(results)
    )


async def _elect_all(
    topic: str,
    indexes: Sequence[int],
    kind: int,
    context: RequestContext,
    limit: asyncio.Semaphore,
) -> ElectLeadersResponseTopic:
    results = await asyncio.gather(
        *(_elect(topic, index, kind, context, limit) for index in indexes)
    )
    return ElectLeadersResponseTopic(topic=topic, partition_result=tuple(results))


async def _elect(
    topic: str, index: int, kind: int, context: RequestContext, limit: asyncio.Semaphore
) -> ElectLeadersResponsePartition:
    admin = context.broker.admin
    code, message = ErrorCode.NONE, None
    async with limit:
        try:
            if kind == PREFERRED:
                await admin.elect_preferred(topic, index)
            else:
                await admin.elect_uncleanly(topic, index)
            context.note_change(CLUSTER)
        except NoEligibleLeader as error:
            code = (
                ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
                if kind == PREFERRED
                else ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
            )
            message = str(error)
        except MillstreamError as error:
            code, message = code_of(error), str(error)
    return ElectLeadersResponsePartition(partition_id=index, error_code=code, error_message=message)


def _needed(result: ElectLeadersResponseTopic) -> ElectLeadersResponseTopic:
    """Return the results without the partitions that have the leader that they should have."""
    return ElectLeadersResponseTopic(
        topic=result.topic,
        partition_result=tuple(
            partition
            for partition in result.partition_result
            if partition.error_code != ErrorCode.ELECTION_NOT_NEEDED
        ),
    )
