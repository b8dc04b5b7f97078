r"""Eviction: which segments of a log expire, what is too old, and whether a batch fits.

    +---------+ +---------+ +---------+ +---------
    | oldest  | |         | |         | | growing
    +---------+ +---------+ +---------+ +---------
     \evicted_/ \_____ stay: young enough, and without
                       them less than the limit would be left

Segments are evicted whole and from the front: a prefix of the log, up to the first that has to
stay. Readers do not see what the limits of bytes and records leave out before that
(`size_caps.py`).

Ages are measured by the retention clock, so neither the wall clock nor the timestamp of a record
matters. A segment is as old as its seal: its youngest record was appended no later, so no record is
evicted before it has reached its retention time. Within segments, maintenance notes now and then
how far the log reaches (an `AgeMark`): what is before that offset is at least as old as the mark.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from millstream.config.schema import Discard, LogConfig
from millstream.errors import LogFull
from millstream.records.record import AGE, BYTES, RECORDS
from millstream.storage.files.partition_metadata import AgeMark
from millstream.storage.files.seal import Seal
from millstream.storage.retention.size_caps import record_count
from millstream.storage.segment.segment import GrowingSegment, SealedSegment, Segment

AGE_MARKS = 100
"""Into how many parts the retention time is divided: ages are known to within one of them."""


class Eviction(NamedTuple):
    """Segments to evict from a log, and why."""

    before_offset: int
    """The first offset that stays."""
    segments: int
    bytes: int
    records: int
    reasons: tuple[str, ...]
    """Those of `AGE`, `BYTES` and `RECORDS` that apply to at least one segment."""
    gap_reason: str
    """The first of them that applies to the last segment: readers are told this one."""

    def __str__(self) -> str:
        reasons = ", ".join(self.reasons)
        return (
            f"{self.segments} segments with {self.records} records in {self.bytes} bytes,"
            f" all before offset {self.before_offset}, by {reasons}"
        )


def plan_eviction(
    segments: Sequence[Segment],
    *,
    start: int,
    committed: int,
    config: LogConfig,
    now_ms: int,
    needed_offset: int | None = None,
    age_marks: Sequence[AgeMark] = (),
) -> Eviction | None:
    """Return what the settings of a log evict; `None` if that is nothing.

    `start` is its first stored offset, `committed` the end of the committed records; records from
    `needed_offset` on stay. By size, segments are evicted while the remaining ones still reach the
    limit: a limit is the minimum that is kept. Segments of which a part was deleted count with the
    whole size of their files.
    """
    if config.retention_ms is config.retention_bytes is config.retention_records is None:
        return None
    end = committed if needed_offset is None else min(committed, needed_offset)
    aged_offset = min(_aged_offset(age_marks, config, now_ms), end)
    live = [segment for segment in segments if start < segment.next_offset]
    evicted: list[SealedSegment] = []
    reasons: dict[str, None] = {}
    gap_reason = ""
    bytes_left = sum(segment.size for segment in live)
    records_left = sum(map(record_count, live))
    for segment in takewhile(lambda segment: _is_evictable(segment, end), live):
        assert isinstance(segment, SealedSegment)
        bytes_left -= segment.size
        records_left -= segment.seal.record_count
        segment_reasons = _reasons(segment.seal, bytes_left, records_left, config, now_ms)
        if segment.next_offset <= aged_offset and AGE not in segment_reasons:
            segment_reasons.insert(0, AGE)
        if not segment_reasons:
            break
        evicted.append(segment)
        reasons |= dict.fromkeys(segment_reasons)
        gap_reason = segment_reasons[0]
    before_offset = evicted[-1].next_offset if evicted else start
    if aged_offset > before_offset:
        before_offset = aged_offset
        gap_reason = AGE
        reasons[AGE] = None
    if before_offset <= start:
        return None
    return Eviction(
        before_offset=before_offset,
        segments=len(evicted),
        bytes=sum(segment.size for segment in evicted),
        records=sum(map(record_count, evicted)),
        reasons=tuple(reason for reason in (AGE, BYTES, RECORDS) if reason in reasons),
        gap_reason=gap_reason,
    )


def _aged_offset(age_marks: Sequence[AgeMark], config: LogConfig, now_ms: int) -> int:
    """Return the offset before which all records have reached their retention time."""
    if config.retention_ms is None:
        return 0
    return max((m.offset for m in age_marks if now_ms - m.ms > config.retention_ms), default=0)


def next_age_mark(
    age_marks: Sequence[AgeMark], *, committed: int, config: LogConfig, now_ms: int
) -> AgeMark | None:
    """Return a mark for the records up to `committed`, if it is time for one."""
    if config.retention_ms is None:
        return None
    if age_marks:
        last = age_marks[-1]
        is_early = now_ms - last.ms < config.retention_ms // AGE_MARKS
        if committed <= last.offset or is_early:
            return None
    return AgeMark(committed, now_ms)


def is_roll_due(segments: Sequence[Segment], *, config: LogConfig, now_ms: int) -> bool:
    """Whether the growing segment is so old that it has to be sealed, even without appends.

    Only sealed segments are evicted and cleaned, so it is sealed as soon as it reaches any age
    limit.
    """
    last = segments[-1] if segments else None
    if not isinstance(last, GrowingSegment) or last.size == 0:
        return False
    return now_ms - last.stats.created_ms > segment_age_ms_max(config)


def segment_age_ms_max(config: LogConfig) -> int:
    """Return the age of its first batch at which a segment is sealed."""
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
    """Raise `LogFull` if log `name` is set to reject records at its limit, and a batch exceeds it.

    `bytes` and `records` are the present size, including batches admitted but not written yet.
    """
    if config.discard is not Discard.REJECT:
        return
    for held, added, limit, unit in (
        (bytes, batch_bytes, config.retention_bytes, BYTES),
        (records, batch_records, config.retention_records, RECORDS),
    ):
        if limit is not None and held + added > limit:
            raise LogFull(
                f"{name} is full: it must hold at most {limit} {unit}, has {held}, and the batch"
                f" has {added}"
            )


def sealed_since(seal: Seal) -> int:
    """Return the time of the retention clock since which no record was added.

    A seal that was derived from a damaged log has no date; then it is the time of the derivation.
    """
    return max(seal.created_ms, seal.sealed_ms)


def _is_evictable(segment: Segment, end: int) -> bool:
    return isinstance(segment, SealedSegment) and segment.next_offset <= end


def _reasons(
    seal: Seal, bytes_left: int, records_left: int, config: LogConfig, now_ms: int
) -> list[str]:
    """Return the reasons to evict a segment, given what would remain without it."""
    age, size, count = config.retention_ms, config.retention_bytes, config.retention_records
    reasons = [AGE] if age is not None and now_ms - sealed_since(seal) > age else []
    if config.discard is Discard.OLD:
        reasons += [BYTES] if size is not None and bytes_left >= size else []
        reasons += [RECORDS] if count is not None and records_left >= count else []
    return reasons
