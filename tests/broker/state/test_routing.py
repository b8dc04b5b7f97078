"""Which internal partition coordinates an id. These values are on disks: they never change."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.state.routing import (
    index_of_group,
    index_of_transactional_id,
    publisher_part,
)

GROUPS = {
    "": 0,
    "123456789": 0xCBF43926 % 16,  # The check value of CRC-32.
    "g": 6,
    "billing": 10,
    "console-consumer-12345": 4,
    "größe": 9,
    "日本": 12,
}

IDS = {
    "orders": 14,
    "orders/7": 14,
    "spark-query/2b7c4a2e-0f1d-4f4e-9d51-6d6c1a0b9e77": 0,
    "spark-job/nightly%2Fload": 6,
}


@pytest.mark.parametrize(("group_id", "expected"), GROUPS.items())
def test_a_group_is_always_in_the_same_partition(group_id: str, expected: int) -> None:
    assert index_of_group(group_id, 16) == expected


@pytest.mark.parametrize(("transactional_id", "expected"), IDS.items())
def test_a_transactional_id_is_always_in_the_same_partition(
    transactional_id: str, expected: int
) -> None:
    assert index_of_transactional_id(transactional_id, 16) == expected


@pytest.mark.parametrize(
    "publisher",
    ["spark-query/2b7c", "spark-job/nightly%2Fload", "p", "p/5", "p/5/6", "", "7", "/7"],
)
def test_the_tasks_of_a_publisher_are_in_its_partition(publisher: str) -> None:
    expected = index_of_transactional_id(publisher, 16)
    for task in range(40):
        for attempt in range(3):
            assert index_of_transactional_id(f"{publisher}/{task}/{attempt}", 16) == expected


@given(publisher=st.text(), task=st.integers(0, 10**6), attempt=st.integers(0, 99))
def test_this_holds_for_every_publisher(publisher: str, task: int, attempt: int) -> None:
    one = index_of_transactional_id(f"{publisher}/{task}/{attempt}", 16)
    assert one == index_of_transactional_id(publisher, 16)


def test_only_numbers_after_a_slash_are_left_out() -> None:
    assert publisher_part("a/1/2") == "a"
    assert publisher_part("a/1/b") == "a/1/b"
    assert publisher_part("a-1") == "a-1"
    assert publisher_part("a/1\n") == "a/1\n"
    assert publisher_part("a/\u0661") == "a/\u0661", "digits of ASCII only"


@pytest.mark.parametrize("pattern", ["group-{}", "{}", "consumer-{:05}", "app-{}-of-1000"])
def test_ids_that_count_are_spread_over_all_partitions(pattern: str) -> None:
    counts = Counter(index_of_group(pattern.format(number), 16) for number in range(1_600))
    assert len(counts) == 16
    assert max(counts.values()) <= 200
