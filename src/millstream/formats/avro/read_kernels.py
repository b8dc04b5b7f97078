"""Kernels that decode Avro's binary encoding to slots. Need Numba.

Every length and every count is compared with the remaining bytes before it is used. A function
that returns a position returns the negative of a code in `reasons.py` if the value is invalid.
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
    SWITCH,
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
    LEVEL_FULL,
    OUT_OF_RANGE,
    SOUND,
    TRAILING,
    TRUNCATED,
    WRONG_TYPE,
    DecodeFailures,
)
from millstream.formats.layout.schema_plan import CHILD_START, LEVEL, OPENS, SchemaPlan
from millstream.formats.layout.slot_kernels import (
    INT64_MIN,
    add_entry,
    check_item_count,
    clear,
    is_utf8,
    negated,
    octet,
    save_counts,
    undo_row,
)
from millstream.formats.layout.slots import ABSENT, PRESENT, Slots
from millstream.records.kernels.compiler import Int64s, Octets

FRAME_SIZE: Final = 5
"""Confluent's framing: a zero byte and a schema id of four bytes."""

_INT64_MAX: Final = 0x7FFFFFFFFFFFFFFF


class AvroLoops(NamedTuple):
    """State of the lists and maps that are being read, allocated by the caller."""

    entries: Int64s
    """The current entry of each level."""
    remaining: Int64s
    """Items left in the current block of each open list or map, the outermost first."""
    counts: Int64s
    """Number of items of each level before the current row."""


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
    """Decode values from `row` on; return the row at which it stopped, and the level that is full.

    Value `i` is `source[ends[i] : ends[i + 1]]`; its record starts `frame` bytes later. A bad row
    is null in all columns.
    """
    while row < is_null.size:
        save_counts(slots, loops.counts)
        clear(plan, slots, 0, row)
        if not is_null[row]:
            position, code, node = decode_row(
                source, ends[row], ends[row + 1], plan, program, slots, loops, frame, row
            )
            if code != SOUND:
                undo_row(plan, slots, row, loops.counts)
                if code == LEVEL_FULL:
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
    """Decode one value; return the position, `SOUND` or the reason, and the node.

    With `LEVEL_FULL`, the level is returned instead of the node.
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
        slot = slots.bases[node] + loops.entries[level]
        if operation == END:
            return position, SOUND if position == end else TRAILING, 0
        if operation == RECORD:  # Its fields follow as steps of their own.
            slots.states[slot] = PRESENT
        elif operation == UNION:
            branch, after = read_long(source, position, end)
            if after < 0:
                return position, -after, node
            if branch == program[step, ARGUMENT]:  # Null: skip the steps of the other branch.
                slots.states[slot] = ABSENT
                position = after
                step = program[step, TARGET]
                continue
            if branch != 1 - program[step, ARGUMENT]:
                return position, BAD_BRANCH, node
            position = after
        elif operation == ITEMS:
            # Open a loop with an empty block, so that NEXT reads the first block's count.
            slots.states[slot] = PRESENT
            loops.remaining[depth] = 0
            depth += 1
        elif operation == NEXT:
            remaining = loops.remaining[depth - 1]
            if remaining == 0:
                remaining, after = read_count(source, position, end)
                if after < 0:
                    return position, -after, node
                position = after
            if remaining == 0:  # An empty block ends the list or map.
                slots.firsts[slot] = slots.counts[plan.table[node, OPENS]]
                code = check_item_count(slots, loops.counts)
                if code != SOUND:
                    return position, code, node
                depth -= 1
                step = program[step, TARGET]
                continue
            loops.remaining[depth - 1] = remaining - 1
            opens = plan.table[node, OPENS]
            entry = add_entry(plan, slots, opens)
            if entry < 0:
                return position, -entry, opens
            loops.entries[opens] = entry
            if program[step, ARGUMENT]:  # A map: the key comes before each value.
                key = plan.children[plan.table[node, CHILD_START]]
                after = read_text(source, position, end, slots, slots.bases[key] + entry)
                if after < 0:
                    return position, -after, key
                position = after
        elif operation == JUMP:
            step = program[step, TARGET]
            continue
        elif operation == SWITCH:
            branch, after = read_long(source, position, end)
            if after < 0:
                return position, -after, node
            if branch < 0 or branch >= program[step, ARGUMENT]:
                return position, BAD_BRANCH, node
            slots.states[slot] = PRESENT
            position = after
            step += branch
        else:
            after = read_scalar(source, position, end, program, step, slots, slot)
            if after < 0:
                return position, -after, node
            position = after
        step += 1


@kernel
def read_scalar(
    source: Octets, position: int, end: int, program: Int64s, step: int, slots: Slots, slot: int
) -> int:
    """Decode a value without items or fields; return the position after it."""
    operation = program[step, OPERATION]
    argument = program[step, ARGUMENT]
    slots.states[slot] = PRESENT
    if operation == LONG or operation == INT:
        value, after = read_long(source, position, end)
        if after >= 0 and (value < program[step, LIMIT_LOW] or value > program[step, LIMIT_HIGH]):
            return -OUT_OF_RANGE
        slots.firsts[slot] = value * argument
        return after
    if operation == ENUM:
        value, after = read_long(source, position, end)
        if after >= 0 and (value < 0 or value >= argument):
            return -BAD_SYMBOL
        slots.firsts[slot] = value
        return after
    if operation == STRING:
        return read_text(source, position, end, slots, slot)
    if operation == BYTES:
        return read_bytes(source, position, end, slots, slot)
    if operation == DOUBLE or operation == FLOAT:
        size = 8 if operation == DOUBLE else 4
        if size > end - position:
            return -TRUNCATED
        bits = 0
        for index in range(size):
            bits |= octet(source, position + index) << (8 * index)
        slots.firsts[slot] = bits
        slots.seconds[slot] = 0
        return position + size
    if operation == BOOLEAN:
        if position >= end:
            return -TRUNCATED
        value = octet(source, position)
        slots.firsts[slot] = value
        return position + 1 if value <= 1 else -WRONG_TYPE
    if operation == FIXED:
        if argument > end - position:
            return -TRUNCATED
        slots.firsts[slot] = position
        slots.seconds[slot] = argument
        return int(position + argument)
    if operation == NULL:
        slots.states[slot] = ABSENT
        return position
    return read_decimal(source, position, end, program, step, slots, slot)


@kernel
def read_long(source: Octets, position: int, end: int) -> tuple[int, int]:
    """Return a zigzag varint and the position after it."""
    folded = 0
    for shift in range(0, 70, 7):
        if position >= end:
            return 0, -TRUNCATED
        byte = octet(source, position)
        position += 1
        folded |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == 63 and byte > 1:  # The tenth byte has room for one bit only.
                return 0, -BAD_NUMBER
            # Undo zigzag. The mask makes the shift a logical one.
            return ((folded >> 1) & _INT64_MAX) ^ -(folded & 1), position
    return 0, -BAD_NUMBER


@kernel
def read_size(source: Octets, position: int, end: int) -> tuple[int, int]:
    """Return a length that does not exceed the value, and the position after it."""
    size, after = read_long(source, position, end)
    if after >= 0 and (size < 0 or size > end - after):
        return 0, -BAD_LENGTH
    return size, after


@kernel
def read_count(source: Octets, position: int, end: int) -> tuple[int, int]:
    """Return the number of items in the next block, and the position after it.

    A negative count is followed by the size of the block in bytes. Each item takes at least one
    byte, so a count above the remaining bytes is invalid.
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
def read_bytes(source: Octets, position: int, end: int, slots: Slots, slot: int) -> int:
    """Store the position of bytes; return the position after them."""
    size, after = read_size(source, position, end)
    if after < 0:
        return after
    slots.states[slot] = PRESENT
    slots.firsts[slot] = after
    slots.seconds[slot] = size
    return after + size


