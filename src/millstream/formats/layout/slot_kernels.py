"""What all compiled loops over values share: entries, text, decimals. Needs Numba.

Positions are int64 and checked against the end before a byte is read. As in
`records/kernels/decode_kernels.py`, an unsigned index spares the test for a negative one.

No sum, difference or product of these loops may need more than 64 bits: the compiler takes that
for granted, and draws conclusions from it. Shifts may.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from millstream.formats.layout.kernel import kernel
from millstream.formats.layout.reasons import FULL, ITEMS_MAX, SOUND, TOO_MANY
from millstream.formats.layout.schema_plan import KIND, LIST, MAP, OPENS, SchemaPlan
from millstream.formats.layout.slots import UNSEEN, Slots
from millstream.records.kernels.compiler import Int32s, Int64s, Octets

INT64_MIN: Final = -0x8000000000000000


@kernel
def octet(source: Octets, position: int) -> int:
    """Return one byte as a signed number, since Numba makes floats of a mix."""
    found: Any = np.int64(source[np.uint64(position)])
    return found  # type: ignore[no-any-return]


@kernel
def clear(plan: SchemaPlan, slots: Slots, level: int, entry: int) -> None:
    """Make every node of an entry null, and its lists and maps empty."""
    for node in range(plan.level_starts[level], plan.level_starts[level + 1]):
        at = slots.bases[node] + entry
        slots.states[at] = UNSEEN
        if plan.table[node, KIND] == LIST or plan.table[node, KIND] == MAP:
            slots.firsts[at] = slots.counts[plan.table[node, OPENS]]


@kernel
def add_entry(plan: SchemaPlan, slots: Slots, level: int) -> int:
    """Return a new entry of a level, or the negative of why there is none."""
    entry = slots.counts[level]
    if entry >= slots.capacities[level]:
        return -FULL
    slots.counts[level] = entry + 1
    clear(plan, slots, level, entry)
    return int(entry)


@kernel
def too_many(slots: Slots, counts: Int64s) -> int:
    """Return `TOO_MANY` if a row has added more items than it may since `counts`."""
    added = 0
    for level in range(1, counts.size):
        added += slots.counts[level] - counts[level]
    return TOO_MANY if added > ITEMS_MAX else SOUND


@kernel
def remember(slots: Slots, counts: Int64s) -> None:
    """Note how many items each level has."""
    for level in range(counts.size):
        counts[level] = slots.counts[level]


@kernel
def take_back(plan: SchemaPlan, slots: Slots, row: int, counts: Int64s) -> None:
    """Make a row null, and forget the items that it has added since `counts`."""
    for level in range(1, counts.size):
        slots.counts[level] = counts[level]
    clear(plan, slots, 0, row)


@kernel
def is_utf8(source: Octets, start: int, end: int) -> bool:
    """Whether bytes are text: no overlong form, no surrogate, nothing above U+10FFFF."""
    position = start
    while position < end:
        lead = octet(source, position)
        position += 1
        if lead < 0x80:
            continue
        if lead < 0xC2 or lead > 0xF4:
            return False
        more = 1 if lead < 0xE0 else 2 if lead < 0xF0 else 3
        if position + more > end:
            return False
        second = octet(source, position)
        if (
            (lead == 0xE0 and second < 0xA0)
            or (lead == 0xED and second > 0x9F)
            or (lead == 0xF0 and second < 0x90)
            or (lead == 0xF4 and second > 0x8F)
        ):
            return False
        for index in range(position, position + more):
            if octet(source, index) & 0xC0 != 0x80:
                return False
        position += more
    return True


@kernel
def copy(source: Octets, start: int, target: Octets, at: int, size: int) -> None:
    """Copy bytes."""
    for index in range(size):
        target[np.uint64(at + index)] = source[np.uint64(start + index)]


@kernel
def lay_ends(states: Octets, sizes: Int64s, ends: Int32s) -> None:
    """Add up the sizes of what is present, as Arrow's offsets."""
    total = 0
    for entry in range(states.size):
        if states[entry] == 1:
            size = sizes[entry]
            total += size if size >= 0 else ~size
        ends[entry + 1] = total


@kernel
def times_ten(low: int, high: int, digit: int) -> tuple[int, int]:
    """Return a positive number of 128 bits, in two halves, times ten and plus a digit."""
    mask = 0xFFFFFFFF
    part = (low & mask) * 10 + digit
    first = part & mask
    part = ((low >> 32) & mask) * 10 + (part >> 32)
    second = part & mask
    part = (high & mask) * 10 + (part >> 32)
    third = part & mask
    part = ((high >> 32) & mask) * 10 + (part >> 32)
    return first | (second << 32), third | ((part & mask) << 32)


@kernel
def negated(low: int, high: int) -> tuple[int, int]:
    """Return the negative of a number of 128 bits; the lowest has none, and stays what it is."""
    if low != 0:
        return low if low == INT64_MIN else -low, ~high
    return low, high if high == INT64_MIN else -high
