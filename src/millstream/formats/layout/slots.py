"""Room for what a compiled loop finds: three lanes, and where each node has its part of them.

    lane      what an entry of a node has there
    firsts    the number; where text starts; where the items of a list or map end
    seconds   the upper half of a decimal; how long text is
    states    UNSEEN, PRESENT or ABSENT

The entry `e` of node `n` lies at `bases[n] + e` in each. Level 0 has as many entries as there are
rows. How many the other levels need is known only when all is read: a loop that finds no room
takes back what it did of the row, says which level is full, and is called again after `grown`.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from millstream.formats.layout.schema_plan import LEVEL, SchemaNodes
from millstream.records.kernels.compiler import Int64s, Octets

UNSEEN: Final = 0
"""Nothing was said of it: null."""
PRESENT: Final = 1
ABSENT: Final = 2
"""It was said to be null."""

_ENTRIES_LEAST = 256
"""Entries that a level has room for at first, if there are fewer rows."""


class Slots(NamedTuple):
    """The three lanes, as compiled loops see them."""

    bases: Int64s
    capacities: Int64s
    """How many entries each level has room for."""
    counts: Int64s
    """How many it has; level 0 has all its rows from the beginning."""
    firsts: Int64s
    reals: NDArray[np.float64]
    """The same memory as `firsts`."""
    seconds: Int64s
    states: Octets


def make_slots(nodes: SchemaNodes, rows: int) -> Slots:
    """Room for so many rows, and as many items in each list and map."""
    capacities = np.full(nodes.level_count, max(rows, _ENTRIES_LEAST), np.int64)
    capacities[0] = rows
    counts = np.zeros(nodes.level_count, np.int64)
    counts[0] = rows
    return _lay_out(nodes, capacities, counts)


def grown(nodes: SchemaNodes, slots: Slots, level: int) -> Slots:
    """Return the same with twice the room on one level.

    Nothing is zeroed before it is used, so room that is not needed costs addresses only.
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
