"""Comparison of the replicas of a partition, after each node has read and checked its own.

    leader     |0 ........ 119|120 ....... 203|204 .... 230|       reference
    node 2     |0 ........ 119|120 ..x.... 203|204 .... 230|       damaged: 120
    node 3              |60 .. 119|120 ....... 203|204 .... 230|   begins later: retention
               common range ──► end: the lowest high watermark

Uncleaned segments are equal to the byte on all replicas, and begin and end at the same offsets. So
they are compared by first offset, end, size and digest. Each replica cleans for itself: where
segments may have been cleaned, bytes may differ, and only damage is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from millstream.protocols.http.cluster import CheckedSegmentShape
from millstream.records.topic_partition import TopicPartition


class ReplicaFindingKind(Enum):
    """What is wrong with a replica."""

    DAMAGED = "damaged"
    """Records cannot be read there. Its node knows by now, and repairs them."""
    DIFFERENT = "different"
    """All that it has is valid, and is not what the reference has."""
    UNCHECKED = "unchecked"
    """It could not be read."""


class ReplicaFinding(NamedTuple):
    """One thing that is wrong with a replica."""

    kind: ReplicaFindingKind
    node_id: int
    partition: TopicPartition
    segment: int | None
    """First offset of the segment; None if it is about the whole replica."""
    message: str


class CheckedReplica(NamedTuple):
    """What a node has read of its replica, up to an offset that all replicas have."""

    node_id: int
    is_leader: bool
    is_cleaned: bool
    first_offset: int
    """The first offset that can be read there."""
    segments: Sequence[CheckedSegmentShape]


class ReplicaComparison(NamedTuple):
    """The result of comparing all replicas of a partition."""

    findings: Sequence[ReplicaFinding]
    is_compared: bool
    """Whether bytes were compared, and not only read: not where segments may be cleaned, and not
    with one replica."""


def compare_replicas(
    partition: TopicPartition, replicas: Sequence[CheckedReplica]
) -> ReplicaComparison:
    """Return what is damaged, and what differs between replicas."""
    findings = [f for replica in replicas for f in _damage(partition, replica)]
    is_cleaned = any(
        replica.is_cleaned or any(segment.generation for segment in replica.segments)
        for replica in replicas
    )
    if is_cleaned or len(replicas) < 2:
        return ReplicaComparison(findings, is_compared=False)
    first = max(replica.first_offset for replica in replicas)
    ordered = sorted(replicas, key=lambda replica: (not replica.is_leader, replica.node_id))
    reference: dict[int, tuple[int, CheckedSegmentShape]] = {}
    for replica in ordered:
        for segment in replica.segments:
            # What the leader has damaged is compared with the first replica that has it whole.
            if not segment.damage and segment.next > first:
                reference.setdefault(segment.base, (replica.node_id, segment))
    for replica in ordered:
        findings += _differences(partition, replica, reference)
    return ReplicaComparison(findings, is_compared=True)


def _damage(partition: TopicPartition, replica: CheckedReplica) -> Iterator[ReplicaFinding]:
    for segment in replica.segments:
        for damage in segment.damage:
            offsets = f"offset {damage.from_}"
            if damage.to > damage.from_:
                offsets = f"offsets {damage.from_} to {damage.to}"
            yield ReplicaFinding(
                ReplicaFindingKind.DAMAGED,
                replica.node_id,
                partition,
                segment.base,
                f"{offsets}: {damage.reason}",
            )


def _differences(
    partition: TopicPartition,
    replica: CheckedReplica,
    reference: Mapping[int, tuple[int, CheckedSegmentShape]],
) -> Iterator[ReplicaFinding]:
    own = {segment.base: segment for segment in replica.segments}
    damaged = [segment for segment in replica.segments if segment.damage]
    for base, (node_id, expected) in sorted(reference.items()):
        segment = own.get(base)
        if segment is None:
            if any(d.base < expected.next and d.next > base for d in damaged):
                continue  # Reported as damage.
            message = f"is missing: node {node_id} has it, with offsets {base} to"
            yield ReplicaFinding(
                ReplicaFindingKind.DIFFERENT,
                replica.node_id,
                partition,
                base,
                f"{message} {expected.next - 1}",
            )
        elif not segment.damage and _identity(segment) != _identity(expected):
            yield ReplicaFinding(
                ReplicaFindingKind.DIFFERENT,
                replica.node_id,
                partition,
                base,
                f"ends at offset {segment.next} after {segment.bytes} bytes with digest"
                f" {segment.digest}; on node {node_id} at {expected.next} after"
                f" {expected.bytes} bytes with digest {expected.digest}",
            )


def _identity(segment: CheckedSegmentShape) -> tuple[int, int, str]:
    return segment.next, segment.bytes, segment.digest
