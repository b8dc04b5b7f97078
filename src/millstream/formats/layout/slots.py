"""Slots: the output of decoding kernels, in three lanes that are divided among the nodes.

    lane      content for an entry of a node
    firsts    the number; the start of text; the end of the items of a list or map
    seconds   the upper half of a decimal; the length of text
    states    UNSEEN, PRESENT or ABSENT

Entry `e` of node `n` is at index `bases[n] + e` of each lane. Level 0 has one entry per row. The
number of entries of other levels is known only after decoding: a kernel that finds a level full
undoes the current row, returns the level, and is called again after `grow`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from millstream.formats.layout.schema_plan import LEVEL, SchemaNodes
from millstream.records.kernels.compiler import Int64s, Octets

UNSEEN: Final = 0
"""The value has no such field: null."""
PRESENT: Final = 1
ABSENT: Final = 2
"""Explicitly null."""

_ENTRIES_LEAST = 256
"""Initial capacity of a level if there are fewer rows."""


class Slots(NamedTuple):
    """The lanes as kernels use them."""

    bases: Int64s
    capacities: Int64s
    """Capacity of each level, in entries."""
    counts: Int64s
    """Number of entries of each level. Level 0 has all its rows from the start."""
    firsts: Int64s
    reals: NDArray[np.float64]
    """The memory of `firsts` as float64."""
    seconds: Int64s
    states: Octets


def make_slots(nodes: SchemaNodes, rows: int) -> Slots:
    """Allocate slots for `rows` rows, and as many items in each list and map."""
    capacities = np.full(nodes.level_count, max(rows, _ENTRIES_LEAST), np.int64)
    capacities[0] = rows
    counts = np.zeros(nodes.level_count, np.int64)
    counts[0] = rows
    return _lay_out(nodes, capacities, counts)


def grow(nodes: SchemaNodes, slots: Slots, level: int) -> Slots:
    """Return a copy with twice the capacity on one level.

    Memory is not zeroed, so capacity that is never used costs address space only.
    """
    capacities = slots.capacities.copy()
    capacities[level] *= 2
    wider = _lay_out(nodes, capacities, slots.counts)
    for number, node in enumerate(nodes.nodes):
        size = int(slots.counts[node.level])
        old, new = int(slots.bases[number]), int(wider.bases[number])
        for source, target in (
            (slots.firsts, wider.firsts),
            (slots.seconds, wider.seconds),
            (slots.states, wider.states),
        ):
            target[new : new + size] = source[old : old + size]
    return wider


def _lay_out(nodes: SchemaNodes, capacities: Int64s, counts: Int64s) -> Slots:
    sizes = capacities[nodes.plan.table[:, LEVEL]]
    ends = np.cumsum(sizes)
    firsts = np.empty(int(ends[-1]), np.int64)
    return Slots(
        bases=ends - sizes,
        capacities=capacities,
        counts=counts,
        firsts=firsts,
        reals=firsts.view(np.float64),
        seconds=np.empty(firsts.size, np.int64),
        states=np.empty(firsts.size, np.uint8),
    )
