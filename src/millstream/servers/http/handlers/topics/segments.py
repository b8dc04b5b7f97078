"""Sizes and segments of topics, from what is known without opening a partition."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus
from itertools import islice
from urllib.parse import quote, urlencode

from starlette.responses import Response

from millstream.broker.access.resources import Operation
from millstream.broker.partition.partition import Partition
from millstream.broker.queues.job_browser import RecordPosition
from millstream.broker.topics.topic import Topic
from millstream.errors import LeaderNotAvailable, NotLeader
from millstream.protocols.http.segments import SegmentsAnswer, SegmentShape, SegmentsQuery
from millstream.protocols.http.topics import SizesShape
from millstream.servers.http.handlers.record_position import parse_record_position
from millstream.servers.http.handlers.records import topic_of
from millstream.servers.http.routing.bodies import read_query
from millstream.servers.http.routing.operation_access import topic_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response
from millstream.storage.files.names import LogName
from millstream.storage.inspect.log_summary import LogSummary, SegmentSummary, summarize_log
from millstream.storage.store import Store

SEGMENTS_PER_TURN = 1_000
"""Segments and partitions that are processed in one turn of the event loop: about a millisecond."""


async def summaries_of(
    store: Store, topic: Topic, first: int = 0
) -> AsyncIterator[tuple[Partition, LogSummary | None]]:
    """Yield summaries of a topic's partitions from `first` on; other tasks run in between."""
    seen = 0
    for partition in islice(list(topic.partitions), first, None):
        summary = summarize_log(store, LogName(topic.name, partition.index))
        yield partition, summary
        seen += 1 + len(summary.segments if summary is not None else ())
        if seen >= SEGMENTS_PER_TURN:
            seen = 0
            await asyncio.sleep(0)


async def sizes_of(store: Store, topic: Topic) -> SizesShape | None:
    """Return the size of a topic; `None` if it is not known for all its partitions."""
    sizes = SizesShape(records=0, bytes=0, segments=0, appended_records=0, appended_bytes=0)
    async for partition, summary in summaries_of(store, topic):
        if summary is None or (records := summary.records) is None:
            return None
        sizes.records += records
        sizes.bytes += summary.bytes
        sizes.segments += len(summary.segments)
        log = store.find(LogName(topic.name, partition.index))
        if log is not None:
            sizes.appended_records += log.counters.records
            sizes.appended_bytes += log.counters.bytes
    return sizes


async def list_segments(request: HttpRequest) -> Response:
    """List the segments of a topic, or of one of its partitions, one page at a time.

    No partition is opened. In a cluster, they are those of the replicas of this node; of partitions
    that have none here, those of the leaders.
    """
    query = read_query(request, SegmentsQuery)
    topic = topic_of(request)
    first = query.partition or 0
    if query.partition is not None:
        topic.partition(query.partition)  # Raises if there is none.
    after = (
        parse_record_position(query.after, partition=first)
        if query.after
        else RecordPosition(first, -1)
    )
    shapes: list[SegmentShape] = []
    is_more = False
    async for partition, summary in summaries_of(request.context.broker.store, topic, first):
        index = partition.index
        offset = after.offset if index == after.partition else -1
        count_max = query.limit + 1 - len(shapes)
        if index < after.partition:
            continue
        if partition.replica is not None and not partition.replica.is_present:
            found = await _ask_leader(request, partition, offset, min(count_max, query.limit))
            shapes += found.segments
            is_more = found.next is not None
        elif summary is not None:
            shapes += [_shape(index, segment) for segment in summary.page(offset, count_max)]
        if query.partition is not None or is_more or len(shapes) > query.limit:
            break
    shown = shapes[: query.limit]
    last = RecordPosition(shown[-1].partition, shown[-1].base_offset) if shown else None
    is_more |= len(shapes) > len(shown)
    return json_response(SegmentsAnswer(segments=shown, next=str(last) if is_more else None))


async def _ask_leader(
    request: HttpRequest, partition: Partition, after: int, limit: int
) -> SegmentsAnswer:
    """Return segments of a partition that has no replica here, as its leader has them."""
    assert partition.replica is not None
    try:
        partition.replica.check_present()
    except NotLeader as refusal:
        forwarder = request.context.forwarder
        if forwarder is None:
            raise
        fields: dict[str, int | str] = {"partition": partition.index, "limit": limit}
        if after >= 0:
            fields["after"] = str(RecordPosition(partition.index, after))
        path = f"/v1/topics/{quote(partition.topic, safe='')}/segments?{urlencode(fields)}"
        return await forwarder.ask(request, refusal, SegmentsAnswer, method="GET", path=path)
    raise LeaderNotAvailable(f"{partition} is being moved to this node")


def _shape(partition: int, segment: SegmentSummary) -> SegmentShape:
    return SegmentShape(
        partition=partition,
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        bytes=segment.bytes,
        records=segment.records,
        first_timestamp=segment.timestamp_min,
        last_timestamp=segment.timestamp_max,
        state="cold" if segment.is_cold else "sealed" if segment.is_sealed else "active",
        deleted=segment.deleted_records,
        reclaimable_bytes=segment.reclaimable_bytes,
    )


OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/topics/{topic}/segments",
        list_segments,
        "List segments",
        {HTTPStatus.OK: SegmentsAnswer},
        query=SegmentsQuery,
        answer_example={
            "segments": [
                {
                    "partition": 0,
                    "base_offset": 0,
                    "end_offset": 40,
                    "bytes": 4096,
                    "records": 40,
                    "first_timestamp": 1763240000000,
                    "last_timestamp": 1763240060000,
                    "state": "sealed",
                    "deleted": 0,
                    "reclaimable_bytes": 0,
                }
            ],
            "next": "0:0",
        },
        access=topic_access(Operation.DESCRIBE),
    ),
)
