"""Messages about consumer groups: members and committed offsets."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from millstream.protocols.http.records import OFFSET_MAX, TIMESTAMP_MAX, PartitionIndex

GROUPS_MAX = 1_000
"""Groups in one response."""

GROUP_ID_LENGTH_MAX = 1_024


class GroupsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which groups to list."""

    after: (
        Annotated[
            str,
            Meta(
                max_length=GROUP_ID_LENGTH_MAX,
                description="Only groups whose name sorts after this one; a name may be empty.",
            ),
        ]
        | None
    ) = None
    limit: Annotated[int, Meta(ge=1, le=GROUPS_MAX, description="Maximum number of groups.")] = 100


class GroupShape(Struct, kw_only=True):
    """A group in a list."""

    group: str
    kind: Literal["classic", "consumer"]
    """Who assigns the partitions: a member (`classic`) or the node (`consumer`)."""
    state: str
    """Kafka's name of the state in snake case: `stable`, `empty`, `preparing_rebalance` and so on.
    """
    members: int
    partitions: int
    """Number of partitions with a committed offset."""
    lag: int
    """Offsets left to read, over all partitions whose end is known."""


class GroupsAnswer(Struct, kw_only=True):
    """A page of groups, sorted by name."""

    groups: list[GroupShape]
    next: str | None
    """Pass as `after` to get the next page; null on the last page."""


class AssignedShape(Struct, kw_only=True):
    """A partition that is assigned to a member."""

    topic: str
    partition: int


class MemberShape(Struct, kw_only=True):
    """A member of a group."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[AssignedShape]
    """Its assignment; empty during a rebalance, or if the assignment cannot be decoded."""


class CommittedShape(Struct, kw_only=True):
    """The committed offset of a group in one partition."""

    topic: str
    partition: int
    committed: int | None
    """The next offset to read; null if the partition is assigned and nothing is committed yet."""
    end: int | None
    """The offset after the last record; null if the partition would have to be opened to know it.
    """
    lag: int | None
    """Offsets left to read."""
    member: str | None
    """The member that the partition is assigned to."""


class GroupDetailsAnswer(Struct, kw_only=True):
    """A group with its members and its offsets."""

    group: str
    kind: Literal["classic", "consumer"]
    state: str
    lag: int
    members: list[MemberShape]
    offsets: list[CommittedShape]
    """Sorted by topic and partition; the first 10,000."""
    partitions: int
    """Number of all offsets."""


class ResetTime(Struct, kw_only=True, forbid_unknown_fields=True):
    """A time as a position in a partition."""

    timestamp: Annotated[int, Meta(ge=0, le=TIMESTAMP_MAX)]
    """Milliseconds since 1970: the first record at or after it, or the end if there is none."""


ResetTo: TypeAlias = (
    Literal["earliest", "latest"] | Annotated[int, Meta(ge=0, le=OFFSET_MAX)] | ResetTime
)


class ResetBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """The position from which a group continues to read."""

    topic: Annotated[str, Meta(min_length=1, max_length=249)]
    partition: PartitionIndex | None = None
    """All partitions of the topic if none is given."""
    to: ResetTo
    """The first offset, the end, an offset, or a time."""
    preview: bool = False
    """Whether to return the new positions without setting them."""


class ResetShape(Struct, kw_only=True):
    """The new position of a group in one partition."""

    topic: str
    partition: int
    previous: int | None
    """The committed offset before; null if there was none."""
    committed: int
    end: int
    lag: int


class ResetAnswer(Struct, kw_only=True):
    """The new positions of a group."""

    offsets: list[ResetShape]
