"""What a replica has to do next to become whole again.

Rules. `tests/planted` breaks them.

1.  A replica that lacks records at its end, or whose records are not proved, says so in the
    metadata store *before* anything is done about it: its node is in the ISR in no life any more
    (`ReplicationState.disowned`). Until it has caught up it cannot be elected. It does not fetch
    meanwhile, and changes the state even if it is not in the ISR: its leader may be about to put it
    there, by what it fetched before.
2.  Its end is removed only while another node leads: without a leader it may be the last copy.
3.  A leader does not touch its own end. It hands over first, and is repaired as a follower.
4.  Damage in a finished segment in the middle takes nothing from the ends of others: the segment is
    replaced where it is, on a leader too. Readers of its records get an error until then.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from millstream.cluster.epochs import NO_EPOCH, EpochHistory
from millstream.cluster.replication_state import NO_LIFE, IsrMember, Proposal, ReplicationState


class ReplicaCondition(NamedTuple):
    """What is known of a replica."""

    is_leader: bool
    """Whether this node leads the partition."""
    has_leader: bool
    """Whether another node leads it now, and lives."""
    is_counted: bool
    """Whether the node is in the ISR, in one of its lives, or may be as far as it knows: it has
    not disowned the replica since it lacks records."""
    is_end_lost: bool = False
    """Whether the log cannot be written, or its last segment is damaged, or records behind its end
    are missing."""
    is_unproved: bool = False
    """Whether records came from somewhere else than a leader, or do not continue it."""
    is_damaged: bool = False
    """Whether finished segments are damaged or missing."""
    was_damaged: bool = False
    """Whether damage, which is repaired now, was met when the partition was opened."""
    is_far_behind: bool = False
    """Whether whole segments are missing."""


class RepairStep(Enum):
    """What to do next."""

    NOTHING = "nothing"
    HAND_OVER = "hand over"
    """Let another member of the ISR lead."""
    DISOWN = "disown"
    """Say in the metadata store that this replica does not have everything."""
    RECOVER_END = "recover the end"
    """Open the log again, without what is damaged at its end."""
    PROVE = "prove"
    """Compare all segments with those of the leader, and copy those that differ."""
    REPLACE = "replace"
    """Copy damaged and missing segments from another replica."""
    REOPEN = "reopen"
    """Open the partition again, to read what was not readable before."""
    COPY = "copy"
    """Copy the segments behind the end."""


def next_repair(condition: ReplicaCondition) -> RepairStep:
    """Return the next step of a replica."""
    lacks_records = condition.is_end_lost or condition.is_unproved
    if condition.is_leader:
        if condition.is_damaged:
            return RepairStep.REPLACE
        needs_role = lacks_records or condition.was_damaged
        return RepairStep.HAND_OVER if needs_role else RepairStep.NOTHING
    if lacks_records and condition.is_counted:
        return RepairStep.DISOWN
    if not condition.has_leader:
        return RepairStep.NOTHING
    steps = (
        (condition.is_end_lost, RepairStep.RECOVER_END),
        (condition.is_unproved, RepairStep.PROVE),
        (condition.is_damaged, RepairStep.REPLACE),
        (condition.was_damaged, RepairStep.REOPEN),
        (condition.is_far_behind, RepairStep.COPY),
    )
    return next((step for is_due, step in steps if is_due), RepairStep.NOTHING)


def may_remove_files(state: ReplicationState, node: int, *, min_insync: int) -> bool:
    """Whether a node may remove what it has of a partition.

    It is no replica any more, and enough others have every committed record: as long as they do
    not, its files may be the last copy, whatever the metadata say.
    """
    if node in state.replicas:
        return False
    counted = sum(1 for member in state.isr if member.broker_epoch != NO_LIFE)
    return counted >= max(1, min(min_insync, len(state.target)))


def disowning(state: ReplicationState, node: int) -> Proposal:
    """Return the proposal by which a node that runs says that its replica lacks records.

    It changes the state even if the node is not in the ISR, as far as it knows: the leader may have
    proposed that, by what it fetched before, and the store refuses a proposal for an older state.
    """
    return Proposal(state.disowned(node), state.revision)


class FoundLog(NamedTuple):
    """The log of a partition, as a node finds it when it starts."""

    end_offset: int | None
    """None if there is no log, or it cannot be read."""
    problem: str | None = None
    """Why its end is not to be trusted, if so."""
    start_offset: int = 0
    epochs: tuple[tuple[int, int], ...] = ()
    """Its leader epochs, with the offset at which each began."""


class CommittedEnd(NamedTuple):
    """What a node stored of a replica in its former life, outside of the log."""

    offset: int
    """The high watermark: the log had every record before it, and they were committed."""
    epoch: int = NO_EPOCH
    """The leader epoch of the last record before it; `NO_EPOCH` if that is not known."""


def lost_records(
    found: FoundLog, committed: CommittedEnd | None, *, has_others: bool
) -> str | None:
    """Return why a log lacks records that it had; None if it has them all, as far as one can tell.

    `has_others` tells whether other nodes have replicas.
    """
    if found.problem is not None:
        return found.problem
    if found.end_offset is None:
        # A new partition may have no log yet. Then nothing is lost by catching up, but without
        # another replica nobody could be elected.
        if (has_others and committed is None) or (committed is not None and committed.offset):
            return "its log is missing"
        return None
    if committed is None:
        return None
    if found.end_offset < committed.offset:
        return (
            f"its log ends at offset {found.end_offset}, and had everything up to"
            f" {committed.offset}"
        )
    return _diverged(found, committed)


def _diverged(found: FoundLog, committed: CommittedEnd) -> str | None:
    """Return why a log that is long enough does not have what was committed, if so.

    Two logs with the same epoch at an offset agree before it (`epochs.py`). With another epoch
    there, this log is an older copy: its end was not committed, and was replaced since.
    """
    epoch = EpochHistory(found.epochs).last_epoch(found.start_offset, committed.offset)
    if NO_EPOCH in (epoch, committed.epoch) or epoch == committed.epoch:
        return None
    return (
        f"its record at offset {committed.offset - 1} is of leader epoch {epoch}, and the one that"
        f" was committed there is of epoch {committed.epoch}"
    )


class DisownStep(NamedTuple):
    """What a node that starts has to do about a replica that lacks records."""

    is_done: bool
    """Whether the node may register, as far as this replica is concerned."""
    proposal: Proposal | None = None
    """What to propose first; if there is nothing to propose either, the node has to wait."""


def disown_step(state: ReplicationState, node: int, *, is_registered: bool) -> DisownStep:
    """Return what to do about a replica that lacks records, before its node registers.

    `is_registered` tells whether a former life of the node is registered: its lease has not
    expired. Until then the leader may put that life into the ISR, by what it fetched before its
    records were lost, and would undo what the node says here. So the node waits, and then reads the
    state: nobody can count it from then on, until it registers.
    """
    if is_registered:
        return DisownStep(is_done=False)
    if not state.is_counted(node):
        return DisownStep(is_done=True)
    is_gone = IsrMember(node, NO_LIFE)
    return DisownStep(is_done=False, proposal=replace(disowning(state, node), nodes=(is_gone,)))
