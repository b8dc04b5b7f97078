"""Who of a consumer group speaks, and whether it may: members by id, epoch and instance id."""

from __future__ import annotations

from millstream.broker.groups.consumer.member import JOIN_EPOCH, ConsumerHeartbeat, ConsumerMember
from millstream.broker.groups.consumer.members import ConsumerMembers
from millstream.broker.groups.consumer.partition_set import is_subset
from millstream.broker.groups.values import NO_MEMBER, LeavingMember
from millstream.errors import (
    FencedInstance,
    FencedMemberEpoch,
    GroupFull,
    InvalidRequest,
    StaleMemberEpoch,
    UnknownMember,
    UnreleasedInstance,
)


def find_member(
    roster: ConsumerMembers, beat: ConsumerHeartbeat, *, members_max: int
) -> ConsumerMember | None:
    """The member that speaks; None where it is new.

    Where a static member comes back under another id, it is the one whose place it takes.
    """
    found = roster.members.get(beat.member_id)
    if beat.instance_id is not None:
        found = _find_static_member(roster, beat, found)
    if found is None:
        if beat.member_epoch != JOIN_EPOCH:
            raise UnknownMember(f"there is no member {beat.member_id!r}")
        if len(roster.members) >= members_max:
            raise GroupFull(f"the group has {len(roster.members)} members, allowed {members_max}")
    elif found.member_id == beat.member_id:
        _check_epoch(found, beat)
    return found


def _find_static_member(
    roster: ConsumerMembers, beat: ConsumerHeartbeat, same_id: ConsumerMember | None
) -> ConsumerMember | None:
    if same_id is not None:
        if same_id.instance_id != beat.instance_id:
            raise InvalidRequest(
                f"member {beat.member_id!r} has instance id {same_id.instance_id!r} "
                f"and cannot change it to {beat.instance_id!r}"
            )
        return same_id
    holder = roster.with_instance(beat.instance_id)
    if holder is None:
        return None
    if beat.member_epoch != JOIN_EPOCH:
        raise _taken_over(holder)
    if not holder.has_left:
        raise UnreleasedInstance(
            f"instance id {beat.instance_id!r} is in use by member {holder.member_id!r}"
        )
    return holder


def _check_epoch(member: ConsumerMember, beat: ConsumerHeartbeat) -> None:
    """Raise unless the member speaks of its epoch, or begins anew.

    It may also speak of the epoch before, where nothing is in its hands that is not its own: then
    the answer with the present one was lost.
    """
    if beat.member_epoch in (JOIN_EPOCH, member.epoch):
        return
    if (
        beat.member_epoch == member.previous_epoch
        and not member.has_left
        and beat.owned is not None
        and is_subset(beat.owned, member.held)
    ):
        return
    raise FencedMemberEpoch(
        f"member {member.member_id!r} is at epoch {member.epoch}, not {beat.member_epoch}; "
        "it has to let go of all its partitions and join again"
    )


def find_leaving_member(roster: ConsumerMembers, beat: ConsumerHeartbeat) -> ConsumerMember:
    """The member that says farewell."""
    holder = roster.with_instance(beat.instance_id)
    if holder is not None and holder.member_id != beat.member_id:
        raise _taken_over(holder)
    if holder is None and beat.instance_id is not None:
        raise UnknownMember(f"there is no instance id {beat.instance_id!r}")
    return _member_of(roster, beat.member_id)


def find_removed_member(roster: ConsumerMembers, leaver: LeavingMember) -> ConsumerMember:
    """The member that an operator lets go: by its id, or a static one by its instance id alone."""
    if leaver.instance_id is None:
        return _member_of(roster, leaver.member_id)
    holder = roster.with_instance(leaver.instance_id)
    if holder is None:
        raise UnknownMember(f"there is no instance id {leaver.instance_id!r}")
    if leaver.member_id not in (NO_MEMBER, holder.member_id):
        raise _taken_over(holder)
    return holder


def check_member_epoch(
    roster: ConsumerMembers, member_id: str, epoch: int, instance_id: str | None
) -> None:
    """Raise unless the member is there, and at this epoch."""
    holder = roster.with_instance(instance_id)
    if holder is not None and holder.member_id != member_id:
        raise _taken_over(holder)
    member = _member_of(roster, member_id)
    if member.has_left or member.epoch != epoch:
        raise StaleMemberEpoch(f"member {member_id!r} is at epoch {member.epoch}, not {epoch}")


def _member_of(roster: ConsumerMembers, member_id: str) -> ConsumerMember:
    try:
        return roster.members[member_id]
    except KeyError:
        raise UnknownMember(f"there is no member {member_id!r}") from None


def _taken_over(holder: ConsumerMember) -> FencedInstance:
    return FencedInstance(
        f"instance id {holder.instance_id!r} was taken over by member {holder.member_id!r}"
    )
