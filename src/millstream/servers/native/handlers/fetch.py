"""Fetch: records of partition 0 of a topic, from an offset on.

Answered at once: clients poll. Clients do not move on after an answer without records, so ranges
without visible records are skipped here, up to the end.
"""

from __future__ import annotations

import asyncio

from millstream.broker.partition.readable_partition import ReadablePartition
from millstream.broker.partition.record_page import RecordPage, read_page
from millstream.broker.quotas import QuotaKind
from millstream.broker.topics.topic import Topic
from millstream.errors import OffsetNotAvailable, OffsetOutOfRange
from millstream.protocols.native.frame import HEADER_SIZE, Frame, NativeFrameHeader, control_frame
from millstream.protocols.native.operations import (
    END,
    FETCHED_SIZE,
    Fetched,
    Reply,
    fetched_body,
    offset_body,
    read_fetch,
)
from millstream.protocols.native.record_set import EncodedRecords, encode_records
from millstream.records.record import StoredRecord
from millstream.servers.native.native_context import NativeContext

BEGINNING = 0
"""As the offset of a fetch: the first record that there is, however many were deleted before it."""

RECORDS_MAX = 20_000
"""Records of one answer."""

INLINE_RECORDS_MAX = 500
"""Records that are encoded on the event loop; more are encoded in a thread."""

NOTHING = EncodedRecords(b"", 0, None)


async def fetch(_: NativeFrameHeader, body: memoryview, context: NativeContext) -> Frame:
    """Return the next records, or the newest offset if the client is past it."""
    request = read_fetch(body)
    topic = context.topic(request.topic_id)
    partition = topic.partition(0).anywhere
    await partition.open()
    if request.start_offset == END:
        return _answer(topic, await end_of(partition), NOTHING, context)
    try:
        await partition.settle(request.start_offset)
    except OffsetNotAvailable as behind:
        return _catching_up(max(behind.end, 0), context)
    if request.start_offset > partition.high_watermark:
        await partition.catch_up()
        if request.start_offset > partition.high_watermark:
            return _catching_up(partition.high_watermark, context)
    size_max = min(
        request.max_bytes, context.config.fetch_bytes_max, context.response_memory.share()
    )
    page = await _next_page(partition, request.start_offset, size_max, context)
    encoded = await _encode(page.records, size_max, context)
    next_offset = page.next_offset if encoded.next_offset is None else encoded.next_offset
    context.charge(QuotaKind.CONSUME, len(encoded.data))
    return _answer(topic, next_offset, encoded, context)


async def end_of(partition: ReadablePartition) -> int:
    """Return the offset from which a client reads only what is appended from now on."""
    await partition.settle()
    await partition.catch_up()
    return partition.last_stable_offset


async def _next_page(
    partition: ReadablePartition, start: int, size_max: int, context: NativeContext
) -> RecordPage:
    """Return the next records that there are; none if there are none up to the end."""
    cursor, is_caught_up = start, False
    while True:
        page = await read_page(partition, cursor, limit=RECORDS_MAX, size_max=size_max)
        if page.gap is not None and start != BEGINNING:
            # Retention took records that the client has not read: it has to decide.
            raise OffsetOutOfRange(
                start, start=page.gap.to_offset + 1, end=partition.high_watermark
            )
        if page.records or context.connection.is_closed:
            return page
        if page.next_offset == cursor:
            if is_caught_up:
                return page
            # On a replica that follows, the leader may have acknowledged more.
            await partition.catch_up()
            is_caught_up = True
        cursor = page.next_offset


async def _encode(
    records: tuple[StoredRecord, ...], size_max: int, context: NativeContext
) -> EncodedRecords:
    frame_size_max = context.config.frame_size_max - HEADER_SIZE - FETCHED_SIZE

    def encode() -> EncodedRecords:
        return encode_records(
            records, size_max=min(size_max, frame_size_max), frame_size_max=frame_size_max
        )

    if len(records) <= INLINE_RECORDS_MAX:
        return encode()
    return await asyncio.to_thread(encode)


def _answer(
    topic: Topic, next_offset: int, encoded: EncodedRecords, context: NativeContext
) -> Frame:
    counters = context.counters
    counters.fetched_records += encoded.record_count
    context.subscriptions.note_fetch(
        context.connection, topic.id, next_offset, context.broker.clock.monotonic()
    )
    fetched = Fetched(next_offset, len(encoded.data), encoded.record_count)
    return control_frame(Reply.FETCH, fetched_body(fetched), encoded.data)


def _catching_up(end: int, context: NativeContext) -> Frame:
    context.counters.catching_up += 1
    return control_frame(Reply.CATCHING_UP, offset_body(end))
