"""Paths of streams, and the topics that keep their records.

    orders                a topic may be called so, and it is
    chat/room 7           chat-room-7-5f0c8bb1a0b1c6b5: what is readable of it, and its hash

A path is free text and never becomes the name of a file: a topic's name may hold nothing that could
leave the data directory, and whatever is no such name is hashed.
"""

from __future__ import annotations

import hashlib
import re

from millstream.broker.topics.topics import KAFKA_INTERNAL_TOPICS
from millstream.errors import InvalidName
from millstream.storage.files.names import is_topic

PATH_SIZE_MAX = 1024
"""Bytes of a path in UTF-8: more than any URL needs that people still read."""

SLUG_LENGTH_MAX = 100
"""What is kept readable of a path. With the hash behind it, a topic may be called so."""

HASH_LENGTH = 16
"""Sixty-four bits: by chance, two of a billion paths meet once in forty such nodes. Then the second
is refused."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_UNREADABLE = re.compile(r"[^a-zA-Z0-9]+")


def check_path(path: str) -> str:
    """Return `path` if a stream may be under it; raises `InvalidName` otherwise."""
    size = len(path.encode())
    if not 1 <= size <= PATH_SIZE_MAX:
        raise InvalidName(f"path of a stream has {size} bytes, allowed is 1 to {PATH_SIZE_MAX}")
    if found := _CONTROL.search(path):
        raise InvalidName(
            f"path of a stream has the character {ord(found[0]):#04x}, allowed is text"
        )
    return path


def topic_of_path(path: str) -> str:
    """Return the name of the topic that keeps the records of a stream."""
    if is_topic(path) and path not in KAFKA_INTERNAL_TOPICS:
        return path
    slug = _UNREADABLE.sub("-", path[:SLUG_LENGTH_MAX]).strip("-") or "stream"
    return f"{slug}-{hashlib.sha256(path.encode()).hexdigest()[:HASH_LENGTH]}"
