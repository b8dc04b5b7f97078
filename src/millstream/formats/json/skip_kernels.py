"""Kernels that validate and skip JSON of fields that are not in the schema. Need Numba."""

from __future__ import annotations

from millstream.formats.json.number_kernels import read_number
from millstream.formats.layout.json_text_kernels import QUOTE, read_string, skip_space
from millstream.formats.layout.kernel import kernel
from millstream.formats.layout.reasons import NOT_JSON, SKIPPED_DEPTH_MAX, TOO_DEEP, TRUNCATED
from millstream.formats.layout.slot_kernels import octet
from millstream.records.kernels.compiler import Octets

OPEN_OBJECT, CLOSE_OBJECT = 0x7B, 0x7D
OPEN_LIST, CLOSE_LIST = 0x5B, 0x5D
COMMA, COLON = 0x2C, 0x3A


@kernel
def read_word(source: Octets, position: int, end: int) -> tuple[int, int]:
    """Return the position after `true`, `false` or `null`, and 1, 0 or -1. Else return -1 and 0."""
    remaining = end - position
    first = octet(source, position)
    if first == 0x74 and remaining >= 4:
        if (
            octet(source, position + 1) == 0x72
            and octet(source, position + 2) == 0x75
            and octet(source, position + 3) == 0x65
        ):
            return position + 4, 1
    elif first == 0x66 and remaining >= 5:
        if (
            octet(source, position + 1) == 0x61
            and octet(source, position + 2) == 0x6C
            and octet(source, position + 3) == 0x73
            and octet(source, position + 4) == 0x65
        ):
            return position + 5, 0
    elif (
        first == 0x6E
        and remaining >= 4
        and octet(source, position + 1) == 0x75
        and octet(source, position + 2) == 0x6C
        and octet(source, position + 3) == 0x6C
    ):
        return position + 4, -1
    return -1, 0


@kernel
def skip_scalar(source: Octets, position: int, end: int) -> int:
    """Return the position after a string, number or word, or the negative of the reason."""
    byte = octet(source, position)
    if byte == QUOTE:
        position, _size = read_string(source, position + 1, end)
        return position
    if byte == 0x2D or 0x30 <= byte <= 0x39:
        after = read_number(source, position, end).end
    else:
        after, _word = read_word(source, position, end)
    return after if after >= 0 else -NOT_JSON


@kernel
def read_key(source: Octets, position: int, end: int) -> tuple[int, int, int]:
    """Read a name and its colon; return the position after, the name's position and size."""
    if position >= end:
        return -TRUNCATED, 0, 0
    if octet(source, position) != QUOTE:
        return -NOT_JSON, 0, 0
    start = position + 1
    position, size = read_string(source, start, end)
    if position < 0:
        return position, 0, 0
    position = skip_space(source, position, end)
    if position >= end:
        return -TRUNCATED, 0, 0
    if octet(source, position) != COLON:
        return -NOT_JSON, 0, 0
    return position + 1, start, size


@kernel
def skip_value(source: Octets, position: int, end: int) -> int:
    """Return the position after a value of any type, or the negative of the reason.

    `objects` is a stack of bits, one per open list or object: 1 for an object.
    """
    depth = 0
    objects = 0
    while True:
        position = skip_space(source, position, end)
        if position >= end:
            return -TRUNCATED
        byte = octet(source, position)
        is_opened = byte == OPEN_OBJECT or byte == OPEN_LIST
        if is_opened:
            if depth == SKIPPED_DEPTH_MAX:
                return -TOO_DEEP
            objects = (objects << 1) | (1 if byte == OPEN_OBJECT else 0)
            depth += 1
            position += 1
        else:
            position = skip_scalar(source, position, end)
            if position < 0:
                return position
        # After a value or an opening: close containers, or go to the next value.
        while True:
            if depth == 0:
                return position
            position = skip_space(source, position, end)
            if position >= end:
                return -TRUNCATED
            byte = octet(source, position)
            is_object = objects & 1 == 1
            if byte == (CLOSE_OBJECT if is_object else CLOSE_LIST):
                position += 1
                depth -= 1
                objects >>= 1
                is_opened = False
                continue
            if not is_opened:
                if byte != COMMA:
                    return -NOT_JSON
                position = skip_space(source, position + 1, end)
            is_opened = False
            if is_object:
                position, _start, _size = read_key(source, position, end)
                if position < 0:
                    return position
            break
