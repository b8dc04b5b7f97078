"""Slots to Avro's binary encoding. Needs Numba.

A function that writes returns the position after what it wrote, or `NO_ROOM`.
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
    """Write the rows from `row` on; return where it ended, what is wrong there, and at which node.

    Value `i` lies from `ends[i]` to `ends[i + 1]` of `target`. It ends early, with nothing wrong,
    where there is no room.
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
    """Write one row; return the position after it, what is wrong, and at which node."""
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
        place = slots.bases[node] + entry
        if operation == END:
            return at, SOUND, 0
        is_present = slots.states[place] == PRESENT
        if operation == UNION:
            null_branch = program[step, ARGUMENT]
            at = put_long(target, at, 1 - null_branch if is_present else null_branch)
            step = step + 1 if is_present else program[step, TARGET]
        elif operation == JUMP:
            step = program[step, TARGET]
        elif operation == NEXT:
            opens = plan.table[node, OPENS]
            entry = loops.entries[opens] + 1
            if entry >= slots.firsts[place]:
                # A block was begun only where there are items; the list ends with an empty one.
                at = put_long(target, at, 0)
                step = program[step, TARGET]
            else:
                loops.entries[opens] = entry
                if entry == slots.seconds[place]:
                    at = put_long(target, at, slots.firsts[place] - entry)
                if program[step, ARGUMENT] and at >= 0:
                    key = slots.bases[plan.children[plan.table[node, CHILD_START]]] + entry
                    at = put_bytes(source, target, at, slots, key)
                step += 1
        elif operation == NULL:
            step += 1
        elif not is_present:
            return at, MISSING, node
        elif operation == ITEMS:
            loops.entries[plan.table[node, OPENS]] = slots.seconds[place] - 1
            step += 1
        elif operation == RECORD:
            step += 1
        else:
            at, code = put_scalar(source, target, at, program, step, slots, place)
            if code != SOUND:
                return at, code, node
            step += 1
        if at < 0:
            return NO_ROOM, SOUND, 0


@kernel
def put_scalar(
    source: Octets, target: Octets, at: int, program: Int64s, step: int, slots: Slots, place: int
) -> tuple[int, int]:
    """Write what has nothing inside; return the position after it, and what is wrong."""
    operation = program[step, OPERATION]
    argument = program[step, ARGUMENT]
    value = slots.firsts[place]
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
        if slots.seconds[place] != argument:
            return at, BAD_LENGTH
        if argument > target.size - at:
            return NO_ROOM, SOUND
        copy(source, value, target, at, argument)
        return at + argument, SOUND
    if operation == DECIMAL_BYTES or operation == DECIMAL_FIXED:
        return put_decimal(target, at, value, slots.seconds[place], operation, argument)
    return put_bytes(source, target, at, slots, place), SOUND


@kernel
def put_long(target: Octets, at: int, value: int) -> int:
    """Write a number."""
    if at < 0 or target.size - at < _LONG_SIZE_MAX:
        return NO_ROOM
    folded = (value << 1) ^ (value >> 63)
    while folded & ~0x7F:
        target[at] = (folded & 0x7F) | 0x80
        at += 1
        folded = (folded >> 7) & 0x1FFFFFFFFFFFFFF
    target[at] = folded
    return at + 1


@kernel
def put_bytes(source: Octets, target: Octets, at: int, slots: Slots, place: int) -> int:
    """Write a length, and as many bytes."""
    size = slots.seconds[place]
    at = put_long(target, at, size)
    if at < 0 or size > target.size - at:
        return NO_ROOM
    copy(source, slots.firsts[place], target, at, size)
    return int(at + size)


@kernel
def put_decimal(
    target: Octets, at: int, low: int, high: int, operation: int, size: int
) -> tuple[int, int]:
    """Write a number of 128 bits, the highest byte first: as short as it can be, or of a size."""
    sign = high >> 63
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
        place = size - 1 - index
        target[at + index] = byte_of(low, high, place) if place < 16 else sign & 0xFF
    return at + size, SOUND


@kernel
def byte_of(low: int, high: int, index: int) -> int:
    """Return one byte of a number of 128 bits, counted from the lowest."""
    if index < 8:
        return (low >> (8 * index)) & 0xFF
    return (high >> (8 * (index - 8))) & 0xFF
