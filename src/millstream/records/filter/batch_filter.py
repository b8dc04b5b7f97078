"""Batches without some of their records: what deletion, compaction and reclaiming rest on.

A batch that loses records keeps its place in the log: base offset, last offset delta, producer,
epoch and sequence stay, so a batch still starts where the one before it ended. A batch that loses
all of them goes, unless it is needed for what its header says; the offsets that nothing covers
then get a filler, an empty batch of no producer.

What goes is said by `FilterRules`. What a batch's header does not tell is decided record by record,
by the kernels or by their plain reference in `remaining.py`.
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
from millstream.records.control import read_marker
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
    """What the rules left of some batches."""

    pieces: list[Bytes]
    """Runs of whole batches in order. What is untouched is a view of the data that came in, as one
    piece for batches that follow each other; holes are not filled."""
    removed_records: int
    """How many records went, commit markers included."""
    changed_batches: int
    """How many batches went or came out different. Empty ones that went do not count."""


class _Change(NamedTuple):
    """A batch that goes, or that another takes the place of."""

    start: int
    end: int
    batch: bytes | None
    removed_records: int


def remove_offsets(batch: Bytes, deleted: array[int]) -> bytes:
    """Return a batch without the records at the offsets in `deleted`, which are sorted.

    Offsets of no record in the batch do not matter, and control batches stay as they are. All that
    is not a record stays, with these exceptions: the greatest timestamp is that of the records
    which are left, if any is and the batch does not have log-append time; and an empty batch is not
    packed. Checks the sum of its input. Raises `CorruptBatch` where the records cannot be read, and
    `BatchTooLarge` where those that are left do not fit a batch when packed as strongly as we do.
    """
    header = decode_header(batch)
    check_batch(header, batch)
    rules = FilterRules(deleted=deleted)
    if header.is_control or not rules.name_some(header):
        return bytes(batch)
    records = open_body(header, batch, size_max=BODY_SIZE_MAX)
    rests_of = _REMAINING_OF.choose(header.record_count)
    [rest] = rests_of(batch, [OpenedBatch(0, header, records)], rules)
    if isinstance(rest, CorruptBatch):
        raise rest
    return bytes(batch) if rest is None else _rebuilt(header, rest)


def filler_batches(first: int, end: int, *, leader_epoch: int) -> bytes:
    """Return empty batches that cover the offsets from `first` to before `end`.

    One, where there are no more offsets than one can cover; none, where there are none.
    """
    return b"".join(
        _filler_batch(start, min(end, start + _FILLER_OFFSETS_MAX), leader_epoch)
        for start in range(first, end, _FILLER_OFFSETS_MAX)
    )


def filter_batches(data: Bytes, rules: FilterRules) -> FilterResult:
    """Apply rules to whole batches.

    Checks every sum of its input; raises `CorruptBatch`. Batches that are empty go, unless
    `producers` has them. One whose records cannot be read keeps them as they are, unless all of
    them go. Raises `BatchTooLarge` where records that are left do not fit a batch when packed as
    strongly as we do: to keep those that should go could bring back what was deleted since.
    """
    changes: dict[int, _Change] = {}
    unsure: list[LocatedBatch] = []
    for batch, view in checked_batches(data):
        if batch.header.is_control:
            change = _filter_control(batch, view, rules)
        elif _is_empty(batch.header) or rules.remove_all(batch.header):
            change = _empty(batch, rules)
        elif rules.may_remove_some(batch.header):
            unsure.append(batch)
            continue
        else:
            change = _settle(batch, view, rules)
        if change is not None:
            changes[batch.start] = change
    changes |= _filter_records(memoryview(data), unsure, rules)
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
    """Let a commit marker go, once all transactions are settled; keep all else."""
    if rules.aborted is None or batch.header.base_offset in rules.producers:
        return None
    try:
        is_commit = read_marker(view).is_commit
    except CorruptBatch:
        return None
    return _Change(batch.start, batch.end, None, 1) if is_commit else None


def _empty(batch: LocatedBatch, rules: FilterRules) -> _Change | None:
    """Let a batch without records go, or its records where its header is needed."""
    header, count = batch.header, batch.header.record_count
    if header.base_offset not in rules.producers:
        return _Change(batch.start, batch.end, None, count)
    if _is_empty(header) and not rules.settles(header):
        return None
    nothing = RemainingRecords(b"", 0, header.max_timestamp, None)
    return _Change(batch.start, batch.end, _rebuilt(_settled(header, rules), nothing), count)


def _settle(batch: LocatedBatch, view: memoryview, rules: FilterRules) -> _Change | None:
    """Take the transactional bit from a batch that keeps its records."""
    if not rules.settles(batch.header):
        return None
    settled = seal(_settled(batch.header, rules), view[HEADER_SIZE:])
    return _Change(batch.start, batch.end, settled, 0)


def _filter_records(
    data: memoryview, batches: Sequence[LocatedBatch], rules: FilterRules
) -> dict[int, _Change]:
    """Look at the records of batches, and say what changes at which position."""
    changes = {}
    for group in open_groups(data, batches):
        rests_of = _REMAINING_OF.choose(record_count(group))
        for opened, rest in zip(group, rests_of(data, group, rules), strict=True):
            if (
                isinstance(rest, RemainingRecords)
                and (change := _keep_remaining(opened, rest, rules)) is not None
            ):
                changes[opened.start] = change
    for batch in batches:
        if batch.start not in changes:
            change = _settle(batch, data[batch.start : batch.end], rules)
            if change is not None:
                changes[batch.start] = change
    return changes


def _keep_remaining(
    batch: OpenedBatch, rest: RemainingRecords, rules: FilterRules
) -> _Change | None:
    header = batch.header
    if rest.record_count == 0:
        return _empty(LocatedBatch(batch.start, header), rules)
    removed = header.record_count - rest.record_count
    try:
        rebuilt = _rebuilt(_settled(header, rules), rest)
    except BatchTooLarge:
        if removed:
            raise
        return None  # There is no room for a horizon, so the tombstones stay.
    return _Change(batch.start, batch.start + header.size, rebuilt, removed)


def _settled(header: BatchHeader, rules: FilterRules) -> BatchHeader:
    if not rules.settles(header):
        return header
    return header._replace(attributes=header.attributes & ~TRANSACTIONAL_BIT)


def _rebuilt(header: BatchHeader, rest: RemainingRecords) -> bytes:
    """Put a batch together from its header and what is left of its records."""
    attributes, body = header.attributes, rest.records
    if rest.record_count == 0:
        attributes &= ~CODEC_MASK
    if rest.horizon is not None:
        attributes |= HORIZON_BIT
    if codec := attributes & CODEC_MASK:
        body = compress(Codec(codec), body)
    if (size := HEADER_SIZE + len(body)) > BATCH_SIZE_MAX:
        raise BatchTooLarge(
            f"batch at offset {header.base_offset} has {size} bytes without the records that go,"
            f" limit is {BATCH_SIZE_MAX}"
        )
    changed = header._replace(
        attributes=attributes,
        base_timestamp=header.base_timestamp if rest.horizon is None else rest.horizon,
        max_timestamp=rest.max_timestamp,
        record_count=rest.record_count,
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
    """Do in plain Python what `sift_vectors.rests_of` does with kernels."""
    return [remaining_records(opened.header, opened.records, rules) for opened in group]


def _load() -> RemainingOf:
    from millstream.records.filter.remaining_vectorized import remaining_of  # noqa: PLC0415 - an extra, slow to load.

    return remaining_of


_REMAINING_OF: KernelDispatch[RemainingOf] = KernelDispatch(remaining_python, _load)
