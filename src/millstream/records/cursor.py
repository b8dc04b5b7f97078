"""Cursors over several topics.

    orders:0:42,orders:1:7,mail:0:0          topic:partition:next offset

A cursor is the id of a live event, so a browser sends it back by itself when it reconnects.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.errors import MalformedRequest

CursorPositions = Mapping[tuple[str, int], int]
"""The offset to read next, by topic and partition."""

CURSOR_LENGTH_MAX = 32 * 1024
"""Far below the largest header that servers accept; enough for some hundred partitions."""


def encode_cursor(positions: CursorPositions) -> str:
    """Return the cursor for the given positions."""
    return ",".join(f"{topic}:{index}:{offset}" for (topic, index), offset in positions.items())


def decode_cursor(text: str) -> dict[tuple[str, int], int]:
    """Return the positions of a cursor; raises `MalformedRequest` if it is not one."""
    if len(text) > CURSOR_LENGTH_MAX:
        raise MalformedRequest(
            f"cursor must have at most {CURSOR_LENGTH_MAX} characters, got {len(text)}"
        )
    positions: dict[tuple[str, int], int] = {}
    for part in text.split(","):
        topic, _, rest = part.partition(":")
        index, _, offset = rest.partition(":")
        if not (topic and _is_number(index) and _is_number(offset)):
            raise MalformedRequest(f"cursor has {part[:100]!r}, expected topic:partition:offset")
        if positions.setdefault((topic, int(index)), int(offset)) != int(offset):
            raise MalformedRequest(f"cursor has partition {topic}:{index} twice")
    return positions


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 19
