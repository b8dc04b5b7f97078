"""Resets the offsets of a group, as `kafka-consumer-groups --reset-offsets` does.

The targets of all partitions are determined first; then one commit, as durable as any other commit
of a group, sets all of them or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import NamedTuple

from starlette.responses import Response

from millstream.broker.access.resources import Operation
from millstream.broker.groups.lag import PartitionLag
from millstream.broker.groups.offsets.committed_offsets import CommittedOffset
from millstream.broker.groups.values import OffsetAndMetadata
from millstream.broker.partition.partition import Partition
from millstream.broker.partition.readable_partition import ReadablePartition
from millstream.broker.topics.topic import Topic
from millstream.errors import InvalidRequest, OffsetOutOfRange
from millstream.protocols.http.groups import ResetAnswer, ResetBody, ResetShape, ResetTime, ResetTo
from millstream.records.topic_partition import TopicPartition
from millstream.servers.http.routing.bodies import read_message
from millstream.servers.http.routing.operation_access import group_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response

RESET_SIZE_MAX = 16 * 1024
"""Bytes of a request body: a name and a few numbers."""

PARTITIONS_MAX = 10_000
"""Partitions of one reset: all of them are opened, and committed together."""


class ResetTarget(NamedTuple):
    """The new offset of a partition, and the partition's end."""

    offset: int
    end: int


async def reset_group(request: HttpRequest) -> Response:
    """Set the committed offsets of a group without members; an unknown group is created.

    Durable before the response, for all partitions or for none. 409 means that the group has
    members: they have to leave first, because they would continue from their own positions. 416
    means that the offset is outside of a partition: `detail` has the limits. With `preview`, the
    same is checked and returned, and nothing is changed.
    """
    body = await read_message(request, ResetBody, size_max=RESET_SIZE_MAX)
    broker = request.context.broker
    request.require_topic(Operation.READ, body.topic)
    group_id: str = request.path_params["group"]
    broker.groups.of(group_id).check_reset(group_id)
    topic = broker.topics.get(body.topic)
    targets = {
        partition.index: await _target(partition.anywhere, body.to)
        for partition in _partitions(topic, body)
    }
    broker.topics.by_id(topic.id)  # Raises if it was deleted meanwhile.
    before = dict(broker.groups.committed(group_id))
    if not body.preview:
        await broker.groups.of(group_id).reset(
            group_id,
            {
                TopicPartition(topic.name, index): OffsetAndMetadata(
                    offset=target.offset, topic_id=topic.id
                )
                for index, target in targets.items()
            },
        )
    return json_response(
        ResetAnswer(
            offsets=[
                ResetShape(
                    topic=topic.name,
                    partition=index,
                    previous=_offset_in(before, TopicPartition(topic.name, index)),
                    committed=target.offset,
                    end=target.end,
                    lag=PartitionLag(target.offset, target.end).lag,
                )
                for index, target in targets.items()
            ]
        )
    )


def _offset_in(
    committed: Mapping[TopicPartition, CommittedOffset], partition: TopicPartition
) -> int | None:
    found = committed.get(partition)
    return None if found is None else found.offset.offset


def _partitions(topic: Topic, body: ResetBody) -> list[Partition]:
    if body.partition is not None:
        return [topic.partition(body.partition)]
    if len(topic.partitions) > PARTITIONS_MAX:
        raise InvalidRequest(
            f"{topic.name} has {len(topic.partitions)} partitions, more than the {PARTITIONS_MAX}"
            " of one reset: set partition"
        )
    return list(topic.partitions)


async def _target(partition: ReadablePartition, to: ResetTo) -> ResetTarget:
    """Return the offset that `to` means in a partition, as ListOffsets does."""
    await partition.open()
    await partition.settle()
    if isinstance(to, ResetTime):
        first = await partition.find_timestamp(to.timestamp)
        end = partition.high_watermark
        return ResetTarget(end if first is None else first, end)
    start, end = partition.log_start_offset, partition.high_watermark
    if to == "earliest":
        return ResetTarget(start, end)
    if to == "latest":
        return ResetTarget(end, end)
    assert isinstance(to, int)
    if not start <= to <= end:
        raise OffsetOutOfRange(to, start=start, end=end)
    return ResetTarget(to, end)


OPERATIONS = (
    HttpOperation(
        "PUT",
        "/v1/groups/{group:path}/offsets",
        reset_group,
        "Reset a group's offsets",
        {HTTPStatus.OK: ResetAnswer},
        body=ResetBody,
        errors=(
            HTTPStatus.CONFLICT,
            HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
            HTTPStatus.INSUFFICIENT_STORAGE,
        ),
        tag="groups",
        example={"topic": "orders", "to": "earliest"},
        answer_example={
            "offsets": [
                {
                    "topic": "orders",
                    "partition": 0,
                    "previous": 30,
                    "committed": 0,
                    "end": 42,
                    "lag": 42,
                }
            ]
        },
        is_forwarded=True,
        access=group_access(Operation.READ, checks="READ on the topic of the body"),
    ),
)
