"""Sizes and times as people write them: `64 MiB`, `30 s`.

A number without a unit is in the unit that the setting's name ends on: bytes, or milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

TEXT_LENGTH_MAX = 40
"""Longer than any number with a unit that we take: 2^63 with every digit apart has 38."""

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
    """Return how many of the smallest unit `text` says; raises `ValueError` where it says none.

    Units are told apart without regard to case. A fraction has to come out whole.
    """
    text = text.strip()
    match = _QUANTITY.fullmatch(text) if len(text) <= TEXT_LENGTH_MAX else None
    if match is None:
        raise ValueError("no number")
    whole, fraction, unit = match.groups()
    known = {name.lower(): size for name, size in units.items()}
    if unit and unit.lower() not in known:
        raise ValueError("no such unit")
    number = Fraction(f"{whole.replace('_', '')}.{fraction or 0}") * known.get(unit.lower(), 1)
    if number.denominator != 1 or (fraction and not unit):
        raise ValueError("not whole")
    return number.numerator


def with_unit(number: int, units: Mapping[str, int]) -> str:
    """Return a quantity in the largest unit in which it is whole, as `quantity` reads it."""
    for name, size in sorted(units.items(), key=lambda unit: unit[1], reverse=True):
        if number and size > 1 and number % size == 0:
            return f"{number // size} {name}"
    return str(number)
