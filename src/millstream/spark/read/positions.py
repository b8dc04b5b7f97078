"""Start and end positions: as options give them, and resolved to offsets."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from millstream.clients.partition import OffsetBounds, RecordSource
from millstream.errors import InvalidConfig
from millstream.records.topic_partition import TopicPartition

Offsets: TypeAlias = dict[TopicPartition, int]

EARLIEST_OFFSET = -2
LATEST_OFFSET = -1
"""The two ends of a log in place of an offset, as in Kafka."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """At these offsets; -2 and -1 are the ends of the log. `default` is for other partitions."""

    offsets: Mapping[TopicPartition, int]
    default: int | None = None


@dataclass(frozen=True, slots=True)
class AtTimes:
    """At the first records with these timestamps or later ones, or at the end if there are none.

    `default` is for other partitions.
    """

    times_ms: Mapping[TopicPartition, int]
    default: int | None = None


Position: TypeAlias = AtOffsets | AtTimes

EARLIEST = AtOffsets({}, default=EARLIEST_OFFSET)
LATEST = AtOffsets({}, default=LATEST_OFFSET)


def parse_position(name: str, text: str) -> Position:
    """Parse one of the options for a start or end position."""
    if name.endswith("OffsetsByTimestamp"):
        return AtTimes(_by_partition(name, text, least=0))
    if name.endswith("Timestamp"):
        return AtTimes({}, default=parse_time(name, text))
    edges = {"earliest": EARLIEST, "latest": LATEST}
    return edges.get(text.strip().lower()) or AtOffsets(_by_partition(name, text, least=-2))


def parse_time(name: str, text: str) -> int:
    """Parse milliseconds since 1970, or ISO 8601, in UTC if it has no zone."""
    if re.fullmatch(r"[0-9]{1,18}", text.strip()):
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidConfig(
            f"{name} must be milliseconds since 1970 or a time such as 2026-01-31T12:00:00Z, got"
            f" {text!r}"
        ) from None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(zoned.timestamp() * 1000)


def _by_partition(name: str, text: str, *, least: int) -> dict[TopicPartition, int]:
    try:
        parsed: Any = json.loads(text)
        values = {
            TopicPartition(str(topic), int(partition)): value
            for topic, partitions in parsed.items()
            for partition, value in partitions.items()
        }
        if not values or not all(
            type(value) is int and value >= least for value in values.values()
        ):
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        edges = "earliest, latest or " if least < 0 else ""
        raise InvalidConfig(
            f"{name} must be {edges}numbers of at least {least} by partition, such as"
            f' {{"orders": {{"0": 23}}}}, got {text!r}'
        ) from None
    return values


def resolve(
    position: Position,
    partitions: Sequence[TopicPartition],
    bounds: Mapping[TopicPartition, OffsetBounds],
    source: RecordSource,
    *,
    name: str,
) -> Offsets:
    """Return the offset of a position in each partition of `partitions`.

    An explicit offset is returned unchanged, even if it is out of bounds. A position that names
    partitions must name exactly those in `partitions`.
    """
    named = position.offsets if isinstance(position, AtOffsets) else position.times_ms
    if named and set(named) != set(partitions):
        raise InvalidConfig(
            f"{name} must name exactly the partitions that are read,"
            f" {sorted(map(str, partitions))}, got {sorted(map(str, named))}"
        )
    values = {partition: named.get(partition, position.default) for partition in partitions}
    if isinstance(position, AtTimes):
        return _at_times(values, bounds, source)
    return {partition: _edge(value, bounds[partition]) for partition, value in values.items()}


def _edge(value: int | None, bounds: OffsetBounds) -> int:
    assert value is not None, "a position without a default names all partitions"
    return {EARLIEST_OFFSET: bounds.start, LATEST_OFFSET: bounds.end}.get(value, value)


def _at_times(
    times_ms: Mapping[TopicPartition, int | None],
    bounds: Mapping[TopicPartition, OffsetBounds],
    source: RecordSource,
) -> Offsets:
    offsets: Offsets = {}
    for time_ms in {time_ms for time_ms in times_ms.values() if time_ms is not None}:
        same_time = [partition for partition, bound in times_ms.items() if bound == time_ms]
        for partition, offset in source.offsets_at(same_time, time_ms).items():
            offsets[partition] = (
                bounds[partition].end if offset is None else min(offset, bounds[partition].end)
            )
    return offsets
