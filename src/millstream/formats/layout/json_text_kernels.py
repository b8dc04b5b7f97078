"""Strings of JSON: where they end, what they say. Needs Numba.

A function that finds something wrong returns the negative of why (`reasons.py`) as position.
"""

from __future__ import annotations

import numpy as np

from millstream.formats.layout.kernel import kernel
from millstream.formats.layout.reasons import BAD_TEXT, CUT_SHORT
from millstream.formats.layout.slot_kernels import copy, is_utf8, octet
from millstream.formats.layout.slots import PRESENT
from millstream.records.kernels.compiler import Int32s, Int64s, Octets

QUOTE, BACKSLASH = 0x22, 0x5C


@kernel
def skip_space(source: Octets, position: int, end: int) -> int:
    """Return the position of the next byte that is no white space."""
    while position < end:
        found = octet(source, position)
        if found != 0x20 and found != 0x0A and found != 0x0D and found != 0x09:
            return position
        position += 1
    return position


@kernel
def read_string(source: Octets, start: int, end: int) -> tuple[int, int]:
    """Check the string whose first byte after the quote is at `start`.

    Returns the position after the closing quote, and how many bytes the string has when its escapes
    are resolved; the complement of that (`~size`) where there are any.
    """
    position = start
    seen = 0
    size = 0
    has_escapes = False
    while position < end:
        found = octet(source, position)
        if found == QUOTE:
            if seen >= 0x80 and not is_utf8(source, start, position):
                return -BAD_TEXT, 0
            return position + 1, ~size if has_escapes else size
        if found < 0x20:
            return -BAD_TEXT, 0
        if found == BACKSLASH:
            has_escapes = True
            position, _code, width = read_escape(source, position, end)
            if position < 0:
                return position, 0
            size += width
            continue
        seen |= found
        size += 1
        position += 1
    return -CUT_SHORT, 0


@kernel
def read_escape(source: Octets, position: int, end: int) -> tuple[int, int, int]:
    """Return the position after an escape, what it stands for, and how many bytes that takes."""
    if position + 1 >= end:
        return -CUT_SHORT, 0, 0
    letter = octet(source, position + 1)
    position += 2
    if letter == QUOTE or letter == BACKSLASH or letter == 0x2F:
        return position, letter, 1
    if letter == 0x62:
        return position, 0x08, 1
    if letter == 0x66:
        return position, 0x0C, 1
    if letter == 0x6E:
        return position, 0x0A, 1
    if letter == 0x72:
        return position, 0x0D, 1
    if letter == 0x74:
        return position, 0x09, 1
    if letter != 0x75:
        return -BAD_TEXT, 0, 0
    code = read_hex(source, position, end)
    position += 4
    if code < 0 or 0xDC00 <= code <= 0xDFFF:
        return -BAD_TEXT, 0, 0
    if 0xD800 <= code < 0xDC00:  # Half of a character: the other half has to follow.
        if (
            position + 2 > end
            or octet(source, position) != BACKSLASH
            or octet(source, position + 1) != 0x75
        ):
            return -BAD_TEXT, 0, 0
        low = read_hex(source, position + 2, end)
        if low < 0xDC00 or low > 0xDFFF:
            return -BAD_TEXT, 0, 0
        return position + 6, 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00), 4
    return position, code, 1 if code < 0x80 else 2 if code < 0x800 else 3


@kernel
def read_hex(source: Octets, position: int, end: int) -> int:
    """Return the number that four hexadecimal digits stand for, -1 where they are none."""
    if position + 4 > end:
        return -1
    value = 0
    for index in range(position, position + 4):
        digit = octet(source, index)
        if 0x30 <= digit <= 0x39:
            digit -= 0x30
        elif 0x61 <= digit <= 0x66:
            digit -= 0x61 - 10
        elif 0x41 <= digit <= 0x46:
            digit -= 0x41 - 10
        else:
            return -1
        value = (value << 4) | digit
    return value


@kernel
def put_character(code: int, width: int, target: Octets, at: int) -> None:
    """Write a character as UTF-8 of a known width."""
    if width == 1:
        target[at] = code
    elif width == 2:
        target[at] = 0xC0 | (code >> 6)
        target[at + 1] = 0x80 | (code & 0x3F)
    elif width == 3:
        target[at] = 0xE0 | (code >> 12)
        target[at + 1] = 0x80 | ((code >> 6) & 0x3F)
        target[at + 2] = 0x80 | (code & 0x3F)
    else:
        target[at] = 0xF0 | (code >> 18)
        target[at + 1] = 0x80 | ((code >> 12) & 0x3F)
        target[at + 2] = 0x80 | ((code >> 6) & 0x3F)
        target[at + 3] = 0x80 | (code & 0x3F)


@kernel
def resolve(source: Octets, start: int, size: int, target: Octets, at: int) -> None:
    """Copy a string that `read_string` has checked, its escapes resolved, `size` bytes in all."""
    position = start
    stop = at + size
    while at < stop:
        found = octet(source, position)
        if found == BACKSLASH:
            position, code, width = read_escape(source, position, source.size)
            put_character(code, width, target, at)
            at += width
        else:
            target[np.uint64(at)] = found
            at += 1
            position += 1


@kernel
def gather_text(
    source: Octets, states: Octets, starts: Int64s, sizes: Int64s, ends: Int32s, target: Octets
) -> None:
    """Copy what is present into `target`, one right after the other, escapes resolved."""
    for entry in range(states.size):
        if states[entry] == PRESENT:
            if sizes[entry] < 0:
                resolve(source, starts[entry], ~sizes[entry], target, ends[entry])
            else:
                copy(source, starts[entry], target, ends[entry], sizes[entry])
