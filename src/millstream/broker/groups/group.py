"""The interface of a group to the coordinator, for both group protocols.

A group is a pure state machine: its inputs are events and the time, its outputs are
answers, changes and a deadline. It has no socket, no timer and no file.

    join, sync, leave ...  ─┐                 ┌─► answers: a ticket, and a value or an error
    time passed            ─┼──►  a group  ───┼─► changes: entries of the state log
    storing failed         ─┘                 └─► deadline: when to call `advance_time`

The coordinator stores the changes before it sends any answer, so no client learns of a state that a
crash could undo.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from millstream.broker.state.state_log import StateEntry
from millstream.errors import CorruptData, InvalidGroup, MillstreamError

GROUP_ID_LENGTH_MAX = 1024
"""Characters of a group id. Kafka permits 32,767, but every stored record repeats the id."""


class GroupType(enum.Enum):
    """How partitions are assigned to members. The values are Kafka's names."""

    CLASSIC = "classic"
    """One member, the leader, assigns the partitions."""

    CONSUMER = "consumer"
    """The coordinator assigns the partitions (KIP-848)."""


class TicketAnswer(NamedTuple):
    """The answer to a waiting request: a value, or the error that the request fails with."""

    ticket: int
    """The number that came with the request."""
    value: Any | MillstreamError


class Group(Protocol):
    """One group. Times named `now` are seconds of the monotonic clock."""

    group_id: str

    @property
    def kind(self) -> GroupType: ...

    @property
    def state(self) -> str:
        """Kafka's name of the group's state."""
        ...

    @property
    def protocol_type(self) -> str:
        """The type of its members, "consumer" for example; empty if it never had any."""
        ...

    @property
    def is_empty(self) -> bool: ...

    @property
    def member_count(self) -> int: ...

    @property
    def is_idle(self) -> bool:
        """Whether it can be dropped: no members, no pending joins, nothing stored."""
        ...

    @property
    def empty_since_ms(self) -> int | None:
        """Wall time at which its last member left; `None` if it has members or never had any."""
        ...

    @property
    def deadline(self) -> float | None:
        """When `advance_time` has to be called. It may be too early, but not too late."""
        ...

    def advance_time(self, now: float) -> Sequence[TicketAnswer]:
        """Handle all deadlines up to `now`. Harmless if there are none."""
        ...

    def take_changes(self, now_ms: int) -> list[StateEntry]:
        """Return what has to be stored since the last call.

        `now_ms` is the wall time, for entries that contain one.
        """
        ...

    def stored(self, changes: Sequence[StateEntry]) -> None:
        """Take note that changes returned by `take_changes` are durable."""
        ...

    def store_failed(self, now: float) -> Sequence[TicketAnswer]:
        """Take note that changes were not stored: `take_changes` returns them again."""
        ...

    def tombstones(self) -> list[StateEntry]:
        """Return the entries that delete everything stored about the group."""
        ...

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None, *, is_transactional: bool
    ) -> None:
        """Raise unless this member may commit offsets now."""
        ...

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raise unless this member may read committed offsets now."""
        ...


def check_group_id(group_id: str, *, may_be_empty: bool = False) -> str:
    """Return `group_id` if it is valid; raises `InvalidGroup` if not.

    Old consumers that are not members commit under an empty id, so offsets may have one.
    """
    least = 0 if may_be_empty else 1
    if not least <= len(group_id) <= GROUP_ID_LENGTH_MAX:
        raise InvalidGroup(
            f"group id must have {least} to {GROUP_ID_LENGTH_MAX} characters, got {len(group_id)}"
        )
    return group_id


# The keys of the state log: JSON arrays of the kind of the entry and its owner.


def encode_key(*parts: str | int) -> bytes:
    return msgspec.json.encode(parts)


def decode_key(key: bytes) -> list[Any]:
    """Return the parts of a key of the state log."""
    try:
        parts = msgspec.json.decode(key)
    except msgspec.DecodeError as error:
        raise CorruptData(f"groups: key {key[:80]!r}: {error}") from error
    if not isinstance(parts, list) or not parts or not isinstance(parts[0], str):
        raise CorruptData(f"groups: key {key[:80]!r} has no kind")
    return parts
