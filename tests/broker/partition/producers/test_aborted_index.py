"""Which aborted transactions are returned for a range of offsets."""

from __future__ import annotations

import pytest

from millstream.broker.partition.producers.aborted_index import AbortedIndex, AbortedRange

A = AbortedRange(1, 0, 10, 5)  # A transaction that started at offset 5 was still open when A ended.
B = AbortedRange(2, 5, 20, 21)
C = AbortedRange(3, 30, 35, 28)  # D started before C and ended after it.
D = AbortedRange(4, 28, 40, 41)
INDEX = (A, B, C, D)


@pytest.mark.parametrize(
    ("offset", "end_offset", "producers"),
    [
        (0, 1, [1]),
        (0, 5, [1]),
        (0, 6, [1, 2]),
        (0, 100, [1, 2, 3, 4]),
        (10, 11, [1, 2]),
        (11, 20, [2]),
        (21, 28, []),
        (21, 29, [4]),
        (21, 31, [3, 4]),
        (36, 100, [4]),
        (41, 100, []),
    ],
)
def test_a_reader_is_told_of_those_with_records_in_what_it_reads(offset, end_offset, producers):
    found = AbortedIndex(INDEX).between(offset, end_offset)
    assert [item.producer_id for item in found] == producers


def test_it_answers_as_looking_at_each_would():
    index = AbortedIndex(INDEX)
    for offset in range(45):
        for end_offset in range(offset + 1, 47):
            expected = [
                (item.producer_id, item.first_offset)
                for item in INDEX
                if item.last_offset >= offset and item.first_offset < end_offset
            ]
            assert [tuple(item) for item in index.between(offset, end_offset)] == expected


def test_what_ended_before_the_log_starts_is_trimmed():
    index = AbortedIndex(INDEX)
    index.trim(11)
    assert list(index) == [B, C, D]


def test_what_the_log_took_back_is_forgotten():
    index = AbortedIndex(INDEX)
    index.rewind(20)
    assert list(index) == [A]


def test_those_before_an_offset_are_listed():
    assert AbortedIndex(INDEX).before(35) == [A, B]


def test_markers_come_in_order():
    with pytest.raises(AssertionError):
        AbortedIndex([B, A])
