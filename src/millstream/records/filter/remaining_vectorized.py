"""What the rules leave of groups of batches, through the kernels. Needs Numba."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from millstream.errors import CorruptBatch
from millstream.records.batch import BatchHeader, Bytes
from millstream.records.filter import remaining_kernels as sift_kernels
from millstream.records.filter.keys.table_kernels import mark_outdated
from millstream.records.filter.keys.table_vectorized import arrays_of, removed_by
from millstream.records.filter.remaining import RemainingRecords, rebased_size_max
from millstream.records.filter.remaining_kernels import KernelRules
from millstream.records.filter.rules import FilterRules
from millstream.records.kernels.batch_arrays import arrays_of_bodies, exclude_broken_batches
from millstream.records.kernels.compiler import Int64s, Octets
from millstream.records.kernels.decode_kernels import RECORD_COUNT
from millstream.records.opened_batch import OpenedBatch, record_count


class _Plan(NamedTuple):
    """What is left of a batch, before it is written."""

    number: int
    size: int
    record_count: int
    max_timestamp: int
    horizon: int | None
    shift: int


def remaining_of(
    data: Bytes, group: Sequence[OpenedBatch], rules: FilterRules
) -> list[RemainingRecords | CorruptBatch | None]:
    """Return for each batch what `rest.rest_of` does."""
    source, batches = arrays_of_bodies(data, group)
    rests: list[RemainingRecords | CorruptBatch | None] = [None] * len(group)
    for number, error in exclude_broken_batches(source, batches).items():
        rests[number] = error
    goes, plans = _select(source, batches, group, rules)
    for plan, records in zip(plans, _write(source, batches, goes, plans), strict=True):
        rests[plan.number] = RemainingRecords(
            records, plan.record_count, plan.max_timestamp, plan.horizon
        )
    return rests


def _select(
    source: Octets, batches: Int64s, group: Sequence[OpenedBatch], rules: FilterRules
) -> tuple[Octets, list[_Plan]]:
    """Find out which records go, and what is to be written of the batches that change."""
    headers = [opened.header for opened in group]
    horizons = [rules.horizon(header) for header in headers]
    shifts = [
        0 if horizon is None else header.base_timestamp - horizon
        for header, horizon in zip(headers, horizons, strict=True)
    ]
    asked = KernelRules(
        removed_by(rules),
        np.array([rules.remove_tombstones(header) for header in headers], np.int64),
        np.array([horizon is not None for horizon in horizons], np.int64),
        np.array(shifts, np.int64),
    )
    goes = np.zeros(record_count(group), np.uint8)
    if rules.latest is not None:
        mark_outdated(source, batches, arrays_of(rules.latest.memory), goes)
    found = np.empty((len(group), sift_kernels.FOUND_COLUMNS), np.int64)
    sift_kernels.select_records(source, batches, asked, goes, found)
    counts = batches[:, RECORD_COUNT].tolist()
    plans = [
        _plan(number, headers[number], horizons[number], shifts[number], left)
        for number, left in enumerate(found.tolist())
    ]
    return goes, [
        plan
        for plan in plans
        if plan.horizon is not None or plan.record_count < counts[plan.number]
    ]


def _plan(
    number: int, header: BatchHeader, horizon: int | None, shift: int, found: list[int]
) -> _Plan:
    """Say what would be written of a batch."""
    kept, kept_size, tombstones, max_timestamp, shifted_size = found
    if header.is_log_append_time or not kept:
        max_timestamp = header.max_timestamp
    if horizon is not None and tombstones and 0 <= shifted_size <= rebased_size_max(header):
        return _Plan(number, shifted_size, kept, max_timestamp, horizon, shift)
    return _Plan(number, kept_size, kept, max_timestamp, None, 0)


def _write(
    source: Octets, batches: Int64s, goes: Octets, plans: Sequence[_Plan]
) -> list[memoryview]:
    """Write what is left of batches, all into one buffer, and return each as a part of it."""
    first_rows = [0, *accumulate(batches[:, RECORD_COUNT].tolist())]
    ends = [0, *accumulate(plan.size for plan in plans)]
    told = [
        (plan.number, first_rows[plan.number], start, plan.horizon is not None, plan.shift)
        for plan, start in zip(plans, ends, strict=False)
    ]
    target = np.empty(ends[-1], np.uint8)
    if told:
        sift_kernels.write_records(source, batches, goes, np.array(told, np.int64), target)
    view = target.data
    return [view[start : start + plan.size] for plan, start in zip(plans, ends, strict=False)]
