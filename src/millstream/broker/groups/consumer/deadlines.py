"""Until when the members of a consumer group have to be heard from."""

from __future__ import annotations

import math


class MemberDeadlines:
    """Two deadlines for each member: the end of its session, and the end of a revocation.

    Each heartbeat moves a session on, so nothing is kept in order. `wake_at` is never later than
    the earliest deadline, and right after `take_late`; a heartbeat costs no more than a number.
    """

    def __init__(self) -> None:
        self.wake_at = math.inf
        """No deadline is earlier. It may have passed although none has."""

        self._sessions: dict[str, float] = {}
        self._revocations: dict[str, float] = {}

    def start_session(self, member_id: str, deadline: float) -> None:
        """Have the member be heard again before `deadline`."""
        self._sessions[member_id] = deadline
        self.wake_at = min(self.wake_at, deadline)

    def start_revocation(self, member_id: str, deadline: float) -> None:
        """Have the member let go of what it was told to give up before `deadline`."""
        self._revocations[member_id] = deadline
        self.wake_at = min(self.wake_at, deadline)

    def end_revocation(self, member_id: str) -> None:
        """The member has let go, or does not have to any more."""
        self._revocations.pop(member_id, None)

    def forget(self, member_id: str) -> None:
        """Expect nothing of the member any more."""
        self._sessions.pop(member_id, None)
        self._revocations.pop(member_id, None)

    def take_late(self, now: float) -> list[str]:
        """Return whose time is up, and expect nothing of them any more."""
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
