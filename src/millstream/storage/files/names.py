"""Names of topics, files and directories.

A name from outside becomes a directory only through `check_topic`, which allows nothing that could
leave the data directory.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from millstream.errors import InvalidName

TOPIC_NAME_MAX = 249
"""Kafka's limit: together with a partition number, the name still fits 255 bytes."""

PARTITION_MAX = 2**31 - 1

STORE_KIND = "millstream-store"
STORE_VERSION = 1

TOPICS_DIRECTORY = "topics"
TRASH_DIRECTORY = "trash"
STATE_DIRECTORY = "__state"
"""A separate store beside the topics: the state of groups and transactions."""
METADATA_FILE = "meta.db"
LOCK_FILE = "lock"
NODE_FILE = "node.json"
PROCESSES_FILE = "processes.json"
"""In a directory that has the data directories of several node processes below it."""
CLOCK_FILE = "clock.json"
SCRUB_FILE = "scrub.json"
BALLAST_FILE = "spare"
PARTITION_FILE = "partition.json"
CHECKPOINT_FILE = "checkpoint"
WATERMARK_FILE = "watermark"
TEMPORARY_SUFFIX = ".tmp"
PART_SUFFIX = ".part"
"""Of the `.log` of a segment that is being fetched from another replica."""
QUARANTINE_SUFFIX = ".bad"
"""Of the `.log` of a damaged segment that waits for its replacement."""

SEGMENT_SUFFIXES = ("seal", "index", "keys", "log")
"""The files of a segment, in the order in which they are removed."""

COLD_SUFFIX = "cold"
"""Of the marker of a segment whose `.log` is in a cold store."""

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SEGMENT = re.compile(r"([0-9]{20})(?:\.([1-9][0-9]{0,17}))?\.(log|index|seal|keys)")
_COLD = re.compile(r"([0-9]{20})\.(0|[1-9][0-9]{0,17})\.cold")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")


class LogName(NamedTuple):
    """Name of a log: topic and partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


def check_topic(name: str) -> str:
    """Return `name` if it is a valid topic name; else raise."""
    if not 1 <= len(name) <= TOPIC_NAME_MAX:
        raise InvalidName(f"topic name must have 1 to {TOPIC_NAME_MAX} characters, got {len(name)}")
    if name in (".", ".."):
        raise InvalidName(f"topic name must not be '.' or '..', got {name!r}")
    if not is_topic(name):
        raise InvalidName(f"topic name {name!r} may contain only letters, digits, '.', '_' and '-'")
    return name


def check_partition(number: int) -> int:
    """Return `number` if it is a valid partition number; else raise."""
    if type(number) is not int or not 0 <= number <= PARTITION_MAX:
        raise InvalidName(f"partition must be between 0 and {PARTITION_MAX}, got {number!r}")
    return number


def parse_partition(name: str) -> int | None:
    """Return the partition number that a directory name stands for, if any."""
    if not _PARTITION.fullmatch(name) or int(name) > PARTITION_MAX:
        return None
    return int(name)


def is_topic(name: str) -> bool:
    """Return whether a directory name can be that of a topic."""
    return name not in (".", "..") and bool(_TOPIC.fullmatch(name))


class SegmentId(NamedTuple):
    """One generation of a segment, as in the names of its files."""

    base_offset: int
    generation: int
    """How often its records were rewritten; 0 for a segment as it was appended."""


class SegmentName(NamedTuple):
    """The parsed name of a file of a segment."""

    base_offset: int
    generation: int
    suffix: str

    @property
    def id(self) -> SegmentId:
        return SegmentId(self.base_offset, self.generation)


def segment_file(base_offset: int, suffix: str, generation: int = 0) -> str:
    """Return the name of a file of a segment; padded, so that names sort like offsets.

    Generation 0 has no number: most segments are never rewritten. Markers always have it.
    """
    if suffix == COLD_SUFFIX:
        return cold_file(SegmentId(base_offset, generation))
    if generation == 0:
        return f"{base_offset:020d}.{suffix}"
    return f"{base_offset:020d}.{generation}.{suffix}"


def cold_file(segment: SegmentId) -> str:
    """Return the name of the marker of a segment that is in a cold store."""
    return f"{segment.base_offset:020d}.{segment.generation}.cold"


def parse_cold_file(name: str) -> SegmentId | None:
    """Parse the name of a marker; return None if it is not one."""
    match = _COLD.fullmatch(name)
    return SegmentId(int(match[1]), int(match[2])) if match else None


def parse_segment_file(name: str) -> SegmentName | None:
    """Parse the name of a file of a segment; return None if it is not one."""
    match = _SEGMENT.fullmatch(name)
    return SegmentName(int(match[1]), int(match[2] or 0), match[3]) if match else None
