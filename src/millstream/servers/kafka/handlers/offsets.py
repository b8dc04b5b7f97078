"""Committed offsets of groups: commit, fetch, delete."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from millstream.broker.access.resources import group as group_resource
from millstream.broker.groups.values import NO_EPOCH, NO_OFFSET, OffsetAndMetadata, OffsetCommitter
from millstream.broker.topics.topic import Topic
from millstream.errors import MillstreamError, UnknownGroup, UnknownTopic, UnknownTopicId, again
from millstream.protocols.kafka.codec.primitives import NO_ID
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from millstream.records.topic_partition import TopicPartition
from millstream.servers.kafka.handlers.groups import group_code_of
from millstream.servers.kafka.request_context import RequestContext

TOPIC_IDS_SINCE = 10
"""The first version of OffsetCommit and of OffsetFetch that names topics by id."""

COMMIT_NOT_FOUND_SINCE = 9
"""The first version of OffsetCommit whose clients know the error of an unknown group."""

FETCH_MANY_SINCE = 8
FETCH_GROUP_ERROR_SINCE = 2
"""Before this version, OffsetFetch repeats an error of the group in each partition."""

_VERSION_SIZE = 2


# Committing.


async def offset_commit(
    request: OffsetCommitRequest, context: RequestContext
) -> OffsetCommitResponse:
    """Commit offsets of a group; each offset is accepted or rejected on its own."""
    refusal = _group_refusal(request.group_id, context)
    codes: dict[tuple[int, int], ErrorCode] = {}
    offsets: dict[TopicPartition, OffsetAndMetadata] = {}
    places: dict[tuple[int, int], TopicPartition] = {}
    for number, requested in enumerate(request.topics):
        for part in requested.partitions:
            place = (number, part.partition_index)
            try:
                if refusal is not None:
                    raise again(refusal)
                topic = _topic_of(requested.name, requested.topic_id, context)
                partition = _partition_of(topic, part.partition_index)
                offset = _offset_of(part, topic)
                context.broker.groups.check_offset(offset)
            except MillstreamError as error:
                codes[place] = code_of(error)
            else:
                offsets[partition] = offset
                places[place] = partition
    if offsets:
        code = await _commit(request, offsets, context)
        codes.update(dict.fromkeys(places, code))
    return OffsetCommitResponse(
        topics=tuple(
            _committed(number, requested, codes) for number, requested in enumerate(request.topics)
        )
    )


async def _commit(
    request: OffsetCommitRequest,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    context: RequestContext,
) -> ErrorCode:
    committer = OffsetCommitter(
        member_id=request.member_id,
        generation=request.generation_id_or_member_epoch,
        instance_id=request.group_instance_id,
    )
    retention_ms = request.retention_time_ms
    try:
        await context.broker.groups.of(request.group_id).commit(
            request.group_id,
            committer,
            offsets,
            retention_ms=retention_ms if retention_ms >= 0 else None,
        )
    except UnknownGroup as error:
        is_known = context.version >= COMMIT_NOT_FOUND_SINCE
        return code_of(error) if is_known else ErrorCode.ILLEGAL_GENERATION
    except MillstreamError as error:
        code = group_code_of(error)
        is_large = code is ErrorCode.MESSAGE_TOO_LARGE
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE if is_large else code
    return ErrorCode.NONE


def _group_refusal(group_id: str, context: RequestContext) -> MillstreamError | None:
    """Return the error if the caller may not do to the group what the API does."""
    try:
        context.require_group(group_id)
    except MillstreamError as error:
        return error
    return None


def _offset_of(part: OffsetCommitRequestPartition, topic: Topic) -> OffsetAndMetadata:
    return OffsetAndMetadata(
        offset=part.committed_offset,
        leader_epoch=part.committed_leader_epoch,
        metadata=part.committed_metadata or "",
        topic_id=topic.id,
    )


def _committed(
    number: int, requested: OffsetCommitRequestTopic, codes: Mapping[tuple[int, int], ErrorCode]
) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=requested.name,
        topic_id=requested.topic_id,
        partitions=tuple(
            OffsetCommitResponsePartition(
                partition_index=part.partition_index,
                error_code=codes[number, part.partition_index],
            )
            for part in requested.partitions
        ),
    )


# Fetching.


class _RequestedTopic(NamedTuple):
    """Partitions of a topic, by name or by id, whose offsets a client requests."""

    name: str
    topic_id: UUID
    partitions: tuple[int, ...]


class _PartitionOffset(NamedTuple):
    """Committed offset of one partition, or an error."""

    partition: int
    offset: int = NO_OFFSET
    leader_epoch: int = NO_EPOCH
    metadata: str = ""
    error_code: ErrorCode = ErrorCode.NONE


class _TopicOffsets(NamedTuple):
    name: str
    topic_id: UUID
    partitions: tuple[_PartitionOffset, ...]


def offset_fetch(request: OffsetFetchRequest, context: RequestContext) -> OffsetFetchResponse:
    """Return committed offsets: of one group up to version 7, of several from then on."""
    if context.version >= FETCH_MANY_SINCE:
        return OffsetFetchResponse(
            groups=tuple(
                _fetch_group(group, context, is_stable_required=request.require_stable)
                for group in request.groups
            )
        )
    requested = request.topics
    topics = None
    if requested is not None:
        topics = [_RequestedTopic(t.name, NO_ID, t.partition_indexes) for t in requested]
    try:
        offsets = _fetch(
            request.group_id, topics, context, is_stable_required=request.require_stable
        )
    except MillstreamError as error:
        code = group_code_of(error)
        if context.version >= FETCH_GROUP_ERROR_SINCE:
            return OffsetFetchResponse(error_code=code)
        offsets = [_rejected(topic, code) for topic in topics or ()]
    return OffsetFetchResponse(
        topics=tuple(
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=tuple(
                    OffsetFetchResponsePartition(
                        partition_index=part.partition,
                        committed_offset=part.offset,
                        committed_leader_epoch=part.leader_epoch,
                        metadata=part.metadata,
                        error_code=part.error_code,
                    )
                    for part in topic.partitions
                ),
            )
            for topic in offsets
        )
    )


def _fetch_group(
    group: OffsetFetchRequestGroup, context: RequestContext, *, is_stable_required: bool
) -> OffsetFetchResponseGroup:
    requested = group.topics
    topics = None
    if requested is not None:
        topics = [_RequestedTopic(t.name, t.topic_id, t.partition_indexes) for t in requested]
    try:
        offsets = _fetch(
            group.group_id,
            topics,
            context,
            member_id=group.member_id,
            epoch=group.member_epoch,
            is_stable_required=is_stable_required,
        )
    except MillstreamError as error:
        return OffsetFetchResponseGroup(group_id=group.group_id, error_code=group_code_of(error))
    return OffsetFetchResponseGroup(
        group_id=group.group_id,
        topics=tuple(
            OffsetFetchResponseTopics(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=tuple(
                    OffsetFetchResponsePartitions(
                        partition_index=part.partition,
                        committed_offset=part.offset,
                        committed_leader_epoch=part.leader_epoch,
                        metadata=part.metadata,
                        error_code=part.error_code,
                    )
                    for part in topic.partitions
                ),
            )
            for topic in offsets
        ),
    )


def _fetch(
    group_id: str,
    topics: Sequence[_RequestedTopic] | None,
    context: RequestContext,
    *,
    member_id: str | None = None,
    epoch: int = NO_EPOCH,
    is_stable_required: bool,
) -> list[_TopicOffsets]:
    """Return the committed offsets of a group by topic; of all topics if none are named."""
    context.require_group(group_id)
    names = [_name_of(topic, context) for topic in topics or ()]
    requested = [
        TopicPartition(name, index)
        for topic, name in zip(topics or (), names, strict=True)
        for index in topic.partitions
        if name is not None and context.may_describe_topic(name)
    ]
    offsets = context.broker.groups.of(group_id).fetch(
        group_id,
        None if topics is None else requested,
        member_id=member_id,
        epoch=epoch,
        is_stable_required=is_stable_required,
    )
    if topics is None:
        topics = [
            topic
            for topic in _all_topics(offsets, context)
            if context.may_describe_topic(topic.name)
        ]
        names = [topic.name for topic in topics]
    return [
        _rejected(topic, ErrorCode.UNKNOWN_TOPIC_ID)
        if name is None
        else _fetched(topic, name, offsets, context)
        if context.may_describe_topic(name)
        else _rejected(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        for topic, name in zip(topics, names, strict=True)
    ]


def _name_of(requested: _RequestedTopic, context: RequestContext) -> str | None:
    """Return the name of a topic; `None` if there is none with the given id."""
    if context.version < TOPIC_IDS_SINCE:
        return requested.name
    try:
        topic = context.broker.topics.by_id(requested.topic_id)
        context.require_topic_by_id(topic)
    except UnknownTopicId:
        return None
    return topic.name


def _all_topics(
    partitions: Iterable[TopicPartition], context: RequestContext
) -> list[_RequestedTopic]:
    """Return all committed offsets as if the request had named them.

    A deleted topic has no id under which it could be returned.
    """
    indexes: dict[str, list[int]] = {}
    for partition in partitions:
        indexes.setdefault(partition.topic, []).append(partition.partition)
    ids = {name: topic.id for name in indexes if (topic := context.broker.topics.find(name))}
    return [
        _RequestedTopic(name, ids.get(name, NO_ID), tuple(parts))
        for name, parts in indexes.items()
        if name in ids or context.version < TOPIC_IDS_SINCE
    ]


def _fetched(
    requested: _RequestedTopic,
    name: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | MillstreamError | None],
    context: RequestContext,
) -> _TopicOffsets:
    topic = context.broker.topics.find(name)
    parts = (
        _partition_offset(index, offsets[TopicPartition(name, index)], topic)
        for index in requested.partitions
    )
    return _TopicOffsets(requested.name, requested.topic_id, tuple(parts))


def _partition_offset(
    index: int, value: OffsetAndMetadata | MillstreamError | None, topic: Topic | None
) -> _PartitionOffset:
    if isinstance(value, MillstreamError):
        return _PartitionOffset(index, error_code=code_of(value))
    # The offset of a deleted topic does not apply to a new topic of the same name.
    is_other = value and topic and value.topic_id not in (None, topic.id)
    if value is None or is_other:
        return _PartitionOffset(index)
    return _PartitionOffset(index, value.offset, value.leader_epoch, value.metadata)


def _rejected(requested: _RequestedTopic, code: ErrorCode) -> _TopicOffsets:
    parts = tuple(_PartitionOffset(index, error_code=code) for index in requested.partitions)
    return _TopicOffsets(requested.name, requested.topic_id, parts)


# Deleting.


async def offset_delete(
    request: OffsetDeleteRequest, context: RequestContext
) -> OffsetDeleteResponse:
    """Delete committed offsets of topics to which the group is not subscribed."""
    codes: dict[TopicPartition, ErrorCode] = {}
    known: list[TopicPartition] = []
    for requested in request.topics:
        for part in requested.partitions:
            partition = TopicPartition(requested.name, part.partition_index)
            try:
                _partition_of(_topic_of(requested.name, NO_ID, context), part.partition_index)
                known.append(partition)
            except MillstreamError as error:
                codes[partition] = code_of(error)
    try:
        context.require_group(request.group_id)
        coordinator = context.broker.groups.of(request.group_id)
        is_subscribed = _reads(coordinator.subscriptions(request.group_id))
        results = await coordinator.delete_offsets(
            request.group_id, known, is_subscribed=is_subscribed
        )
    except MillstreamError as error:
        return OffsetDeleteResponse(error_code=group_code_of(error))
    if any(refusal is None for refusal in results.values()):
        context.note_change(group_resource(request.group_id))
    for partition, refusal in results.items():
        codes[partition] = code_of(refusal) if refusal else ErrorCode.NONE
    return OffsetDeleteResponse(
        topics=tuple(
            OffsetDeleteResponseTopic(
                name=requested.name,
                partitions=tuple(
                    OffsetDeleteResponsePartition(
                        partition_index=part.partition_index,
                        error_code=codes[TopicPartition(requested.name, part.partition_index)],
                    )
                    for part in requested.partitions
                ),
            )
            for requested in request.topics
        )
    )


def _reads(subscriptions: Iterable[bytes]) -> Callable[[str], bool]:
    """Return a predicate for the topics that the members of a classic group read.

    A member whose subscription cannot be decoded may read any topic.
    """
    topics: set[str] = set()
    for subscription in subscriptions:
        subscribed = subscribed_topics(subscription)
        if subscribed is None:
            return lambda _: True
        topics.update(subscribed)
    return topics.__contains__


def subscribed_topics(subscription: bytes) -> list[str] | None:
    """Return the topics in the subscription of a member; `None` if it cannot be decoded.

    All versions of the subscription begin in the same way: a version, and an array of names.
    """
    try:
        (count,) = struct.unpack_from(">i", subscription, _VERSION_SIZE)
        position = _VERSION_SIZE + 4
        if not 0 <= count <= (len(subscription) - position) // 2:
            return None
        topics = []
        for _ in range(count):
            (size,) = struct.unpack_from(">h", subscription, position)
            name = subscription[position + 2 : position + 2 + size]
            if size < 0 or len(name) != size:
                return None
            topics.append(bytes(name).decode())
            position += 2 + size
    except (struct.error, UnicodeDecodeError):
        return None
    return topics


# Topics.


def _topic_of(name: str, topic_id: UUID, context: RequestContext) -> Topic:
    topics = context.broker.topics
    if topic_id != NO_ID or not name:
        topic = topics.by_id(topic_id)
        context.require_topic_by_id(topic)
        return topic
    context.require_topic(name)
    return topics.get(name)


def _partition_of(topic: Topic, index: int) -> TopicPartition:
    if not 0 <= index < topic.partition_count:
        raise UnknownTopic(f"{topic.name} has no partition {index}, it has {topic.partition_count}")
    return TopicPartition(topic.name, index)
