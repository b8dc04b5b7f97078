"""Insertion of groups of batches into a key table, with kernels. Needs Numba."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millstream.records.batch import Bytes
from millstream.records.filter.keys import table_kernels
from millstream.records.filter.keys.memory import KeyMemory
from millstream.records.filter.keys.table_kernels import (
    KeyTableArrays,
    KeyTableUsage,
    RemovedOffsets,
)
from millstream.records.filter.rules import FilterRules
from millstream.records.kernels.batch_arrays import arrays_of_bodies, exclude_broken_batches
from millstream.records.opened_batch import OpenedBatch


def arrays_of(memory: KeyMemory) -> KeyTableArrays:
    """Return the memory of a table as input of the kernels."""
    low, high = memory.seed
    return KeyTableArrays(
        np.frombuffer(memory.slots, np.int64),
        np.frombuffer(memory.arena, np.int64),
        np.uint64(low),
        np.uint64(high),
    )


def removed_by(rules: FilterRules) -> RemovedOffsets:
    """Return the offsets that the rules remove as input of the kernels."""
    return RemovedOffsets(rules.start_offset, np.asarray(rules.deleted, np.int64))


def insert_keys(
    data: Bytes, group: Sequence[OpenedBatch], rules: FilterRules, memory: KeyMemory
) -> int:
    """Insert keys as long as there is space; return how many batches were inserted completely."""
    source, batches = arrays_of_bodies(data, group)
    exclude_broken_batches(source, batches)
    done, memory.count, memory.end = table_kernels.insert_keys(
        source,
        batches,
        removed_by(rules),
        arrays_of(memory),
        KeyTableUsage(memory.count, memory.count_max, memory.end, memory.end_max),
    )
    return done


def rehash(memory: KeyMemory) -> None:
    """Insert every key of the arena into empty slots."""
    table_kernels.rehash(arrays_of(memory), memory.end)
