"""The value of a record of `millstream chaos run`: `chaos RUN PARTITION NUMBER`, filled with dots.

    chaos 5f0c2a9be114 2 1734 ..............

The id of the run tells its records from those of other clients, and of earlier runs.
"""

from __future__ import annotations

import re
from typing import NamedTuple

SIZE_MIN = 64
"""Size with room for the largest partition and number."""

_VALUE = re.compile(rb"chaos ([0-9a-f]+) ([0-9]+) ([0-9]+) \.*")


class NumberedRecord(NamedTuple):
    """Where a record was sent to, and its number there."""

    partition: int
    number: int


def encode_value(run: str, record: NumberedRecord, size: int) -> bytes:
    """Return the value of a record, with `size` bytes."""
    return f"chaos {run} {record.partition} {record.number} ".encode().ljust(size, b".")


def decode_value(run: str, value: bytes | None) -> NumberedRecord | None:
    """Return what a value says; None if it is not of this run."""
    match = _VALUE.fullmatch(value or b"")
    if match is None or match[1].decode() != run:
        return None
    return NumberedRecord(int(match[2]), int(match[3]))
