"""Helpers for tests of record filters: batches at given offsets, and both implementations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from millstream.records.batch import TIMESTAMP_TYPE_BIT, decode_header, split, stamp
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.control import build_marker
from millstream.records.iterate import read_all
from millstream.records.kernels.dispatch import KernelDispatch
from millstream.records.record import Record, StoredRecord
from tests.records.samples import NOW, assemble

EPOCH = 4
WAYS = ("kernels", "plain python")


@contextmanager
def filtering_by(way: str) -> Iterator[None]:
    """Filter with kernels or without, even with few records."""

    def choose(dispatch: KernelDispatch, _: int):
        return dispatch.compiled if way == "kernels" else dispatch.reference

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KernelDispatch, "choose", choose)
        yield


def batch_at(
    base_offset: int,
    records: Sequence[Record],
    *,
    codec: Codec = Codec.NONE,
    producer_id: int = -1,
    is_transactional: bool = False,
    append_time: int | None = None,
) -> bytes:
    """Return a batch with a base offset."""
    batch = build_batch(
        records,
        now_ms=NOW,
        codec=codec,
        producer_id=producer_id,
        producer_epoch=-1 if producer_id < 0 else 3,
        base_sequence=-1 if producer_id < 0 else 70,
        is_transactional=is_transactional,
    )
    if append_time is not None:
        attributes = decode_header(batch).attributes | TIMESTAMP_TYPE_BIT
        batch = changed(batch, attributes=attributes, max_timestamp=append_time)
    return stamp(batch, base_offset=base_offset, leader_epoch=EPOCH)


def marker_at(offset: int, *, producer_id: int, is_commit: bool) -> bytes:
    marker = build_marker(producer_id, 3, is_commit=is_commit, coordinator_epoch=0, now_ms=NOW)
    return stamp(marker, base_offset=offset, leader_epoch=EPOCH)


def changed(batch: bytes, **fields: int) -> bytes:
    """Return the batch with other header fields and a new checksum."""
    return assemble(batch[61:], template=batch, **fields)


def keyed(*keys: str | None) -> list[Record]:
    """Return records with these keys, and distinct values."""
    return [
        Record(b"value %d" % number, None if key is None else key.encode())
        for number, key in enumerate(keys)
    ]


def tombstone(key: str, timestamp_ms: int = NOW) -> Record:
    return Record(None, key.encode(), timestamp_ms=timestamp_ms)


def read(pieces: Iterable[bytes | bytearray | memoryview]) -> list[StoredRecord]:
    """Return all records in `pieces`, markers too, with checksums verified."""
    return list(read_all(b"".join(pieces), with_control=True))


def offsets(pieces: Iterable[bytes | bytearray | memoryview]) -> list[int]:
    return [record.offset for record in read(pieces)]


def headers(pieces: Iterable[bytes | bytearray | memoryview]):
    return [header for header, _ in split(b"".join(pieces))]
