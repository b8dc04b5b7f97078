"""Places in a topic as pages name them: `partition:offset`."""

from __future__ import annotations

import re

from millstream.broker.queues.job_browser import RecordPosition
from millstream.errors import MalformedRequest

_PLACE = re.compile("(?:([0-9]{1,10}):)?([0-9]{1,19})")


def parse_record_position(text: str, *, partition: int = 0) -> RecordPosition:
    """Return the place that a query names; an offset alone is one of `partition`."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise MalformedRequest(f"query has after {text[:100]!r}, needed is partition:offset")
    return RecordPosition(partition if found[1] is None else int(found[1]), int(found[2]))
