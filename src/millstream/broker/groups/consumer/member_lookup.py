"""Finding the member that sent a request, by id, epoch and instance id, and checking it."""

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
    members: ConsumerMembers, beat: ConsumerHeartbeat, *, members_max: int
) -> ConsumerMember | None:
    """Return the member that sent a heartbeat; `None` if it is new.

    If a static member returns under another id, that is the member it replaces.
    """
    member = members.by_id.get(beat.member_id)
    if beat.instance_id is not None:
        member = _find_static_member(members, beat, member)
    if member is None:
        if beat.member_epoch != JOIN_EPOCH:
            raise UnknownMember(f"member {beat.member_id!r} does not exist")
        if len(members.by_id) >= members_max:
            raise GroupFull(f"the group has {len(members.by_id)} members, limit is {members_max}")
    elif member.member_id == beat.member_id:
        _check_epoch(member, beat)
    return member


def _find_static_member(
    members: ConsumerMembers, beat: ConsumerHeartbeat, same_id: ConsumerMember | None
) -> ConsumerMember | None:
    if same_id is not None:
        if same_id.instance_id != beat.instance_id:
            raise InvalidRequest(
                f"member {beat.member_id!r} has instance id {same_id.instance_id!r} "
                f"and cannot change it to {beat.instance_id!r}"
            )
        return same_id
    holder = members.with_instance(beat.instance_id)
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
    """Raise unless the heartbeat has the member's epoch, or joins again.

    It may also have the previous epoch, if the member owns nothing that it does not hold: then the
    answer with the current epoch was lost.
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
        "it has to release all its partitions and join again"
    )


def find_leaving_member(members: ConsumerMembers, beat: ConsumerHeartbeat) -> ConsumerMember:
    """Return the member that leaves."""
    holder = members.with_instance(beat.instance_id)
    if holder is not None and holder.member_id != beat.member_id:
        raise _taken_over(holder)
    if holder is None and beat.instance_id is not None:
        raise UnknownMember(f"no member has instance id {beat.instance_id!r}")
    return _member_of(members, beat.member_id)


def find_removed_member(members: ConsumerMembers, leaver: LeavingMember) -> ConsumerMember:
    """Return the member that an operator removes, by its id or its instance id alone."""
    if leaver.instance_id is None:
        return _member_of(members, leaver.member_id)
    holder = members.with_instance(leaver.instance_id)
    if holder is None:
        raise UnknownMember(f"no member has instance id {leaver.instance_id!r}")
    if leaver.member_id not in (NO_MEMBER, holder.member_id):
        raise _taken_over(holder)
    return holder


def check_member_epoch(
    members: ConsumerMembers, member_id: str, epoch: int, instance_id: str | None
) -> None:
    """Raise unless the member exists and has this epoch."""
    holder = members.with_instance(instance_id)
    if holder is not None and holder.member_id != member_id:
        raise _taken_over(holder)
    member = _member_of(members, member_id)
    if member.has_left or member.epoch != epoch:
        raise StaleMemberEpoch(f"member {member_id!r} is at epoch {member.epoch}, not {epoch}")


def _member_of(members: ConsumerMembers, member_id: str) -> ConsumerMember:
    try:
        return members.by_id[member_id]
    except KeyError:
        raise UnknownMember(f"member {member_id!r} does not exist") from None


def _taken_over(holder: ConsumerMember) -> FencedInstance:
    return FencedInstance(
        f"instance id {holder.instance_id!r} was taken over by member {holder.member_id!r}"
    )
