"""Groups of consumers over HTTP: who is in them, and how far they have read."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from millstream.protocols.http.records import OFFSET_MAX, TIMESTAMP_MAX, PartitionIndex

GROUPS_MAX = 1_000
"""Groups in one answer."""

GROUP_ID_LENGTH_MAX = 1_024


class GroupsQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which groups to list."""

    after: (
        Annotated[
            str,
            Meta(
                max_length=GROUP_ID_LENGTH_MAX,
                description="Only groups whose name comes after this one; one may be empty.",
            ),
        ]
        | None
    ) = None
    limit: Annotated[
        int, Meta(ge=1, le=GROUPS_MAX, description="Groups in the answer, at the most.")
    ] = 100


class GroupShape(Struct, kw_only=True):
    """A group among all others."""

    group: str
    kind: Literal["classic", "consumer"]
    """Who divides the partitions: a member, or the node."""
    state: str
    """Kafka's word, in small letters: `stable`, `empty`, `preparing_rebalance` and so on."""
    members: int
    partitions: int
    """Of how many partitions it has committed an offset."""
    lag: int
    """Offsets that are left, of all partitions whose end is known."""


class GroupsAnswer(Struct, kw_only=True):
    """Some groups, by rising name."""

    groups: list[GroupShape]
    next: str | None
    """What to ask `after` for more; null where there is no more."""


class AssignedShape(Struct, kw_only=True):
    """A partition that a member has."""

    topic: str
    partition: int


class MemberShape(Struct, kw_only=True):
    """A member of a group."""

    id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[AssignedShape]
    """What it has; nothing while the group is being divided, or where that cannot be told."""


class CommittedShape(Struct, kw_only=True):
    """How far a group has come with a partition."""

    topic: str
    partition: int
    committed: int | None
    """What it reads next; null where a member has the partition and has committed nothing yet."""
    end: int | None
    """The offset after the last record; null where that is not known without opening it."""
    lag: int | None
    """Offsets that are left."""
    member: str | None
    """Who has it."""


class GroupDetailsAnswer(Struct, kw_only=True):
    """A group with its members and its offsets."""

    group: str
    kind: Literal["classic", "consumer"]
    state: str
    lag: int
    members: list[MemberShape]
    offsets: list[CommittedShape]
    """By topic and partition; the first 10,000."""
    partitions: int
    """How many there are in all."""


class ResetTime(Struct, kw_only=True, forbid_unknown_fields=True):
    """A moment, as a place in a partition."""

    timestamp: Annotated[int, Meta(ge=0, le=TIMESTAMP_MAX)]
    """Milliseconds since 1970: the first record that is as late, or the end where none is."""


ResetTo: TypeAlias = (
    Literal["earliest", "latest"] | Annotated[int, Meta(ge=0, le=OFFSET_MAX)] | ResetTime
)


class ResetBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """From where a group is to read."""

    topic: Annotated[str, Meta(min_length=1, max_length=249)]
    partition: PartitionIndex | None = None
    """All partitions of the topic, where none is named."""
    to: ResetTo
    """The first offset, the end, an offset, or a moment."""


class ResetShape(Struct, kw_only=True):
    """From where a group reads a partition now."""

    topic: str
    partition: int
    committed: int
    end: int
    lag: int


class ResetAnswer(Struct, kw_only=True):
    """From where a group reads now."""

    offsets: list[ResetShape]
