"""Topics: create, delete, list, describe, and set their retention."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from millstream.broker.access.resources import Operation as Right
from millstream.broker.access.resources import topic as topic_resource
from millstream.broker.quotas import QuotaKind
from millstream.broker.topics.configs.topic_config import AlterConfigOperation, ConfigChange
from millstream.broker.topics.topic import Topic
from millstream.broker.topics.topic_numbers import DEFAULT_NUMBER, NumberedTopic
from millstream.errors import (
    BatchTooLarge,
    InvalidRequest,
    QuotaExceeded,
    TopicExists,
)
from millstream.protocols.native.frame import HEADER_SIZE, Frame, NativeFrameHeader, control_frame
from millstream.protocols.native.operations import (
    CreateTopic,
    NativeOperation,
    NativeTopic,
    Reply,
    Retention,
    TopicList,
    check_empty,
    read_create_topic,
    read_create_topic_with_retention,
    read_set_retention,
    read_topic_id,
)
from millstream.servers.native.native_context import NativeContext

AGE, SIZE = "retention.ms", "retention.bytes"
_UNLIMITED = "-1"
_SECONDS_MAX = 2**53 // 1000
_BYTES_MAX = 2**63 - 1


async def create_topic(_: NativeFrameHeader, body: memoryview, context: NativeContext) -> Frame:
    """Create a topic with one partition; describe it if it exists."""
    return await _create(read_create_topic(body), context)


async def create_topic_with_retention(
    _: NativeFrameHeader, body: memoryview, context: NativeContext
) -> Frame:
    """Create a topic that keeps its records for a time, or a number of bytes."""
    return await _create(read_create_topic_with_retention(body), context)


async def _create(request: CreateTopic, context: NativeContext) -> Frame:
    configs = {} if request.retention is None else _configs(request.retention)
    if (topic := _visible(request.name, context)) is None:
        context.require_creation(request.name)
        try:
            topic = await create_single(request.name, configs, context)
        except TopicExists:
            # Another client was faster; or it is hidden from this one, or has a similar name.
            if (topic := _visible(request.name, context)) is None:
                raise
    if request.retention is not None and _retention(topic) != request.retention:
        raise TopicExists(
            f"topic {request.name!r} exists with another retention; change it by SetRetention"
        )
    return _described(await context.numbers.numbered(topic))


def _visible(name: str, context: NativeContext) -> Topic | None:
    """Return a topic that exists, and that the client may know of."""
    topic = context.broker.topics.find(name)
    if topic is None or topic.is_internal or not context.may_describe_topic(name):
        return None
    return topic


async def create_single(name: str, configs: Mapping[str, str], context: NativeContext) -> Topic:
    """Create a topic with one partition, which is all that clients of this protocol see."""
    check_mutations(context)
    topic = await context.broker.topics.create(
        name, partitions=1, configs=dict(configs), creator=context.caller
    )
    context.charge(QuotaKind.MUTATION, topic.partition_count)
    if context.access is not None:
        context.access.note_change(context.caller, Right.CREATE, topic_resource(name))
    return topic


def check_mutations(context: NativeContext) -> None:
    """Raise `QuotaExceeded` if the client has changed too many partitions lately."""
    quotas = context.broker.quotas
    if quotas.is_empty:
        return
    now, kind = context.broker.clock.monotonic(), QuotaKind.MUTATION
    if wait_ms := quotas.wait_ms(kind, context.principal.name, context.client_id, now):
        raise QuotaExceeded(kind.value, wait_ms)


async def delete_topic(_: NativeFrameHeader, body: memoryview, context: NativeContext) -> Frame:
    """Delete a topic and its records. Its number is never given again."""
    number = read_topic_id(body, NativeOperation.DELETE_TOPIC)
    topic = context.topic(number)
    check_mutations(context)
    deleted = await context.broker.topics.delete(topic.name, topic_id=topic.id)
    context.charge(QuotaKind.MUTATION, deleted.partition_count)
    context.note_change(topic_resource(topic.name))
    if number != DEFAULT_NUMBER:
        await context.numbers.forget(number)
    return control_frame(Reply.TOPIC, b"{}")


async def list_topics(_: NativeFrameHeader, body: memoryview, context: NativeContext) -> Frame:
    """Describe the topics that the caller may see; those without a number get one."""
    check_empty(body, NativeOperation.LIST_TOPICS)
    visible = [
        topic
        for topic in context.broker.topics.all()
        if not topic.is_internal and context.may_describe_topic(topic.name)
    ]
    numbered = await context.numbers.all_numbered(visible)
    listed = TopicList(topics=[_description(topic) for topic in numbered])
    encoded = msgspec.json.encode(listed)
    if len(encoded) > context.config.frame_size_max - HEADER_SIZE:
        raise BatchTooLarge(
            f"the list of {len(numbered)} topics has {len(encoded)} bytes, limit is"
            f" {context.config.frame_size_max - HEADER_SIZE}"
        )
    return control_frame(Reply.TOPIC, encoded)


def get_topic(_: NativeFrameHeader, body: memoryview, context: NativeContext) -> Frame:
    """Describe a topic."""
    number = read_topic_id(body, NativeOperation.GET_TOPIC)
    topic = context.topic(number)
    if number == DEFAULT_NUMBER:
        return _described(NumberedTopic(number, topic, 0))
    return _described(context.numbers.find(number))


async def set_retention(_: NativeFrameHeader, body: memoryview, context: NativeContext) -> Frame:
    """Change how long and how much of a topic is kept."""
    request = read_set_retention(body)
    topic = context.topic(request.topic_id)
    if topic.config.cleanup_policy == {"compact"}:
        raise InvalidRequest(
            f"topic {topic.name!r} is compacted: it keeps the latest record of each key"
        )
    retention = Retention(request.max_age_secs, request.max_bytes)
    changes = [
        ConfigChange(name, AlterConfigOperation.SET, value)
        for name, value in _configs(retention).items()
    ]
    await context.broker.topics.change_configs(topic.name, changes)
    context.note_change(topic_resource(topic.name))
    return control_frame(Reply.TOPIC, b"{}")


def _configs(retention: Retention) -> dict[str, str]:
    """Return retention as configs of a topic; raises `InvalidRequest` if a number is too large."""
    for name, value, most in (
        ("max_age_secs", retention.max_age_secs, _SECONDS_MAX),
        ("max_bytes", retention.max_bytes, _BYTES_MAX),
    ):
        if value > most:
            raise InvalidRequest(f"{name} must be between 0 and {most}, got {value}")
    return {
        AGE: str(retention.max_age_secs * 1000) if retention.max_age_secs else _UNLIMITED,
        SIZE: str(retention.max_bytes) if retention.max_bytes else _UNLIMITED,
    }


def _retention(topic: Topic) -> Retention:
    """Return the retention of a topic; a time is rounded up to seconds."""
    config = topic.config
    return Retention(-(-(config.retention_ms or 0) // 1000), config.retention_bytes or 0)


def _description(numbered: NumberedTopic) -> NativeTopic:
    retention = _retention(numbered.topic)
    return NativeTopic(
        id=numbered.number,
        name=numbered.topic.name,
        created_at=numbered.given_ms // 1000,
        retention=retention._asdict() if any(retention) else None,
    )


def _described(numbered: NumberedTopic) -> Frame:
    return control_frame(Reply.TOPIC, msgspec.json.encode(_description(numbered)))
