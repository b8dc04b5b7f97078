"""Control batches: the markers that end a transaction, as Kafka writes them.

A marker is a batch of one record, of the producer whose transaction it ends, without a sequence
number. Offsets are spent on it like on any other, and no application is shown it.

     0         2      4                 0         2                   6
    +---------+------+                 +---------+-------------------+
    | version | type |  key            | version | coordinator epoch |  value
    |    0    |      |                 |    0    |                   |
    +---------+------+                 +---------+-------------------+
               0 abort, 1 commit

Big-endian. A later version may add fields behind these, which are passed over.
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
"""Hundreds of times what a marker has; keeps a packed one from becoming an allocation."""


class Marker(NamedTuple):
    """How a transaction ended, and in which epoch of its coordinator that was decided."""

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
    """Return what a control batch says; `CorruptBatch` where it is not a transaction's end."""
    header = decode_header(batch)
    if not header.is_control or header.record_count != 1:
        raise CorruptBatch(
            f"marker has {header.record_count} records and attributes {header.attributes:#x},"
            " expected 1 record in a control batch"
        )
    [record] = read_records(batch, size_max=_BODY_SIZE_MAX)
    _, kind = _unpack(_KEY, "key", record.key)
    if kind not in (_ABORT, _COMMIT):
        raise CorruptBatch(f"marker is of type {kind}, known are {_ABORT} and {_COMMIT}")
    _, coordinator_epoch = _unpack(_VALUE, "value", record.value)
    return Marker(kind == _COMMIT, coordinator_epoch)


def _unpack(layout: struct.Struct, what: str, data: bytes | None) -> tuple[int, int]:
    """Read version and one number; the version of a marker only ever adds to what is there."""
    if data is None or len(data) < layout.size:
        raise CorruptBatch(f"{what} of a marker needs {layout.size} bytes, found {data!r}")
    version, number = layout.unpack_from(data)
    if version < _VERSION:
        raise CorruptBatch(f"{what} of a marker is of version {version}, expected {_VERSION} or up")
    return version, number