@kernel
def read_text(source: Octets, position: int, end: int, slots: Slots, slot: int) -> int:
    """Store the position of text; return the position after it."""
    after = read_bytes(source, position, end, slots, slot)
    if after >= 0 and not is_utf8(source, slots.firsts[slot], after):
        return -BAD_TEXT
    return after


@kernel
def read_decimal(
    source: Octets, position: int, end: int, program: Int64s, step: int, slots: Slots, slot: int
) -> int:
    """Decode a big-endian integer of any length; return the position after it."""
    size = program[step, ARGUMENT]
    if program[step, OPERATION] == DECIMAL_BYTES:
        size, position = read_size(source, position, end)
        if position < 0:
            return position
    if size > end - position:
        return -TRUNCATED
    after = position + size
    sign = 0xFF if size and octet(source, position) >= 0x80 else 0
    # A writer may pad the number in front with bytes that repeat its sign. Skip them down to 16
    # bytes; any other byte there means more than 128 bits.
    while after - position > 16:
        if octet(source, position) != sign:
            return -OUT_OF_RANGE
        position += 1
    # The first byte that is kept has to show the sign that was padded.
    if size > 16 and (octet(source, position) ^ sign) >= 0x80:
        return -OUT_OF_RANGE
    low = -1 if sign else 0
    high = low
    for index in range(position, after):
        high = (high << 8) | ((low >> 56) & 0xFF)
        low = (low << 8) | octet(source, index)
    if is_beyond(low, high, program[step, LIMIT_LOW], program[step, LIMIT_HIGH]):
        return -OUT_OF_RANGE
    slots.firsts[slot] = low
    slots.seconds[slot] = high
    return int(after)


@kernel
def is_beyond(low: int, high: int, limit_low: int, limit_high: int) -> bool:
    """Whether the absolute value of a 128-bit integer reaches a limit."""
    if high < 0:
        low, high = negated(low, high)
        if high < 0:  # The lowest number of 128 bits, which has no positive counterpart.
            return True
    if high != limit_high:
        return high > limit_high
    # The low half is unsigned. Flipping the highest bit of both turns the signed comparison into
    # an unsigned one.
    return (low ^ INT64_MIN) >= (limit_low ^ INT64_MIN)
