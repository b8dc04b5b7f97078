"""Groups of consumers over HTTP: looking at them, and deleting them.

What a group reads next is set anew in `group_resets.py`. No partition is opened by looking.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from millstream.broker.broker import Broker
from millstream.broker.groups.consumer.consumer_group import ConsumerGroup
from millstream.broker.groups.consumer.partition_set import PartitionSet
from millstream.broker.groups.coordinator import CONSUMER_PROTOCOL
from millstream.broker.groups.group import Group
from millstream.broker.groups.lag import PartitionLag, known_end_offset
from millstream.errors import UnknownGroup, UnknownTopicId
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
from millstream.servers.http.routing.bodies import read_query
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request_state import broker_of, in_thread_if, json_response

OFFSETS_PER_TURN = 200
"""Groups and offsets that are looked at before others have their turn: about a millisecond."""

OFFSETS_MAX = 10_000
"""Offsets in the description of one group."""

NAME_LENGTH_MAX = 300
"""Characters of a group's name in a message."""


async def list_groups(request: Request) -> Response:
    """List groups by rising name, a page at a time, and how far each is behind."""
    query = read_query(request, GroupsQuery)
    broker = broker_of(request)
    found = broker.groups.registry.page(query.after, query.limit + 1)
    shown = found[: query.limit]
    behind = LagReader(broker)
    shapes = [
        GroupShape(
            group=group.group_id,
            kind=group.kind.value,
            state=state_name(group.state),
            members=group.member_count,
            partitions=len(broker.groups.offsets.of_group(group.group_id)),
            lag=await behind.lag_of(group.group_id),
        )
        for group in shown
    ]
    return json_response(
        GroupsAnswer(groups=shapes, next=shown[-1].group_id if len(found) > len(shown) else None)
    )


async def describe_group(request: Request) -> Response:
    """Tell who is in a group, what they have, and how far the group is behind."""
    broker = broker_of(request)
    group = _group_of(request)
    members = _members(broker, group)
    owners = {
        TopicPartition(one.topic, one.partition): member.id
        for member in members
        for one in member.partitions
    }
    found = list(broker.groups.offsets.of_group(group.group_id).items())
    offsets = {where: committed.offset.offset for where, committed in found}
    places = await in_thread_if(len(offsets) > OFFSETS_MAX, lambda: sorted({*offsets, *owners}))
    behind = LagReader(broker)
    shapes: list[CommittedShape] = []
    for where in places[:OFFSETS_MAX]:
        offset = offsets.get(where)
        end = await behind.end_of(where)
        lag = None if offset is None or end is None else PartitionLag(offset, end).lag
        shapes.append(
            CommittedShape(
                topic=where.topic,
                partition=where.partition,
                committed=offset,
                end=end,
                lag=lag,
                member=owners.get(where),
            )
        )
    return json_response(
        GroupDetailsAnswer(
            group=group.group_id,
            kind=group.kind.value,
            state=state_name(group.state),
            lag=await behind.lag_of(group.group_id),
            members=members,
            offsets=shapes,
            partitions=len(places),
        )
    )


async def delete_group(request: Request) -> Response:
    """Forget a group without members, and how far it has read. Durable before it is answered."""
    await broker_of(request).groups.delete(request.path_params["group"])
    return Response(status_code=HTTPStatus.NO_CONTENT)


class LagReader:
    """Finds out how far groups are behind; the loop is free in between."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._looked_at = 0

    async def end_of(self, where: TopicPartition) -> int | None:
        """Return the end of a partition, if it is known."""
        await self._pace()
        return known_end_offset(self._broker.topics, self._broker.store, where)

    async def lag_of(self, group_id: str) -> int:
        """Return how many offsets are left to a group, of partitions whose end is known."""
        await self._pace()
        lag = 0
        for where, committed in list(self._broker.groups.offsets.of_group(group_id).items()):
            if (end := await self.end_of(where)) is not None:
                lag += PartitionLag(committed.offset.offset, end).lag
        return lag

    async def _pace(self) -> None:
        self._looked_at += 1
        if self._looked_at % OFFSETS_PER_TURN == 0:
            await asyncio.sleep(0)


def state_name(state: str) -> str:
    """Return Kafka's word for a state in small letters: `preparing_rebalance`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", state).lower()


def _group_of(request: Request) -> Group:
    name: str = request.path_params["group"]
    group = broker_of(request).groups.registry.find(name)
    if group is None:
        raise UnknownGroup(f"there is no group {name[:NAME_LENGTH_MAX]!r}")
    return group


def _members(broker: Broker, group: Group) -> list[MemberShape]:
    if isinstance(group, ConsumerGroup):
        return [
            MemberShape(
                id=member.member_id,
                instance_id=member.instance_id,
                client_id=member.client_id,
                host=member.client_host.removeprefix("/"),
                partitions=_shapes(_named(broker, member.assigned)),
            )
            for member, _ in broker.groups.consumers.describe(group.group_id).members
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
        for member in broker.groups.describe(group.group_id).members
    ]


def _named(broker: Broker, partitions: PartitionSet) -> list[tuple[str, int]]:
    """Return partitions by the names of their topics; those of topics that are gone have none."""
    found: list[tuple[str, int]] = []
    for topic_id, numbers in partitions.items():
        try:
            name = broker.topics.by_id(topic_id).name
        except UnknownTopicId:
            continue
        found += [(name, number) for number in numbers]
    return found


def _shapes(partitions: Iterable[tuple[str, int]]) -> list[AssignedShape]:
    return [AssignedShape(topic=topic, partition=index) for topic, index in sorted(partitions)]


_EXAMPLE = {"group": "billing", "kind": "consumer", "state": "stable", "lag": 12}
_MEMBER = "7d2f7a0e-4f5b-4f0c-8d0c-0a1f6f6f3b21"
_PLACE = {"topic": "orders", "partition": 0}

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
                    "partitions": [_PLACE],
                }
            ],
            "offsets": [{**_PLACE, "committed": 30, "end": 42, "lag": 12, "member": _MEMBER}],
            "partitions": 1,
        },
    ),
    HttpOperation(
        "DELETE",
        "/v1/groups/{group:path}",
        delete_group,
        "Delete a group",
        {HTTPStatus.NO_CONTENT: None},
        errors=(HTTPStatus.CONFLICT, HTTPStatus.INSUFFICIENT_STORAGE),
        tag="groups",
    ),
)
