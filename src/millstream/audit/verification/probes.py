"""Index probes: lookups on a node must agree with a sequential read.

During the sequential read of a partition, some offsets and timestamps are remembered together with
their batches. Then the node is asked for each of them:

- A fetch from an offset must begin with the batch that contains it.
- ListOffsets for a timestamp must return the first record at or after it. Only timestamps that are
  later than all before are used: then the result is known without a second pass.

A running node rewrites its segments. So a mismatch is checked again, by reading up to it from the
batch before, and only a mismatch that remains is a finding.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from millstream.audit.verification.node_source import NodeSource
from millstream.audit.verification.report import Report
from millstream.audit.verification.source import IntactBatch, PartitionFacts
from millstream.errors import CorruptBatch, CorruptData, InvalidRequest, OffsetOutOfRange
from millstream.records.batch import BatchHeader
from millstream.records.iterate import read_records
from millstream.records.topic_partition import TopicPartition
from millstream.storage.inspect.catalog import Finding

PROBES_MAX = 10_000


class _OffsetProbe(NamedTuple):
    """Offset, and the batch that the sequential read found there."""

    offset: int
    header: BatchHeader
    before: int
    """Base offset of the batch before it."""


class _TimeProbe(NamedTuple):
    """Timestamp, and the offset of the first record at or after it."""

    timestamp_ms: int
    offset: int


def choose_offsets(start: int, end: int, count: int, rng: random.Random) -> list[int]:
    """Return about `count` offsets: the first, the last, some evenly spaced and some random."""
    if start >= end or count < 1:
        return []
    even = max(1, (end - start) // max(1, count // 2))
    chosen = {start, end - 1, *range(start, end, even)}
    chosen.update(rng.randrange(start, end) for _ in range(count // 2))
    return sorted(chosen)[: PROBES_MAX + 2]


class Probes:
    """Offsets and timestamps of one partition, remembered while it is read sequentially."""

    def __init__(
        self, partition: TopicPartition, facts: PartitionFacts, *, count: int, rng: random.Random
    ) -> None:
        if count > PROBES_MAX:
            raise InvalidRequest(
                f"samples of each partition must be between 0 and {PROBES_MAX}, got {count}"
            )
        self._partition = partition
        self._end = facts.end
        chosen = choose_offsets(facts.start, facts.end, count, rng)
        self._offsets = list(reversed(chosen))
        self._is_probing = bool(chosen)
        self._offset_probes: list[_OffsetProbe] = []
        self._time_probes: list[_TimeProbe] = []
        self._previous_offset = facts.start
        self._latest: int | None = None

    def take(self, batch: IntactBatch) -> None:
        """Remember a batch if it contains one of the chosen offsets."""
        header, is_chosen = batch.header, False
        while self._offsets and self._offsets[-1] <= header.last_offset:
            offset = self._offsets.pop()
            if offset >= header.base_offset:
                self._offset_probes.append(_OffsetProbe(offset, header, self._previous_offset))
                is_chosen = True
        if is_chosen and not header.is_control and header.record_count:
            self._remember_time(batch)
        self._previous_offset = header.base_offset
        if self._latest is None or header.max_timestamp > self._latest:
            self._latest = header.max_timestamp

    def _remember_time(self, batch: IntactBatch) -> None:
        try:
            records = read_records(batch.data)
        except CorruptBatch:
            return  # Written so by its producer; it has no usable timestamp.
        latest = max(record.timestamp_ms for record in records)
        if latest >= 0 and (self._latest is None or latest > self._latest):
            first = next(record.offset for record in records if record.timestamp_ms == latest)
            self._time_probes.append(_TimeProbe(latest, first))

    def check(self, source: NodeSource, report: Report) -> None:
        """Ask the node for each probe and report mismatches."""
        for probe in self._offset_probes:
            report.offsets_probed += 1
            if problem := self._check_offset(source, probe):
                report.add_finding(Finding(str(self._partition), None, problem))
        for time_probe in self._time_probes:
            report.times_probed += 1
            if problem := self._check_time(source, time_probe):
                report.add_finding(Finding(str(self._partition), None, problem))
        if self._is_probing and self._latest is not None and self._latest >= 0:
            self._check_end(source, report)

    def _check_offset(self, source: NodeSource, probe: _OffsetProbe) -> str | None:
        header: BatchHeader | None = probe.header
        try:
            for _ in range(2):
                batch = source.batch_at(self._partition, probe.offset)
                if batch is not None and header is not None and batch.header == header:
                    return None
                header = source.header_holding(self._partition, probe.offset, probe.before)
        except OffsetOutOfRange:
            return None  # Retention deleted it meanwhile.
        except CorruptData as error:
            return f"offset {probe.offset}: a fetch from it is damaged: {error}"
        return (
            f"offset {probe.offset}: a fetch from it starts with {_span(batch)},"
            f" a sequential read finds {_span(header)}"
        )

    def _check_time(self, source: NodeSource, probe: _TimeProbe) -> str | None:
        try:
            offset = source.offset_at(self._partition, probe.timestamp_ms)
        except CorruptData:
            return None  # The damage is reported where it is.
        if offset == probe.offset or not self._is_still_present(source, probe):
            return None
        return (
            f"time {probe.timestamp_ms}: the first record at or after it has offset {probe.offset},"
            f" the node returns {offset}"
        )

    def _is_still_present(self, source: NodeSource, probe: _TimeProbe) -> bool:
        try:
            batch = source.batch_at(self._partition, probe.offset)
            records = [] if batch is None else read_records(batch.data)
        except (OffsetOutOfRange, CorruptData):
            return False
        return any(
            (record.offset, record.timestamp_ms) == (probe.offset, probe.timestamp_ms)
            for record in records
        )

    def _check_end(self, source: NodeSource, report: Report) -> None:
        """Ask for a time after the last record: the node must return nothing, or a newer record."""
        assert self._latest is not None
        report.times_probed += 1
        try:
            offset = source.offset_at(self._partition, self._latest + 1)
        except CorruptData:
            return  # The damage is reported where it is.
        if offset is not None and offset < self._end:
            problem = (
                f"time {self._latest + 1}: no record before offset {self._end} is as late,"
                f" the node returns {offset}"
            )
            report.add_finding(Finding(str(self._partition), None, problem))


def _span(batch: IntactBatch | BatchHeader | None) -> str:
    header = batch.header if isinstance(batch, IntactBatch) else batch
    if header is None:
        return "nothing"
    span = f"offsets {header.base_offset} to {header.last_offset}"
    return f"a batch of {span} (checksum {header.crc:08x})"
