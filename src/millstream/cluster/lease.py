"""Belief of a node in its own lease.

A node keeps a lease in the metadata store. When it expires, the controller elects other leaders.
The node cannot know when that happens, but it knows when it sent the last renewal that succeeded:
the store counts the time to live from a moment after that. So a node that stops at a part of the
time to live after *sending* stops before anyone else takes over, as long as clocks do not differ
in speed by more than the rest.
"""

from __future__ import annotations

BELIEVED_PART = 0.7
"""Part of the time to live in which a node believes in its lease. The rest covers clocks that
differ in speed, and the time between the check and the moment in which a response leaves."""

_NEVER = float("-inf")


class LeaseBelief:
    """How long this node may act on its lease. One for a node; all its leaders share it."""

    __slots__ = ("ttl_seconds", "valid_until")

    def __init__(self, ttl_seconds: float) -> None:
        self.ttl_seconds = ttl_seconds
        self.valid_until = _NEVER

    def renewed(self, sent_at: float) -> None:
        """Note that a renewal sent at `sent_at` of the monotonic clock succeeded."""
        self.valid_until = max(self.valid_until, sent_at + BELIEVED_PART * self.ttl_seconds)

    def lost(self) -> None:
        """Note that the store does not have the lease any more, or that it was given up."""
        self.valid_until = _NEVER

    def is_valid(self, now: float) -> bool:
        return now < self.valid_until
