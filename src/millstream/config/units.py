"""Quantities with units: `64 MiB`, `30 s`.

A number without a unit is in bytes or milliseconds, as the end of the setting's name says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

TEXT_LENGTH_MAX = 40
"""Longer than any quantity that is accepted: 2^63 with an underscore after every digit has 38
characters.
"""

BINARY_UNITS: Mapping[str, int] = {
    "B": 1,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
BYTE_UNITS: Mapping[str, int] = {
    **BINARY_UNITS,
    "kB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
}
TIME_UNITS: Mapping[str, int] = {
    "ms": 1,
    "s": 1000,
    "min": 60 * 1000,
    "h": 60 * 60 * 1000,
    "d": 24 * 60 * 60 * 1000,
}
NO_UNITS: Mapping[str, int] = {}

_QUANTITY = re.compile(r"([0-9]+(?:_[0-9]+)*)(?:\.([0-9]+))?\s*([A-Za-z]*)")


def quantity(text: str, units: Mapping[str, int]) -> int:
    """Parse a quantity into its smallest unit; raises `ValueError` if it is not one.

    Units are not case-sensitive. A fraction has to come out as a whole number of the smallest unit.
    """
    text = text.strip()
    match = _QUANTITY.fullmatch(text) if len(text) <= TEXT_LENGTH_MAX else None
    if match is None:
        raise ValueError("not a number with a unit")
    digits, fraction, unit = match.groups()
    sizes = {name.lower(): size for name, size in units.items()}
    if unit and unit.lower() not in sizes:
        raise ValueError("unknown unit")
    from fractions import Fraction  # noqa: PLC0415 - commands that parse no quantity load none.

    number = Fraction(f"{digits.replace('_', '')}.{fraction or 0}") * sizes.get(unit.lower(), 1)
    if number.denominator != 1 or (fraction and not unit):
        raise ValueError("not a whole number of the smallest unit")
    return number.numerator


def with_unit(number: int, units: Mapping[str, int]) -> str:
    """Format a quantity in the largest unit in which it is a whole number."""
    for name, size in sorted(units.items(), key=lambda unit: unit[1], reverse=True):
        if number and size > 1 and number % size == 0:
            return f"{number // size} {name}"
    return str(number)
