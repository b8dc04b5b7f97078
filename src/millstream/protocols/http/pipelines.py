"""Messages about pipelines: publishers that write exactly once into the node."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

PIPELINES_MAX = 1_000
"""Publishers in one response."""

AFTER_LENGTH_MAX = 1_200
"""Characters of a publisher's name and its time."""


class PipelinesQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which publishers to list."""

    after: Annotated[
        str,
        Meta(
            max_length=AFTER_LENGTH_MAX,
            pattern=r"^([0-9]{1,19}:[\s\S]+)?$",
            description="`next` of the previous response.",
        ),
    ] = ""
    limit: Annotated[
        int, Meta(ge=1, le=PIPELINES_MAX, description="Maximum number of publishers.")
    ] = 100


class PipelineShape(Struct, kw_only=True):
    """A publisher and its last publication."""

    publisher: str
    """Unique id of the publisher: for a stream, the id in its checkpoint."""
    name: str | None
    """Pipeline and target, as named by the author; null if it did not publish since the node
    started."""
    kind: Literal["stream", "job", "other"]
    sequence: int
    """Number of its last publication: for a stream, the micro-batch."""
    age_ms: int
    """Minimum age of that publication."""
    position: str | UnsetType = UNSET
    """Its place in the list of one coordinator; only in answers between nodes."""


class PipelinesAnswer(Struct, kw_only=True):
    """A page of publishers, the most recent publication first."""

    pipelines: list[PipelineShape]
    next: str | None
    """Pass as `after` to get the next page; null on the last page."""
