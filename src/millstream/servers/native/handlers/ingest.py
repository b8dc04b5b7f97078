"""Ingest: appends the records of a frame to partition 0 of a topic, all of them or none."""

from __future__ import annotations

from collections.abc import Coroutine

from millstream.broker.partition.batch_opener import OpenedSizes
from millstream.broker.partition.partition import Partition
from millstream.broker.partition.results import Appended
from millstream.broker.quotas import QuotaKind
from millstream.broker.topics.topic import Topic
from millstream.broker.topics.topic_numbers import DEFAULT_NUMBER
from millstream.errors import MalformedRequest, MillstreamError, TopicExists
from millstream.protocols.native.compression import decompress_payload, plain_size
from millstream.protocols.native.frame import FRAME_SIZE_MAX, Flag, NativeFrameHeader, ack_frame
from millstream.protocols.native.record_set import read_records
from millstream.records.batch import Bytes
from millstream.records.build import build_batch
from millstream.servers.deferred_response import DeferredResponse
from millstream.servers.native.handlers.topics import create_single
from millstream.servers.native.native_context import NativeContext

INLINE_BYTES_MAX = 16 * 1024
"""Payloads up to this size become a batch on the event loop; larger ones in a thread."""


def ingest(
    header: NativeFrameHeader, payload: memoryview, context: NativeContext
) -> DeferredResponse | Coroutine[None, None, object]:
    """Append the records; answered with an ack when the topic's durability class is met.

    Small frames have their place in the log when this returns, so the next ones may follow.
    """
    if not payload:
        raise MalformedRequest("an ingest frame must have records")
    context.charge(QuotaKind.PRODUCE, len(payload))
    topic = _existing_topic(header.topic_id, context)
    if topic is not None and not header.flags & Flag.COMPRESSED:
        partition = topic.partition(0)
        if (
            len(payload) <= INLINE_BYTES_MAX
            and partition.is_open
            and context.broker.appends.forwarder is None
        ):
            batch, count = _build(header, payload, context)
            return _append_here(header.batch_id, partition, batch, count, context)
    return _ingest_slowly(header, payload, topic, context)


def _existing_topic(number: int, context: NativeContext) -> Topic | None:
    """Return the topic of a frame; `None` if it is the default topic, and has to be created."""
    name = context.config.default_topic
    if number == DEFAULT_NUMBER and context.broker.topics.find(name) is None:
        context.require_topic(name)
        if context.broker.config.auto_create_topics:
            context.require_creation(name)
            return None
    return context.topic(number)


def _build(header: NativeFrameHeader, payload: Bytes, context: NativeContext) -> tuple[bytes, int]:
    """Return a batch with the records of a payload, and how many they are."""
    records = read_records(
        payload, record_count=header.record_count, count_max=context.config.frame_records_max
    )
    return build_batch(records, now_ms=context.broker.clock.wall_ms()), len(records)


async def _ingest_slowly(
    header: NativeFrameHeader, payload: memoryview, topic: Topic | None, context: NativeContext
) -> object:
    """Append records that need a thread, a new topic, or another node."""
    if topic is None:
        topic = await _default_topic(context)
    batch, count = await _build_in_thread(header, payload, context)
    partition, appends = topic.partition(0), context.broker.appends
    if appends.forwarder is not None:
        await appends.append_batch(partition, batch, caller=context.caller)
        context.counters.ingested_records += count
        return ack_frame(header.batch_id)
    await partition.open()
    return _append_here(header.batch_id, partition, batch, count, context)


async def _default_topic(context: NativeContext) -> Topic:
    """Create the default topic, unless another client was faster."""
    try:
        return await create_single(context.config.default_topic, {}, context)
    except TopicExists:
        return context.topic(DEFAULT_NUMBER)


async def _build_in_thread(
    header: NativeFrameHeader, payload: memoryview, context: NativeContext
) -> tuple[bytes, int]:
    """Return a batch; all clients share one budget of memory for what may become large."""
    is_compressed = bool(header.flags & Flag.COMPRESSED)
    size = plain_size(payload, size_max=FRAME_SIZE_MAX) if is_compressed else len(payload)

    def work(_: int) -> tuple[bytes, int]:
        plain: Bytes = payload
        if is_compressed:
            plain = decompress_payload(payload, size_max=FRAME_SIZE_MAX)
        return _build(header, plain, context)

    sizes = OpenedSizes(len(payload) if is_compressed else 0, size, size)
    return await context.broker.opener.run_in_thread(sizes, work)


def _append_here(
    batch_id: int, partition: Partition, batch: bytes, count: int, context: NativeContext
) -> DeferredResponse:
    pending = _PendingIngest(batch_id, count, context)
    partition.appender.append(
        batch, pending, timeout_ms=context.config.append_ms_max, is_built=True
    )
    return pending.response


class _PendingIngest:
    """Records that wait for the disk. Has the interface of an append's waiter."""

    __slots__ = ("_batch_id", "_context", "_count", "response")

    def __init__(self, batch_id: int, count: int, context: NativeContext) -> None:
        self._batch_id = batch_id
        self._count = count
        self._context = context
        self.response = DeferredResponse()

    def done(self) -> bool:
        """Whether there is an answer."""
        return self.response.is_done

    def set_result(self, _: Appended, /) -> None:
        """Acknowledge the records."""
        self._context.counters.ingested_records += self._count
        self.response.finish(ack_frame(self._batch_id))

    def set_exception(self, error: Exception, /) -> None:
        """Answer with the error of the append."""
        if not isinstance(error, MillstreamError):
            raise error
        self.response.finish(error)
