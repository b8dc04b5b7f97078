"""Reconciliation: moving one member towards its target, one safe step at a time.

    STABLE ──── target has less ────► UNREVOKED ──── member confirms release ──┐
      ▲  ▲                                ▲                                    │
      │  └── others release ─ UNRELEASED ─┘ ◄──── target has what others hold ─┤
      └───────────────────── it has its complete target ◄──────────────────────┘

First the member is told to release what it should not have, and keeps its epoch until it confirms
that. Then it moves to the target's epoch and gets what is free. Partitions that another member
still holds it gets later, when that member has released them: so no partition has two readers.

The member's own report of what it owns is trusted. It must take what an answer grants when it gets
the answer, or not at all: the protocol cannot distinguish a partition that was not taken yet from
one that was released.
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
"""Returns those of the given partitions that no other member holds."""


def reconcile(
    member: ConsumerMember,
    *,
    target: PartitionSet,
    target_epoch: int,
    owned: PartitionSet | None,
    available: Available,
) -> ConsumerMember:
    """Return the member after the next step; the same member if no step is possible.

    `owned` is what the member reports to have; `None` if it did not report.
    """
    if member.is_reconciled(target_epoch):
        return member
    epoch = member.epoch
    if member.state is MemberState.UNREVOKED:
        if not _has_revoked(member.revoking, owned):
            return member
        # The member has confirmed the revocation, which ends the epoch that required it.
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
    """Return whether the member reported that it owns nothing of `revoking`."""
    return owned is not None and not intersection(owned, revoking)
