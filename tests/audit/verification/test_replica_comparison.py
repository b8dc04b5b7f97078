"""What `verify --cluster` says about replicas that are not equal."""

from __future__ import annotations

from dataclasses import dataclass, field

from millstream.audit.verification.replica_comparison import (
    CheckedReplica,
    ReplicaFindingKind,
    compare_replicas,
)
from millstream.protocols.http.cluster import CheckedSegmentShape, DamagedRangeShape
from millstream.records.topic_partition import TopicPartition

T0 = TopicPartition("t", 0)


@dataclass
class Seg:
    """A segment of ten offsets."""

    base: int
    digest: str = "d"
    generation: int = 0
    bytes: int = 100
    next: int | None = None
    damage: list[tuple[int, int]] = field(default_factory=list)

    def shape(self) -> CheckedSegmentShape:
        return CheckedSegmentShape(
            base=self.base,
            next=self.base + 10 if self.next is None else self.next,
            generation=self.generation,
            bytes=self.bytes,
            digest=self.digest,
            damage=[DamagedRangeShape(from_=a, to=b, reason="bad") for a, b in self.damage],
        )


def replica(
    node_id: int, *segments: Seg, first: int | None = None, is_cleaned: bool = False
) -> CheckedReplica:
    shapes = [segment.shape() for segment in segments]
    first = (shapes[0].base if shapes else 0) if first is None else first
    return CheckedReplica(
        node_id, is_leader=node_id == 1, is_cleaned=is_cleaned, first_offset=first, segments=shapes
    )


def found(*replicas: CheckedReplica) -> list[tuple[str, int, int | None]]:
    findings = compare_replicas(T0, replicas).findings
    assert all(finding.partition == T0 for finding in findings)
    return [(finding.kind.value, finding.node_id, finding.segment) for finding in findings]


def test_equal_replicas_have_no_findings():
    both = compare_replicas(T0, [replica(1, Seg(0), Seg(10)), replica(2, Seg(0), Seg(10))])
    assert both.findings == []
    assert both.is_compared


def test_a_replica_with_other_bytes_than_the_leader_is_different():
    assert found(replica(2, Seg(0)), replica(1, Seg(0, "other")), replica(3, Seg(0, "other"))) == [
        ("different", 2, 0)
    ]
    assert found(replica(1, Seg(0)), replica(2, Seg(0, bytes=101))) == [("different", 2, 0)]
    assert found(replica(1, Seg(0)), replica(2, Seg(0, next=9))) == [("different", 2, 0)]


def test_the_message_says_what_both_nodes_have():
    [finding] = compare_replicas(T0, [replica(1, Seg(0)), replica(2, Seg(0, "e"))]).findings
    assert finding.kind is ReplicaFindingKind.DIFFERENT
    assert finding.message == (
        "ends at offset 10 after 100 bytes with digest e; on node 1 at 10 after 100 bytes with"
        " digest d"
    )


def test_a_segment_that_one_replica_lacks_is_reported():
    whole = replica(1, Seg(0), Seg(10), Seg(20))
    assert found(whole, replica(2, Seg(0), Seg(20))) == [("different", 2, 10)]


def test_damage_is_reported_once_and_the_others_are_compared_with_each_other():
    damaged = replica(1, Seg(0, damage=[(3, 4)]), Seg(10))
    assert found(damaged, replica(2, Seg(0), Seg(10)), replica(3, Seg(0), Seg(10))) == [
        ("damaged", 1, 0)
    ]
    assert found(damaged, replica(2, Seg(0), Seg(10)), replica(3, Seg(0, "x"), Seg(10))) == [
        ("damaged", 1, 0),
        ("different", 3, 0),
    ]


def test_a_hole_is_damage_and_not_also_a_missing_segment():
    hole = Seg(10, "", bytes=0, next=30, damage=[(10, 29)])
    whole = replica(1, Seg(0), Seg(10), Seg(20))
    assert found(whole, replica(2, Seg(0), hole)) == [("damaged", 2, 10)]


def test_what_retention_has_deleted_on_one_node_already_is_not_missing():
    assert found(replica(1, Seg(10), Seg(20)), replica(2, Seg(0), Seg(10), Seg(20))) == []
    assert found(replica(1, Seg(0), Seg(10)), replica(2, Seg(10))) == []
    inside = replica(2, Seg(0), Seg(10), first=5)
    assert found(replica(1, Seg(0), Seg(10)), inside) == []


def test_cleaned_replicas_are_only_looked_at_for_damage():
    one = replica(1, Seg(0, "a"), Seg(10), is_cleaned=True)
    other = replica(2, Seg(0, "b", generation=1, next=20), is_cleaned=False)
    compared = compare_replicas(T0, [one, other])
    assert compared.findings == []
    assert not compared.is_compared
    assert found(one, replica(2, Seg(0, damage=[(1, 1)]))) == [("damaged", 2, 0)]


def test_one_replica_is_not_compared():
    assert not compare_replicas(T0, [replica(1, Seg(0))]).is_compared
    assert not compare_replicas(T0, []).is_compared
