"""Handler that lists the readers of a topic."""

from __future__ import annotations

from collections import Counter
from http import HTTPStatus

from starlette.responses import Response

from millstream.broker.access.resources import Operation
from millstream.broker.groups.group import Group
from millstream.broker.groups.lag import PartitionLag
from millstream.broker.topics.topic import Topic
from millstream.protocols.http.readers import (
    ReadersAnswer,
    ReadersQuery,
    ReadingGroupShape,
    WatcherShape,
)
from millstream.servers.http.handlers.coordinator_lists import ask_coordinators
from millstream.servers.http.handlers.groups.groups import (
    LagReader,
    members_of,
    state_name,
    visible_groups,
)
from millstream.servers.http.handlers.records import topic_of
from millstream.servers.http.routing.bodies import read_query
from millstream.servers.http.routing.operation_access import topic_access
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
    pages = await ask_coordinators(
        request,
        request.context.broker.groups.coordinators,
        ReadersAnswer,
        lambda: _own_readers(request, topic, query),
        is_every_node=True,
    )
    return json_response(pages[0] if len(pages) == 1 else _merged(pages, query.limit))


def _merged(pages: list[ReadersAnswer], limit: int) -> ReadersAnswer:
    """Return one page of several: up to the group that every node has looked at."""
    groups = sorted(
        (group for page in pages for group in page.groups), key=lambda group: group.group
    )
    looked_at = [page.next for page in pages if page.next is not None]
    end = min(looked_at, default=None)
    if end is not None:
        groups = [group for group in groups if group.group <= end]
    if len(groups) > limit:
        groups = groups[:limit]
        end = groups[-1].group
    watchers: Counter[str] = Counter()
    for page in pages:
        watchers.update({watcher.client_id: watcher.connections for watcher in page.watchers})
    return ReadersAnswer(
        groups=groups,
        next=end,
        watchers=_watchers(watchers),
        is_queue=any(page.is_queue for page in pages),
    )


def _watchers(counts: Counter[str]) -> list[WatcherShape]:
    return [
        WatcherShape(client_id=client_id, connections=count)
        for client_id, count in sorted(counts.items())[:WATCHERS_MAX]
    ]


async def _own_readers(request: HttpRequest, topic: Topic, query: ReadersQuery) -> ReadersAnswer:
    """Return the groups that this node coordinates, and the connections that it has."""
    broker = request.context.broker
    groups = visible_groups(request, query.after, SCANNED_MAX + 1)
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
    return ReadersAnswer(
        groups=shapes,
        next=None if is_all else last,
        watchers=_watchers(watchers),
        is_queue=broker.queues.knows(topic.name),
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
        access=topic_access(Operation.DESCRIBE, checks="groups that the caller may describe"),
    ),
)
