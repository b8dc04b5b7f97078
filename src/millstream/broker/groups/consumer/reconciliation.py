"""Moving one member towards its target, one safe step at a time.

    STABLE ──── target has less ────► UNREVOKED ──── member says it let go ────┐
      ▲  ▲                                ▲                                    │
      │  └── others let go ── UNRELEASED ─┘ ◄──── target has what others hold ─┤
      └───────────────────── all of the target is its own ◄────────────────────┘

First the member is told to give up what it should not have, and keeps its epoch until it says that
it did. Then it moves to the target's epoch and gets what is free. What another member may still
have in its hands it gets later, when that member has let go: so no partition is in two hands.

A member is believed what it says of its hands. It must take what an answer grants when it gets the
answer, or not at all: the protocol has no way to tell a partition that was not yet taken from one
that was let go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from millstream.broker.groups.consumer.member import ConsumerMember, MemberState
from millstream.broker.groups.consumer.partition_set import (
    NO_PARTITIONS,
    PartitionSet,
    difference,
    intersection,
    union,
)

Available: TypeAlias = Callable[[PartitionSet], PartitionSet]
"""Of these partitions, those that no other member holds."""


def reconcile(
    member: ConsumerMember,
    *,
    target: PartitionSet,
    target_epoch: int,
    owned: PartitionSet | None,
    available: Available,
) -> ConsumerMember:
    """Take the step that the member can take now; the same member where it can take none.

    `owned` is what the member says that it has in its hands; None where it did not say.
    """
    if member.is_reconciled(target_epoch):
        return member
    epoch = member.epoch
    if member.state is MemberState.UNREVOKED:
        if not _has_revoked(member.revoking, owned):
            return member
        # It is past the epoch in which it was asked to; by how far, the target says.
        epoch += 1
    keeps = intersection(member.assigned, target)
    revoking = difference(member.assigned, target)
    if revoking and not _has_revoked(revoking, owned):
        return replace(
            member, state=MemberState.UNREVOKED, epoch=epoch, assigned=keeps, revoking=revoking
        )
    missing = difference(target, keeps)
    gains = available(missing)
    is_short = bool(difference(missing, gains))
    return replace(
        member,
        state=MemberState.UNRELEASED if is_short else MemberState.STABLE,
        epoch=target_epoch,
        assigned=union(keeps, gains),
        revoking=NO_PARTITIONS,
    )


def _has_revoked(revoking: PartitionSet, owned: PartitionSet | None) -> bool:
    """Whether the member said that it has nothing more of `revoking` in its hands."""
    return owned is not None and not intersection(owned, revoking)
