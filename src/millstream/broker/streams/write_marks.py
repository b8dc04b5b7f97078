"""Write marks in the log: a header of the first record of an append.

    millstream-stream: {"id": "<topic id>", "p": "writer-1", "e": 0, "n": 7, "s": "12", "c": true}

Records and mark are in one batch, so after a crash there are both or neither. The id is that of the
topic: a mark that was copied from another stream, header and all, is ignored.
"""

from __future__ import annotations

import uuid

import msgspec

from millstream.broker.partition.results import FetchResult
from millstream.broker.streams.writers import WriteMark
from millstream.errors import CorruptBatch
from millstream.records.batch import BatchHeader, split
from millstream.records.body import open_body
from millstream.records.compression import BODY_SIZE_MAX, OversizedBody
from millstream.records.iterate import records_of
from millstream.records.record import Header

MARK_HEADER = "millstream-stream"


class _Mark(msgspec.Struct, omit_defaults=True):
    id: uuid.UUID
    p: str | None = None
    e: int = 0
    n: int = 0
    s: str | None = None
    c: bool = False


_decode = msgspec.json.Decoder(_Mark).decode


def mark_headers(mark: WriteMark, topic_id: uuid.UUID) -> tuple[Header, ...]:
    """Return the headers of the first record of an append."""
    if mark.is_plain:
        return ()
    stored = _Mark(topic_id, mark.producer, mark.epoch, mark.number, mark.sequence, mark.is_closing)
    return ((MARK_HEADER, msgspec.json.encode(stored)),)


def without_mark(headers: tuple[Header, ...]) -> tuple[Header, ...]:
    """Return headers without a mark, which belongs to the stream that it was written to."""
    return tuple(header for header in headers if header[0] != MARK_HEADER)


def read_marks(
    fetched: FetchResult, topic_id: uuid.UUID, size_max: int
) -> list[tuple[WriteMark, int]]:
    """Return the marks of batches, each with the offset after its batch.

    Raises `OversizedBody` at a batch that decompresses to more than `size_max` bytes.
    """
    marks = []
    for part in fetched.parts:
        for header, batch in split(part):
            mark = None if header.is_control else _mark_of(header, batch, topic_id, size_max)
            if mark is not None:
                marks.append((mark, header.next_offset))
    return marks


def _mark_of(
    header: BatchHeader, batch: memoryview, topic_id: uuid.UUID, size_max: int
) -> WriteMark | None:
    try:
        first = next(records_of(header, open_body(header, batch, size_max=size_max)), None)
    except CorruptBatch as error:
        if isinstance(error, OversizedBody) and size_max < BODY_SIZE_MAX:
            raise
        return None  # A batch with a mark is ours, and can be decoded.
    for name, value in first.headers if first is not None else ():
        if name == MARK_HEADER and value is not None:
            return _read(value, topic_id)
    return None


def _read(value: bytes, topic_id: uuid.UUID) -> WriteMark | None:
    """Return a mark; `None` if it is not one of this stream."""
    try:
        mark = _decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if mark.id != topic_id:
        return None
    return WriteMark(mark.p, mark.e, mark.n, mark.s, mark.c)
