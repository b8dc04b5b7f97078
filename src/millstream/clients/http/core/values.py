"""What a client gives back, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import msgspec

from millstream.protocols.http.queues import QueueAnswer
from millstream.protocols.http.records import RequestCost

Key: TypeAlias = str | bytes | None
"""A key that is text comes as text, also where it was written as bytes."""

HeaderItem: TypeAlias = str | bytes | None
Headers: TypeAlias = Mapping[str, HeaderItem | list[HeaderItem]]
"""A list where a header is there several times."""

_decode_json = msgspec.json.Decoder().decode


class Placed(NamedTuple):
    """Where a record went."""

    partition: int
    offset: int
    cost: RequestCost
    """What its request cost the node: `commit_ms`, `fsync_ms`, `throttle_ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """A record of a topic, as a client reads it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Key
    raw: bytes | None
    """The bytes of the value. In JSON of several lines, a space stands for each end of a line."""
    is_json: bool
    """Whether the value is JSON."""
    headers: Headers
    node: str | None = None
    """Which node it comes from, where its writer said so."""

    @property
    def value(self) -> Any:
        """The value: what its JSON says, bytes where it is none, `None` where there is no value."""
        return _decode_json(self.raw) if self.is_json and self.raw is not None else self.raw


class TopicGap(NamedTuple):
    """Records that a reader will never see, because they went before it came."""

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    """The last that is gone."""
    reason: str
    """What took them: "retention"."""


Item: TypeAlias = TopicRecord | TopicGap
"""What reading gives: nothing is passed over in silence, save what was deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """How far a partition reaches."""

    partition: int
    first_live_offset: int
    eviction_floor: int
    """Retention took everything before this offset."""
    head: int
    """The offset after the last record."""
    count: int
    bytes: int
    epoch: int
    gaps: tuple[TopicGap, ...] = ()
    """What a reader from the start is told that it will never see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic, and what it is set to."""

    name: str
    id: str
    """What tells it from every other topic there ever was."""
    partition_count: int
    durability: str
    """What an answer to an append promises."""
    configs: Mapping[str, str]
    """What the topic sets itself; all else is the default of the node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState(TopicInfo):
    """A topic, and how far it reaches."""

    partitions: tuple[PartitionState, ...]
    count: int
    bytes: int


class QueueState(QueueAnswer, frozen=True, kw_only=True):
    """Settings and job counts of a queue. See `QueueAnswer` for the fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedJob:
    """What a claim gave: a record, and the receipt by which its worker speaks of it."""

    receipt: str
    record: TopicRecord
    deliveries: int
    """How often it was handed out, this time included."""
    deadline_ms: int
    """How long it belongs to the worker, from when the node answered."""
