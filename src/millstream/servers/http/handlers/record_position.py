"""Record positions in page cursors: `partition:offset`."""

from __future__ import annotations

import re

from millstream.broker.queues.job_browser import RecordPosition
from millstream.errors import MalformedRequest

_POSITION = re.compile("(?:([0-9]{1,10}):)?([0-9]{1,19})")


def parse_record_position(text: str, *, partition: int = 0) -> RecordPosition:
    """Return the position in a query; an offset alone is one of `partition`."""
    match = _POSITION.fullmatch(text)
    if match is None:
        raise MalformedRequest(f"after must be partition:offset, got {text[:100]!r}")
    return RecordPosition(partition if match[1] is None else int(match[1]), int(match[2]))
