"""A record: what one producer wrote in one go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

Header = tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Record:
    """One entry of a log, before it has a place in it."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[Header, ...] = ()
    timestamp_ms: int | None = None
    """Milliseconds since 1970; `None` asks whoever appends to fill in the present."""


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One entry of a log, with its place in it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


class Gap(NamedTuple):
    """Records that a reader will never see, because they went before it came."""

    from_offset: int
    to_offset: int
    """The last that is gone."""
    reason: str
    """What took them: "retention"."""
