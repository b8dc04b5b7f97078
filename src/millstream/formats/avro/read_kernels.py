"""Avro's binary encoding to slots. Needs Numba.

Every length and every count is compared with the bytes that are left before it is used. Where a
position would be, the negative of what is wrong (`reasons.py`) tells that something is.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from millstream.formats.avro.avro_program import (
    ARGUMENT,
    BOOLEAN,
    BYTES,
    DECIMAL_BYTES,
    DOUBLE,
    END,
    ENUM,
    FIXED,
    FLOAT,
    INT,
    ITEMS,
    JUMP,
    LIMIT_HIGH,
    LIMIT_LOW,
    LONG,
    NEXT,
    NODE,
    NULL,
    OPERATION,
    RECORD,
    STRING,
    TARGET,
    UNION,
)
from millstream.formats.layout.kernel import kernel
from millstream.formats.layout.reasons import (
    BAD_BRANCH,
    BAD_FRAME,
    BAD_LENGTH,
    BAD_NUMBER,
    BAD_SYMBOL,
    BAD_TEXT,
    CUT_SHORT,
    FULL,
    OUT_OF_RANGE,
    SOUND,
    TRAILING,
    WRONG_TYPE,
    DecodeFailures,
)
from millstream.formats.layout.schema_plan import CHILD_START, LEVEL, OPENS, SchemaPlan
from millstream.formats.layout.slot_kernels import (
    INT64_MIN,
    add_entry,
    clear,
    is_utf8,
    negated,
    octet,
    remember,
    take_back,
    too_many,
)
from millstream.formats.layout.slots import ABSENT, PRESENT, Slots
from millstream.records.kernels.compiler import Int64s, Octets

FRAME_SIZE: Final = 5
"""A zero and the four bytes of a schema id, which Confluent's serializers put in front."""

_INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF


class AvroLoops(NamedTuple):
    """Lists and maps that are being read, and memory to work with."""

    entries: Int64s
    """The entry of each level that is being read."""
    left: Int64s
    """How many items of its block each list or map still has, the outermost first."""
    counts: Int64s
    """The items of each level before the row."""


@kernel
def decode_avro(
    source: Octets,
    ends: Int64s,
    is_null: Octets,
    plan: SchemaPlan,
    program: Int64s,
    slots: Slots,
    loops: AvroLoops,
    failures: DecodeFailures,
    frame: int,
    row: int,
) -> tuple[int, int]:
    """Read the values from `row` on; return the row where it ended, and the level that is full.

    Value `i` lies from `ends[i]` to `ends[i + 1]`, and its record `frame` bytes later. A bad row
    is null in all columns.
    """
    while row < is_null.size:
        remember(slots, loops.counts)
        clear(plan, slots, 0, row)
        if not is_null[row]:
            position, code, node = decode_row(
                source, ends[row], ends[row + 1], plan, program, slots, loops, frame, row
            )
            if code != SOUND:
                take_back(plan, slots, row, loops.counts)
                if code == FULL:
                    return row, node
                failures.codes[row] = code
                failures.nodes[row] = node
                failures.positions[row] = position - ends[row]
        row += 1
    return row, 0


@kernel
def decode_row(
    source: Octets,
    start: int,
    end: int,
    plan: SchemaPlan,
    program: Int64s,
    slots: Slots,
    loops: AvroLoops,
    frame: int,
    row: int,
) -> tuple[int, int, int]:
    """Read one value; return the position, `SOUND` or what is wrong, and at which node.

    Where a level is full, that level comes in place of the node.
    """
    if frame and (end - start < frame or octet(source, start) != 0):
        return start, BAD_FRAME, 0
    position = start + frame
    loops.entries[0] = row
    depth = 0
    step = 0
    while True:
        operation = program[step, OPERATION]
        node = program[step, NODE]
        level = plan.table[node, LEVEL]
        at = slots.bases[node] + loops.entries[level]
        if operation == END:
            return position, SOUND if position == end else TRAILING, 0
        if operation == RECORD:
            slots.states[at] = PRESENT
        elif operation == UNION:
            branch, after = read_long(source, position, end)
            if after < 0:
                return position, -after, node
            if branch == program[step, ARGUMENT]:
                slots.states[at] = ABSENT
                position = after
                step = program[step, TARGET]
                continue
            if branch != 1 - program[step, ARGUMENT]:
                return position, BAD_BRANCH, node
            position = after
        elif operation == ITEMS:
            slots.states[at] = PRESENT
            loops.left[depth] = 0
            depth += 1
        elif operation == NEXT:
            left = loops.left[depth - 1]
            if left == 0:
                left, after = read_count(source, position, end)
                if after < 0:
                    return position, -after, node
                position = after
            if left == 0:
                slots.firsts[at] = slots.counts[plan.table[node, OPENS]]
                code = too_many(slots, loops.counts)
                if code != SOUND:
                    return position, code, node
                depth -= 1
                step = program[step, TARGET]
                continue
            loops.left[depth - 1] = left - 1
            opens = plan.table[node, OPENS]
            entry = add_entry(plan, slots, opens)
            if entry < 0:
                return position, -entry, opens
            loops.entries[opens] = entry
            if program[step, ARGUMENT]:
                key = plan.children[plan.table[node, CHILD_START]]
                after = read_text(source, position, end, slots, slots.bases[key] + entry)
                if after < 0:
                    return position, -after, key
                position = after
        elif operation == JUMP:
            step = program[step, TARGET]
            continue
        else:
            after = read_scalar(source, position, end, program, step, slots, at)
            if after < 0:
                return position, -after, node
            position = after
        step += 1


