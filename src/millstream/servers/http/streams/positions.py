r"""Offsets and cursors of stream readers, as text.

    offset   0000000000000042_4031886112475520
             \___ record ___/ \____ mark ____/     sorts as text in the order of records

The mark tells streams of one path apart: one that is deleted and created again has another. 0 takes
the place of any mark: earlier releases wrote it.

A cursor counts intervals of twenty seconds since October 2024. A live reader sends the one that it
got last and gets a later one, so that no cache in between can answer it forever with the same
response.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from millstream.errors import MalformedRequest

START = "-1"
"""The first record of the stream."""
NOW = "now"
"""The current end of the stream."""

OFFSET_MAX = 10**16 - 1

CURSOR_EPOCH_MS = 1_728_432_000_000
CURSOR_SPACE_MS = 20_000
JITTER_SECONDS_MAX = 3_600

OFFSET_PATTERN = "^(-1|[0-9]{16}_(0{16}|[1-9][0-9]{15}))$"
"""Valid offsets of a client, in addition to `now` for reads."""

_OFFSET = re.compile(r"([0-9]{16})_(0{16}|[1-9][0-9]{15})")
_CURSOR = re.compile(r"[0-9]{1,18}")


class StreamOffset(NamedTuple):
    """An offset that a client sent."""

    number: int
    mark: int | None
    """`None` if it is one of the present stream, whichever that is."""


def offset_text(offset: int, mark: int) -> str:
    """Return an offset as clients see it."""
    return f"{offset:016d}_{mark:016d}"


def offset_of(text: str) -> StreamOffset:
    """Parse an offset; raises `MalformedRequest` if it is not valid."""
    match = _OFFSET.fullmatch(text)
    if match is None:
        raise MalformedRequest(
            f"offset must be {START!r}, {NOW!r} or the Stream-Next-Offset of a response, got"
            f" {text[:100]!r}"
        )
    return StreamOffset(int(match[1]), int(match[2]) or None)


def cursor_after(sent: str | None, wall_ms: int, draw: Callable[[int, int], int]) -> str:
    """Return the cursor of a response: the current one, or a later one than was sent.

    `draw` returns a random integer between its two arguments.
    """
    present = max(0, wall_ms - CURSOR_EPOCH_MS) // CURSOR_SPACE_MS
    if sent is None or not _CURSOR.fullmatch(sent) or int(sent) < present:
        return str(present)
    jitter_ms = draw(1, JITTER_SECONDS_MAX) * 1000
    return str(int(sent) + max(1, jitter_ms // CURSOR_SPACE_MS))
