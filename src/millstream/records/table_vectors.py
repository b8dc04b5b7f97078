"""Groups of batches into a table of keys, through the kernels. Needs Numba."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from millstream.records import table_kernels
from millstream.records.batch import Bytes
from millstream.records.key_memory import KeyMemory
from millstream.records.opened import Opened
from millstream.records.rules import Rules
from millstream.records.sources import lay_out, set_broken_aside
from millstream.records.table_kernels import Memory, Named, Used


def memory_of(memory: KeyMemory) -> Memory:
    """Show the memory of a table to the kernels."""
    low, high = memory.seed
    return Memory(
        np.frombuffer(memory.slots, np.int64),
        np.frombuffer(memory.arena, np.int64),
        np.uint64(low),
        np.uint64(high),
    )


def named_by(rules: Rules) -> Named:
    """Show the kernels which records go because of where they lie."""
    return Named(rules.start_offset, np.asarray(rules.deleted, np.int64))


def note(data: Bytes, group: Sequence[Opened], rules: Rules, memory: KeyMemory) -> int:
    """Enter keys as long as there is room; return how many batches are entered wholly."""
    source, batches = lay_out(data, group)
    set_broken_aside(source, batches)
    done, memory.count, memory.end = table_kernels.note_keys(
        source,
        batches,
        named_by(rules),
        memory_of(memory),
        Used(memory.count, memory.count_max, memory.end, memory.end_max),
    )
    return done


def rehash(memory: KeyMemory) -> None:
    """Enter every key of the arena into empty slots."""
    table_kernels.rehash(memory_of(memory), memory.end)
