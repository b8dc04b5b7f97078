"""Sizes and times are read as people write them, exactly or not at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.config.units import (
    BINARY_UNITS,
    BYTE_UNITS,
    NO_UNITS,
    TIME_UNITS,
    quantity,
    with_unit,
)


@pytest.mark.parametrize(
    ("text", "units", "number"),
    [
        ("64 MiB", BYTE_UNITS, 64 * 1024**2),
        ("64MiB", BYTE_UNITS, 64 * 1024**2),
        (" 64 mib ", BYTE_UNITS, 64 * 1024**2),
        ("64 MB", BYTE_UNITS, 64_000_000),
        ("1.5 KiB", BYTE_UNITS, 1536),
        ("1 TiB", BYTE_UNITS, 1024**4),
        ("10 B", BYTE_UNITS, 10),
        ("4096", BYTE_UNITS, 4096),
        ("10_000", BYTE_UNITS, 10_000),
        ("30 s", TIME_UNITS, 30_000),
        ("0.25 s", TIME_UNITS, 250),
        ("2 min", TIME_UNITS, 120_000),
        ("1 h", TIME_UNITS, 3_600_000),
        ("7 d", TIME_UNITS, 7 * 86_400_000),
        ("0", NO_UNITS, 0),
        ("0.1 d", TIME_UNITS, 8_640_000),
    ],
)
def test_a_quantity_is_a_number_and_perhaps_a_unit(text, units, number):
    assert quantity(text, units) == number


@pytest.mark.parametrize(
    ("text", "units"),
    [
        *(
            (text, BYTE_UNITS)
            for text in ("", "MiB", "64 Mi", "64 s", "-1", "+1", "1e3", "1 2", "1.5")
        ),
        *((text, TIME_UNITS) for text in ("5 m", "0.5 ms", "1 month", "30 s s", "1,5 s", "0x10 s")),
        *((text, NO_UNITS) for text in ("5 B", "1.0", "_1", "1_", "1__0", "١٢", "9" * 41)),
    ],
)
def test_what_is_no_quantity_is_refused(text, units):
    with pytest.raises(ValueError, match=r"not a number|unknown unit|not a whole"):
        quantity(text, units)


@given(st.integers(0, 2**63), st.sampled_from([BINARY_UNITS, TIME_UNITS, NO_UNITS]))
def test_a_quantity_with_its_unit_is_read_as_what_it_was(number, units):
    assert quantity(with_unit(number, units), units) == number


@pytest.mark.parametrize(
    ("number", "units", "text"),
    [
        (256 * 1024**2, BINARY_UNITS, "256 MiB"),
        (1_000_000, BINARY_UNITS, "1000000"),
        (0, BINARY_UNITS, "0"),
        (90_000, TIME_UNITS, "90 s"),
        (86_400_000, TIME_UNITS, "1 d"),
        (15, TIME_UNITS, "15"),
        (60, NO_UNITS, "60"),
    ],
)
def test_a_quantity_is_shown_in_the_largest_unit_in_which_it_is_whole(number, units, text):
    assert with_unit(number, units) == text
