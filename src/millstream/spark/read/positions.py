"""Where reading begins and ends: what the user said, and the offsets that it comes to."""

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
"""What stands for the two ends where an offset is expected, as in Kafka."""


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """At these offsets; -2 and -1 stand for the ends. `rest` is for partitions not named."""

    offsets: Mapping[TopicPartition, int]
    rest: int | None = None


@dataclass(frozen=True, slots=True)
class AtTimes:
    """At the first records that are that late, or at the end where none is.

    `rest` is for partitions not named.
    """

    times_ms: Mapping[TopicPartition, int]
    rest: int | None = None


Position: TypeAlias = AtOffsets | AtTimes

EARLIEST = AtOffsets({}, rest=EARLIEST_OFFSET)
LATEST = AtOffsets({}, rest=LATEST_OFFSET)


def parse_position(name: str, text: str) -> Position:
    """Read one of the options that say where to begin or to end."""
    if name.endswith("OffsetsByTimestamp"):
        return AtTimes(_by_partition(name, text, least=0))
    if name.endswith("Timestamp"):
        return AtTimes({}, rest=parse_time(name, text))
    edges = {"earliest": EARLIEST, "latest": LATEST}
    return edges.get(text.strip().lower()) or AtOffsets(_by_partition(name, text, least=-2))


def parse_time(name: str, text: str) -> int:
    """Read a moment: milliseconds since 1970, or ISO 8601, in UTC where it says no zone."""
    if re.fullmatch(r"[0-9]{1,18}", text.strip()):
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidConfig(
            f"{name} is {text!r}, needed are milliseconds since 1970 or a time like"
            " 2026-01-31T12:00:00Z"
        ) from None
    zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(zoned.timestamp() * 1000)


def _by_partition(name: str, text: str, *, least: int) -> dict[TopicPartition, int]:
    try:
        parsed: Any = json.loads(text)
        found = {
            TopicPartition(str(topic), int(partition)): value
            for topic, partitions in parsed.items()
            for partition, value in partitions.items()
        }
        if not found or not all(type(value) is int and value >= least for value in found.values()):
            raise ValueError
    except (ValueError, TypeError, AttributeError):
        edges = "earliest, latest or " if least < 0 else ""
        raise InvalidConfig(
            f"{name} is {text!r}, needed is {edges}numbers of {least} or more by partition:"
            ' {"orders": {"0": 23}}'
        ) from None
    return found


def resolve(
    position: Position,
    where: Sequence[TopicPartition],
    bounds: Mapping[TopicPartition, OffsetBounds],
    place: RecordSource,
    *,
    name: str,
) -> Offsets:
    """Return the offset that a position is in each partition of `where`.

    An offset that was named is returned as it is, also where it lies outside of the bounds. A
    position that names partitions has to name all, and no others.
    """
    named = position.offsets if isinstance(position, AtOffsets) else position.times_ms
    if named and set(named) != set(where):
        raise InvalidConfig(
            f"{name} names {sorted(map(str, named))}, needed are all that are read:"
            f" {sorted(map(str, where))}"
        )
    values = {one: named.get(one, position.rest) for one in where}
    if isinstance(position, AtTimes):
        return _at_times(values, bounds, place)
    return {one: _edge(value, bounds[one]) for one, value in values.items()}


def _edge(value: int | None, bounds: OffsetBounds) -> int:
    assert value is not None, "a position without a rest names all partitions"
    return {EARLIEST_OFFSET: bounds.start, LATEST_OFFSET: bounds.end}.get(value, value)


def _at_times(
    times_ms: Mapping[TopicPartition, int | None],
    bounds: Mapping[TopicPartition, OffsetBounds],
    place: RecordSource,
) -> Offsets:
    found: Offsets = {}
    for time_ms in {time_ms for time_ms in times_ms.values() if time_ms is not None}:
        where = [one for one, its in times_ms.items() if its == time_ms]
        for one, offset in place.offsets_at(where, time_ms).items():
            found[one] = bounds[one].end if offset is None else min(offset, bounds[one].end)
    return found
