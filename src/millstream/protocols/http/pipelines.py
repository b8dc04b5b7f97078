"""Pipelines over HTTP: who publishes exactly once into the node."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

PIPELINES_MAX = 1_000
"""Publishers in one answer."""

AFTER_LENGTH_MAX = 1_200
"""Characters of a publisher's name, and of when it published."""


class PipelinesQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """Which publishers to list."""

    after: Annotated[
        str,
        Meta(
            max_length=AFTER_LENGTH_MAX,
            pattern=r"^([0-9]{1,19}:[\s\S]+)?$",
            description="Go on from `next` of the answer before.",
        ),
    ] = ""
    limit: Annotated[
        int, Meta(ge=1, le=PIPELINES_MAX, description="Publishers in the answer, at the most.")
    ] = 100


class PipelineShape(Struct, kw_only=True):
    """Who publishes, and what it published last."""

    publisher: str
    """What tells it from all others: for a stream, the id that its checkpoint holds."""
    name: str | None
    """Pipeline and target, as its author called them; null where it did not say since the node
    started."""
    kind: Literal["stream", "job", "other"]
    sequence: int
    """The number of its last publication: of a stream, the micro-batch."""
    age_ms: int
    """How long ago that was, at the least."""


class PipelinesAnswer(Struct, kw_only=True):
    """Some publishers, those that published last first."""

    pipelines: list[PipelineShape]
    next: str | None
    """What to ask `after` for more; null where there is no more."""
