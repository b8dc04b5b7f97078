"""Remaining records of groups of batches, with kernels. Needs Numba."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from millstream.errors import CorruptBatch
from millstream.records.batch import BatchHeader, Bytes
from millstream.records.filter import remaining_kernels
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
    """The header fields and the size of a batch to write."""

    number: int
    size: int
    record_count: int
    max_timestamp: int
    horizon: int | None
    shift: int


def remaining_of(
    data: Bytes, group: Sequence[OpenedBatch], rules: FilterRules
) -> list[RemainingRecords | CorruptBatch | None]:
    """Return for each batch what `remaining_records` returns."""
    source, batches = arrays_of_bodies(data, group)
    remaining: list[RemainingRecords | CorruptBatch | None] = [None] * len(group)
    for number, error in exclude_broken_batches(source, batches).items():
        remaining[number] = error
    removed_flags, plans = _select(source, batches, group, rules)
    for plan, records in zip(plans, _write(source, batches, removed_flags, plans), strict=True):
        remaining[plan.number] = RemainingRecords(
            records, plan.record_count, plan.max_timestamp, plan.horizon
        )
    return remaining


def _select(
    source: Octets, batches: Int64s, group: Sequence[OpenedBatch], rules: FilterRules
) -> tuple[Octets, list[_Plan]]:
    """Return the flags of removed records, and the plans of the batches that change."""
    headers = [opened.header for opened in group]
    horizons = [rules.horizon(header) for header in headers]
    shifts = [
        0 if horizon is None else header.base_timestamp - horizon
        for header, horizon in zip(headers, horizons, strict=True)
    ]
    kernel_rules = KernelRules(
        removed_by(rules),
        np.array([rules.removes_tombstones(header) for header in headers], np.int64),
        np.array([horizon is not None for horizon in horizons], np.int64),
        np.array(shifts, np.int64),
    )
    removed_flags = np.zeros(record_count(group), np.uint8)
    if rules.key_table is not None:
        mark_outdated(source, batches, arrays_of(rules.key_table.memory), removed_flags)
    stats = np.empty((len(group), remaining_kernels.STATS_COLUMNS), np.int64)
    remaining_kernels.select_records(source, batches, kernel_rules, removed_flags, stats)
    counts = batches[:, RECORD_COUNT].tolist()
    plans = [
        _plan(number, headers[number], horizons[number], shifts[number], stats_row)
        for number, stats_row in enumerate(stats.tolist())
    ]
    return removed_flags, [
        plan
        for plan in plans
        if plan.horizon is not None or plan.record_count < counts[plan.number]
    ]


def _plan(
    number: int, header: BatchHeader, horizon: int | None, shift: int, stats: list[int]
) -> _Plan:
    """Return the plan of a batch, from the statistics of its remaining records."""
    kept, kept_size, tombstones, max_timestamp, shifted_size = stats
    if header.is_log_append_time or not kept:
        max_timestamp = header.max_timestamp
    if horizon is not None and tombstones and 0 <= shifted_size <= rebased_size_max(header):
        return _Plan(number, shifted_size, kept, max_timestamp, horizon, shift)
    return _Plan(number, kept_size, kept, max_timestamp, None, 0)


def _write(
    source: Octets, batches: Int64s, removed_flags: Octets, plans: Sequence[_Plan]
) -> list[memoryview]:
    """Write the remaining records of all plans to one buffer, and return a slice of it for each."""
    first_rows = [0, *accumulate(batches[:, RECORD_COUNT].tolist())]
    ends = [0, *accumulate(plan.size for plan in plans)]
    lines = [
        (plan.number, first_rows[plan.number], start, plan.horizon is not None, plan.shift)
        for plan, start in zip(plans, ends, strict=False)
    ]
    target = np.empty(ends[-1], np.uint8)
    if lines:
        remaining_kernels.write_records(
            source, batches, removed_flags, np.array(lines, np.int64), target
        )
    view = target.data
    return [view[start : start + plan.size] for plan, start in zip(plans, ends, strict=False)]
