"""Sets of partitions: topic id to partition numbers.

A topic without partitions is not in the map, so that equal sets are equal maps. The functions do
not change their arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID

PartitionSet: TypeAlias = Mapping[UUID, frozenset[int]]

NO_PARTITIONS: PartitionSet = MappingProxyType({})


def partition_set(pairs: Iterable[tuple[UUID, Iterable[int]]]) -> PartitionSet:
    """Return the set of all given partitions; a topic may occur several times."""
    gathered: dict[UUID, frozenset[int]] = {}
    for topic, numbers in pairs:
        if both := gathered.get(topic, frozenset()) | frozenset(numbers):
            gathered[topic] = both
    return gathered


def union(left: PartitionSet, right: PartitionSet) -> PartitionSet:
    if not left or not right:
        return left or right
    merged = dict(left)
    for topic, numbers in right.items():
        merged[topic] = merged.get(topic, frozenset()) | numbers
    return merged


def intersection(left: PartitionSet, right: PartitionSet) -> PartitionSet:
    if left is right:
        return left
    return {
        topic: common
        for topic, numbers in left.items()
        if (common := numbers & right.get(topic, frozenset()))
    }


def difference(left: PartitionSet, right: PartitionSet) -> PartitionSet:
    """Return the partitions of `left` that are not in `right`."""
    if left is right:
        return NO_PARTITIONS
    return {
        topic: remaining
        for topic, numbers in left.items()
        if (remaining := numbers - right.get(topic, frozenset()))
    }


def is_subset(inner: PartitionSet, outer: PartitionSet) -> bool:
    return all(numbers <= outer.get(topic, frozenset()) for topic, numbers in inner.items())


def count(partitions: PartitionSet) -> int:
    return sum(map(len, partitions.values()))
