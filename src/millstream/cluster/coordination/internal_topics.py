"""Topics in which a cluster keeps the state of its coordinators.

An internal partition of the broker, such as `groups/3`, is a partition of an internal topic, such
as `__groups`. Clients can see these topics, and can neither write to them nor change them.
"""

from __future__ import annotations

from collections.abc import Mapping

from millstream.broker.state.internal_partitions import GROUPS, STREAMS, TRANSACTIONS

INTERNAL_PREFIX = "__"

PARTITIONS: Mapping[str, int] = {GROUPS: 16, TRANSACTIONS: 16, STREAMS: 1}
"""Partitions of the internal topics that every cluster has. The hash of an id depends on the
number, so it never changes; all others have one partition."""

CONFIGS: Mapping[str, str] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.bytes": str(16 * 1024 * 1024),
    "millstream.durability": "fsync",
}
"""Records are deleted by the coordinator alone, which rewrites what is live."""


def topic_of(name: str) -> str:
    """Return the topic of an internal partition's name."""
    return INTERNAL_PREFIX + name


def name_of(topic: str) -> str:
    """Return the name of the internal partitions that a topic has."""
    return topic.removeprefix(INTERNAL_PREFIX)


def partition_count(name: str) -> int:
    """Return the number of partitions of a name."""
    return PARTITIONS.get(name, 1)
