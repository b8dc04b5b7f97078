"""Filters of a query that the source applies itself, so that fewer records are read or passed on.

    topic, partition   =, IN              other partitions are not read
    offset             =, <, <=, >, >=    other ranges are not read
    timestamp          =, >, >=           reading starts at the first record that is late enough
    key                =, IN              other records are read, and not passed on

Spark also applies a filter on the timestamp: timestamps are not monotonic, so later records may be
too early. All other filters are applied exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from millstream.records.topic_partition import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions on records; `None` means any."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_min: int = 0
    offset_end: int | None = None
    timestamp_ms_min: int | None = None
    keys: frozenset[bytes] | None = None

    def has(self, partition: TopicPartition) -> bool:
        """Whether records of the partition can meet the conditions."""
        return (self.topics is None or partition.topic in self.topics) and (
            self.partitions is None or partition.partition in self.partitions
        )

    def clip(self, start: int, end: int) -> tuple[int, int]:
        """Return the part of a range of offsets that can meet the conditions."""
        start = max(start, self.offset_min)
        end = end if self.offset_end is None else min(end, self.offset_end)
        return start, max(start, end)

    def keep(self, decoded: pa.RecordBatch) -> pa.RecordBatch:
        """Remove records with other keys."""
        if self.keys is None:
            return decoded
        import pyarrow as pa  # noqa: PLC0415 - slow to import, and only tasks need it.
        import pyarrow.compute as pc  # noqa: PLC0415

        wanted = pa.array(sorted(self.keys), pa.binary())
        return decoded.filter(pc.is_in(decoded.column("key"), value_set=wanted))


NO_CONDITIONS = Conditions()


def push(filters: Iterable[Filter], conditions: Conditions) -> tuple[Conditions, list[Filter]]:
    """Return the conditions with `filters` added, and the filters that Spark still has to apply."""
    unsupported: list[Filter] = []
    for filter_ in filters:
        pushed = _pushed(filter_, conditions)
        if pushed is not None:
            conditions = pushed
        if pushed is None or _column_of(filter_) == ("timestamp",):
            unsupported.append(filter_)
    return conditions, unsupported


def _pushed(filter_: Filter, conditions: Conditions) -> Conditions | None:
    """Return the conditions with a filter added, or `None` if they cannot express it."""
    match _column_of(filter_):
        case ("topic",):
            return _one_of(filter_, conditions, "topics", (str,))
        case ("partition",):
            return _one_of(filter_, conditions, "partitions", (int,))
        case ("key",):
            return _one_of(filter_, conditions, "keys", (bytes, bytearray))
        case ("offset",):
            return _between(filter_, conditions)
        case ("timestamp",):
            return _since(filter_, conditions)
    return None


def _column_of(filter_: Filter) -> tuple[str, ...]:
    """Return the column of a filter, in lower case: Spark has it as the query does."""
    return tuple(part.lower() for part in getattr(filter_, "attribute", ()))


def _one_of(
    filter_: Filter, conditions: Conditions, name: str, kinds: tuple[type, ...]
) -> Conditions | None:
    values: list[Any]
    match filter_:
        case IsNotNull() if name != "keys":  # Every record has a topic and a partition.
            return conditions
        case EqualTo(value=value):
            values = [value]
        case In(value=choices):
            values = list(choices)
        case _:
            return None
    if not all(isinstance(value, kinds) for value in values):
        return None
    allowed = frozenset(bytes(value) if name == "keys" else value for value in values)
    present = getattr(conditions, name)
    narrowed: Any = allowed if present is None else present & allowed
    return replace(conditions, **{name: narrowed})


def _between(filter_: Filter, conditions: Conditions) -> Conditions | None:
    if isinstance(filter_, IsNotNull):
        return conditions  # Every record has an offset.
    if not isinstance(value := getattr(filter_, "value", None), int):
        return None
    start, end = {
        EqualTo: (value, value + 1),
        GreaterThan: (value + 1, None),
        GreaterThanOrEqual: (value, None),
        LessThan: (0, value),
        LessThanOrEqual: (0, value + 1),
    }.get(type(filter_), (None, None))
    if start is None:
        return None
    ends = [end for end in (conditions.offset_end, end) if end is not None]
    return replace(
        conditions,
        offset_min=max(conditions.offset_min, start),
        offset_end=min(ends, default=None),
    )


def _since(filter_: Filter, conditions: Conditions) -> Conditions | None:
    is_lower_bound = isinstance(filter_, EqualTo | GreaterThan | GreaterThanOrEqual)
    if not is_lower_bound or not isinstance(value := getattr(filter_, "value", None), datetime):
        return None
    # Spark passes timestamps to Python without a zone, in the local time zone.
    timestamp_ms = math.floor(value.timestamp() * 1000)
    present = conditions.timestamp_ms_min
    return replace(
        conditions, timestamp_ms_min=timestamp_ms if present is None else max(timestamp_ms, present)
    )
