"""Cursors: text positions of readers in one or more topics.

    orders@x3Jd0QmnRkK8m2Yv1pTq5w:0:42,mail:0:7      topic@id:partition:next offset

The id is that of the topic, in the notation of Kafka's tools. A topic that is deleted and created
again has another id, so a cursor of the old topic is recognised: its reader is told, and starts
over. A position without an id is one of the present topic: users write such positions, and earlier
releases stored them.

A cursor is also the id of a live event, so a browser sends it back by itself when it reconnects.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Mapping
from typing import NamedTuple

from millstream.errors import MalformedRequest

CURSOR_LENGTH_MAX = 40 * 1024
"""Below the largest head of a request that servers accept; enough for some hundred partitions."""

TOPIC_ID_PATTERN = "[a-zA-Z0-9_-]{21}[AQgw]"
"""The last of the 22 characters has two bits."""

_POSITION_PATTERN = f"[a-zA-Z0-9._-]{{1,249}}(@{TOPIC_ID_PATTERN})?:[0-9]{{1,10}}:[0-9]{{1,19}}"

CURSOR_PATTERN = f"{_POSITION_PATTERN}(,{_POSITION_PATTERN})*"
"""The form of a cursor, for the description of the API."""


class CursorPosition(NamedTuple):
    """The position of a reader in one partition."""

    offset: int
    """The offset to read next."""
    topic_id: uuid.UUID | None = None
    """The topic that the offset belongs to; `None` for the present one."""

    def is_foreign(self, topic_id: uuid.UUID | None) -> bool:
        """Return whether this is a position in another topic than the one with this id."""
        return None not in (self.topic_id, topic_id) and self.topic_id != topic_id


CursorPositions = Mapping[tuple[str, int], CursorPosition]
"""Positions by topic and partition."""


def encode_cursor(positions: CursorPositions) -> str:
    """Return the cursor for the given positions."""
    return ",".join(
        f"{cursor_prefix(topic, index, position.topic_id)}{position.offset}"
        for (topic, index), position in positions.items()
    )


def cursor_prefix(topic: str, index: int, topic_id: uuid.UUID | None) -> str:
    """Return the part of a cursor before the offset in one partition."""
    if topic_id is None:
        return f"{topic}:{index}:"
    return f"{topic}@{encode_topic_id(topic_id)}:{index}:"


def decode_cursor(text: str) -> dict[tuple[str, int], CursorPosition]:
    """Return the positions of a cursor; raises `MalformedRequest` if it is not one."""
    if len(text) > CURSOR_LENGTH_MAX:
        raise MalformedRequest(
            f"cursor must have at most {CURSOR_LENGTH_MAX} characters, got {len(text)}"
        )
    positions: dict[tuple[str, int], CursorPosition] = {}
    for part in text.split(","):
        name, _, rest = part.partition(":")
        index, _, offset = rest.partition(":")
        topic, at, id_text = name.partition("@")
        topic_id = decode_topic_id(id_text) if at else None
        is_valid = topic and _is_number(index) and _is_number(offset)
        if not is_valid or (at and topic_id is None):
            raise MalformedRequest(
                f"cursor has {part[:100]!r}, expected topic@id:partition:offset as in a response,"
                " or topic:partition:offset"
            )
        position = CursorPosition(int(offset), topic_id)
        if positions.setdefault((topic, int(index)), position) != position:
            raise MalformedRequest(f"cursor has partition {topic}:{index} twice")
    return positions


def encode_topic_id(topic_id: uuid.UUID) -> str:
    """Return an id as Kafka's tools show it: 22 characters of base 64."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def decode_topic_id(text: str) -> uuid.UUID | None:
    """Return the id that `encode_topic_id` wrote; `None` if the text is not one."""
    try:
        topic_id = uuid.UUID(bytes=base64.urlsafe_b64decode(text.encode("ascii") + b"=="))
    except (ValueError, binascii.Error):
        return None
    return topic_id if encode_topic_id(topic_id) == text else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 19
