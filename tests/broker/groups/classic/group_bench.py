"""Helpers for tests of classic groups: a group with its tickets, and clients."""

from __future__ import annotations

from typing import Any

from millstream.broker.groups.classic.classic_group import ClassicGroup
from millstream.broker.groups.classic.rebalance import ClassicLimits
from millstream.broker.groups.group import TicketAnswer
from millstream.broker.groups.values import (
    GroupJoinRequest,
    GroupSyncRequest,
    LeaveResult,
    LeavingMember,
)

LIMITS = ClassicLimits(members_max=4, initial_delay_ms=100)
SESSION_MS = 10_000
REBALANCE_MS = 60_000


def join_of(member_id: str = "", **changes: Any) -> GroupJoinRequest:
    """Return a join as most clients send it: with a known id, and one assignor."""
    fields: dict[str, Any] = {
        "member_id": member_id,
        "client_id": "c",
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": REBALANCE_MS,
        "protocol_type": "consumer",
        "protocols": {"range": b"topics"},
    }
    return GroupJoinRequest(**{**fields, **changes})


class Bench:
    """A group, a manual clock, and all answers."""

    def __init__(self, limits: ClassicLimits = LIMITS) -> None:
        self.limits = limits
        self.group = ClassicGroup("g", limits)
        self.now = 0.0
        self.answers: dict[int, Any] = {}
        self.stored: bytes | None = None
        self._ids = 0
        self._tickets = 0

    def join(self, member_id: str = "", **changes: Any) -> int:
        """Send a join; its answer is in `answers` once there is one."""
        self._tickets += 1
        self._ids += 1
        join = join_of(member_id, **changes)
        self._take(self.group.join(join, self._tickets, f"m{self._ids}", self.now))
        return self._tickets

    def sync(self, member_id: str, generation: int | None = None, **changes: Any) -> int:
        self._tickets += 1
        generation = self.group.generation if generation is None else generation
        sync = GroupSyncRequest(member_id=member_id, generation=generation, **changes)
        self._take(self.group.sync(sync, self._tickets, self.now))
        return self._tickets

    def heartbeat(
        self, member_id: str, generation: int | None = None, instance_id: str | None = None
    ) -> None:
        generation = self.group.generation if generation is None else generation
        self.group.heartbeat(member_id, instance_id, generation, self.now)

    def leave(self, *leavers: LeavingMember) -> list[LeaveResult]:
        results, answers = self.group.leave(leavers, self.now)
        self._take(answers)
        return results

    def advance_time(self, seconds: float) -> None:
        """Advance the clock; the group is called at its deadlines, as a timer would."""
        end = self.now + seconds
        while (deadline := self.group.deadline) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self._take(self.group.advance_time(self.now))
        self.now = end

    def restart(self) -> None:
        """Restore the group from what was stored."""
        assert self.stored is not None
        self.group = ClassicGroup.restore("g", self.stored, self.limits, self.now)

    def join_all(self, *members: str | None, **changes: Any) -> list[str]:
        """Let members join the first generation, with these ids or new ones; returns the ids.

        They get their ids at once, as before JoinGroup 4.
        """
        tickets = [self.join(needs_known_id=False, instance_id=m, **changes) for m in members]
        self.advance_time(0.5)
        return [self.answers[ticket].member_id for ticket in tickets]

    def stable(self, *instances: str | None) -> list[str]:
        """Let members join and get assignments, the first as leader; returns the ids."""
        ids = self.join_all(*instances)
        for member_id in ids[1:]:
            self.sync(member_id)
        self.sync(ids[0], assignments={member_id: member_id.encode() for member_id in ids})
        return ids

    def _take(self, answers: Any) -> None:
        for ticket, value in answers:
            assert ticket not in self.answers, "a ticket is answered once"
            self.answers[ticket] = value
        for _, value in self.group.take_changes(now_ms=1_000):
            self.stored = value


__all__ = ["LIMITS", "REBALANCE_MS", "SESSION_MS", "TicketAnswer", "Bench", "join_of"]
