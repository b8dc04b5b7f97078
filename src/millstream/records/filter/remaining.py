"""Remaining records of a batch, in plain Python: the reference for the kernels.

`build.py` shows the layout of a record. Remaining records are copied as they are. Only if the
batch gets a horizon are they encoded again: its base timestamp changes, and every record must keep
its own timestamp, so the delta changes, and with it the length.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from millstream.errors import CorruptBatch
from millstream.records.batch import BATCH_SIZE_MAX, HEADER_SIZE, BatchHeader, Bytes
from millstream.records.compression import BODY_SIZE_MAX, Codec
from millstream.records.filter.rules import FilterRules
from millstream.records.iterate import records_of
from millstream.records.record import StoredRecord
from millstream.records.varint import encode_varint, encode_varlong, read_varint, read_varlong


class RemainingRecords(NamedTuple):
    """The records of a batch that the rules keep."""

    records: Bytes
    """The encoded records, back to back, not compressed."""
    record_count: int
    max_timestamp: int
    horizon: int | None
    """The new base timestamp, if it became the horizon of the batch's tombstones."""


def remaining_records(
    header: BatchHeader, body: Bytes, rules: FilterRules
) -> RemainingRecords | CorruptBatch | None:
    """Return the remaining records of an opened batch; `None` if it does not change.

    If the records cannot be decoded, the error is returned, not raised.
    """
    data = bytes(body)
    try:
        records = list(records_of(header, data))
    except CorruptBatch as error:
        return error
    pairs = list(zip(records, _spans(data), strict=False))
    kept = [(record, span) for record, span in pairs if not _is_removed(header, record, rules)]
    rebased = _rebased(header, data, kept, rules)
    if len(kept) == len(records) and rebased is None:
        return None
    return RemainingRecords(
        b"".join(data[start:end] for _, (start, end) in kept) if rebased is None else rebased,
        len(kept),
        max((record.timestamp_ms for record, _ in kept), default=header.max_timestamp),
        None if rebased is None else rules.horizon(header),
    )


def rebased_size_max(header: BatchHeader) -> int:
    """Return the size limit of records that are encoded again for a horizon."""
    return BATCH_SIZE_MAX - HEADER_SIZE if header.codec == Codec.NONE else BODY_SIZE_MAX


def _spans(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield start and end of each record, its length included. They must be well-formed."""
    position = 0
    while position < len(data):
        size, start = read_varint(data, position)
        yield position, start + size
        position = start + size


def _is_removed(header: BatchHeader, record: StoredRecord, rules: FilterRules) -> bool:
    if rules.removes_offset(record.offset):
        return True
    if record.key is None:
        return False
    if rules.key_table is not None and rules.key_table.find(record.key) > record.offset:
        return True
    return record.value is None and rules.removes_tombstones(header)


def _rebased(
    header: BatchHeader,
    data: bytes,
    kept: list[tuple[StoredRecord, tuple[int, int]]],
    rules: FilterRules,
) -> bytes | None:
    """Encode the records again for a horizon; `None` if none is due or they would not fit."""
    horizon = rules.horizon(header)
    has_tombstones = any(record.key is not None and record.value is None for record, _ in kept)
    if horizon is None or not has_tombstones:
        return None
    shift = header.base_timestamp - horizon
    try:
        rebased = b"".join(_shifted(data, start, end, shift) for _, (start, end) in kept)
    except OverflowError:
        return None
    return rebased if len(rebased) <= rebased_size_max(header) else None


def _shifted(data: bytes, start: int, end: int, shift: int) -> bytes:
    """Encode one record again, with its timestamp delta changed by `shift`."""
    _, at = read_varint(data, start)
    delta, after = read_varlong(data, at + 1)
    fields = data[at : at + 1] + encode_varlong(delta + shift) + data[after:end]
    return encode_varint(len(fields)) + fields
