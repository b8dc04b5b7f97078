r"""Which segments of a log have to go, and whether there is room for more.

    +---------+ +---------+ +---------+ +---------
    | oldest  | |         | |         | | growing
    +---------+ +---------+ +---------+ +---------
     \_ goes _/ \_____ stay: young enough, and without
                        them less than the limit would be left

Segments go whole and from the front: a prefix of the log, up to the first that has to stay. Ages
are differences of steady time, so neither the wall clock nor a record's timestamp decides anything.
A segment is as old as its seal: its youngest record was appended no later, so no record goes before
it is as old as it may become.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from millstream.config.schema import Discard, LogConfig
from millstream.errors import LogFull
from millstream.storage.files.seal import Seal
from millstream.storage.segment.segment import GrowingSegment, SealedSegment, Segment

AGE = "age"
BYTES = "bytes"
RECORDS = "records"


class Eviction(NamedTuple):
    """What has to go from a log, and why."""

    before_offset: int
    """The first offset that stays."""
    segments: int
    bytes: int
    records: int
    reasons: tuple[str, ...]
    """Of `AGE`, `BYTES` and `RECORDS`, those that at least one segment goes for."""

    def __str__(self) -> str:
        why = ", ".join(self.reasons)
        return (
            f"{self.segments} segments with {self.records} records in {self.bytes} bytes,"
            f" all before offset {self.before_offset}, by {why}"
        )


def plan_eviction(
    segments: Sequence[Segment],
    *,
    start: int,
    committed: int,
    config: LogConfig,
    now_ms: int,
    needed: int | None = None,
) -> Eviction | None:
    """Return what has to go from a log by its settings; `None` where that is nothing.

    `start` is its first offset, `committed` the end of what is committed; from `needed` on, nothing
    goes. By size, segments go
    while those that remain still hold as much as the limit: a limit is what is kept at the least.
    Of segments that were in part deleted, all counts that their files hold.
    """
    if config.retention_ms is config.retention_bytes is config.retention_records is None:
        return None
    end = committed if needed is None else min(committed, needed)
    live = [segment for segment in segments if start < segment.next_offset]
    gone: list[SealedSegment] = []
    reasons: dict[str, None] = {}
    bytes_left = sum(segment.size for segment in live)
    records_left = sum(map(record_count, live))
    for segment in takewhile(lambda one: _may_go(one, end), live):
        assert isinstance(segment, SealedSegment)
        bytes_left -= segment.size
        records_left -= segment.seal.record_count
        why = _why(segment.seal, bytes_left, records_left, config, now_ms)
        if not why:
            break
        gone.append(segment)
        reasons |= dict.fromkeys(why)
    if not gone:
        return None
    return Eviction(
        before_offset=gone[-1].next_offset,
        segments=len(gone),
        bytes=sum(segment.size for segment in gone),
        records=sum(map(record_count, gone)),
        reasons=tuple(why for why in (AGE, BYTES, RECORDS) if why in reasons),
    )


def is_roll_due(segments: Sequence[Segment], *, config: LogConfig, now_ms: int) -> bool:
    """Whether the growing segment is so old that it has to be closed, though nobody appends.

    Only closed segments go and are cleaned, so it is closed as soon as any limit of age asks.
    """
    last = segments[-1] if segments else None
    if not isinstance(last, GrowingSegment) or last.size == 0:
        return False
    return now_ms - last.stats.created_ms > segment_age_ms_max(config)


def segment_age_ms_max(config: LogConfig) -> int:
    """Return how old the first batch of a segment may become before that is closed."""
    ages = [config.segment_age_ms_max, config.retention_ms]
    if config.is_compacted:
        ages.append(config.compaction_lag_ms_max)
    return min(age for age in ages if age is not None)


def check_capacity(
    name: str,
    config: LogConfig,
    *,
    bytes: int,  # noqa: A002 - the noun that all others use for it too.
    records: int,
    batch_bytes: int,
    batch_records: int,
) -> None:
    """Raise `LogFull` if log `name` refuses what does not fit, and a batch does not.

    `bytes` and `records` are what it holds already, with what was admitted and is not written yet.
    """
    if config.discard is not Discard.REJECT:
        return
    for held, added, limit, what in (
        (bytes, batch_bytes, config.retention_bytes, BYTES),
        (records, batch_records, config.retention_records, RECORDS),
    ):
        if limit is not None and held + added > limit:
            raise LogFull(
                f"{name} holds {held} {what}, limit is {limit} and it rejects what does not fit:"
                f" {added} more"
            )


def record_count(segment: Segment) -> int:
    """Return how many records a segment holds in its file."""
    if isinstance(segment, SealedSegment):
        return segment.seal.record_count
    assert isinstance(segment, GrowingSegment)
    return segment.stats.record_count


def sealed_since(seal: Seal) -> int:
    """Return the steady time since when no record was added.

    A seal that was derived from a damaged log has no date; then it is that of the derivation.
    """
    return max(seal.created_ms, seal.sealed_ms)


def _may_go(segment: Segment, end: int) -> bool:
    return isinstance(segment, SealedSegment) and segment.next_offset <= end


def _why(
    seal: Seal, bytes_left: int, records_left: int, config: LogConfig, now_ms: int
) -> list[str]:
    """Say for what reasons a segment goes, given what would be left without it."""
    age, size, count = config.retention_ms, config.retention_bytes, config.retention_records
    why = [AGE] if age is not None and now_ms - sealed_since(seal) > age else []
    if config.discard is Discard.OLD:
        why += [BYTES] if size is not None and bytes_left >= size else []
        why += [RECORDS] if count is not None and records_left >= count else []
    return why
