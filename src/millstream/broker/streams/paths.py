"""Paths of streams, and the topics that store their records.

    orders                a valid topic name: used as it is
    chat/room 7           chat-room-7-5f0c8bb1a0b1c6b5: a readable part of it, and its hash

A path is free text and never becomes the name of a file: a topic's name cannot leave the data
directory, and a path that is not a valid topic name is hashed.
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
"""Length of the readable part. With the hash it is a valid topic name."""

HASH_LENGTH = 16
"""64 bits: of a billion paths, two collide in one of forty nodes. The second is then refused."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_UNREADABLE = re.compile(r"[^a-zA-Z0-9]+")


def check_path(path: str) -> str:
    """Return `path` if it is valid; raises `InvalidName` otherwise."""
    size = len(path.encode())
    if not 1 <= size <= PATH_SIZE_MAX:
        raise InvalidName(f"path of a stream must have 1 to {PATH_SIZE_MAX} bytes, got {size}")
    if match := _CONTROL.search(path):
        raise InvalidName(
            f"path of a stream must not contain control characters, got {ord(match[0]):#04x}"
        )
    return path


def topic_of_path(path: str) -> str:
    """Return the name of the topic that stores the records of a stream."""
    if is_topic(path) and path not in KAFKA_INTERNAL_TOPICS:
        return path
    slug = _UNREADABLE.sub("-", path[:SLUG_LENGTH_MAX]).strip("-") or "stream"
    return f"{slug}-{hashlib.sha256(path.encode()).hexdigest()[:HASH_LENGTH]}"
