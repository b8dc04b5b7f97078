"""Rewrite of segments into one with fewer records. Blocks; runs in a thread.

    inputs, adjacent                     output
    +------+------+------+ +------+      +------+--+------+
    | keep | drop | keep | | keep |  ->  | keep |f | keep | ...    f: a filler for the offsets
    +------+------+------+ +------+      +------+--+------+           that no batch covers any more

The output starts where the first input does and ends where the last one does, and covers every
offset in between. It is written beside them under a name of its own, with the next generation
number, and is invisible until `segment_swap.py` swaps it in, once it is durable.

For each producer, the last batch of an input, and its last marker, stay as headers even if no
record of them is left: after a crash they tell which sequence and epoch come next.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from millstream.errors import StorageFailed
from millstream.records.batch import BatchHeader, Bytes
from millstream.records.filter.batch_filter import filter_batches
from millstream.records.filter.keys.table import KeyTable
from millstream.records.filter.rules import FilterRules
from millstream.storage.compaction.plan import OFFSET_INFINITY
from millstream.storage.compaction.rewrite_output import RewriteFile, RewriteOutput, RewriteTooLarge
from millstream.storage.compaction.segment_chunks import SegmentChunk, read_chunks, reporting_damage
from millstream.storage.segment.segment import LogDirectory, SealedSegment

logger = logging.getLogger(__name__)

NEVER_MS = 2**63 - 1


class UnsettledTransaction(Exception):
    """A segment has records of a transaction whose outcome is unknown."""


ThrottleCallback: TypeAlias = Callable[[int], None]
"""Takes the number of bytes read and written; returns when work may go on, or raises `Stopping`."""


class RewriteResult(NamedTuple):
    """Result of a rewrite."""

    output: RewriteOutput | None
    """`None` if a single segment would not change."""
    removed_records: int
    bytes_read: int
    bytes_written: int
    tombstones_due_ms: int
    """When its next tombstone expires; `NEVER_MS` if there is none."""
    has_tombstones: bool
    """Whether there are tombstones that a later run may remove."""


def rewrite(
    log_directory: LogDirectory,
    inputs: Sequence[SealedSegment],
    rules: FilterRules,
    *,
    keeps_markers: bool = False,
    throttle: ThrottleCallback,
) -> RewriteResult:
    """Write the records of `inputs` that `rules` keep to one segment, durable except for its name.

    The inputs are adjacent and have one leader epoch. `keeps_markers` keeps all markers, though the
    rules settle transactions. Raises `DamagedSegment` for an input that cannot be read, `Stopping`
    if `throttle` does, and `OSError`; then nothing is left behind, except what a full or broken
    disk does not let us remove, which is removed when the log is opened.
    """
    needed: set[int] = set()
    for segment in inputs:
        needed |= _needed_headers(segment, keeps_markers=keeps_markers, throttle=throttle)
    rules = replace(rules, producers=frozenset(needed))
    try:
        return _SegmentRewrite(log_directory, inputs, rules, throttle).run()
    except RewriteTooLarge:
        # A horizon changes the timestamp deltas of its batch and can make its records larger.
        # Without one the tombstones stay until a later run.
        logger.warning(
            "%s: tombstones are kept without an expiry time: the segment would be too large",
            inputs[0].path,
        )
        rules = replace(rules, tombstone_ms=None)
    try:
        return _SegmentRewrite(log_directory, inputs, rules, throttle).run()
    except RewriteTooLarge as error:
        raise StorageFailed(f"{inputs[0].path} cannot be rewritten: {error}") from error


def fill_key_table(
    table: KeyTable,
    segment: SealedSegment,
    rules: FilterRules,
    *,
    start: int,
    end: int = OFFSET_INFINITY,
    throttle: ThrottleCallback,
) -> int:
    """Add the keys of a segment to a table, from the batch that contains `start` on.

    Batches at or after `end` are left out. Returns the offset up to which keys were added: `end`,
    the end of the segment, or the start of a batch if the memory is used up. Raises
    `UnsettledTransaction` if there is a transaction and the rules have no list of aborted ones: an
    aborted record must not supersede a committed one.
    """
    for chunk in read_chunks(segment, start=start):
        if rules.aborted is None and any(header.is_transactional for header in chunk.headers):
            raise UnsettledTransaction
        headers = [header for header in chunk.headers if header.base_offset < end]
        if not headers:
            break
        data = chunk.data
        if len(headers) < len(chunk.headers):
            data = data[: sum(header.size for header in headers)]
        with reporting_damage(segment, chunk.position):
            added_until = table.add(data, rules)
        throttle(len(chunk.data))
        if added_until < headers[-1].next_offset:
            return added_until
    return min(segment.next_offset, end)


def _needed_headers(
    segment: SealedSegment, *, keeps_markers: bool, throttle: ThrottleCallback
) -> set[int]:
    """Return the base offsets of each producer's last batch and last marker in a segment.

    With `keeps_markers`, those of all markers.
    """
    last: dict[tuple[int, bool], int] = {}
    markers: set[int] = set()
    for chunk in read_chunks(segment):
        for header in chunk.headers:
            if header.producer_id >= 0:
                last[header.producer_id, header.is_control] = header.base_offset
            if header.is_control and keeps_markers:
                markers.add(header.base_offset)
        throttle(len(chunk.data) // 2)  # Half: the same bytes are read again by the rewrite.
    return markers.union(last.values())


class _SegmentRewrite:
    """One rewrite. The output file is created at the first difference."""

    def __init__(
        self,
        log_directory: LogDirectory,
        inputs: Sequence[SealedSegment],
        rules: FilterRules,
        throttle: ThrottleCallback,
    ) -> None:
        self._log_directory = log_directory
        self._inputs = inputs
        self._rules = rules
        self._throttle = throttle
        self._file: RewriteFile | None = None
        self._removed_records = 0
        self._bytes_read = 0
        self._due_ms = NEVER_MS
        self._has_tombstones = False

    def run(self) -> RewriteResult:
        try:
            if len(self._inputs) > 1:
                self._begin()
            for segment in self._inputs:
                self._filter(segment)
            output = self._file.finish() if self._file is not None else None
        except BaseException:
            if self._file is not None:
                self._file.abandon()
            raise
        return RewriteResult(
            output,
            self._removed_records,
            self._bytes_read,
            self._file.size if self._file is not None else 0,
            self._due_ms,
            self._has_tombstones,
        )

    def _filter(self, segment: SealedSegment) -> None:
        for chunk in read_chunks(segment):
            with reporting_damage(segment, chunk.position):
                filtered = filter_batches(chunk.data, self._rules)
            self._removed_records += filtered.removed_records
            if self._file is None and filtered.changed_batches:
                self._begin()
                self._copy(segment, chunk.position)
            self._put(filtered.pieces, chunk)

    def _begin(self) -> None:
        self._file = RewriteFile(self._log_directory, self._inputs)

    def _copy(self, segment: SealedSegment, end_position: int) -> None:
        """Copy the unchanged batches before the first difference. Their checksums were verified."""
        if end_position > 0:
            for chunk in read_chunks(segment, end_position=end_position):
                self._put([chunk.data], chunk)

    def _put(self, pieces: Sequence[Bytes], chunk: SegmentChunk) -> None:
        written = 0
        if self._file is None:
            self._track_tombstones(chunk.headers)
        else:
            written = self._file.write(pieces)
            self._track_tombstones(self._file.headers)
        self._bytes_read += len(chunk.data)
        self._throttle(len(chunk.data) // 2 + written)

    def _track_tombstones(self, headers: Sequence[BatchHeader]) -> None:
        """Update the next expiry time of tombstones; those that had expired were removed."""
        for header in headers:
            if not header.has_horizon:
                continue
            self._has_tombstones |= not self._rules.removes_tombstones(header)
            if header.base_timestamp >= self._rules.now_ms:
                self._due_ms = min(self._due_ms, header.base_timestamp)
