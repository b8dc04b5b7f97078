"""Kernels that encode slots in Avro's binary encoding. Need Numba.

A function that writes returns the position after its output, or `NO_ROOM`.
"""

from __future__ import annotations

from typing import Final

from millstream.formats.avro.avro_program import (
    ARGUMENT,
    BOOLEAN,
    DECIMAL_BYTES,
    DECIMAL_FIXED,
    DOUBLE,
    END,
    ENUM,
    FIXED,
    FLOAT,
    INT,
    ITEMS,
    JUMP,
    LONG,
    NEXT,
    NODE,
    NULL,
    OPERATION,
    RECORD,
    TARGET,
    UNION,
)
from millstream.formats.avro.read_kernels import AvroLoops
from millstream.formats.layout.kernel import kernel
from millstream.formats.layout.reasons import BAD_LENGTH, MISSING, OUT_OF_RANGE, SOUND
from millstream.formats.layout.schema_plan import CHILD_START, LEVEL, OPENS, SchemaPlan
from millstream.formats.layout.slot_kernels import copy
from millstream.formats.layout.slots import PRESENT, Slots
from millstream.records.kernels.compiler import Int64s, Octets

NO_ROOM: Final = -1
_LONG_SIZE_MAX: Final = 10


@kernel
def encode_avro(
    source: Octets,
    plan: SchemaPlan,
    program: Int64s,
    slots: Slots,
    loops: AvroLoops,
    frame: Octets,
    target: Octets,
    ends: Int64s,
    row: int,
) -> tuple[int, int, int]:
    """Encode rows from `row` on; return the row at which it stopped, the reason, and the node.

    Value `i` is `target[ends[i] : ends[i + 1]]`. If `target` is full, it stops early with `SOUND`.
    """
    while row < ends.size - 1:
        at, code, node = encode_row(
            source, plan, program, slots, loops, frame, target, ends[row], row
        )
        if at < 0 or code != SOUND:
            return row, code, node
        ends[row + 1] = at
        row += 1
    return row, SOUND, 0


@kernel
def encode_row(
    source: Octets,
    plan: SchemaPlan,
    program: Int64s,
    slots: Slots,
    loops: AvroLoops,
    frame: Octets,
    target: Octets,
    at: int,
    row: int,
) -> tuple[int, int, int]:
    """Encode one row; return the position after it, `SOUND` or the reason, and the node."""
    if frame.size > target.size - at:
        return NO_ROOM, SOUND, 0
    copy(frame, 0, target, at, frame.size)
    at += frame.size
    loops.entries[0] = row
    step = 0
    while True:
        operation = program[step, OPERATION]
        node = program[step, NODE]
        entry = loops.entries[plan.table[node, LEVEL]]
        slot = slots.bases[node] + entry
        if operation == END:
            return at, SOUND, 0
        is_present = slots.states[slot] == PRESENT
        if operation == UNION:
            null_branch = program[step, ARGUMENT]
            at = put_long(target, at, 1 - null_branch if is_present else null_branch)
            step = step + 1 if is_present else program[step, TARGET]
        elif operation == JUMP:
            step = program[step, TARGET]
        elif operation == NEXT:
            opens = plan.table[node, OPENS]
            entry = loops.entries[opens] + 1
            if entry >= slots.firsts[slot]:
                # All items are written as one block, which an empty list does not have. An empty
                # block ends the list.
                at = put_long(target, at, 0)
                step = program[step, TARGET]
            else:
                loops.entries[opens] = entry
                if entry == slots.seconds[slot]:  # The first item: the block's count comes first.
                    at = put_long(target, at, slots.firsts[slot] - entry)
                if program[step, ARGUMENT] and at >= 0:
                    key = slots.bases[plan.children[plan.table[node, CHILD_START]]] + entry
                    at = put_bytes(source, target, at, slots, key)
                step += 1
        elif operation == NULL:
            step += 1
        elif not is_present:  # Not in a union, or UNION would have jumped over it.
            return at, MISSING, node
        elif operation == ITEMS:
            # NEXT adds one before it looks, so this starts one before the first item.
            loops.entries[plan.table[node, OPENS]] = slots.seconds[slot] - 1
            step += 1
        elif operation == RECORD:
            step += 1
        else:
            at, code = put_scalar(source, target, at, program, step, slots, slot)
            if code != SOUND:
                return at, code, node
            step += 1
        if at < 0:
            return NO_ROOM, SOUND, 0


