"""Control batches in Kafka's format: the markers that end a transaction, and others.

A marker is a batch of one record, with the id of the producer whose transaction it ends and
without a sequence number. It takes an offset like any other record, and applications never see it.

     0         2      4                 0         2                   6
    +---------+------+                 +---------+-------------------+
    | version | type |  key            | version | coordinator epoch |  value
    |    0    |      |                 |    0    |                   |
    +---------+------+                 +---------+-------------------+
               0 abort, 1 commit

Big-endian. A later version may append fields, which are ignored. Control batches of other types
(`decision.py` has ours) are no markers: they end no transaction, and readers pass over them.
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

DELETION_TYPE = 0x4D00
"""Types of our own, for the decisions of a log's leader. Kafka has types 0 to 6."""
CLEANING_TYPE = 0x4D01

_BODY_SIZE_MAX = 128 * 1024
"""More than the longest pattern of a deletion, which is the largest value of a control record;
keeps a compressed one from becoming an allocation.
"""


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


def build_control_batch(kind: int, value: bytes, *, now_ms: int) -> bytes:
    """Return a control batch of another type, which belongs to no transaction."""
    record = Record(key=_KEY.pack(_VERSION, kind), value=value, timestamp_ms=now_ms)
    return build_batch([record], now_ms=now_ms, is_control=True)


def read_marker(batch: Bytes) -> Marker | None:
    """Decode a control batch; return `None` if it is not a transaction marker.

    Raises `CorruptBatch` if it is neither a marker nor of another type.
    """
    kind, value = read_control_batch(batch)
    if kind not in (_ABORT, _COMMIT):
        return None
    _, coordinator_epoch = _decode(_VALUE, "value", value)
    return Marker(kind == _COMMIT, coordinator_epoch)


def read_control_batch(batch: Bytes) -> tuple[int, bytes | None]:
    """Return the type of a control batch, and the value of its record.

    Other types may have several records; then the value is that of the first.
    """
    header = decode_header(batch)
    records = read_records(batch, size_max=_BODY_SIZE_MAX) if header.is_control else []
    if not records:
        raise CorruptBatch(
            "a control batch must have the control bit and a record, got"
            f" {header.record_count} records and attributes {header.attributes:#x}"
        )
    _, kind = _decode(_KEY, "key", records[0].key)
    if kind in (_ABORT, _COMMIT) and len(records) != 1:
        raise CorruptBatch(f"a transaction marker must have 1 record, got {len(records)}")
    return kind, records[0].value


def _decode(layout: struct.Struct, field: str, data: bytes | None) -> tuple[int, int]:
    """Decode the version and one number. Later versions only append fields."""
    if data is None or len(data) < layout.size:
        raise CorruptBatch(f"control {field} must have at least {layout.size} bytes, got {data!r}")
    version, number = layout.unpack_from(data)
    if version < _VERSION:
        raise CorruptBatch(f"control {field} version must be {_VERSION} or more, got {version}")
    return version, number
