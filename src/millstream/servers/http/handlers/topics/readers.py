"""Handler that lists the readers of a topic."""

from __future__ import annotations

from collections import Counter
from http import HTTPStatus

from starlette.responses import Response

from millstream.broker.groups.group import Group
from millstream.broker.groups.lag import PartitionLag
from millstream.broker.topics.topic import Topic
from millstream.protocols.http.readers import (
    ReadersAnswer,
    ReadersQuery,
    ReadingGroupShape,
    WatcherShape,
)
from millstream.servers.http.handlers.groups.groups import LagReader, members_of, state_name
from millstream.servers.http.handlers.records import topic_of
from millstream.servers.http.routing.bodies import read_query
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response

SCANNED_MAX = 2_000
"""Groups that one request looks at."""

WATCHERS_MAX = 1_000
"""Client ids in one response."""


async def list_readers(request: HttpRequest) -> Response:
    """List who reads a topic: consumer groups with their lag, and live connections.

    No partition is opened. A request looks at a limited number of groups: continue with `next`
    until it is null, also if a response has no group.
    """
    query = read_query(request, ReadersQuery)
    topic = topic_of(request)
    broker = request.context.broker
    groups = broker.groups.page(query.after, SCANNED_MAX + 1)
    lags = LagReader(broker)
    shapes: list[ReadingGroupShape] = []
    last: str | None = None
    for group in groups[:SCANNED_MAX]:
        last = group.group_id
        if (shape := await _reading(lags, group, topic)) is not None:
            shapes.append(shape)
        if len(shapes) == query.limit:
            break
    is_all = not groups or groups[-1].group_id == last
    watchers = Counter(
        subscriber.usage.client_id
        for subscriber in request.context.live.subscribers
        if topic in subscriber.topics
    )
    return json_response(
        ReadersAnswer(
            groups=shapes,
            next=None if is_all else last,
            watchers=[
                WatcherShape(client_id=client_id, connections=count)
                for client_id, count in sorted(watchers.items())[:WATCHERS_MAX]
            ],
            is_queue=broker.queues.knows(topic.name),
        )
    )


async def _reading(lags: LagReader, group: Group, topic: Topic) -> ReadingGroupShape | None:
    """Return how a group reads a topic; `None` if it does not."""
    broker = lags.broker
    committed = [
        (partition, offset.offset.offset)
        for partition, offset in list(broker.groups.committed(group.group_id).items())
        if partition.topic == topic.name
    ]
    members = 0
    if group.member_count:
        members = sum(
            any(assigned.topic == topic.name for assigned in member.partitions)
            for member in members_of(broker, group)
        )
    await lags.yield_turn(1 + group.member_count)
    if not committed and not members:
        return None
    lag = 0
    for partition, offset in committed:
        if (end := await lags.end_of(partition)) is not None:
            lag += PartitionLag(offset, end).lag
    return ReadingGroupShape(
        group=group.group_id,
        kind=group.kind.value,
        state=state_name(group.state),
        members=members,
        partitions=len(committed),
        lag=lag,
    )


OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/topics/{topic}/readers",
        list_readers,
        "List the readers of a topic",
        {HTTPStatus.OK: ReadersAnswer},
        query=ReadersQuery,
        answer_example={
            "groups": [
                {
                    "group": "billing",
                    "kind": "consumer",
                    "state": "stable",
                    "members": 2,
                    "partitions": 3,
                    "lag": 12,
                }
            ],
            "next": None,
            "watchers": [{"client_id": "dashboard", "connections": 1}],
            "is_queue": False,
        },
    ),
)
