"""Values that the client returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import msgspec

from millstream.protocols.http.queues import QueueAnswer
from millstream.protocols.http.records import RequestCost

Key: TypeAlias = str | bytes | None
"""A key that is valid UTF-8 is returned as text, even if it was written as bytes."""

HeaderItem: TypeAlias = str | bytes | None
Headers: TypeAlias = Mapping[str, HeaderItem | list[HeaderItem]]
"""A header that occurs several times has a list as its value."""

_decode_json = msgspec.json.Decoder().decode


class Placed(NamedTuple):
    """Partition and offset of an appended record."""

    partition: int
    offset: int
    cost: RequestCost
    """Times of the request on the node: `commit_ms`, `fsync_ms`, `throttle_ms`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRecord:
    """Record of a topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: Key
    raw: bytes | None
    """Bytes of the value. In JSON values, line breaks are replaced by spaces."""
    is_json: bool
    """Whether the value is JSON."""
    headers: Headers
    node: str | None = None
    """Node where the record was written, if the writer named it."""

    @property
    def value(self) -> Any:
        """The decoded JSON value; bytes if the value is not JSON; `None` if there is no value."""
        return _decode_json(self.raw) if self.is_json and self.raw is not None else self.raw


class TopicGap(NamedTuple):
    """Records that were deleted before the reader reached them.

    With the reason `recreated`, the topic was deleted and another one has its name: both offsets
    are the reader's position in the old one, and the records that follow are those of the new one.
    """

    topic: str
    partition: int
    from_offset: int
    to_offset: int
    """Last missing offset."""
    reason: str
    """`age`, `bytes` or `records`: the retention policy that deleted them; `retention` if that was
    not recorded; or `recreated`."""


Item: TypeAlias = TopicRecord | TopicGap
"""Items of a reader. Records deleted on request are skipped; all other missing records are reported
as gaps.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Offsets and size of a partition."""

    partition: int
    first_live_offset: int
    eviction_floor: int
    """Retention deleted everything before this offset."""
    head: int
    """Offset after the last record."""
    count: int
    bytes: int
    epoch: int
    gaps: tuple[TopicGap, ...] = ()
    """Gaps that a reader from the start will see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """Name, id and settings of a topic."""

    name: str
    id: str
    """Unique id: a topic that is deleted and created again has another one."""
    partition_count: int
    durability: str
    """Durability class: what an acknowledged append guarantees."""
    configs: Mapping[str, str]
    """Configs set on the topic; all others have the node's default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState(TopicInfo):
    """Settings of a topic, and offsets of its partitions."""

    partitions: tuple[PartitionState, ...]
    count: int
    bytes: int


class QueueState(QueueAnswer, frozen=True, kw_only=True):
    """Settings and job counts of a queue. See `QueueAnswer` for the fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedJob:
    """Claimed job, with the receipt that its worker uses to settle it."""

    receipt: str
    record: TopicRecord
    deliveries: int
    """Number of deliveries, including this one."""
    deadline_ms: int
    """Length of the lease, from the time of the response."""
