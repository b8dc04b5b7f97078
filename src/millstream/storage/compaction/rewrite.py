"""Rewriting segments: fewer of them, or fewer records in them. Blocking work for a thread.

    inputs, one after the other          output
    +------+------+------+ +------+      +------+--+------+
    | keep | goes | keep | | keep |  ->  | keep |f | keep | ...    f: a filler for the offsets
    +------+------+------+ +------+      +------+--+------+           that nothing covers any more

The output starts where the first input does and ends where the last one does, and covers every
offset in between. It is written beside them under a name of its own, of a generation one greater,
and nobody sees it: that is for `switching.py`, once it is on the disk.

For each producer the last batch of an input, and its last marker, stay as headers though no record
of them is left: after a crash they tell which sequence and epoch come next.
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
from millstream.storage.compaction.rewrite_output import RewriteFile, RewriteOutput, RewriteTooLarge
from millstream.storage.compaction.segment_chunks import SegmentChunk, read_chunks, reporting_damage
from millstream.storage.segment.segment import LogDirectory, SealedSegment

logger = logging.getLogger(__name__)

NEVER_MS = 2**63 - 1


class UnsettledTransaction(Exception):
    """A segment holds records of a transaction, and nobody knows how that ended."""


ThrottleCallback: TypeAlias = Callable[[int], None]
"""Told how many bytes were read and written; returns when work may go on, or raises `Stopping`."""


class RewriteResult(NamedTuple):
    """What became of some segments."""

    output: RewriteOutput | None
    """Nothing where a single segment would have come out as it is."""
    removed_records: int
    bytes_read: int
    bytes_written: int
    tombstones_due_ms: int
    """When the next tombstone in it may go; `NEVER_MS` where none waits."""


def rewrite(
    log_directory: LogDirectory,
    inputs: Sequence[SealedSegment],
    rules: FilterRules,
    *,
    keeps_markers: bool = False,
    pace: ThrottleCallback,
) -> RewriteResult:
    """Write the records of `inputs` that `rules` leave into one segment, durable but for its name.

    The inputs follow each other and bear one leader epoch. `keeps_markers` has all markers stay,
    though the rules settle transactions. Raises `Damaged` for an input that cannot be read,
    `Stopping` where `pace` does, and `OSError`; then nothing is left behind, save what a full or
    broken disk does not let go of, which goes when the log is opened.
    """
    needed: set[int] = set()
    for segment in inputs:
        needed |= _needed_headers(segment, keeps_markers=keeps_markers, pace=pace)
    rules = replace(rules, producers=frozenset(needed))
    try:
        return _SegmentRewrite(log_directory, inputs, rules, pace).run()
    except RewriteTooLarge:
        # A tombstone that waits makes all records beside it larger; then it has to wait elsewhere.
        logger.warning("%s: left without a date for its tombstones: too large", inputs[0].path)
        rules = replace(rules, tombstone_ms=None)
    try:
        return _SegmentRewrite(log_directory, inputs, rules, pace).run()
    except RewriteTooLarge as error:
        raise StorageFailed(f"{inputs[0].path} cannot be rewritten: {error}") from error


def fill_key_table(
    table: KeyTable,
    segment: SealedSegment,
    rules: FilterRules,
    *,
    start: int,
    pace: ThrottleCallback,
) -> int:
    """Fill a table with the keys of a segment, from the batch that holds `start` on.

    Returns the offset up to which it took note: the end of the segment, or, where the memory is
    used up, the start of a batch. Raises `UnsettledTransaction` if there is a transaction and the
    rules do not know of any: a record that was aborted must not take the place of one that was not.
    """
    for chunk in read_chunks(segment, start=start):
        if rules.aborted is None and any(header.is_transactional for header in chunk.headers):
            raise UnsettledTransaction
        with reporting_damage(segment, chunk.position):
            noted = table.add(chunk.data, rules)
        pace(len(chunk.data))
        if noted < chunk.headers[-1].next_offset:
            return noted
    return segment.next_offset


def _needed_headers(
    segment: SealedSegment, *, keeps_markers: bool, pace: ThrottleCallback
) -> set[int]:
    """Return the base offsets of each producer's last batch and last marker in a segment.

    Of all markers, where these stay.
    """
    last: dict[tuple[int, bool], int] = {}
    markers: set[int] = set()
    for chunk in read_chunks(segment):
        for header in chunk.headers:
            if header.producer_id >= 0:
                last[header.producer_id, header.is_control] = header.base_offset
            if header.is_control and keeps_markers:
                markers.add(header.base_offset)
        pace(len(chunk.data) // 2)  # It will be read again, and counts once.
    return markers.union(last.values())


class _SegmentRewrite:
    """One rewrite. The output is begun when the first difference is found."""

    def __init__(
        self,
        log_directory: LogDirectory,
        inputs: Sequence[SealedSegment],
        rules: FilterRules,
        pace: ThrottleCallback,
    ) -> None:
        self._log_directory = log_directory
        self._inputs = inputs
        self._rules = rules
        self._pace = pace
        self._file: RewriteFile | None = None
        self._removed_records = 0
        self._bytes_read = 0
        self._due_ms = NEVER_MS

    def run(self) -> RewriteResult:
        try:
            if len(self._inputs) > 1:
                self._begin()
            for segment in self._inputs:
                self._sift(segment)
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
        )

    def _sift(self, segment: SealedSegment) -> None:
        for chunk in read_chunks(segment):
            with reporting_damage(segment, chunk.position):
                sifted = filter_batches(chunk.data, self._rules)
            self._removed_records += sifted.removed_records
            if self._file is None and sifted.changed_batches:
                self._begin()
                self._copy(segment, chunk.position)
            self._put(sifted.pieces, chunk)

    def _begin(self) -> None:
        self._file = RewriteFile(self._log_directory, self._inputs)

    def _copy(self, segment: SealedSegment, end_position: int) -> None:
        """Copy what was found to stay as it is. Its sums were verified."""
        if end_position > 0:
            for chunk in read_chunks(segment, end_position=end_position):
                self._put([chunk.data], chunk)

    def _put(self, pieces: Sequence[Bytes], chunk: SegmentChunk) -> None:
        written = 0
        if self._file is None:
            self._note_tombstones(chunk.headers)
        else:
            written = self._file.write(pieces)
            self._note_tombstones(self._file.headers)
        self._bytes_read += len(chunk.data)
        self._pace(len(chunk.data) // 2 + written)

    def _note_tombstones(self, headers: Sequence[BatchHeader]) -> None:
        """Take note of tombstones that wait; those whose time was over before have gone."""
        for header in headers:
            if header.has_horizon and header.base_timestamp >= self._rules.now_ms:
                self._due_ms = min(self._due_ms, header.base_timestamp)
