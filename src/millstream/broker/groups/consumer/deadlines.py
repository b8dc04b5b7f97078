"""Deadlines of the members of a consumer group."""

from __future__ import annotations

import math


class MemberDeadlines:
    """Two deadlines for each member: the end of its session, and the end of a revocation.

    Each heartbeat moves the end of a session, so the deadlines are not kept sorted. `wake_at` is
    never later than the earliest deadline, and exact after `pop_late`; a heartbeat only compares a
    number.
    """

    def __init__(self) -> None:
        self.wake_at = math.inf
        """No deadline is earlier. It may have passed without any deadline having passed."""

        self._sessions: dict[str, float] = {}
        self._revocations: dict[str, float] = {}

    def start_session(self, member_id: str, deadline: float) -> None:
        """Expect the member's next heartbeat before `deadline`."""
        self._sessions[member_id] = deadline
        self.wake_at = min(self.wake_at, deadline)

    def start_revocation(self, member_id: str, deadline: float) -> None:
        """Expect the member to release partitions before `deadline`."""
        self._revocations[member_id] = deadline
        self.wake_at = min(self.wake_at, deadline)

    def end_revocation(self, member_id: str) -> None:
        """Cancel the deadline of a revocation."""
        self._revocations.pop(member_id, None)

    def forget(self, member_id: str) -> None:
        """Remove the deadlines of a member."""
        self._sessions.pop(member_id, None)
        self._revocations.pop(member_id, None)

    def pop_late(self, now: float) -> list[str]:
        """Return the members with a deadline up to `now`, and remove their deadlines."""
        late = [
            member_id
            for member_id, session in self._sessions.items()
            if session <= now or self._revocations.get(member_id, math.inf) <= now
        ]
        for member_id in late:
            self.forget(member_id)
        deadlines = (*self._sessions.values(), *self._revocations.values())
        self.wake_at = min(deadlines, default=math.inf)
        return late
