"""Control batches: the markers that end a transaction, in Kafka's format.

A marker is a batch of one record, with the id of the producer whose transaction it ends and
without a sequence number. It takes an offset like any other record, and applications never see it.

     0         2      4                 0         2                   6
    +---------+------+                 +---------+-------------------+
    | version | type |  key            | version | coordinator epoch |  value
    |    0    |      |                 |    0    |                   |
    +---------+------+                 +---------+-------------------+
               0 abort, 1 commit

Big-endian. A later version may append fields, which are ignored.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from millstream.errors import CorruptBatch
from millstream.records.batch import Bytes, decode_header
from millstream.records.build import build_batch
from millstream.records.iterate import read_records
from millstream.records.record import Record

_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0

_ABORT = 0
_COMMIT = 1

_BODY_SIZE_MAX = 64 * 1024
"""Hundreds of times the size of a marker; keeps a compressed one from becoming an allocation."""


class Marker(NamedTuple):
    """Outcome of a transaction, and the coordinator epoch in which it was decided."""

    is_commit: bool
    coordinator_epoch: int


def build_marker(
    producer_id: int, producer_epoch: int, *, is_commit: bool, coordinator_epoch: int, now_ms: int
) -> bytes:
    """Return the batch that ends a producer's transaction."""
    marker = Record(
        key=_KEY.pack(_VERSION, _COMMIT if is_commit else _ABORT),
        value=_VALUE.pack(_VERSION, coordinator_epoch),
        timestamp_ms=now_ms,
    )
    return build_batch(
        [marker],
        now_ms=now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def read_marker(batch: Bytes) -> Marker:
    """Decode a control batch; raise `CorruptBatch` if it is not a transaction marker."""
    header = decode_header(batch)
    if not header.is_control or header.record_count != 1:
        raise CorruptBatch(
            "a transaction marker must be a control batch of 1 record, got"
            f" {header.record_count} records and attributes {header.attributes:#x}"
        )
    [record] = read_records(batch, size_max=_BODY_SIZE_MAX)
    _, kind = _decode(_KEY, "key", record.key)
    if kind not in (_ABORT, _COMMIT):
        raise CorruptBatch(f"marker type must be {_ABORT} or {_COMMIT}, got {kind}")
    _, coordinator_epoch = _decode(_VALUE, "value", record.value)
    return Marker(kind == _COMMIT, coordinator_epoch)


def _decode(layout: struct.Struct, field: str, data: bytes | None) -> tuple[int, int]:
    """Decode the version and one number. Later versions only append fields."""
    if data is None or len(data) < layout.size:
        raise CorruptBatch(f"marker {field} must have at least {layout.size} bytes, got {data!r}")
    version, number = layout.unpack_from(data)
    if version < _VERSION:
        raise CorruptBatch(f"marker {field} version must be {_VERSION} or more, got {version}")
    return version, number
