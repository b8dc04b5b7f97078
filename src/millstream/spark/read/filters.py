"""What of a query's conditions the source itself meets, so that less is read and sent to Spark.

    topic, partition   =, IN              other partitions are not read
    offset             =, <, <=, >, >=    other ranges are not read
    timestamp          =, >, >=           reading begins at the first record that is late enough
    key                =, IN              other records are read, and not sent

A condition on time is left to Spark as well: timestamps go back and forth, so later records may be
too early. All others are met exactly.
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
    """What a record has to meet; `None` where anything does."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_min: int = 0
    offset_end: int | None = None
    timestamp_ms_min: int | None = None
    keys: frozenset[bytes] | None = None

    def has(self, where: TopicPartition) -> bool:
        """Whether records of the partition can meet them."""
        return (self.topics is None or where.topic in self.topics) and (
            self.partitions is None or where.partition in self.partitions
        )

    def clip(self, start: int, end: int) -> tuple[int, int]:
        """Return the part of a range of offsets that can meet them."""
        start = max(start, self.offset_min)
        end = end if self.offset_end is None else min(end, self.offset_end)
        return start, max(start, end)

    def keep(self, decoded: pa.RecordBatch) -> pa.RecordBatch:
        """Leave out records with other keys."""
        if self.keys is None:
            return decoded
        import pyarrow as pa  # noqa: PLC0415 - slow to load, and for tasks alone.
        import pyarrow.compute as pc  # noqa: PLC0415

        wanted = pa.array(sorted(self.keys), pa.binary())
        return decoded.filter(pc.is_in(decoded.column("key"), value_set=wanted))


NO_CONDITIONS = Conditions()


def push(filters: Iterable[Filter], conditions: Conditions) -> tuple[Conditions, list[Filter]]:
    """Return the conditions with these filters, and which of them Spark still has to apply."""
    left: list[Filter] = []
    for one in filters:
        pushed = _pushed(one, conditions)
        if pushed is not None:
            conditions = pushed
        if pushed is None or one.attribute == ("timestamp",):  # type: ignore[attr-defined]
            left.append(one)
    return conditions, left


def _pushed(one: Filter, conditions: Conditions) -> Conditions | None:
    """Return the conditions with a filter; nothing where they cannot express it."""
    match getattr(one, "attribute", None):
        case ("topic",):
            return _one_of(one, conditions, "topics", (str,))
        case ("partition",):
            return _one_of(one, conditions, "partitions", (int,))
        case ("key",):
            return _one_of(one, conditions, "keys", (bytes, bytearray))
        case ("offset",):
            return _between(one, conditions)
        case ("timestamp",):
            return _since(one, conditions)
    return None


def _one_of(
    one: Filter, conditions: Conditions, name: str, kinds: tuple[type, ...]
) -> Conditions | None:
    values: list[Any]
    match one:
        case IsNotNull() if name != "keys":  # Every record has a topic and a partition.
            return conditions
        case EqualTo(value=value):
            values = [value]
        case In(value=given):
            values = list(given)
        case _:
            return None
    if not all(isinstance(value, kinds) for value in values):
        return None
    found = frozenset(bytes(value) if name == "keys" else value for value in values)
    present = getattr(conditions, name)
    narrowed: Any = found if present is None else present & found
    return replace(conditions, **{name: narrowed})


def _between(one: Filter, conditions: Conditions) -> Conditions | None:
    if isinstance(one, IsNotNull):
        return conditions  # Every record has an offset.
    if not isinstance(value := getattr(one, "value", None), int):
        return None
    start, end = {
        EqualTo: (value, value + 1),
        GreaterThan: (value + 1, None),
        GreaterThanOrEqual: (value, None),
        LessThan: (0, value),
        LessThanOrEqual: (0, value + 1),
    }.get(type(one), (None, None))
    if start is None:
        return None
    ends = [end for end in (conditions.offset_end, end) if end is not None]
    return replace(
        conditions,
        offset_min=max(conditions.offset_min, start),
        offset_end=min(ends, default=None),
    )


def _since(one: Filter, conditions: Conditions) -> Conditions | None:
    is_least = isinstance(one, EqualTo | GreaterThan | GreaterThanOrEqual)
    if not is_least or not isinstance(value := getattr(one, "value", None), datetime):
        return None
    # What has no zone is in this machine's: that is how Spark hands moments to Python.
    least = math.floor(value.timestamp() * 1000)
    present = conditions.timestamp_ms_min
    return replace(conditions, timestamp_ms_min=least if present is None else max(least, present))
