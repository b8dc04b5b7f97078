"""Kernels for JSON numbers, which never lose digits silently. Need Numba."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from millstream.formats.layout.kernel import kernel
from millstream.formats.layout.reasons import OUT_OF_RANGE, WRONG_TYPE
from millstream.formats.layout.slot_kernels import INT64_MIN, negated, octet, times_ten
from millstream.records.kernels.compiler import Octets

_TENS: Final = np.array([10.0**power for power in range(23)])
"""Powers of ten that a double represents exactly."""

_EXACT_DIGITS: Final = 15
_EXACT_POWER: Final = 22
_EXPONENT_MAX: Final = 100_000
"""Larger exponents are clamped to this: beyond every type, and small enough not to overflow."""

_LAST_STEP: Final = -922_337_203_685_477_580  # INT64_MIN without its last digit.

# The smallest number, as 17 digits and the power of ten of the first, that rounds to infinity.
_DOUBLE_POWER: Final = 308
_DOUBLE_BEYOND: Final = 17_976_931_348_623_159
_FLOAT_POWER: Final = 38
_FLOAT_BEYOND: Final = 34_028_235_677_973_367


class JsonNumber(NamedTuple):
    """A number as written. `end` is -1 if the text is not a number."""

    end: int
    is_negative: bool
    is_integer: bool
    """Written with neither a point nor an exponent."""
    digits: int
    """Number of significant digits, without leading zeros."""
    mantissa: int
    """The first 17 significant digits."""
    exponent: int
    """Power of ten of the last digit of `mantissa`."""


@kernel
def _is_digit(source: Octets, position: int, end: int) -> bool:
    return position < end and 0x30 <= octet(source, position) <= 0x39


@kernel
def read_number(source: Octets, position: int, end: int) -> JsonNumber:
    """Parse a JSON number."""
    none = JsonNumber(-1, False, False, 0, 0, 0)
    is_negative = position < end and octet(source, position) == 0x2D
    if is_negative:
        position += 1
    if not _is_digit(source, position, end):
        return none
    if octet(source, position) == 0x30 and _is_digit(source, position + 1, end):
        return none
    is_integer = True
    digits = 0
    mantissa = 0
    exponent = 0
    fraction = False
    while position < end:
        byte = octet(source, position)
        if byte == 0x2E and not fraction:
            fraction = True
            is_integer = False
            position += 1
            if not _is_digit(source, position, end):
                return none
            continue
        if byte < 0x30 or byte > 0x39:
            break
        position += 1
        digit = byte - 0x30
        # Count significant digits. `exponent` follows the last digit kept in `mantissa`: a digit
        # behind the point that is kept lowers it, one before the point that is dropped raises it.
        if digits or digit:
            digits += 1
            if digits <= 17:
                mantissa = mantissa * 10 + digit
                exponent -= 1 if fraction else 0
            else:
                exponent += 0 if fraction else 1
        else:
            exponent -= 1 if fraction else 0
    if position < end and octet(source, position) | 0x20 == 0x65:
        is_integer = False
        position += 1
        sign = 1
        if position < end and (octet(source, position) == 0x2D or octet(source, position) == 0x2B):
            sign = -1 if octet(source, position) == 0x2D else 1
            position += 1
        if not _is_digit(source, position, end):
            return none
        power = 0
        while _is_digit(source, position, end):
            power = min(power * 10 + octet(source, position) - 0x30, _EXPONENT_MAX)
            position += 1
        exponent += sign * power
    return JsonNumber(position, is_negative, is_integer, digits, mantissa, exponent)


@kernel
def integer_of(source: Octets, start: int, end: int) -> tuple[bool, int]:
    """Return whether an integer fits 64 bits, and its value."""
    # Accumulate the negative: its range is larger by one, so the lowest int64 needs no exception.
    value = 0
    is_negative = octet(source, start) == 0x2D
    for position in range(start + 1 if is_negative else start, end):
        digit = octet(source, position) - 0x30
        if value < _LAST_STEP or (value == _LAST_STEP and digit > 8):
            return False, 0
        value = value * 10 - digit
    if is_negative:
        return True, value
    return (False, 0) if value == INT64_MIN else (True, -value)


@kernel
def is_exact(number: JsonNumber) -> bool:
    """Whether `double_of` returns the nearest double: both factors are exact, so it rounds once."""
    return number.digits <= _EXACT_DIGITS and -_EXACT_POWER <= number.exponent <= _EXACT_POWER


@kernel
def double_of(number: JsonNumber) -> float:
    """Return the nearest double of a number that `is_exact`."""
    value = float(number.mantissa)
    if number.exponent < 0:
        value /= _TENS[-number.exponent]
    else:
        value *= _TENS[number.exponent]
    return float(-value if number.is_negative else value)


@kernel
def is_beyond(number: JsonNumber, is_double: bool) -> bool:
    """Whether a number is so large that it would become infinite."""
    if number.mantissa == 0:
        return False
    shown = min(number.digits, 17)
    power = number.exponent + shown - 1
    limit = _DOUBLE_POWER if is_double else _FLOAT_POWER
    if power != limit:
        return power > limit
    # Same magnitude as the limit: compare 17 digits.
    mantissa = number.mantissa
    for _ in range(17 - shown):
        mantissa *= 10
    return mantissa >= (_DOUBLE_BEYOND if is_double else _FLOAT_BEYOND)


@kernel
def decimal_of(
    source: Octets, start: int, end: int, precision: int, scale: int
) -> tuple[int, int, int]:
    """Return 0 and a number as the two halves of a 128-bit decimal, or the reason and zeros.

    A number with more decimal places than `scale` is refused unless the excess digits are zeros:
    rounding would change the number that was written.
    """
    number = read_number(source, start, end)
    if number.end != end:
        return WRONG_TYPE, 0, 0
    if number.digits == 0:
        return 0, 0, 0
    # The power of ten of the last digit as written; `mantissa` may end earlier.
    exponent = number.exponent - max(number.digits - 17, 0)
    low = 0
    high = 0
    used = 0
    taken = 0
    for position in range(start, end):
        byte = octet(source, position)
        if byte | 0x20 == 0x65:
            break
        if byte < 0x30 or byte > 0x39 or (taken == 0 and byte == 0x30):
            continue
        taken += 1
        # The power of ten of this digit, in units of the decimal's last place.
        power = number.digits - taken + exponent + scale
        if power < 0:
            if byte != 0x30:
                return OUT_OF_RANGE, 0, 0
            continue
        if power >= precision:
            return OUT_OF_RANGE, 0, 0
        low, high = times_ten(low, high, byte - 0x30)
        used = power
    # The last digit written may stand before the decimal's last place: append zeros.
    for _ in range(used):
        low, high = times_ten(low, high, 0)
    if number.is_negative:
        low, high = negated(low, high)
    return 0, low, high
