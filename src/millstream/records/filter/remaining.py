"""What the rules leave of a batch, in plain Python: the reference of the kernels.

A record's layout is drawn in `build.py`. Records that stay are copied as they are. Only where the
batch gets a horizon are they written anew, since its base timestamp moves and every record must
keep its own: the delta changes, and with it the length.
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
    """What is left of a batch."""

    records: Bytes
    """The records one after the other, not packed."""
    record_count: int
    max_timestamp: int
    horizon: int | None
    """The base timestamp, where it became the horizon of the batch's tombstones."""


def remaining_records(
    header: BatchHeader, body: Bytes, rules: FilterRules
) -> RemainingRecords | CorruptBatch | None:
    """Return what is left of an opened batch; `None` where it stays as it is.

    Where the records cannot be read, what is wrong comes back and is not raised.
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
    """How large records may be once they are written anew for a horizon."""
    return BATCH_SIZE_MAX - HEADER_SIZE if header.codec == Codec.NONE else BODY_SIZE_MAX


def _spans(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the records lie, lengths included; they are known to be sound."""
    position = 0
    while position < len(data):
        size, start = read_varint(data, position)
        yield position, start + size
        position = start + size


def _is_removed(header: BatchHeader, record: StoredRecord, rules: FilterRules) -> bool:
    if rules.name(record.offset):
        return True
    if record.key is None:
        return False
    if rules.latest is not None and rules.latest.find(record.key) > record.offset:
        return True
    return record.value is None and rules.remove_tombstones(header)


def _rebased(
    header: BatchHeader,
    data: bytes,
    kept: list[tuple[StoredRecord, tuple[int, int]]],
    rules: FilterRules,
) -> bytes | None:
    """Write the records anew for a horizon; `None` where none is due or they would not fit."""
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
    """Write one record anew, with another timestamp delta."""
    _, at = read_varint(data, start)
    delta, after = read_varlong(data, at + 1)
    fields = data[at : at + 1] + encode_varlong(delta + shift) + data[after:end]
    return encode_varint(len(fields)) + fields
