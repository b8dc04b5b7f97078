"""The indexes of a node, seen from outside: looking up has to find what reading through finds.

While a partition is read through, some offsets and times are remembered, with what lay there. Then
the node is asked for each of them:

- A fetch from an offset must begin with the batch that holds it.
- The first offset at a time, by ListOffsets, must be that of the first record that is as late. Only
  times are taken at which all before were earlier: then the answer is known without a second pass.

A running node rewrites what it has. So what does not agree is looked at once more, by reading to it
from the batch before, and only what still does not agree is a finding.
"""

from __future__ import annotations

import random
from typing import NamedTuple

from millstream.audit.verification.node_source import NodeSource
from millstream.audit.verification.report import Report
from millstream.audit.verification.source import IntactBatch, PartitionFacts
from millstream.errors import CorruptBatch, InvalidRequest, OffsetOutOfRange
from millstream.records.batch import BatchHeader
from millstream.records.iterate import read_records
from millstream.records.topic_partition import TopicPartition
from millstream.storage.inspect.catalog import Finding

PROBES_MAX = 10_000


class _OffsetProbe(NamedTuple):
    """An offset, and the batch that reading through found there."""

    offset: int
    header: BatchHeader
    before: int
    """Where the batch before it begins."""


class _TimeProbe(NamedTuple):
    """A time, and the first record that is as late."""

    timestamp_ms: int
    offset: int


def choose_offsets(start: int, end: int, count: int, chance: random.Random) -> list[int]:
    """Return about `count` offsets: the first, the last, some evenly spread and some by chance."""
    if start >= end or count < 1:
        return []
    even = max(1, (end - start) // max(1, count // 2))
    chosen = {start, end - 1, *range(start, end, even)}
    chosen.update(chance.randrange(start, end) for _ in range(count // 2))
    return sorted(chosen)[: PROBES_MAX + 2]


class Probes:
    """Offsets and times of one partition, remembered while it is read through."""

    def __init__(
        self, where: TopicPartition, facts: PartitionFacts, *, count: int, chance: random.Random
    ) -> None:
        if count > PROBES_MAX:
            raise InvalidRequest(f"{count} samples of each partition, allowed is 0-{PROBES_MAX}")
        self._where = where
        self._end = facts.end
        chosen = choose_offsets(facts.start, facts.end, count, chance)
        self._offsets = list(reversed(chosen))
        self._is_probing = bool(chosen)
        self._places: list[_OffsetProbe] = []
        self._moments: list[_TimeProbe] = []
        self._before = facts.start
        self._latest: int | None = None

    def take(self, held: IntactBatch) -> None:
        """Remember a batch, where one of the offsets lies in it."""
        header, is_chosen = held.header, False
        while self._offsets and self._offsets[-1] <= header.last_offset:
            offset = self._offsets.pop()
            if offset >= header.base_offset:
                self._places.append(_OffsetProbe(offset, header, self._before))
                is_chosen = True
        if is_chosen and not header.is_control and header.record_count:
            self._remember_time(held)
        self._before = header.base_offset
        if self._latest is None or header.max_timestamp > self._latest:
            self._latest = header.max_timestamp

    def _remember_time(self, held: IntactBatch) -> None:
        try:
            records = read_records(held.data)
        except CorruptBatch:
            return  # Its producer made it so, and no time can be told.
        latest = max(record.timestamp_ms for record in records)
        if latest >= 0 and (self._latest is None or latest > self._latest):
            first = next(one.offset for one in records if one.timestamp_ms == latest)
            self._moments.append(_TimeProbe(latest, first))

    def check(self, source: NodeSource, report: Report) -> None:
        """Ask the node for all that is remembered, and report what does not agree."""
        for place in self._places:
            report.offsets_probed += 1
            if found := self._check_place(source, place):
                report.find(Finding(str(self._where), None, found))
        for moment in self._moments:
            report.times_probed += 1
            if found := self._check_moment(source, moment):
                report.find(Finding(str(self._where), None, found))
        if self._is_probing and self._latest is not None and self._latest >= 0:
            self._check_end(source, report)

    def _check_place(self, source: NodeSource, place: _OffsetProbe) -> str | None:
        header: BatchHeader | None = place.header
        try:
            for _ in range(2):
                found = source.batch_at(self._where, place.offset)
                if found is not None and header is not None and found.header == header:
                    return None
                header = source.header_holding(self._where, place.offset, place.before)
        except OffsetOutOfRange:
            return None  # Retention took it meanwhile.
        except CorruptBatch as error:
            return f"offset {place.offset}: a fetch from there is damaged: {error}"
        return (
            f"offset {place.offset}: a fetch from there begins with {_span(found)},"
            f" reading through finds {_span(header)}"
        )

    def _check_moment(self, source: NodeSource, moment: _TimeProbe) -> str | None:
        found = source.offset_at(self._where, moment.timestamp_ms)
        if found == moment.offset or not self._is_still_there(source, moment):
            return None
        return (
            f"time {moment.timestamp_ms}: the first record as late has offset {moment.offset},"
            f" the node says {found}"
        )

    def _is_still_there(self, source: NodeSource, moment: _TimeProbe) -> bool:
        try:
            held = source.batch_at(self._where, moment.offset)
            records = [] if held is None else read_records(held.data)
        except (OffsetOutOfRange, CorruptBatch):
            return False
        return any(
            (one.offset, one.timestamp_ms) == (moment.offset, moment.timestamp_ms)
            for one in records
        )

    def _check_end(self, source: NodeSource, report: Report) -> None:
        """Ask for a time after all: there is nothing, or it came since."""
        assert self._latest is not None
        report.times_probed += 1
        found = source.offset_at(self._where, self._latest + 1)
        if found is not None and found < self._end:
            what = (
                f"time {self._latest + 1}: no record is as late before offset {self._end},"
                f" the node says {found}"
            )
            report.find(Finding(str(self._where), None, what))


def _span(found: IntactBatch | BatchHeader | None) -> str:
    header = found.header if isinstance(found, IntactBatch) else found
    if header is None:
        return "nothing"
    return f"a batch of offsets {header.base_offset} to {header.last_offset} (sum {header.crc:08x})"
