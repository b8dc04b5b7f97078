"""Where a reader of several topics stands: one cursor for all of them.

    orders:0:42,orders:1:7,mail:0:0          topic:partition:next offset

It is the id of a live event, so that a browser sends it back by itself when it connects again.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.errors import MalformedRequest

CursorPositions = Mapping[tuple[str, int], int]
"""The offset to read next, by topic and partition."""

CURSOR_LENGTH_MAX = 32 * 1024
"""Far below the largest header that a server takes, and room for some hundred partitions."""


def encode_cursor(places: CursorPositions) -> str:
    """Return the cursor for some places."""
    return ",".join(f"{topic}:{index}:{offset}" for (topic, index), offset in places.items())


def decode_cursor(text: str) -> dict[tuple[str, int], int]:
    """Return the places of a cursor; raises `MalformedRequest` where it is none."""
    if len(text) > CURSOR_LENGTH_MAX:
        raise MalformedRequest(f"cursor has {len(text)} characters, limit is {CURSOR_LENGTH_MAX}")
    places: dict[tuple[str, int], int] = {}
    for part in text.split(","):
        topic, _, rest = part.partition(":")
        index, _, offset = rest.partition(":")
        if not (topic and _is_number(index) and _is_number(offset)):
            raise MalformedRequest(f"cursor has {part[:100]!r}, needed is topic:partition:offset")
        if places.setdefault((topic, int(index)), int(offset)) != int(offset):
            raise MalformedRequest(f"cursor has partition {topic}:{index} twice")
    return places


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 19
