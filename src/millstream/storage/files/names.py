"""Names of files and directories: what a topic may be called and what lies in its directory.

A name that comes from outside becomes a directory only through `check_topic`, which allows
nothing that could leave the data directory.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from millstream.errors import InvalidName

TOPIC_NAME_MAX = 249
"""Kafka's limit: with a partition number behind it, the name still fits 255 bytes."""

PARTITION_MAX = 2**31 - 1

TOPICS_DIRECTORY = "topics"
TRASH_DIRECTORY = "trash"
STATE_DIRECTORY = "__state"
"""A store of its own, beside the topics: what a node keeps about groups and transactions."""
LOCK_FILE = "lock"
NODE_FILE = "node.json"
CLOCK_FILE = "clock.json"
BALLAST_FILE = "spare"
PARTITION_FILE = "partition.json"
CHECKPOINT_FILE = "checkpoint"
TEMPORARY_SUFFIX = ".tmp"

SEGMENT_SUFFIXES = ("seal", "index", "keys", "log")
"""What a segment may consist of, in the order in which it is removed."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SEGMENT = re.compile(r"([0-9]{20})(?:\.([1-9][0-9]{0,17}))?\.(log|index|seal|keys)")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")


def check_topic(name: str) -> str:
    """Return `name` if a topic may be called so."""
    if not 1 <= len(name) <= TOPIC_NAME_MAX:
        raise InvalidName(f"topic name has {len(name)} characters, allowed is 1-{TOPIC_NAME_MAX}")
    if not is_topic(name):
        raise InvalidName(f"topic name {name!r}: allowed are letters, digits, '.', '_' and '-'")
    return name


def check_partition(number: int) -> int:
    """Return `number` if a partition may have it."""
    if type(number) is not int or not 0 <= number <= PARTITION_MAX:
        raise InvalidName(f"partition is {number!r}, allowed is 0-{PARTITION_MAX}")
    return number


def parse_partition(name: str) -> int | None:
    """Return the partition that a directory is called after, if it is one."""
    if not _PARTITION.fullmatch(name) or int(name) > PARTITION_MAX:
        return None
    return int(name)


def is_topic(name: str) -> bool:
    """Whether a directory can be that of a topic."""
    return name not in (".", "..") and bool(_TOPIC.fullmatch(name))


class SegmentId(NamedTuple):
    """One generation of a segment: what its files are called by."""

    base_offset: int
    generation: int
    """How often the records in it were rewritten; 0 for what was appended as it is."""


class SegmentName(NamedTuple):
    """What the name of a segment's file says."""

    base_offset: int
    generation: int
    suffix: str

    @property
    def id(self) -> SegmentId:
        """The segment, and which generation of it."""
        return SegmentId(self.base_offset, self.generation)


def segment_file(base_offset: int, suffix: str, generation: int = 0) -> str:
    """Return the name of a segment's file; padded, so that names sort as offsets do.

    Generation 0 has no number: most segments are never rewritten.
    """
    if generation == 0:
        return f"{base_offset:020d}.{suffix}"
    return f"{base_offset:020d}.{generation}.{suffix}"


def parse_segment_file(name: str) -> SegmentName | None:
    """Return what the name of a segment's file says, if `name` is one."""
    match = _SEGMENT.fullmatch(name)
    return SegmentName(int(match[1]), int(match[2] or 0), match[3]) if match else None
