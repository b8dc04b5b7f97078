"""Filters of a query that the source applies, exactly as given."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from millstream.records.topic_partition import TopicPartition
from millstream.spark.read.filters import Conditions, push

AT = datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
AT_MS = 1_700_000_000_000


def pushed(*filters):
    conditions, left = push(filters, Conditions())
    return conditions, left


def test_other_partitions_are_not_read():
    conditions, left = pushed(EqualTo(("topic",), "a"), In(("partition",), (0, 2)))
    assert left == []
    assert conditions.has(TopicPartition("a", 2))
    assert not conditions.has(TopicPartition("a", 1))
    assert not conditions.has(TopicPartition("b", 0))


@pytest.mark.parametrize(
    ("condition", "clipped"),
    [
        (EqualTo(("offset",), 7), (7, 8)),
        (GreaterThan(("offset",), 7), (8, 10)),
        (GreaterThanOrEqual(("offset",), 7), (7, 10)),
        (LessThan(("offset",), 7), (5, 7)),
        (LessThanOrEqual(("offset",), 7), (5, 8)),
        (EqualTo(("offset",), 100), (100, 100)),
        (LessThan(("offset",), 0), (5, 5)),
    ],
)
def test_other_offsets_are_not_read(condition, clipped):
    conditions, left = pushed(condition)
    assert left == []
    assert conditions.clip(5, 10) == clipped


def test_conditions_on_one_column_all_count():
    conditions, left = pushed(
        GreaterThan(("offset",), 3), GreaterThan(("offset",), 1), LessThan(("offset",), 9)
    )
    assert left == []
    assert conditions.clip(0, 100) == (4, 9)
    conditions, _ = pushed(In(("topic",), ("a", "b")), EqualTo(("topic",), "b"))
    assert conditions.topics == {"b"}


@pytest.mark.parametrize("kind", [EqualTo, GreaterThan, GreaterThanOrEqual])
def test_a_time_moves_the_beginning_and_stays_with_spark(kind):
    condition = kind(("timestamp",), AT)
    conditions, left = pushed(condition)
    assert conditions.timestamp_ms_min == AT_MS
    assert left == [condition]


def test_the_latest_of_several_times_counts():
    later = AT.replace(year=2024)
    conditions, _ = pushed(GreaterThan(("timestamp",), later), GreaterThan(("timestamp",), AT))
    assert conditions.timestamp_ms_min == later.timestamp() * 1000


def test_records_with_other_keys_are_not_sent():
    conditions, left = pushed(In(("key",), (b"a", bytearray(b"c"))))
    assert left == []
    table = pa.record_batch({"key": pa.array([b"a", b"b", None, b"c"], pa.binary())})
    assert conditions.keep(table).column("key").to_pylist() == [b"a", b"c"]


@pytest.mark.parametrize(
    "condition",
    [
        Not(EqualTo(("topic",), "a")),
        StringStartsWith(("topic",), "a"),
        EqualTo(("value",), b"x"),
        EqualTo(("a", "offset"), 3),
        EqualTo(("key",), "text"),
        LessThan(("timestamp",), AT),
        IsNotNull(("key",)),
    ],
)
def test_what_is_not_understood_stays_with_spark(condition):
    assert pushed(condition) == (Conditions(), [condition])


@pytest.mark.parametrize("name", ["topic", "partition", "offset"])
def test_what_is_never_null_need_not_be_asked(name):
    assert pushed(IsNotNull((name,))) == (Conditions(), [])
