"""Kernels for JSON strings. Need Numba.

A function that returns a position returns the negative of a code in `reasons.py` if the text is
invalid.
"""

from __future__ import annotations

import numpy as np

from millstream.formats.layout.kernel import kernel
from millstream.formats.layout.reasons import BAD_TEXT, TRUNCATED
from millstream.formats.layout.slot_kernels import copy, is_utf8, octet
from millstream.formats.layout.slots import PRESENT
from millstream.records.kernels.compiler import Int32s, Int64s, Octets

QUOTE, BACKSLASH = 0x22, 0x5C


@kernel
def skip_space(source: Octets, position: int, end: int) -> int:
    """Return the position of the next byte that is not white space."""
    while position < end:
        byte = octet(source, position)
        if byte != 0x20 and byte != 0x0A and byte != 0x0D and byte != 0x09:
            return position
        position += 1
    return position


@kernel
def read_string(source: Octets, start: int, end: int) -> tuple[int, int]:
    """Validate the string whose first byte after the quote is at `start`.

    Returns the position after the closing quote, and the size in bytes with escapes resolved. If
    there are escapes, the size is returned as its complement (`~size`).
    """
    position = start
    seen = 0
    size = 0
    has_escapes = False
    while position < end:
        byte = octet(source, position)
        if byte == QUOTE:
            if seen >= 0x80 and not is_utf8(source, start, position):
                return -BAD_TEXT, 0
            return position + 1, ~size if has_escapes else size
        if byte < 0x20:
            return -BAD_TEXT, 0
        if byte == BACKSLASH:
            has_escapes = True
            position, _code, width = read_escape(source, position, end)
            if position < 0:
                return position, 0
            size += width
            continue
        seen |= byte  # Shows at the end whether any byte was not ASCII.
        size += 1
        position += 1
    return -TRUNCATED, 0


@kernel
def read_escape(source: Octets, position: int, end: int) -> tuple[int, int, int]:
    """Return the position after an escape, its code point, and the size of that in UTF-8."""
    if position + 1 >= end:
        return -TRUNCATED, 0, 0
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
    if 0xD800 <= code < 0xDC00:  # A high surrogate: the low one has to follow.
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
    """Return the number in four hexadecimal digits, or -1."""
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
    """Write a code point as UTF-8 of `width` bytes."""
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
    """Copy a string that `read_string` has validated, with escapes resolved to `size` bytes."""
    position = start
    stop = at + size
    while at < stop:
        byte = octet(source, position)
        if byte == BACKSLASH:
            position, code, width = read_escape(source, position, source.size)
            put_character(code, width, target, at)
            at += width
        else:
            target[np.uint64(at)] = byte
            at += 1
            position += 1


@kernel
def gather_text(
    source: Octets, states: Octets, starts: Int64s, sizes: Int64s, ends: Int32s, target: Octets
) -> None:
    """Copy all text that is present to `target`, contiguously and with escapes resolved."""
    for entry in range(states.size):
        if states[entry] == PRESENT:
            if sizes[entry] < 0:
                resolve(source, starts[entry], ~sizes[entry], target, ends[entry])
            else:
                copy(source, starts[entry], target, ends[entry], sizes[entry])
