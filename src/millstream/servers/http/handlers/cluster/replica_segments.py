"""Handler that checks a replica of a node, for a comparison with those of other nodes."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

from starlette.responses import Response

from millstream.broker.access.resources import Operation
from millstream.broker.broker import Broker
from millstream.broker.cluster_admin import ReplicaStatus
from millstream.broker.loop_threads import LoopThreads
from millstream.errors import NotLeader, Unavailable, UnknownLog
from millstream.protocols.http.cluster import (
    CheckedSegmentShape,
    DamagedRangeShape,
    ReplicaSegmentsAnswer,
    ReplicaSegmentsQuery,
)
from millstream.servers.http.routing.bodies import read_query
from millstream.servers.http.routing.operation_access import cluster_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response
from millstream.storage.inspect.replica_check import CheckedSegment, check_log

PAGE_BYTES_MAX = 64 * 1024 * 1024
"""Bytes after which a response ends: a moment of reading. One segment may be larger."""

PAGE_SEGMENTS_MAX = 1_000

OPEN_SECONDS_MAX = 5.0
OPEN_POLL_SECONDS = 0.05
"""How long a node waits for a replica that it does not have yet, and how often it looks. Metadata
names the replicas of a new partition a moment before their nodes have made them.
"""


async def check_segments(request: HttpRequest) -> Response:
    """Read a part of the replica that a node has, check every byte, and return digests.

    Uncleaned segments of two replicas are equal if their digests are. Damage is also reported to
    the node that has it, which copies the segments from another replica. A replica that is being
    created is waited for, for a moment.
    """
    query = read_query(request, ReplicaSegmentsQuery)
    broker = request.context.broker
    partition = broker.topics.partition(query.topic, query.partition)
    if query.node != broker.node_id:
        if all(node.node_id != query.node for node in broker.admin.nodes()):
            raise UnknownLog(f"the cluster has no node {query.node}")
        raise NotLeader(f"node {query.node} is asked", leader=query.node)
    status = await _opened_replica(broker, query)
    log = partition.log
    checked = await check_log(
        log,
        LoopThreads(),
        start=query.from_,
        end=query.until,
        bytes_max=PAGE_BYTES_MAX,
        count_max=PAGE_SEGMENTS_MAX,
    )
    return json_response(
        ReplicaSegmentsAnswer(
            node_id=broker.node_id,
            topic=query.topic,
            partition=query.partition,
            is_leader=status.is_leader,
            is_cleaned=log.config.is_compacted or log.partition.is_rewritten,
            first_live_offset=log.start_offset,
            high_watermark=log.end_offset,
            segments=[_shape(segment) for segment in checked.segments],
            next=checked.next_offset,
        )
    )


async def _opened_replica(broker: Broker, query: ReplicaSegmentsQuery) -> ReplicaStatus:
    """Return the replica of this node when its log is open, or raise if it is not for long."""
    deadline = broker.clock.monotonic() + OPEN_SECONDS_MAX
    while True:
        partition = broker.topics.partition(query.topic, query.partition)
        status = broker.admin.replica(query.topic, query.partition)
        if status is not None and partition.is_open:
            return status
        if broker.clock.monotonic() >= deadline:
            break
        await asyncio.sleep(OPEN_POLL_SECONDS)
    if query.node in broker.cluster.placement(query.topic, query.partition).replicas:
        raise Unavailable(
            f"node {query.node} has not opened its replica of {query.topic}/{query.partition}"
            f" within {OPEN_SECONDS_MAX:g} s"
        )
    raise UnknownLog(f"node {query.node} has no replica of {query.topic}/{query.partition}")


def _shape(segment: CheckedSegment) -> CheckedSegmentShape:
    return CheckedSegmentShape(
        base=segment.base_offset,
        next=segment.next_offset,
        generation=segment.generation,
        bytes=segment.size,
        digest=segment.digest.hex(),
        damage=[
            DamagedRangeShape(from_=d.from_offset, to=d.to_offset, reason=d.reason)
            for d in segment.damage
        ],
    )


OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/cluster/segments",
        check_segments,
        "Check the replica of one node",
        {HTTPStatus.OK: ReplicaSegmentsAnswer},
        query=ReplicaSegmentsQuery,
        errors=(HTTPStatus.NOT_FOUND,),
        tag="cluster",
        is_forwarded=True,
        answer_example={
            "node_id": 2,
            "topic": "orders",
            "partition": 0,
            "is_leader": False,
            "is_cleaned": False,
            "first_live_offset": 0,
            "high_watermark": 90,
            "segments": [
                {
                    "base": 0,
                    "next": 90,
                    "generation": 0,
                    "bytes": 9214,
                    "digest": "6c1f0a1d8b2f4f1e9a3a7c55d0e8b417",
                    "damage": [],
                }
            ],
            "next": None,
        },
        access=cluster_access(Operation.DESCRIBE),
    ),
)
