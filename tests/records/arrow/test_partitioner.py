"""Partitioner: the same partitions as Java's clients, by both implementations."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from aiokafka import partitioner as aiokafka_partitioner
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import RequestError
from millstream.records.arrow import partitioner, partitioner_vectorized
from millstream.records.arrow.partitioner import (
    partitions_of,
    partitions_python,
    rows_by_partition,
    rows_python,
)
from millstream.records.murmur2 import murmur2

# From the tests of Apache Kafka (UtilsTest.testMurmur2).
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
COUNT_MAX = 2**31 - 1

keys = st.one_of(st.none(), st.binary(max_size=20), st.binary(min_size=40, max_size=50))


@pytest.fixture(params=["plain", "kernels"], autouse=True)
def either_implementation(request, monkeypatch):
    """Run a test with both implementations, even with few rows."""
    is_plain = request.param == "plain"
    partitions = partitions_python if is_plain else partitioner_vectorized.partitions
    rows = rows_python if is_plain else partitioner_vectorized.rows
    monkeypatch.setattr(partitioner._PARTITIONS_OF, "choose", lambda records: partitions)
    monkeypatch.setattr(partitioner._ROWS_BY_PARTITION, "choose", lambda records: rows)


def test_hashes_are_those_that_kafka_tests_for():
    assert {key: murmur2(key) for key in KNOWN} == {key: h & 0xFFFFFFFF for key, h in KNOWN.items()}


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()])
@pytest.mark.parametrize("count", [1, 12, COUNT_MAX])
def test_known_keys_go_where_kafka_puts_them(kind, count):
    found = partitions_of(pa.array(list(KNOWN), pa.binary()).cast(kind), count)
    assert found.tolist() == [(hashed & 0x7FFFFFFF) % count for hashed in KNOWN.values()]
    assert found.dtype == np.int32


@settings(deadline=None)
@given(st.lists(keys, max_size=20), st.integers(1, COUNT_MAX), st.integers(0, 3))
def test_any_key_goes_where_aiokafka_puts_it(some, count, before):
    array = pa.array([b"other"] * before + some, pa.binary()).slice(before)
    expected = [
        -1 if key is None else (aiokafka_partitioner.murmur2(key) & 0x7FFFFFFF) % count
        for key in some
    ]
    assert partitions_of(array, count).tolist() == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 9), max_size=40))
def test_rows_come_by_partition_and_in_their_order(numbers):
    partitions = np.array(numbers, np.int32)
    found = rows_by_partition(partitions, 10)
    for partition in range(10):
        expected = [row for row, number in enumerate(numbers) if number == partition]
        assert found.of(partition).tolist() == expected
    assert found.bounds.tolist()[-1] == len(numbers)
    assert (found.rows.dtype, found.bounds.dtype) == (np.int64, np.int64)


@pytest.mark.parametrize("count", [0, -1, 2**31])
def test_a_number_of_partitions_that_no_topic_has_is_refused(count):
    with pytest.raises(
        RequestError, match=f"number of partitions must be between 1 and .*, got {count}"
    ):
        partitions_of(pa.array(["a"]), count)


def test_a_row_without_a_partition_has_to_be_given_one_first():
    with pytest.raises(RequestError, match="partitions must be between 0 and 3, got -1 to 2"):
        rows_by_partition(np.array([2, -1], np.int32), 4)
    with pytest.raises(RequestError, match="partitions must be between 0 and 3, got 2 to 4"):
        rows_by_partition(np.array([2, 4], np.int32), 4)


def test_keys_that_are_not_bytes_are_refused():
    with pytest.raises(RequestError, match="column key must be binary or string, got int64"):
        partitions_of(pa.array([1]), 4)
