"""Subscribe, Unsubscribe and CommitOffset: where consumers are.

Records are not pushed: clients of this version fetch. A subscription shows who reads, and a commit
is stored as the offset of a group.
"""

from __future__ import annotations

from millstream.broker.access.resources import group as group_resource
from millstream.broker.groups.values import OffsetAndMetadata, OffsetCommitter
from millstream.errors import InvalidRequest, OffsetOutOfRange
from millstream.protocols.native.frame import Frame, NativeFrameHeader, ack_frame, control_frame
from millstream.protocols.native.operations import (
    END,
    Reply,
    consumer_offset_body,
    read_commit_offset,
    read_subscribe,
    read_unsubscribe,
)
from millstream.records.topic_partition import TopicPartition
from millstream.servers.native.handlers.fetch import BEGINNING, end_of
from millstream.servers.native.native_context import NativeContext
from millstream.servers.native.subscriptions import SUBSCRIPTIONS_MAX, Subscription, group_of


async def subscribe(_: NativeFrameHeader, body: memoryview, context: NativeContext) -> Frame:
    """Begin to read a topic; the answer says from which offset."""
    request = read_subscribe(body)
    context.require_group(group_of(request.consumer_id))
    topic = context.topic(request.topic_id)
    subscriptions, connection = context.subscriptions, context.connection
    if subscriptions.count_of(connection) >= SUBSCRIPTIONS_MAX:
        raise InvalidRequest(f"a connection must have at most {SUBSCRIPTIONS_MAX} subscriptions")
    partition = topic.partition(0).anywhere
    await partition.open()
    offset = request.start_offset
    if offset == END:
        offset = await end_of(partition)
    else:
        await partition.settle(offset)
        if offset == BEGINNING:
            offset = partition.log_start_offset
        gap = partition.reader.gap_at(offset)
        if gap is not None or offset > partition.high_watermark:
            start = partition.log_start_offset
            raise OffsetOutOfRange(offset, start=start, end=partition.high_watermark)
    if not connection.is_closed:
        now = context.broker.clock.monotonic()
        subscription = Subscription(
            topic.name, topic.id, request.consumer_id, offset, now, connection.host
        )
        subscriptions.add(connection, subscription)
    return control_frame(Reply.SUBSCRIBE, consumer_offset_body(request.consumer_id, offset))


def unsubscribe(_: NativeFrameHeader, body: memoryview, context: NativeContext) -> Frame:
    """End a subscription, if there is one. What was committed is kept."""
    request = read_unsubscribe(body)
    context.require_group(group_of(request.consumer_id))
    topic = context.topic(request.topic_id)
    context.subscriptions.drop(context.connection, topic.id, request.consumer_id)
    return ack_frame(request.consumer_id)


async def commit_offset(_: NativeFrameHeader, body: memoryview, context: NativeContext) -> Frame:
    """Store the offset of a consumer; durable when this is answered."""
    request = read_commit_offset(body)
    group_id = group_of(request.consumer_id)
    context.require_group(group_id)
    topic = context.topic(request.topic_id)
    if request.offset >= 2**63:
        raise OffsetOutOfRange(request.offset, start=0, end=2**63 - 1)
    await context.broker.groups.of(group_id).commit(
        group_id,
        OffsetCommitter(),
        {
            TopicPartition(topic.name, 0): OffsetAndMetadata(
                offset=request.offset, topic_id=topic.id
            )
        },
    )
    context.note_change(group_resource(group_id))
    return control_frame(Reply.COMMIT, consumer_offset_body(request.consumer_id, request.offset))
