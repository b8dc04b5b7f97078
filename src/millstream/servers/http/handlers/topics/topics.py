"""Handlers of topics: create, change, list, describe, delete."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from urllib.parse import quote

from msgspec.structs import asdict as to_fields
from starlette.responses import Response

from millstream.broker.access.resources import Operation, Resource, ResourceType
from millstream.broker.broker import Broker
from millstream.broker.cluster_view import NO_NODE
from millstream.broker.partition.partition import Partition
from millstream.broker.quotas import QuotaKind
from millstream.broker.topics.topic import Topic
from millstream.broker.topics.topics import Topics
from millstream.errors import MalformedRequest, NotLeader, Unavailable
from millstream.protocols.http.mismatch import NAME_LENGTH_MAX
from millstream.protocols.http.records import GapShape
from millstream.protocols.http.topics import (
    ListedTopic,
    PartitionShape,
    PutTopicQuery,
    TopicAnswer,
    TopicBody,
    TopicsAnswer,
    TopicsQuery,
    TopicSummaryShape,
)
from millstream.servers.http.handlers.records import check_in_sync, topic_of
from millstream.servers.http.handlers.topics.config_changes import changes_of
from millstream.servers.http.handlers.topics.segments import sizes_of
from millstream.servers.http.routing.bodies import read_message, read_query
from millstream.servers.http.routing.operation_access import checked, filtered, topic_access
from millstream.servers.http.routing.operations import HttpOperation
from millstream.servers.http.routing.request import HttpRequest
from millstream.servers.http.routing.responses import json_response

TOPIC_SIZE_MAX = 256 * 1024
"""Bytes of a request body: a schema of 32 KiB with every character escaped, and all configs."""


async def put_topic(request: HttpRequest) -> Response:
    """Create a topic, or change the given settings of a topic and keep the others.

    The change is durable and atomic, and can be repeated. Without a body, a new topic gets the
    defaults of the node. With `create_only`, an existing topic is not changed.
    """
    query = read_query(request, PutTopicQuery)
    body = await read_message(request, TopicBody, size_max=TOPIC_SIZE_MAX, is_optional=True)
    partitions = body.partitions if isinstance(body.partitions, int) else None
    replicas = body.replicas if isinstance(body.replicas, int) else None
    topics, name = request.context.broker.topics, request.path_params["topic"]
    before = partition_count(topics, name)
    _check_put(request, name, before, partitions)
    topic, is_new = await topics.put(
        name,
        partitions=partitions,
        replicas=replicas,
        changes=changes_of(body),
        is_create_only=query.create_only,
        creator=request.caller,
    )
    request.usage.charge(QuotaKind.MUTATION, max(0, topic.partition_count - before))
    return json_response(_shape(topic), HTTPStatus.CREATED if is_new else HTTPStatus.OK)


def _check_put(request: HttpRequest, name: str, before: int, partitions: int | None) -> None:
    """Raise unless the caller may create the topic, or change what it has."""
    may_alter = request.may(Operation.ALTER_CONFIGS, Resource(ResourceType.TOPIC, name))
    if not before or not (may_alter or request.may_describe_topic(name)):
        request.require_creation(name)  # Strangers get the same answer, whether it exists or not.
    if not before:
        return
    request.require_topic(Operation.ALTER_CONFIGS, name)
    if partitions is not None and partitions != before:
        request.require_topic(Operation.ALTER, name)


async def list_topics(request: HttpRequest) -> Response:
    """List topics sorted by name, one page at a time. No partition is opened."""
    query = read_query(request, TopicsQuery)
    broker = request.context.broker
    topics = _visible_page(request, query.after, query.limit + 1)
    shown = topics[: query.limit]
    listed = [ListedTopic(**to_fields(_shape(topic))) for topic in shown]
    if query.sizes:
        for topic, shape in zip(shown, listed, strict=True):
            shape.sizes = await sizes_of(broker.store, topic)
    return json_response(
        TopicsAnswer(topics=listed, next=shown[-1].name if len(topics) > len(shown) else None)
    )


def _visible_page(request: HttpRequest, after: str, count: int) -> list[Topic]:
    """Return topics that the caller may describe. The name of another one is not even a cursor."""
    topics = request.context.broker.topics
    visible: list[Topic] = []
    while len(visible) < count:
        page = topics.page(after, count)
        visible += [topic for topic in page if request.may_describe_topic(topic.name)]
        if len(page) < count:
            break
        after = page[-1].name
    return visible[:count]


async def describe_topic(request: HttpRequest) -> Response:
    """Return the settings of a topic, and the offsets and sizes of its partitions."""
    topic = topic_of(request)
    partitions = await asyncio.gather(
        *(_described_anywhere(request, item) for item in topic.partitions)
    )
    shape = _shape(topic)
    return json_response(
        TopicAnswer(
            name=shape.name,
            id=shape.id,
            partition_count=len(partitions),
            durability=shape.durability,
            configs=shape.configs,
            partitions=list(partitions),
            count=sum(partition.count for partition in partitions),
            bytes=sum(partition.bytes for partition in partitions),
            deleted=sum(partition.deleted for partition in partitions),
            reclaimable_bytes=sum(partition.reclaimable_bytes for partition in partitions),
        )
    )


async def delete_topic(request: HttpRequest) -> Response:
    """Delete a topic and all its records. No client sees them after the response."""
    deleted = await request.context.broker.topics.delete(request.path_params["topic"])
    request.usage.charge(QuotaKind.MUTATION, deleted.partition_count)
    return Response(status_code=HTTPStatus.NO_CONTENT)


def partition_count(topics: Topics, name: str) -> int:
    """Return the number of partitions of a topic; 0 if it does not exist."""
    topic = topics.find(name)
    return 0 if topic is None else topic.partition_count


def _shape(topic: Topic) -> TopicSummaryShape:
    return TopicSummaryShape(
        name=topic.name,
        id=str(topic.id),
        partition_count=topic.partition_count,
        durability=topic.config.durability.value,
        configs=dict(topic.config.overrides),
    )


async def describe_partition(request: HttpRequest) -> Response:
    """Return the offsets and sizes of one partition."""
    text = request.path_params["partition"]
    if not (text.isascii() and text.isdigit() and len(text) < PARTITION_DIGITS_MAX):
        raise MalformedRequest(f"partition must be a number, got {text[:NAME_LENGTH_MAX]!r}")
    partition = topic_of(request).partition(int(text))
    return json_response(await _described(partition, request.context.broker))


async def _described_anywhere(request: HttpRequest, partition: Partition) -> PartitionShape:
    """Describe a partition from its replica here, or else from its leader."""
    try:
        return await _described(partition, request.context.broker)
    except NotLeader as refusal:
        forwarder = request.context.forwarder
        if forwarder is None:
            raise
        path = f"/v1/topics/{quote(partition.topic, safe='')}/partitions/{partition.index}"
        return await forwarder.ask(request, refusal, PartitionShape, method="GET", path=path)


async def _described(partition: Partition, broker: Broker) -> PartitionShape:
    """Describe the replica of this node, once it has everything that was acknowledged."""
    await partition.open()
    check_in_sync(partition)
    stale = False
    try:
        await partition.anywhere.catch_up()
    except Unavailable:  # An operator has to see what is there, above all then.
        stale = True
    description = partition.reader.describe()
    placement = broker.cluster.placement(partition.topic, partition.index)
    return PartitionShape(
        partition=partition.index,
        first_live_offset=description.start_offset,
        eviction_floor=description.eviction_floor,
        head=description.high_watermark,
        count=description.records,
        bytes=description.bytes,
        epoch=description.leader_epoch,
        segments=description.segments,
        deleted=description.deleted_records,
        reclaimable_bytes=description.reclaimable_bytes,
        gaps=[
            GapShape(from_=gap.from_offset, to=gap.to_offset, reason=gap.reason)
            for gap in description.gaps
        ],
        leader=None if placement.leader == NO_NODE else placement.leader,
        isr=list(placement.isr),
        replicas=list(placement.replicas),
        stale=stale,
    )


PARTITION_DIGITS_MAX = 10

_EXAMPLE = {
    "name": "orders",
    "id": "0d2a64c8-6f0e-4f0c-9a3e-52ad0ce7a1b9",
    "partition_count": 1,
    "durability": "fsync",
    "configs": {"retention.ms": "86400000"},
}
_SUMS = {"count": 33, "bytes": 9214, "deleted": 17, "reclaimable_bytes": 1873}
_DESCRIBED_PARTITION = {
    "partition": 0,
    "first_live_offset": 40,
    "eviction_floor": 40,
    "head": 90,
    "epoch": 0,
    "segments": 2,
    "gaps": [{"from": 0, "to": 39, "reason": "retention"}],
    "leader": 1,
    "isr": [1],
    "replicas": [1],
    "stale": False,
    **_SUMS,
}
_DESCRIBED = {
    **_EXAMPLE,
    **_SUMS,
    "partitions": [_DESCRIBED_PARTITION],
}

OPERATIONS = (
    HttpOperation(
        "GET",
        "/v1/topics",
        list_topics,
        "List topics",
        {HTTPStatus.OK: TopicsAnswer},
        query=TopicsQuery,
        answer_example={"topics": [_EXAMPLE], "next": None},
        access=filtered("topics that the caller may describe"),
    ),
    HttpOperation(
        "PUT",
        "/v1/topics/{topic}",
        put_topic,
        "Create or change a topic",
        {HTTPStatus.CREATED: TopicSummaryShape, HTTPStatus.OK: TopicSummaryShape},
        query=PutTopicQuery,
        body=TopicBody,
        is_body_optional=True,
        errors=(HTTPStatus.CONFLICT, HTTPStatus.INSUFFICIENT_STORAGE),
        uses=(QuotaKind.MUTATION,),
        example={"partitions": 1, "retention_ms": 86_400_000},
        answer_example=_EXAMPLE,
        access=checked("CREATE on the topic or cluster; ALTER_CONFIGS and ALTER, if it exists"),
    ),
    HttpOperation(
        "GET",
        "/v1/topics/{topic}",
        describe_topic,
        "Describe a topic",
        {HTTPStatus.OK: TopicAnswer},
        answer_example=_DESCRIBED,
        access=topic_access(Operation.DESCRIBE),
    ),
    HttpOperation(
        "GET",
        "/v1/topics/{topic}/partitions/{partition}",
        describe_partition,
        "Describe a partition",
        {HTTPStatus.OK: PartitionShape},
        is_forwarded=True,
        answer_example=_DESCRIBED_PARTITION,
        access=topic_access(Operation.DESCRIBE),
    ),
    HttpOperation(
        "DELETE",
        "/v1/topics/{topic}",
        delete_topic,
        "Delete a topic",
        {HTTPStatus.NO_CONTENT: None},
        uses=(QuotaKind.MUTATION,),
        access=topic_access(Operation.DELETE),
    ),
)