@kernel
def put_scalar(
    source: Octets, target: Octets, at: int, program: Int64s, step: int, slots: Slots, slot: int
) -> tuple[int, int]:
    """Encode a value without fields; return the position after it, and `SOUND` or the reason."""
    operation = program[step, OPERATION]
    argument = program[step, ARGUMENT]
    value = slots.firsts[slot]
    if operation == LONG:
        return put_long(target, at, value // argument if argument > 1 else value), SOUND
    if operation == INT or operation == ENUM:
        return put_long(target, at, value), SOUND
    if operation == DOUBLE or operation == FLOAT:
        size = 8 if operation == DOUBLE else 4
        if size > target.size - at:
            return NO_ROOM, SOUND
        for index in range(size):
            target[at + index] = (value >> (8 * index)) & 0xFF
        return at + size, SOUND
    if operation == BOOLEAN:
        if at >= target.size:
            return NO_ROOM, SOUND
        target[at] = value
        return at + 1, SOUND
    if operation == FIXED:
        if slots.seconds[slot] != argument:
            return at, BAD_LENGTH
        if argument > target.size - at:
            return NO_ROOM, SOUND
        copy(source, value, target, at, argument)
        return at + argument, SOUND
    if operation == DECIMAL_BYTES or operation == DECIMAL_FIXED:
        return put_decimal(target, at, value, slots.seconds[slot], operation, argument)
    return put_bytes(source, target, at, slots, slot), SOUND


@kernel
def put_long(target: Octets, at: int, value: int) -> int:
    """Encode a number as a zigzag varint."""
    if at < 0 or target.size - at < _LONG_SIZE_MAX:
        return NO_ROOM
    # Zigzag: small negative numbers become small positive ones. The mask below makes the shift
    # a logical one, since the sign bit of a folded number is data.
    folded = (value << 1) ^ (value >> 63)
    while folded & ~0x7F:
        target[at] = (folded & 0x7F) | 0x80
        at += 1
        folded = (folded >> 7) & 0x1FFFFFFFFFFFFFF
    target[at] = folded
    return at + 1


@kernel
def put_bytes(source: Octets, target: Octets, at: int, slots: Slots, slot: int) -> int:
    """Encode a length and the bytes."""
    size = slots.seconds[slot]
    at = put_long(target, at, size)
    if at < 0 or size > target.size - at:
        return NO_ROOM
    copy(source, slots.firsts[slot], target, at, size)
    return int(at + size)


@kernel
def put_decimal(
    target: Octets, at: int, low: int, high: int, operation: int, size: int
) -> tuple[int, int]:
    """Encode a 128-bit integer, big-endian: as short as possible, or `size` bytes for a fixed."""
    sign = high >> 63
    # Drop bytes in front that only repeat the sign, as long as the next byte still shows it.
    needed = 16
    while (
        needed > 1
        and byte_of(low, high, needed - 1) == sign & 0xFF
        and ((byte_of(low, high, needed - 2) >> 7) == (sign & 1))
    ):
        needed -= 1
    if operation == DECIMAL_BYTES:
        size = needed
        at = put_long(target, at, size)
    elif size < needed:
        return at, OUT_OF_RANGE
    if at < 0 or size > target.size - at:
        return NO_ROOM, SOUND
    for index in range(size):
        significance = size - 1 - index
        # A fixed may have more than 16 bytes: the ones in front repeat the sign.
        target[at + index] = byte_of(low, high, significance) if significance < 16 else sign & 0xFF
    return at + size, SOUND


@kernel
def byte_of(low: int, high: int, index: int) -> int:
    """Return one byte of a 128-bit integer; byte 0 is the least significant."""
    if index < 8:
        return (low >> (8 * index)) & 0xFF
    return (high >> (8 * (index - 8))) & 0xFF
