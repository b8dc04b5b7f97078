"""Sets of partitions, as groups deal with them: topic id to partition numbers.

A topic of which nothing is left is not in the map, so that equal sets are equal maps. None of the
functions changes what it is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TypeAlias
from uuid import UUID

PartitionSet: TypeAlias = Mapping[UUID, frozenset[int]]

NO_PARTITIONS: PartitionSet = MappingProxyType({})


def partition_set(pairs: Iterable[tuple[UUID, Iterable[int]]]) -> PartitionSet:
    """Make one set of all the numbers that are named, each topic as often as it comes."""
    gathered: dict[UUID, frozenset[int]] = {}
    for topic, numbers in pairs:
        if both := gathered.get(topic, frozenset()) | frozenset(numbers):
            gathered[topic] = both
    return gathered


def union(left: PartitionSet, right: PartitionSet) -> PartitionSet:
    """What is in one of both."""
    if not left or not right:
        return left or right
    merged = dict(left)
    for topic, numbers in right.items():
        merged[topic] = merged.get(topic, frozenset()) | numbers
    return merged


def intersection(left: PartitionSet, right: PartitionSet) -> PartitionSet:
    """What is in both."""
    if left is right:
        return left
    return {
        topic: common
        for topic, numbers in left.items()
        if (common := numbers & right.get(topic, frozenset()))
    }


def difference(left: PartitionSet, right: PartitionSet) -> PartitionSet:
    """What is in `left` only."""
    if left is right:
        return NO_PARTITIONS
    return {
        topic: rest
        for topic, numbers in left.items()
        if (rest := numbers - right.get(topic, frozenset()))
    }


def is_subset(inner: PartitionSet, outer: PartitionSet) -> bool:
    """Whether all of `inner` is in `outer`."""
    return all(numbers <= outer.get(topic, frozenset()) for topic, numbers in inner.items())


def count(partitions: PartitionSet) -> int:
    """How many partitions these are."""
    return sum(map(len, partitions.values()))
