r"""Where readers of a stream are: offsets and cursors, as text.

    offset   0000000000000042_0000000000000000
             \___ record ___/ \__ reserved __/     sorts as text the way that records are ordered

The second number is kept for positions within a record, and is 0: reads give whole records.

A cursor counts spaces of twenty seconds since October 2024. A live reader sends the one that it got
last; it gets a later one, so that no cache between the two can answer it for ever with the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from millstream.errors import MalformedRequest

START = "-1"
"""Says: from the first record that there is."""
NOW = "now"
"""Says: from where the stream ends at present."""

OFFSET_MAX = 10**16 - 1

CURSOR_EPOCH_MS = 1_728_432_000_000
CURSOR_SPACE_MS = 20_000
JITTER_SECONDS_MAX = 3_600

OFFSET_PATTERN = "^(-1|[0-9]{16}_0{16})$"
"""What a client may give as an offset, beside `now` where it reads."""

_OFFSET = re.compile(r"([0-9]{16})_([0-9]{16})")
_CURSOR = re.compile(r"[0-9]{1,18}")


def offset_text(offset: int) -> str:
    """Return an offset as clients see it."""
    return f"{offset:016d}_{0:016d}"


def offset_of(text: str) -> int:
    """Return the offset that a text stands for; raises `MalformedRequest` where it is none."""
    found = _OFFSET.fullmatch(text)
    if found is None or int(found[2]):
        raise MalformedRequest(
            f"offset is {text[:100]!r}, allowed is {START!r}, {NOW!r} or what an answer gave as"
            " Stream-Next-Offset"
        )
    return int(found[1])


def cursor_after(sent: str | None, wall_ms: int, draw: Callable[[int, int], int]) -> str:
    """Return the cursor of an answer: that of the present, or a later one than was sent.

    `draw` returns a number between two others.
    """
    present = max(0, wall_ms - CURSOR_EPOCH_MS) // CURSOR_SPACE_MS
    if sent is None or not _CURSOR.fullmatch(sent) or int(sent) < present:
        return str(present)
    jitter_ms = draw(1, JITTER_SECONDS_MAX) * 1000
    return str(int(sent) + max(1, jitter_ms // CURSOR_SPACE_MS))
