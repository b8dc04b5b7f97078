"""JSON that no field asks for: checked and passed over. Needs Numba."""

from __future__ import annotations

from millstream.formats.json.number_kernels import read_number
from millstream.formats.layout.json_text_kernels import QUOTE, read_string, skip_space
from millstream.formats.layout.kernel import kernel
from millstream.formats.layout.reasons import CUT_SHORT, NOT_JSON, SKIPPED_DEPTH_MAX, TOO_DEEP
from millstream.formats.layout.slot_kernels import octet
from millstream.records.kernels.compiler import Octets

OPEN_OBJECT, CLOSE_OBJECT = 0x7B, 0x7D
OPEN_LIST, CLOSE_LIST = 0x5B, 0x5D
COMMA, COLON = 0x2C, 0x3A


@kernel
def read_word(source: Octets, position: int, end: int) -> tuple[int, int]:
    """Return the position after `true`, `false` or `null`, and 1, 0 or -1; else -1 and 0."""
    left = end - position
    first = octet(source, position)
    if first == 0x74 and left >= 4:
        if (
            octet(source, position + 1) == 0x72
            and octet(source, position + 2) == 0x75
            and octet(source, position + 3) == 0x65
        ):
            return position + 4, 1
    elif first == 0x66 and left >= 5:
        if (
            octet(source, position + 1) == 0x61
            and octet(source, position + 2) == 0x6C
            and octet(source, position + 3) == 0x73
            and octet(source, position + 4) == 0x65
        ):
            return position + 5, 0
    elif (
        first == 0x6E
        and left >= 4
        and octet(source, position + 1) == 0x75
        and octet(source, position + 2) == 0x6C
        and octet(source, position + 3) == 0x6C
    ):
        return position + 4, -1
    return -1, 0


@kernel
def skip_scalar(source: Octets, position: int, end: int) -> int:
    """Return the position after a string, a number or a word; the negative of what is wrong."""
    found = octet(source, position)
    if found == QUOTE:
        position, _size = read_string(source, position + 1, end)
        return position
    if found == 0x2D or 0x30 <= found <= 0x39:
        after = read_number(source, position, end).end
    else:
        after, _word = read_word(source, position, end)
    return after if after >= 0 else -NOT_JSON


@kernel
def read_key(source: Octets, position: int, end: int) -> tuple[int, int, int]:
    """Read a name and its colon: the position after, where the name starts, and its size."""
    if position >= end:
        return -CUT_SHORT, 0, 0
    if octet(source, position) != QUOTE:
        return -NOT_JSON, 0, 0
    start = position + 1
    position, size = read_string(source, start, end)
    if position < 0:
        return position, 0, 0
    position = skip_space(source, position, end)
    if position >= end:
        return -CUT_SHORT, 0, 0
    if octet(source, position) != COLON:
        return -NOT_JSON, 0, 0
    return position + 1, start, size


@kernel
def skip_value(source: Octets, position: int, end: int) -> int:
    """Return the position after a value of any kind; the negative of what is wrong.

    `objects` has a bit for each list or object around: 1 for an object.
    """
    depth = 0
    objects = 0
    while True:
        position = skip_space(source, position, end)
        if position >= end:
            return -CUT_SHORT
        found = octet(source, position)
        is_opened = found == OPEN_OBJECT or found == OPEN_LIST
        if is_opened:
            if depth == SKIPPED_DEPTH_MAX:
                return -TOO_DEEP
            objects = (objects << 1) | (1 if found == OPEN_OBJECT else 0)
            depth += 1
            position += 1
        else:
            position = skip_scalar(source, position, end)
            if position < 0:
                return position
        # After a value, or right inside a list or an object: on to the next value.
        while True:
            if depth == 0:
                return position
            position = skip_space(source, position, end)
            if position >= end:
                return -CUT_SHORT
            found = octet(source, position)
            is_object = objects & 1 == 1
            if found == (CLOSE_OBJECT if is_object else CLOSE_LIST):
                position += 1
                depth -= 1
                objects >>= 1
                is_opened = False
                continue
            if not is_opened:
                if found != COMMA:
                    return -NOT_JSON
                position = skip_space(source, position + 1, end)
            is_opened = False
            if is_object:
                position, _start, _size = read_key(source, position, end)
                if position < 0:
                    return position
            break
