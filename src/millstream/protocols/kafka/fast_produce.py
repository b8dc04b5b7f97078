"""Fast parser and encoder for the most common request: one batch for one partition.

It reads a produce request by fixed positions instead of by the generated decoder, and builds the
response from a template. It covers the versions that present clients send:

    key 0, version, correlation id, client id, tags 0
    no transactional id, acks, timeout, 1 topic: name or id, 1 partition: index, records, tags 0 0 0

For every other request, and for a malformed one, `read_fast_produce` returns `None`, and the caller
uses `codec.message`. The tests check that both ways agree on every request and every response.
"""

from __future__ import annotations

import struct
import uuid
from functools import lru_cache
from typing import NamedTuple

FIRST_VERSION = 9
NAMED_LAST_VERSION = 12
LAST_VERSION = 13
_ID_SIZE = 16
_NAME_SIZE_MAX = 126
"""Sizes of longer names take two bytes."""

_NAME_SIZE_AT = 19
"""Position of the size of the name, without the client id before it."""

_NO_TAGS = b"\0\0\0"
_ANSWER_HEAD = struct.Struct(">iixB")
_ANSWER_RESULT = struct.Struct(">BihqqqBBBBiB")


class FastProduceFrame(NamedTuple):
    """The content of such a request."""

    version: int
    correlation_id: int
    client_id: bytes
    acks: int
    timeout_ms: int
    topic: bytes
    """The name in UTF-8, or from version 13 on the sixteen bytes of the id."""
    partition: int
    batch: memoryview


def read_fast_produce(frame: memoryview) -> FastProduceFrame | None:
    """Parse a request; return `None` if it does not qualify for the fast path."""
    try:
        version, client_size = frame[3], frame[9]
        if not FIRST_VERSION <= version <= LAST_VERSION:
            return None
        is_named = version <= NAMED_LAST_VERSION
        name_size = frame[client_size + _NAME_SIZE_AT] - 1 if is_named else _ID_SIZE
        layout = _layout(client_size, name_size, is_named=is_named)
        (key, both, correlation_id, size, client_id, *marks, topic, partitions, partition) = (
            layout.unpack_from(frame)
        )
        tags, transactional_id, acks, timeout_ms, topics = marks
        position = layout.size
        records = frame[position] & 0x7F
        shift = 0
        while frame[position] > 0x7F:  # The size of the records, seven bits at a time.
            position, shift = position + 1, shift + 7
            records |= (frame[position] & 0x7F) << shift
        end = position + records
    except (IndexError, struct.error):
        return None
    is_plain = (key, both, size, tags, transactional_id) == (0, version, client_size, 0, 0)
    if not is_plain or topics != 2 or partitions != 2 or records < 2 or frame[end:] != _NO_TAGS:
        return None
    batch = frame[position + 1 : end]
    return FastProduceFrame(
        version, correlation_id, client_id, acks, timeout_ms, topic, partition, batch
    )


@lru_cache(maxsize=4096)
def _layout(client_size: int, name_size: int, *, is_named: bool) -> struct.Struct:
    """Return the layout of all before the records, for a client id and a name of these sizes."""
    if not 0 < name_size <= _NAME_SIZE_MAX:
        raise IndexError("a name of this size does not qualify for the fast path")
    name = f"x{name_size}s" if is_named else f"{name_size}s"
    return struct.Struct(f">hhih{client_size}sBBhiB{name}Bi")


def encode_fast_response(
    request: FastProduceFrame, *, base_offset: int, append_time_ms: int, log_start_offset: int
) -> bytes:
    """Return the response frame with the offset of the batch."""
    topic = request.topic
    is_named = request.version <= NAMED_LAST_VERSION
    name = bytes((len(topic) + 1,)) + topic if is_named else topic
    size = _ANSWER_HEAD.size + len(name) + _ANSWER_RESULT.size - 4
    return b"".join(
        (
            _ANSWER_HEAD.pack(size, request.correlation_id, 2),
            name,
            _ANSWER_RESULT.pack(
                2,
                request.partition,
                0,
                base_offset,
                append_time_ms,
                log_start_offset,
                1,
                0,
                0,
                0,
                0,
                0,
            ),
        )
    )


@lru_cache(maxsize=4096)
def topic_of(topic: bytes, *, is_named: bool) -> str | uuid.UUID | None:
    """Return the name or id in these bytes; `None` if they are neither."""
    if not is_named:
        return uuid.UUID(bytes=topic)
    try:
        return topic.decode()
    except UnicodeDecodeError:
        return None
