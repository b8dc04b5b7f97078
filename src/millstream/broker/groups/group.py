"""What the coordinator needs of a group, whatever its kind.

A group is a pure machine: it is told what happened and at what time, and says whom to answer, what
to store and when it wants to hear of the time again. It holds no socket, no timer and no file.

    join, sync, leave ...  ─┐                 ┌─► answers: a ticket, and a value or an error
    the time has come      ─┼──►  a group  ───┼─► changes: entries of the state log
    storing failed         ─┘                 └─► deadline: when to tell it the time

The coordinator stores the changes before it lets any answer out, so nobody is ever told of a state
that a crash could take back.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from millstream.broker.state.state_log import StateEntry
from millstream.errors import CorruptData, InvalidGroup, MillstreamError

GROUP_ID_LENGTH_MAX = 1024
"""Characters of a group's id. Kafka allows 32,767, which nobody needs and every record repeats."""


class GroupType(enum.Enum):
    """How the members of a group find out what is theirs. The values are Kafka's words."""

    CLASSIC = "classic"
    """One member, the leader, divides the partitions."""

    CONSUMER = "consumer"
    """The coordinator divides the partitions (KIP-848)."""


class TicketAnswer(NamedTuple):
    """What someone who waits is told: a value, or the error that the request ends with."""

    ticket: int
    """Who waits: the number that came with the request."""
    value: Any | MillstreamError


class Group(Protocol):
    """One group. Times named `now` are seconds of the monotonic clock."""

    group_id: str

    @property
    def kind(self) -> GroupType:
        """Of which kind it is."""
        ...

    @property
    def state(self) -> str:
        """Kafka's word for the state that it is in."""
        ...

    @property
    def protocol_type(self) -> str:
        """What the members are, "consumer" or the like; empty if there never were any."""
        ...

    @property
    def is_empty(self) -> bool:
        """Whether it has no members."""
        ...

    @property
    def member_count(self) -> int:
        """How many members it has."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether it holds nothing that would be missed: no members, and nobody about to join."""
        ...

    @property
    def empty_since_ms(self) -> int | None:
        """Wall time at which its last member went; `None` if it has members or never had any."""
        ...

    @property
    def deadline(self) -> float | None:
        """When `pass_time` has to be called, at the latest. It may say so too early."""
        ...

    def pass_time(self, now: float) -> Sequence[TicketAnswer]:
        """Do what is due. Harmless when nothing is."""
        ...

    def take_changes(self, now_ms: int) -> list[StateEntry]:
        """Return what has to be stored since this was asked before; nothing where nothing has.

        `now_ms` is the wall time, for what is stored with a date.
        """
        ...

    def stored(self, changes: Sequence[StateEntry]) -> None:
        """Take note that what `take_changes` returned once is durable."""
        ...

    def store_failed(self, now: float) -> Sequence[TicketAnswer]:
        """Take note that changes were not stored; they count as changes again."""
        ...

    def tombstones(self) -> list[StateEntry]:
        """Return the entries that delete all that is stored of it."""
        ...

    def check_commit(
        self, member_id: str, generation: int, instance_id: str | None, *, is_transactional: bool
    ) -> None:
        """Raise unless this caller may commit offsets now."""
        ...

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """Raise unless this caller may see committed offsets now."""
        ...


def check_group_id(group_id: str, *, may_be_empty: bool = False) -> str:
    """Return `group_id` if a group can be called so; raises `InvalidGroup` if not.

    Old consumers that are in no group commit under an empty id, so offsets may have one.
    """
    least = 0 if may_be_empty else 1
    if not least <= len(group_id) <= GROUP_ID_LENGTH_MAX:
        allowed = f"allowed is {least} to {GROUP_ID_LENGTH_MAX}"
        raise InvalidGroup(f"group id has {len(group_id)} characters, {allowed}")
    return group_id


# The keys of the state log: JSON arrays, first what it is, then whose.


def encode_key(*parts: str | int) -> bytes:
    """Return the key of an entry."""
    return msgspec.json.encode(parts)


def decode_key(key: bytes) -> list[Any]:
    """Return the parts of a key that `encode_key` made."""
    try:
        parts = msgspec.json.decode(key)
    except msgspec.DecodeError as error:
        raise CorruptData(f"groups: key {key[:80]!r}: {error}") from error
    if not isinstance(parts, list) or not parts or not isinstance(parts[0], str):
        raise CorruptData(f"groups: key {key[:80]!r} does not say what it is of")
    return parts
