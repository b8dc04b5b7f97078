"""Checks of batches: whether a reader of their topic could read all values.

What a check lets through is exactly what the Spark source reads, because it decodes the values with
the same code.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millstream.errors import InvalidConfig
from millstream.formats.names import VALUE_CHECK_CONFIG, VALUE_FORMAT_CONFIG, VALUE_SCHEMA_CONFIG
from millstream.records.batch import Bytes

if TYPE_CHECKING:
    from millstream.formats.value_format import ValueFormat


class FormatCheck:
    """Check of one format and schema. Nothing is imported before the first batch."""

    def __init__(self, kind: str, schema: str) -> None:
        self._declared = {VALUE_FORMAT_CONFIG: kind, VALUE_SCHEMA_CONFIG: schema}
        self._lock = threading.Lock()
        self._format: ValueFormat | None = None
        self.is_fast = False
        """Whether a batch was checked: formats are imported and compiled at the first."""

    def faults(self, batch: Bytes, *, size_max: int, limit: int) -> Sequence[tuple[int, str]]:
        """Return index and reason of the first `limit` records that cannot be read.

        A record without a value can be read.
        """
        value_format = self._opened()
        from millstream.records.arrow.decoder import arrow_batches  # noqa: PLC0415

        found: list[tuple[int, str]] = []
        index = 0
        for rows in arrow_batches(batch, columns=["value"], check=False, size_max=size_max):
            decoded = value_format.decode(rows.column("value"))
            bad = decoded.bad[: limit - len(found)].tolist()
            reasons = decoded.reasons[: len(bad)].to_pylist()
            found += [(index + row, why) for row, why in zip(bad, reasons, strict=True)]
            index += rows.num_rows
        self.is_fast = True
        return found

    def _opened(self) -> ValueFormat:
        """Return the format; raises `InvalidConfig` if the schema cannot be used here."""
        with self._lock:  # Formats are slow to load, and each thread would do it.
            if self._format is None:
                try:
                    from millstream.formats.declaration import choose_format  # noqa: PLC0415
                except ImportError as error:
                    raise InvalidConfig(
                        f"{VALUE_CHECK_CONFIG} requires the extra millstream[arrow] on the nodes:"
                        f" {error}"
                    ) from error
                self._format = choose_format({}, self._declared)
            return self._format
