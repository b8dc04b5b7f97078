"""Handlers of consumer groups: list, describe, delete.

Committed offsets are reset in `offset_resets.py`. No partition is opened for a description; in a
cluster, the leaders of partitions are asked where they end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from http import HTTPStatus

from starlette.responses import Response

from millstream.broker.access.resources import Operation
from millstream.broker.broker import Broker
from millstream.broker.groups.consumer.consumer_group import ConsumerGroup
from millstream.broker.groups.consumer.partition_set import PartitionSet
from millstream.broker.groups.coordinator import CONSUMER_PROTOCOL
from millstream.broker.groups.group import Group
from millstream.broker.groups.lag import PartitionLag, known_end_offset
from millstream.errors import MillstreamError, UnknownGroup, UnknownTopicId
from millstream.protocols.http.groups import (
    AssignedShape,
    CommittedShape,
    GroupDetailsAnswer,
    GroupsAnswer,
    GroupShape,
    GroupsQuery,
    MemberShape,
)
from millstream.protocols.kafka.assignment import assigned_partitions
from millstream.records.topic_partition import TopicPartition
from millstream.servers.http.handlers.coordinator_lists import ask_coordinators
from millstream.servers.http.routing.bodies import in_thread_if, read_query
from millstream.servers.http.routing.operation_access import filtered, group_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response

OFFSETS_PER_TURN = 200
"""Groups and offsets that are processed in one turn of the event loop: about a millisecond."""

OFFSETS_MAX = 10_000
"""Offsets in the description of one group."""

NAME_LENGTH_MAX = 300
"""Characters of a group's name in an error message."""


async def list_groups(request: HttpRequest) -> Response:
    """List groups sorted by name, one page at a time, with the lag of each."""
    query = read_query(request, GroupsQuery)
    broker = request.context.broker
    pages = await ask_coordinators(
        request, broker.groups.coordinators, GroupsAnswer, lambda: _own_groups(request, query)
    )
    if len(pages) == 1:
        return json_response(pages[0])
    groups = sorted(
        (group for page in pages for group in page.groups), key=lambda group: group.group
    )
    shown = groups[: query.limit]
    is_more = len(groups) > len(shown) or any(page.next is not None for page in pages)
    return json_response(GroupsAnswer(groups=shown, next=shown[-1].group if is_more else None))


def visible_groups(request: HttpRequest, after: str | None, count: int) -> list[Group]:
    """Return groups of this node that the caller may describe, sorted by name.

    The name of another one is not even a cursor.
    """
    broker = request.context.broker
    visible: list[Group] = []
    while len(visible) < count:
        page = broker.groups.page(after, count)
        visible += [group for group in page if request.may_describe_group(group.group_id)]
        if len(page) < count:
            break
        after = page[-1].group_id
    return visible[:count]


async def _own_groups(request: HttpRequest, query: GroupsQuery) -> GroupsAnswer:
    """Return a page of the groups that this node coordinates."""
    broker = request.context.broker
    groups = visible_groups(request, query.after, query.limit + 1)
    shown = groups[: query.limit]
    lags = LagReader(broker)
    shapes = [
        GroupShape(
            group=group.group_id,
            kind=group.kind.value,
            state=state_name(group.state),
            members=group.member_count,
            partitions=len(broker.groups.committed(group.group_id)),
            lag=await lags.lag_of(group.group_id),
        )
        for group in shown
    ]
    return GroupsAnswer(
        groups=shapes, next=shown[-1].group_id if len(groups) > len(shown) else None
    )


async def describe_group(request: HttpRequest) -> Response:
    """Return the members of a group, their assignments, its committed offsets and its lag."""
    broker = request.context.broker
    group = _group_of(request)
    members = members_of(broker, group)
    owners = {
        TopicPartition(assigned.topic, assigned.partition): member.id
        for member in members
        for assigned in member.partitions
    }
    committed_offsets = list(broker.groups.committed(group.group_id).items())
    offsets = {partition: committed.offset.offset for partition, committed in committed_offsets}
    partitions = await in_thread_if(len(offsets) > OFFSETS_MAX, lambda: sorted({*offsets, *owners}))
    lags = LagReader(broker)
    shapes: list[CommittedShape] = []
    partitions = [item for item in partitions if request.may_describe_topic(item.topic)]
    for member in members:
        member.partitions = [
            item for item in member.partitions if request.may_describe_topic(item.topic)
        ]
    for partition in partitions[:OFFSETS_MAX]:
        offset = offsets.get(partition)
        end = await lags.end_of(partition)
        lag = None if offset is None or end is None else PartitionLag(offset, end).lag
        shapes.append(
            CommittedShape(
                topic=partition.topic,
                partition=partition.partition,
                committed=offset,
                end=end,
                lag=lag,
                member=owners.get(partition),
            )
        )
    return json_response(
        GroupDetailsAnswer(
            group=group.group_id,
            kind=group.kind.value,
            state=state_name(group.state),
            lag=await lags.lag_of(group.group_id),
            members=members,
            offsets=shapes,
            partitions=len(partitions),
        )
    )


