"""Reads chunks of whole records from a stream."""

from __future__ import annotations

from typing import NamedTuple

from millstream.broker.broker import Broker
from millstream.broker.partition.record_page import NewRecordsWaiter, read_page
from millstream.broker.streams.create_stream import check_mark
from millstream.broker.streams.stream import DurableStream
from millstream.config.schema import MIB
from millstream.errors import (
    InvalidRequest,
    OffsetOutOfRange,
    StreamGone,
    UnknownStream,
    UnknownTopic,
)
from millstream.records.record import StoredRecord
from millstream.servers.http.streams.positions import offset_text
from millstream.servers.http.streams.requests import ReadStream

CHUNK_BYTES_MAX = 1 * MIB
CHUNK_RECORDS_MAX = 10_000
"""Size of one response or one event; a single record may be larger."""


class StreamChunk(NamedTuple):
    """Consecutive records of a stream."""

    records: tuple[StoredRecord, ...]
    from_offset: int
    next_offset: int
    is_up_to_date: bool
    """Whether it contained the end of the stream when it was read."""
    is_end: bool
    """Whether the stream is closed and ends here."""
    next_text: str
    """The offset to continue from, as clients see it."""

    def etag(self, stream: DurableStream) -> str:
        """Return the ETag of this chunk; it changes when the stream is closed."""
        end = ":c" if stream.closure is not None else ""
        return f'"{stream.row.topic_id.hex}:{self.from_offset}:{self.next_offset}{end}"'


def first_offset(stream: DurableStream, read: ReadStream) -> int:
    """Return the first offset to read."""
    if read.is_now:
        return stream.next_offset
    if read.offset is None:
        return stream.source.log_start_offset + stream.row.shift
    offset = read.offset
    if offset.mark is not None:
        check_mark(stream.row, offset.number, offset.mark)
    return offset.number


def text_of(stream: DurableStream, offset: int) -> str:
    """Return an offset of a stream as clients see it."""
    return offset_text(offset, stream.row.mark_at(offset))


async def read_chunk(stream: DurableStream, offset: int, *, is_newest: bool = False) -> StreamChunk:
    """Read from an offset of the stream on; raises if nothing can be read there.

    With `is_newest`, everything that was acknowledged before is there; a reader that waits for more
    gets it a moment later otherwise.
    """
    await stream.open()
    if offset < stream.row.floor:
        raise StreamGone(f"offset {offset} is before {stream.row.floor}, the first offset")
    shift = stream.row.shift
    cursor = max(0, offset - shift)
    if is_newest:
        await stream.catch_up()
    await stream.source.settle(cursor)
    if cursor > max(stream.end_offset, stream.source.high_watermark):
        raise InvalidRequest(f"offset {offset} is after the end, which is {stream.next_offset}")
    try:
        page = await read_page(
            stream.source, cursor, limit=CHUNK_RECORDS_MAX, size_max=CHUNK_BYTES_MAX
        )
    except (OffsetOutOfRange, UnknownTopic):
        if stream.is_deleted:
            raise UnknownStream(f"there is no stream {stream.path[:300]!r}") from None
        raise
    if page.gap is not None:
        raise StreamGone(
            f"offset {offset} is before {page.gap.to_offset + 1 + shift}, the first offset"
        )
    records, next_offset = page.records, page.next_offset
    closure = stream.closure
    if closure is not None and next_offset > closure.end_offset:
        # Records that Kafka clients wrote after the end are not part of the stream.
        records = tuple(record for record in records if record.offset < closure.end_offset)
        next_offset = closure.end_offset
    continued = max(offset, next_offset + shift)
    return StreamChunk(
        records,
        offset,
        continued,
        next_text=text_of(stream, continued),
        is_up_to_date=next_offset >= stream.end_offset,
        is_end=closure is not None and next_offset >= closure.end_offset,
    )


async def wait_for_chunk(
    broker: Broker, stream: DurableStream, offset: int, seconds: float
) -> StreamChunk:
    """Read from an offset on; wait up to `seconds` for new records."""
    waiter = NewRecordsWaiter((), broker.timers)
    deadline = broker.clock.monotonic() + seconds
    streams = broker.streams.of(stream.path)
    with streams.reading(stream, waiter.wake):
        while True:
            chunk = await read_chunk(stream, offset)
            remaining = deadline - broker.clock.monotonic()
            if chunk.records or chunk.is_end or remaining <= 0 or streams.is_stopping:
                return chunk
            is_at_end = chunk.next_offset == offset
            offset = chunk.next_offset
            if is_at_end:
                await waiter.wait(remaining)
