"""Checks of values against the schema of their topic, which the broker does not know how to read.

A topic says that its values are checked, and by what. Who can read the format is told to the broker
by the node: formats need libraries that a node without such topics never loads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from millstream.errors import InvalidConfig
from millstream.records.batch import Bytes

FAULTS_MAX = 1_000
"""Records of a batch that are named to a client."""


class ValueFault(NamedTuple):
    """A record whose value does not fit."""

    record: int
    """Index of the record in its batch, from 0."""
    reason: str


class ValueCheck(Protocol):
    """Checks the values of one format and schema. Threads may share it."""

    @property
    def is_fast(self) -> bool:
        """Whether a small batch may be checked on the event loop: all that it needs is loaded."""
        ...

    def faults(self, batch: Bytes, *, size_max: int, limit: int) -> Sequence[tuple[int, str]]:
        """Return index and reason of the first `limit` records of a batch that do not fit.

        Every record is decoded, so a malformed batch raises `CorruptBatch`, and `OversizedBody` if
        it has more than `size_max` bytes. Raises `InvalidConfig` if the schema cannot be used.
        """
        ...


MakeValueCheck = Callable[[str, str], ValueCheck]
"""Returns the check of a format and schema, at once: nothing is loaded before its first use."""


class ValueChecks:
    """The checks of all topics. Partitions of a topic share one."""

    def __init__(self) -> None:
        self.make: MakeValueCheck = _refuse
        self._checks: dict[tuple[str, str], ValueCheck] = {}

    def check_of(self, checked: tuple[str, str] | None) -> ValueCheck | None:
        """Return the check of a format and schema; `None` for a topic that has none."""
        if checked is None:
            return None
        if (found := self._checks.get(checked)) is None:
            if len(self._checks) >= FAULTS_MAX:
                self._checks.clear()  # Those in use stay with their partitions.
            found = self._checks[checked] = self.make(*checked)
        return found


class _NoCheck:
    """Refuses all values: to store what the topic does not allow is no way out."""

    is_fast = True

    def faults(self, batch: Bytes, *, size_max: int, limit: int) -> Sequence[tuple[int, str]]:  # noqa: ARG002
        raise InvalidConfig("this broker was not told how to check values")


def _refuse(_kind: str, _schema: str) -> ValueCheck:
    return _NoCheck()
