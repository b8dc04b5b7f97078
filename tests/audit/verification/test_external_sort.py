"""External sort with a small memory limit returns the same result as an in-memory sort."""

from __future__ import annotations

import random

import pytest

from millstream.audit.verification.external_sort import ExternalSort


@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 95, 1000])
def test_entries_come_back_in_their_order(count: int) -> None:
    rng = random.Random(count)
    entries = [rng.randrange(50).to_bytes(2) + rng.randbytes(3) for _ in range(count)]
    with ExternalSort(5, entries_max=10, runs_max=4) as sort:
        for entry in entries:
            sort.add(entry)
        assert list(sort.entries()) == sorted(entries)


def test_no_more_is_held_than_is_allowed() -> None:
    with ExternalSort(4, entries_max=10, runs_max=4) as sort:
        for number in range(10_000):
            sort.add((9_999 - number).to_bytes(4))
            assert len(sort._waiting) <= 10
            assert len(sort._runs) <= 5
        assert [int.from_bytes(one) for one in sort.entries()] == list(range(10_000))
