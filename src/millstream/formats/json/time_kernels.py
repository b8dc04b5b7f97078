"""Kernels for dates and times in ISO 8601 format: `2026-07-01T12:30:00.5+02:00`. Need Numba."""

from __future__ import annotations

from typing import Final

from millstream.formats.layout.kernel import kernel
from millstream.formats.layout.slot_kernels import octet
from millstream.records.kernels.compiler import Octets

_SECOND: Final = 1_000_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR


@kernel
def _number(source: Octets, position: int, end: int, digits: int) -> int:
    """Return a number of exactly `digits` digits, or -1."""
    if position + digits > end:
        return -1
    value = 0
    for index in range(position, position + digits):
        digit = octet(source, index) - 0x30
        if digit < 0 or digit > 9:
            return -1
        value = value * 10 + digit
    return value


@kernel
def _is(source: Octets, position: int, end: int, letter: int) -> bool:
    return position < end and octet(source, position) == letter


@kernel
def read_date(source: Octets, start: int, end: int) -> tuple[int, int]:
    """Return the position after `YYYY-MM-DD`, or -1, and the day since 1970."""
    year = _number(source, start, end, 4)
    month = _number(source, start + 5, end, 2)
    day = _number(source, start + 8, end, 2)
    if not (_is(source, start + 4, end, 0x2D) and _is(source, start + 7, end, 0x2D)):
        return -1, 0
    if year < 1 or month < 1 or month > 12 or day < 1:
        return -1, 0
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    last = 31
    if month == 2:
        last = 29 if is_leap else 28
    elif month in (4, 6, 9, 11):
        last = 30
    if day > last:
        return -1, 0
    # Count years from March: the leap day is then the last day, and the lengths of the months
    # follow the formula (153 * month + 2) // 5 in every year.
    if month <= 2:
        year -= 1
        month += 12
    days = 365 * year + year // 4 - year // 100 + year // 400
    return start + 10, days + (153 * (month - 3) + 2) // 5 + day - 719_469


@kernel
def read_time(
    source: Octets,
    start: int,
    end: int,
    is_local: bool,
) -> tuple[bool, int]:
    """Return whether a date with an optional time is valid, and its microseconds since 1970.

    A time without an offset is in UTC. A local time must not have an offset. Digits below a
    microsecond are dropped.
    """
    position, days = read_date(source, start, end)
    if position < 0:
        return False, 0
    micros = days * _DAY
    if position == end:
        return True, micros
    if not (_is(source, position, end, 0x54) or _is(source, position, end, 0x20)):
        return False, 0
    hour = _number(source, position + 1, end, 2)
    minute = _number(source, position + 4, end, 2)
    if not _is(source, position + 3, end, 0x3A) or hour < 0 or hour > 23:
        return False, 0
    if minute < 0 or minute > 59:
        return False, 0
    micros += hour * _HOUR + minute * _MINUTE
    position += 6
    if _is(source, position, end, 0x3A):
        second = _number(source, position + 1, end, 2)
        if second < 0 or second > 59:
            return False, 0
        micros += second * _SECOND
        position += 3
        if _is(source, position, end, 0x2E):
            position += 1
            unit = _SECOND
            first = position
            while position < end and 0x30 <= octet(source, position) <= 0x39:
                unit //= 10  # 0 from the seventh digit on, which drops it.
                micros += (octet(source, position) - 0x30) * unit
                position += 1
            if position == first:
                return False, 0
    if position == end:
        return True, micros
    if is_local:
        return False, 0
    if _is(source, position, end, 0x5A):
        return position + 1 == end, micros
    return _in_utc(source, position, end, micros)


@kernel
def _in_utc(source: Octets, position: int, end: int, micros: int) -> tuple[bool, int]:
    """Convert a time with an offset (`+02:00`, `+0200` or `+02`) to UTC."""
    is_east = _is(source, position, end, 0x2B)
    if not is_east and not _is(source, position, end, 0x2D):
        return False, 0
    hours = _number(source, position + 1, end, 2)
    position += 3
    minutes = 0
    if position < end:
        if _is(source, position, end, 0x3A):
            position += 1
        minutes = _number(source, position, end, 2)
        position += 2
    if position != end or hours < 0 or hours > 18 or minutes < 0 or minutes > 59:
        return False, 0
    offset = hours * _HOUR + minutes * _MINUTE
    return True, micros - offset if is_east else micros + offset
