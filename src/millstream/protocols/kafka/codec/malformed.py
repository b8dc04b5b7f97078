"""Errors of malformed messages, and limits of their content."""

from __future__ import annotations

from millstream.errors import MalformedRequest
from millstream.protocols.kafka.codec.primitives import TEXT_SIZE_MAX, Buffer, read_uvarint

ITEM_COUNT_MAX = 1 << 18
"""Array items and tagged fields of one message, on all levels together.

A count is first checked against the bytes left. This limit bounds the cost of a large frame full of
small items: an item of 2 bytes becomes a value of 100. The largest request that clients send, a
fetch, has 100,000 partitions in the largest clusters.
"""


def truncated_message(message: str, position: int, end: int) -> MalformedRequest:
    """The bytes end within the field that starts at `position`, or right before it."""
    return MalformedRequest(f"{message} ends at byte {end}, in the field at byte {position}")


def trailing_bytes(message: str, position: int, end: int) -> MalformedRequest:
    """There are more bytes than the message has."""
    return MalformedRequest(f"{message} ends at byte {position}, but there are {end} bytes")


def invalid_utf8(message: str, position: int, error: UnicodeDecodeError) -> MalformedRequest:
    """A string is not UTF-8."""
    return MalformedRequest(
        f"{message} has a string at byte {position} that is not UTF-8:"
        f" {error.reason} at its byte {error.start} of {len(error.object)}"
    )


def bad_size(field: str, size: int, left: int) -> MalformedRequest:
    """A size is below 0, or more than the bytes left."""
    if size == -1:
        return MalformedRequest(f"{field} is null (size -1), minimum is 0")
    if size < 0:
        return MalformedRequest(f"{field} announces {size} bytes, minimum is 0")
    return MalformedRequest(f"{field} announces {size} bytes, {left} are left")


def bad_count(field: str, count: int, item_size_min: int, left: int) -> MalformedRequest:
    """A count is below 0, needs more than the bytes left, or exceeds `ITEM_COUNT_MAX`."""
    if count == -1:
        return MalformedRequest(f"{field} is null (count -1), minimum is 0")
    if count < 0:
        return MalformedRequest(f"{field} announces {count} items, minimum is 0")
    if count * item_size_min > left:
        return MalformedRequest(
            f"{field} announces {count} items of at least {item_size_min} bytes, {left} are left"
        )
    return MalformedRequest(f"{field} announces {count} items, limit for all is {ITEM_COUNT_MAX}")


def bad_presence(field: str, mark: int) -> MalformedRequest:
    """A struct is neither present nor null."""
    return MalformedRequest(f"{field} starts with {mark}, expected 1, or -1 for null")


def bad_tag(field: str, size: int, used: int) -> MalformedRequest:
    """A tagged field is longer or shorter than its declared size."""
    return MalformedRequest(f"{field} announces {size} bytes, its value has {used}")


def read_text_size(data: Buffer, position: int) -> tuple[int, int]:
    """Read the size of a string, plus one, if it takes more than one byte."""
    size, position = read_uvarint(data, position)
    if size > TEXT_SIZE_MAX + 1:
        raise MalformedRequest(f"string announces {size - 1} bytes, limit is {TEXT_SIZE_MAX}")
    return size, position


def skip_tags(data: Buffer, position: int, items_left: int) -> tuple[int, int]:
    """Skip tagged fields; return the position after them and the items left."""
    count, position = read_uvarint(data, position)
    left = len(data) - position
    if count * 2 > left or count > items_left:
        raise bad_count("tagged fields", count, 2, left)
    for _ in range(count):
        tag, position = read_uvarint(data, position)
        size, position = read_uvarint(data, position)
        if size > len(data) - position:
            raise bad_size(f"tagged field {tag}", size, len(data) - position)
        position += size
    return position, items_left - count
