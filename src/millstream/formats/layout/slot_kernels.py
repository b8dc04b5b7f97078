"""Kernels shared by JSON and Avro: entries, text, decimals. Need Numba.

Positions are int64 and compared with the end before a byte is read. As in
`records/kernels/decode_kernels.py`, indexes are converted to unsigned numbers, which saves the
compiler's check for negative ones.

No sum, difference or product in these kernels may exceed 64 bits: the compiler assumes that it
does not, and optimizes by that. Shifts may.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from millstream.formats.layout.kernel import kernel
from millstream.formats.layout.reasons import ITEMS_MAX, LEVEL_FULL, SOUND, TOO_MANY
from millstream.formats.layout.schema_plan import KIND, LIST, MAP, OPENS, SchemaPlan
from millstream.formats.layout.slots import UNSEEN, Slots
from millstream.records.kernels.compiler import Int32s, Int64s, Octets

INT64_MIN: Final = -0x8000000000000000


@kernel
def octet(source: Octets, position: int) -> int:
    """Return one byte as an int64. Numba would convert a mix of int64 and uint64 to float."""
    byte: Any = np.int64(source[np.uint64(position)])
    return byte  # type: ignore[no-any-return]


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
    """Return a new entry of a level, or `-LEVEL_FULL`."""
    entry = slots.counts[level]
    if entry >= slots.capacities[level]:
        return -LEVEL_FULL
    slots.counts[level] = entry + 1
    clear(plan, slots, level, entry)
    return int(entry)


@kernel
def check_item_count(slots: Slots, counts: Int64s) -> int:
    """Return `TOO_MANY` if the row has added more than `ITEMS_MAX` items since `counts`."""
    added = 0
    for level in range(1, counts.size):
        added += slots.counts[level] - counts[level]
    return TOO_MANY if added > ITEMS_MAX else SOUND


@kernel
def save_counts(slots: Slots, counts: Int64s) -> None:
    """Copy the number of entries of each level to `counts`."""
    for level in range(counts.size):
        counts[level] = slots.counts[level]


@kernel
def undo_row(plan: SchemaPlan, slots: Slots, row: int, counts: Int64s) -> None:
    """Make a row null, and remove the items that it has added since `counts`."""
    for level in range(1, counts.size):
        slots.counts[level] = counts[level]
    clear(plan, slots, 0, row)


@kernel
def is_utf8(source: Octets, start: int, end: int) -> bool:
    """Whether bytes are valid UTF-8: no overlong form, no surrogate, nothing above U+10FFFF."""
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
        # Some lead bytes restrict the second byte: overlong forms, surrogates, the upper limit.
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
    for index in range(size):
        target[np.uint64(at + index)] = source[np.uint64(start + index)]


@kernel
def write_offsets(states: Octets, sizes: Int64s, ends: Int32s) -> None:
    """Write Arrow's offsets: the running total of the sizes of entries that are present."""
    total = 0
    for entry in range(states.size):
        if states[entry] == 1:
            size = sizes[entry]
            total += size if size >= 0 else ~size
        ends[entry + 1] = total


@kernel
def times_ten(low: int, high: int, digit: int) -> tuple[int, int]:
    """Return a non-negative 128-bit integer, in two halves, times ten plus a digit."""
    # Four digits of 32 bits, so that no product exceeds 64 bits.
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
    """Return the negative of a 128-bit integer. The lowest one is returned unchanged."""
    if low != 0:
        return low if low == INT64_MIN else -low, ~high
    return low, high if high == INT64_MIN else -high
