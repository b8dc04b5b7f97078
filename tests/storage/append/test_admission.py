"""Batches that have to wait are counted, by what they wait for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from millstream.storage.append.admission import Admission
from millstream.storage.append.byte_budget import ByteBudget
from millstream.storage.segment.counters import LogCounters


def waits(counters: LogCounters) -> tuple[int, int, int]:
    return counters.waits_log, counters.waits_store, counters.waits_sealing


def gate(counters: LogCounters, *, budget: int = 100, log: int = 100, stalled: bool = False) -> Any:
    return Admission(
        unflushed_bytes_max=log,
        budget=ByteBudget(budget),
        admit=lambda _: True,
        why_stalled=lambda: "two segments wait to be sealed" if stalled else None,
        counters=counters,
    )


def batch(size: int) -> Any:
    return SimpleNamespace(size=size)


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({"log": 10}, (1, 0, 0)),
        ({"budget": 10}, (0, 1, 0)),
        ({"stalled": True}, (0, 0, 2)),
        ({}, (0, 0, 0)),
    ],
)
def test_what_a_batch_waits_for_is_counted(limits: dict[str, Any], found: tuple[int, int, int]):
    counters = LogCounters()
    admission = gate(counters, **limits)
    admission.enter(batch(8))
    admission.enter(batch(8))
    assert waits(counters) == found


def test_who_waits_behind_others_waits_for_the_log():
    counters = LogCounters()
    admission = gate(counters, log=10)
    for size in (8, 8, 1):
        admission.enter(batch(size))
    assert waits(counters) == (2, 0, 0)