async def delete_group(request: HttpRequest) -> Response:
    """Delete a group without members and its committed offsets. Durable before the response."""
    group_id: str = request.path_params["group"]
    await request.context.broker.groups.of(group_id).delete(group_id)
    return Response(status_code=HTTPStatus.NO_CONTENT)


class LagReader:
    """Computes the lag of groups, and gives way to other requests in between."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self._processed = 0
        self._ends: dict[TopicPartition, int | None] = {}
        """The ends that leaders have told, for one request."""

    async def end_of(self, partition: TopicPartition) -> int | None:
        """Return the end offset of a partition, if it is known; in a cluster, its leader is asked.

        No end is better than one of a replica that is behind: the lag would be too low.
        """
        await self.yield_turn()
        topic = self.broker.topics.find(partition.topic)
        if topic is None or not 0 <= partition.partition < len(topic.partitions):
            return None
        found = topic.partitions[partition.partition]
        if found.replica is None:
            return known_end_offset(self.broker.topics, self.broker.store, partition)
        if partition not in self._ends:
            try:
                await found.anywhere.catch_up()
                self._ends[partition] = found.anywhere.high_watermark
            except MillstreamError:
                self._ends[partition] = None
        return self._ends[partition]

    async def lag_of(self, group_id: str) -> int:
        """Return the lag of a group over all partitions whose end is known."""
        await self.yield_turn()
        lag = 0
        for partition, committed in list(self.broker.groups.committed(group_id).items()):
            if (end := await self.end_of(partition)) is not None:
                lag += PartitionLag(committed.offset.offset, end).lag
        return lag

    async def yield_turn(self, processed: int = 1) -> None:
        """Note how much was processed, and let other tasks run from time to time."""
        self._processed += processed
        if self._processed >= OFFSETS_PER_TURN:
            self._processed = 0
            await asyncio.sleep(0)


def state_name(state: str) -> str:
    """Return Kafka's name of a state in snake case: `preparing_rebalance`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", state).lower()


def _group_of(request: HttpRequest) -> Group:
    name: str = request.path_params["group"]
    group = request.context.broker.groups.find(name)
    if group is None:
        raise UnknownGroup(f"group {name[:NAME_LENGTH_MAX]!r} does not exist")
    return group


def members_of(broker: Broker, group: Group) -> list[MemberShape]:
    """Return the members of a group with their assignments."""
    coordinator = broker.groups.of(group.group_id)
    if isinstance(group, ConsumerGroup):
        return [
            MemberShape(
                id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host.removeprefix("/"),
                partitions=_shapes(_named(broker, member.assigned)),
            )
            for member, _ in coordinator.consumers.describe(group.group_id).members
        ]
    is_consumer = group.protocol_type == CONSUMER_PROTOCOL
    return [
        MemberShape(
            id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            host=member.host.removeprefix("/"),
            partitions=_shapes(assigned_partitions(member.assignment) or ()) if is_consumer else [],
        )
        for member in coordinator.describe(group.group_id).members
    ]


def _named(broker: Broker, partitions: PartitionSet) -> list[tuple[str, int]]:
    """Return partitions by the names of their topics, without those of deleted topics."""
    named: list[tuple[str, int]] = []
    for topic_id, numbers in partitions.items():
        try:
            name = broker.topics.by_id(topic_id).name
        except UnknownTopicId:
            continue
        named += [(name, number) for number in numbers]
    return named


def _shapes(partitions: Iterable[tuple[str, int]]) -> list[AssignedShape]:
    return [AssignedShape(topic=topic, partition=index) for topic, index in sorted(partitions)]


_EXAMPLE = {"group": "billing", "kind": "consumer", "state": "stable", "lag": 12}
_MEMBER = "7d2f7a0e-4f5b-4f0c-8d0c-0a1f6f6f3b21"
_PARTITION = {"topic": "orders", "partition": 0}

OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/groups",
        list_groups,
        "List groups",
        {HTTPStatus.OK: GroupsAnswer},
        query=GroupsQuery,
        tag="groups",
        answer_example={"groups": [{**_EXAMPLE, "members": 2, "partitions": 3}], "next": None},
        access=filtered("groups that the caller may describe"),
    ),
    HttpOperation(
        "GET",
        "/v1/groups/{group:path}",
        describe_group,
        "Describe a group",
        {HTTPStatus.OK: GroupDetailsAnswer},
        tag="groups",
        answer_example={
            **_EXAMPLE,
            "members": [
                {
                    "id": _MEMBER,
                    "instance_id": None,
                    "client_id": "billing-1",
                    "host": "127.0.0.1",
                    "partitions": [_PARTITION],
                }
            ],
            "offsets": [{**_PARTITION, "committed": 30, "end": 42, "lag": 12, "member": _MEMBER}],
            "partitions": 1,
        },
        is_forwarded=True,
        access=group_access(Operation.DESCRIBE, checks="topics that the caller may describe"),
    ),
    HttpOperation(
        "DELETE",
        "/v1/groups/{group:path}",
        delete_group,
        "Delete a group",
        {HTTPStatus.NO_CONTENT: None},
        errors=(HTTPStatus.CONFLICT, HTTPStatus.INSUFFICIENT_STORAGE),
        tag="groups",
        is_forwarded=True,
        access=group_access(Operation.DELETE),
    ),
)
