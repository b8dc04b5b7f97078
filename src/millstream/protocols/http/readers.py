"""Messages about the readers of a topic."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from millstream.protocols.http.groups import GROUP_ID_LENGTH_MAX, GROUPS_MAX


class ReadersQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which readers to list."""

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


class ReadingGroupShape(Struct, kw_only=True):
    """A group that has committed offsets of the topic, or whose members have its partitions."""

    group: str
    kind: Literal["classic", "consumer"]
    state: str
    members: int
    """Members that have partitions of the topic."""
    partitions: int
    """Partitions of the topic with a committed offset."""
    lag: int
    """Offsets of the topic left to read, over all partitions whose end is known."""


class WatcherShape(Struct, kw_only=True):
    """Live connections of one client id that follow the topic."""

    client_id: str
    """Empty if the client did not name itself."""
    connections: int


class ReadersAnswer(Struct, kw_only=True):
    """The readers of a topic that the node knows. Reads without a group leave no trace."""

    groups: list[ReadingGroupShape]
    """A page of groups, sorted by name."""
    next: str | None
    """Pass as `after` to get the next page; null on the last page. A page may be empty."""
    watchers: list[WatcherShape]
    """Live connections over SSE or WebSocket."""
    is_queue: bool
    """Whether workers of a queue claim the records as jobs."""
