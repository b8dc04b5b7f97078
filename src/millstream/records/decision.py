"""Decisions of a log's leader, as control batches in the log itself.

A leader decides what is deleted by key and what is cleaned. Its replicas learn of it from the log,
in the order of the log, and apply a decision once its batch is committed. So after a fail-over the
new leader has applied, or still has to apply, everything that was decided before.

    key        0         2      4
              +---------+------+
              | version | type |         0x4D00: deletion, 0x4D01: cleaning
              |    0    |      |         (Kafka has types 0 to 6)
              +---------+------+

    deletion   0         2      3        11     15
              +---------+------+--------+------+---------+
              | version | kind | before | size | pattern |      kind 0: a key, 1: a prefix
              |    0    |      |        |      |         |      before -1: the batch's own offset
              +---------+------+--------+------+---------+

    cleaning   0         2             10                  18
              +---------+-------------+-------------------+
              | version | upto offset | tombstones before |
              |    0    |             |                   |
              +---------+-------------+-------------------+

Big-endian. A later version may append fields, which are ignored. Readers of records pass over these
batches as over all control batches.

`tombstones before` is an offset and not a time: each node has a retention clock of its own, so only
the leader says which tombstones are old enough.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

from millstream.errors import CorruptBatch
from millstream.records.batch import Bytes
from millstream.records.control import (
    CLEANING_TYPE,
    DELETION_TYPE,
    build_control_batch,
    read_control_batch,
)
from millstream.records.filter.keys.matcher import KeyMatch

_VERSION = 0
_DELETION = struct.Struct(">hbqi")
_CLEANING = struct.Struct(">hqq")
_OWN_OFFSET = -1


@dataclass(frozen=True, slots=True)
class DeletionDecision:
    """Records with a matching key before an offset are deleted."""

    match: KeyMatch
    before: int | None = None
    """`None`: before the decision itself."""


@dataclass(frozen=True, slots=True)
class CleaningDecision:
    """The log is compacted up to an offset, and the older tombstones are removed."""

    upto: int
    """Of the records before this offset, only the last of each key stays."""
    tombstones_before: int
    """Tombstones before this offset are removed; at most `upto`."""


LogDecision: TypeAlias = DeletionDecision | CleaningDecision


def build_decision(decision: LogDecision, *, now_ms: int) -> bytes:
    """Return the batch of a decision."""
    if isinstance(decision, CleaningDecision):
        value = _CLEANING.pack(_VERSION, decision.upto, decision.tombstones_before)
        return build_control_batch(CLEANING_TYPE, value, now_ms=now_ms)
    match = decision.match
    before = _OWN_OFFSET if decision.before is None else decision.before
    head = _DELETION.pack(_VERSION, match.is_prefix, before, len(match.pattern))
    return build_control_batch(DELETION_TYPE, head + match.pattern, now_ms=now_ms)


def read_decision(batch: Bytes) -> LogDecision | None:
    """Decode a control batch; return `None` if it is not a decision.

    Raises `CorruptBatch` if it is one and cannot be decoded.
    """
    kind, value = read_control_batch(batch)
    if kind == DELETION_TYPE:
        return _read_deletion(value)
    return _read_cleaning(value) if kind == CLEANING_TYPE else None


def _read_deletion(value: bytes | None) -> DeletionDecision:
    _, is_prefix, before, size = _unpack(_DELETION, "deletion", value)
    assert value is not None
    pattern = value[_DELETION.size : _DELETION.size + size] if size >= 0 else b""
    if is_prefix not in (0, 1) or len(pattern) != size or before < _OWN_OFFSET:
        raise CorruptBatch(
            f"a deletion must have kind 0 or 1, before {_OWN_OFFSET} or more and a pattern of its"
            f" size, got {is_prefix}, {before} and {len(pattern)} of {size} bytes"
        )
    match = KeyMatch(pattern, is_prefix=bool(is_prefix))
    return DeletionDecision(match, None if before == _OWN_OFFSET else before)


def _read_cleaning(value: bytes | None) -> CleaningDecision:
    _, upto, tombstones_before = _unpack(_CLEANING, "cleaning", value)
    if not 0 <= tombstones_before <= upto:
        raise CorruptBatch(
            f"a cleaning must have tombstones before an offset between 0 and {upto}, got"
            f" {tombstones_before}"
        )
    return CleaningDecision(upto, tombstones_before)


def _unpack(layout: struct.Struct, what: str, value: bytes | None) -> tuple[int, ...]:
    if value is None or len(value) < layout.size:
        raise CorruptBatch(f"a {what} must have at least {layout.size} bytes, got {value!r}")
    fields = layout.unpack_from(value)
    if fields[0] < _VERSION:
        raise CorruptBatch(f"version of a {what} must be {_VERSION} or more, got {fields[0]}")
    return fields