@kernel
def read_scalar(
    source: Octets, position: int, end: int, program: Int64s, step: int, slots: Slots, at: int
) -> int:
    """Read what has nothing inside; return the position after it."""
    operation = program[step, OPERATION]
    argument = program[step, ARGUMENT]
    slots.states[at] = PRESENT
    if operation == LONG or operation == INT:
        value, after = read_long(source, position, end)
        if after >= 0 and (value < program[step, LIMIT_LOW] or value > program[step, LIMIT_HIGH]):
            return -OUT_OF_RANGE
        slots.firsts[at] = value * argument
        return after
    if operation == ENUM:
        value, after = read_long(source, position, end)
        if after >= 0 and (value < 0 or value >= argument):
            return -BAD_SYMBOL
        slots.firsts[at] = value
        return after
    if operation == STRING:
        return read_text(source, position, end, slots, at)
    if operation == BYTES:
        return read_bytes(source, position, end, slots, at)
    if operation == DOUBLE or operation == FLOAT:
        size = 8 if operation == DOUBLE else 4
        if size > end - position:
            return -CUT_SHORT
        bits = 0
        for index in range(size):
            bits |= octet(source, position + index) << (8 * index)
        slots.firsts[at] = bits
        slots.seconds[at] = 0
        return position + size
    if operation == BOOLEAN:
        if position >= end:
            return -CUT_SHORT
        value = octet(source, position)
        slots.firsts[at] = value
        return position + 1 if value <= 1 else -WRONG_TYPE
    if operation == FIXED:
        if argument > end - position:
            return -CUT_SHORT
        slots.firsts[at] = position
        slots.seconds[at] = argument
        return int(position + argument)
    if operation == NULL:
        slots.states[at] = ABSENT
        return position
    return read_decimal(source, position, end, program, step, slots, at)


@kernel
def read_long(source: Octets, position: int, end: int) -> tuple[int, int]:
    """Return a number and the position after it."""
    folded = 0
    for shift in range(0, 70, 7):
        if position >= end:
            return 0, -CUT_SHORT
        byte = octet(source, position)
        position += 1
        folded |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == 63 and byte > 1:
                return 0, -BAD_NUMBER
            return ((folded >> 1) & _INT64_MAX) ^ -(folded & 1), position
    return 0, -BAD_NUMBER


@kernel
def read_size(source: Octets, position: int, end: int) -> tuple[int, int]:
    """Return a length that the value has room for, and the position after it."""
    size, after = read_long(source, position, end)
    if after >= 0 and (size < 0 or size > end - after):
        return 0, -BAD_LENGTH
    return size, after


@kernel
def read_count(source: Octets, position: int, end: int) -> tuple[int, int]:
    """Return how many items the next block has, and the position after that.

    A negative count is followed by the size of the block in bytes. An item takes at least one.
    """
    count, after = read_long(source, position, end)
    if after >= 0 and count < 0:
        if count == INT64_MIN:
            return 0, -BAD_LENGTH
        count = -count
        _size, after = read_size(source, after, end)
    if after >= 0 and count > end - after:
        return 0, -BAD_LENGTH
    return count, after


@kernel
def read_bytes(source: Octets, position: int, end: int, slots: Slots, at: int) -> int:
    """Note where bytes lie; return the position after them."""
    size, after = read_size(source, position, end)
    if after < 0:
        return after
    slots.states[at] = PRESENT
    slots.firsts[at] = after
    slots.seconds[at] = size
    return after + size


@kernel
def read_text(source: Octets, position: int, end: int, slots: Slots, at: int) -> int:
    """Note where text lies; return the position after it."""
    after = read_bytes(source, position, end, slots, at)
    if after >= 0 and not is_utf8(source, slots.firsts[at], after):
        return -BAD_TEXT
    return after


@kernel
def read_decimal(
    source: Octets, position: int, end: int, program: Int64s, step: int, slots: Slots, at: int
) -> int:
    """Read a number of any length, the highest byte first; return the position after it."""
    size = program[step, ARGUMENT]
    if program[step, OPERATION] == DECIMAL_BYTES:
        size, position = read_size(source, position, end)
        if position < 0:
            return position
    if size > end - position:
        return -CUT_SHORT
    after = position + size
    sign = 0xFF if size and octet(source, position) >= 0x80 else 0
    while after - position > 16:  # Bytes in front that repeat the sign say nothing.
        if octet(source, position) != sign:
            return -OUT_OF_RANGE
        position += 1
    if size > 16 and (octet(source, position) ^ sign) >= 0x80:
        return -OUT_OF_RANGE
    low = -1 if sign else 0
    high = low
    for index in range(position, after):
        high = (high << 8) | ((low >> 56) & 0xFF)
        low = (low << 8) | octet(source, index)
    if is_beyond(low, high, program[step, LIMIT_LOW], program[step, LIMIT_HIGH]):
        return -OUT_OF_RANGE
    slots.firsts[at] = low
    slots.seconds[at] = high
    return int(after)


@kernel
def is_beyond(low: int, high: int, limit_low: int, limit_high: int) -> bool:
    """Whether a number of 128 bits is as large as a limit, or as far below zero."""
    if high < 0:
        low, high = negated(low, high)
        if high < 0:
            return True
    if high != limit_high:
        return high > limit_high
    # Halves are unsigned; turning the highest bit makes the comparison so.
    return (low ^ INT64_MIN) >= (limit_low ^ INT64_MIN)
