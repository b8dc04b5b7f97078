"""Batches without some of their records: used by deletion, compaction and segment merges.

A batch that loses records keeps its offsets: base offset, last offset delta, producer, epoch and
sequence do not change, so a batch still starts where the one before it ended. A batch that loses
all records is removed, unless its header is needed; the offsets that no batch covers then get a
filler, an empty batch of no producer.

`FilterRules` says which records are removed. If the header of a batch cannot decide it, each
record is decoded, by the kernels or by their plain reference in `remaining.py`.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from millstream.errors import BatchTooLarge, CorruptBatch
from millstream.records.batch import (
    BATCH_SIZE_MAX,
    CODEC_MASK,
    HEADER_SIZE,
    HORIZON_BIT,
    MAGIC,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Bytes,
    check_batch,
    decode_header,
    seal,
)
from millstream.records.body import open_body
from millstream.records.compression import BODY_SIZE_MAX, Codec, compress
from millstream.records.control import CLEANING_TYPE, read_control_batch, read_marker
from millstream.records.filter.remaining import RemainingRecords, remaining_records
from millstream.records.filter.rules import AbortedOffsets, FilterRules
from millstream.records.kernels.dispatch import KernelDispatch
from millstream.records.opened_batch import (
    LocatedBatch,
    OpenedBatch,
    checked_batches,
    open_groups,
    record_count,
)

__all__ = [
    "AbortedOffsets",
    "FilterRules",
    "FilterResult",
    "filler_batches",
    "filter_batches",
    "remove_offsets",
]

RemainingOf: TypeAlias = Callable[
    [Bytes, Sequence[OpenedBatch], FilterRules], list[RemainingRecords | CorruptBatch | None]
]

_FILLER_OFFSETS_MAX = 2**31
"""The last offset delta has 32 bits, one of them the sign."""


class FilterResult(NamedTuple):
    """What remains of some batches."""

    pieces: list[Bytes]
    """Runs of complete batches, in order. Adjacent unchanged batches are one view of the input;
    offsets of removed batches are not filled.
    """
    removed_records: int
    """Number of removed records, commit markers included."""
    changed_batches: int
    """Number of batches removed or rewritten. Removed batches without records do not count."""


class _Change(NamedTuple):
    """A batch that is removed, or replaced by another."""

    start: int
    end: int
    batch: bytes | None
    removed_records: int


def remove_offsets(batch: Bytes, deleted: array[int]) -> bytes:
    """Return a batch without the records at the offsets in `deleted`, which are sorted.

    Offsets of no record in the batch are ignored, and control batches do not change. Everything but
    the records stays, with two exceptions: the greatest timestamp becomes that of the remaining
    records, if there are any and the batch does not have log-append time; and an empty batch is not
    compressed. Verifies the checksum of its input. Raises `CorruptBatch` if the records cannot be
    decoded, and `BatchTooLarge` if the remaining ones do not fit into a batch at our compression
    levels.
    """
    header = decode_header(batch)
    check_batch(header, batch)
    rules = FilterRules(deleted=deleted)
    if header.is_control or not rules.removes_some_offsets(header):
        return bytes(batch)
    records = open_body(header, batch, size_max=BODY_SIZE_MAX)
    remaining_of = _REMAINING_OF.choose(header.record_count)
    [remaining] = remaining_of(batch, [OpenedBatch(0, header, records)], rules)
    if isinstance(remaining, CorruptBatch):
        raise remaining
    return bytes(batch) if remaining is None else _rebuilt(header, remaining)


def filler_batches(first: int, end: int, *, leader_epoch: int) -> bytes:
    """Return empty batches that cover the offsets from `first` up to, not including, `end`.

    One batch is enough unless there are more than 2^31 offsets; there is none for an empty range.
    """
    return b"".join(
        _filler_batch(start, min(end, start + _FILLER_OFFSETS_MAX), leader_epoch)
        for start in range(first, end, _FILLER_OFFSETS_MAX)
    )


def filter_batches(data: Bytes, rules: FilterRules) -> FilterResult:
    """Apply rules to complete batches.

    Verifies every checksum of its input; raises `CorruptBatch`. Empty batches are removed, unless
    `producers` contains them. A batch whose records cannot be decoded keeps them as they are,
    unless all of them are to be removed. Raises `BatchTooLarge` if the remaining records do not fit
    into a batch at our compression levels: keeping those that should be removed could bring back
    what was deleted since.
    """
    changes: dict[int, _Change] = {}
    undecided: list[LocatedBatch] = []
    for batch, view in checked_batches(data):
        if batch.header.is_control:
            change = _filter_control(batch, view, rules)
        elif _is_empty(batch.header) or rules.removes_all(batch.header):
            change = _empty(batch, rules)
        elif rules.may_remove_some(batch.header):
            undecided.append(batch)
            continue
        else:
            change = _settle(batch, view, rules)
        if change is not None:
            changes[batch.start] = change
    changes |= _filter_records(memoryview(data), undecided, rules)
    return _apply(memoryview(data), sorted(changes.values(), key=lambda change: change.start))


def _filler_batch(first: int, end: int, leader_epoch: int) -> bytes:
    header = BatchHeader(
        base_offset=first,
        length=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=0,
        last_offset_delta=end - first - 1,
        base_timestamp=NO_TIMESTAMP,
        max_timestamp=NO_TIMESTAMP,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=0,
    )
    return seal(header, b"")


def _is_empty(header: BatchHeader) -> bool:
    return header.record_count == 0 and header.size == HEADER_SIZE


def _filter_control(batch: LocatedBatch, view: memoryview, rules: FilterRules) -> _Change | None:
    """Remove a commit marker if all transactions are resolved, and old cleaning decisions."""
    header = batch.header
    if header.base_offset in rules.producers:
        return None
    try:
        if header.last_offset < rules.cleanings_before and _is_cleaning(view):
            return _Change(batch.start, batch.end, None, 1)
        marker = read_marker(view) if rules.aborted is not None else None
    except CorruptBatch:
        return None
    if marker is None or not marker.is_commit:
        return None
    return _Change(batch.start, batch.end, None, 1)


def _is_cleaning(view: memoryview) -> bool:
    kind, _ = read_control_batch(view)
    return kind == CLEANING_TYPE


def _empty(batch: LocatedBatch, rules: FilterRules) -> _Change | None:
    """Remove a batch without remaining records, or only its records if its header is needed."""
    header, count = batch.header, batch.header.record_count
    if header.base_offset not in rules.producers:
        return _Change(batch.start, batch.end, None, count)
    if _is_empty(header) and not rules.clears_transaction(header):
        return None
    nothing = RemainingRecords(b"", 0, header.max_timestamp, None)
    return _Change(batch.start, batch.end, _rebuilt(_settled(header, rules), nothing), count)


def _settle(batch: LocatedBatch, view: memoryview, rules: FilterRules) -> _Change | None:
    """Clear the transactional bit of a batch that keeps its records."""
    if not rules.clears_transaction(batch.header):
        return None
    settled = seal(_settled(batch.header, rules), view[HEADER_SIZE:])
    return _Change(batch.start, batch.end, settled, 0)


def _filter_records(
    data: memoryview, batches: Sequence[LocatedBatch], rules: FilterRules
) -> dict[int, _Change]:
    """Decode the records of batches, and return the changes by position."""
    changes = {}
    for group in open_groups(data, batches):
        remaining_of = _REMAINING_OF.choose(record_count(group))
        for opened, remaining in zip(group, remaining_of(data, group, rules), strict=True):
            if (
                isinstance(remaining, RemainingRecords)
                and (change := _keep_remaining(opened, remaining, rules)) is not None
            ):
                changes[opened.start] = change
    for batch in batches:
        if batch.start not in changes:
            change = _settle(batch, data[batch.start : batch.end], rules)
            if change is not None:
                changes[batch.start] = change
    return changes


def _keep_remaining(
    batch: OpenedBatch, remaining: RemainingRecords, rules: FilterRules
) -> _Change | None:
    header = batch.header
    if remaining.record_count == 0:
        return _empty(LocatedBatch(batch.start, header), rules)
    removed = header.record_count - remaining.record_count
    try:
        rebuilt = _rebuilt(_settled(header, rules), remaining)
    except BatchTooLarge:
        if removed:
            raise
        return None  # The batch would be too large with a horizon, so the tombstones are kept.
    return _Change(batch.start, batch.start + header.size, rebuilt, removed)


def _settled(header: BatchHeader, rules: FilterRules) -> BatchHeader:
    if not rules.clears_transaction(header):
        return header
    return header._replace(attributes=header.attributes & ~TRANSACTIONAL_BIT)


def _rebuilt(header: BatchHeader, remaining: RemainingRecords) -> bytes:
    """Build a batch from its header and its remaining records."""
    attributes, body = header.attributes, remaining.records
    if remaining.record_count == 0:
        attributes &= ~CODEC_MASK
    if remaining.horizon is not None:
        attributes |= HORIZON_BIT
    if codec := attributes & CODEC_MASK:
        body = compress(Codec(codec), body)
    if (size := HEADER_SIZE + len(body)) > BATCH_SIZE_MAX:
        raise BatchTooLarge(
            f"batch at offset {header.base_offset} must have at most {BATCH_SIZE_MAX} bytes"
            f" after the removal of records, got {size}"
        )
    changed = header._replace(
        attributes=attributes,
        base_timestamp=header.base_timestamp if remaining.horizon is None else remaining.horizon,
        max_timestamp=remaining.max_timestamp,
        record_count=remaining.record_count,
    )
    return seal(changed, body)


def _apply(data: memoryview, changes: Sequence[_Change]) -> FilterResult:
    pieces: list[Bytes] = []
    position = 0
    for change in changes:
        if position < change.start:
            pieces.append(data[position : change.start])
        if change.batch is not None:
            pieces.append(change.batch)
        position = change.end
    if position < len(data):
        pieces.append(data[position:])
    removed_records = sum(change.removed_records for change in changes)
    changed = [change for change in changes if change.removed_records or change.batch is not None]
    return FilterResult(pieces, removed_records, len(changed))


def remaining_python(
    _: Bytes, group: Sequence[OpenedBatch], rules: FilterRules
) -> list[RemainingRecords | CorruptBatch | None]:
    """Reference in plain Python for `remaining_vectorized.remaining_of`."""
    return [remaining_records(opened.header, opened.records, rules) for opened in group]


def _load() -> RemainingOf:
    from millstream.records.filter.remaining_vectorized import remaining_of  # noqa: PLC0415 - an extra, slow to load.

    return remaining_of


_REMAINING_OF: KernelDispatch[RemainingOf] = KernelDispatch(remaining_python, _load)
