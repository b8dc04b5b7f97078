"""The log against a list: whatever is done to both, they say the same.

The list is what was ever appended, and a number says how much of its front was deleted. Deaths of
the process, power cuts, clean closings, deletions, refusals, changes of the settings and all reads
are mixed at will.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.config.schema import Durability, LogConfig
from millstream.errors import OffsetOutOfRange, OutOfOrderSequence
from millstream.records.batch import decode_header
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.record import Record, StoredRecord
from millstream.storage.store import Store
from millstream.testing import ManualClock, SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground

from .logs import turns

T = TypeVar("T")
EXAMPLES = 10_000 if os.environ.get("MILLSTREAM_LONG") else 200

RECORDS = st.lists(
    st.builds(
        Record,
        value=st.none() | st.binary(max_size=200),
        key=st.none() | st.binary(max_size=10),
        headers=st.just(()) | st.just((("h", b"v"), ("n", None))),
        timestamp_ms=st.integers(0, 1000),
    ),
    min_size=1,
    max_size=4,
)


class LogMachine(RuleBasedStateMachine):
    """Drives one log and its model."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.disk = SimulatedFilesystem()
        self.clock = ManualClock()
        self.model: list[StoredRecord] = []
        self.start = 0
        self.seed = 0

    @initialize(
        segment=st.sampled_from([1024, 2048, 100_000]),
        interval=st.sampled_from([64, 512]),
        records_max=st.sampled_from([5, 2**31 - 1]),
    )
    def begin(self, segment: int, interval: int, records_max: int) -> None:
        self.config = LogConfig(
            segment_bytes_max=segment,
            index_interval_bytes=interval,
            segment_records_max=records_max,
            segment_age_ms_max=60_000,
        )
        self.open()

    def open(self) -> None:
        self.seed += 1
        self.store = Store(
            "/data",
            log_config=self.config,
            filesystem=self.disk,
            clock=self.clock,
            background=SeededBackground(self.seed),
        )
        self.store.open()
        self.log = self.run(self.store.log("t"))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 30))

    def teardown(self) -> None:
        self.loop.close()

    # What happens.

    @rule(records=RECORDS, codec=st.sampled_from(list(Codec)))
    def append(self, records: list[Record], codec: Codec) -> None:
        appended = self.run(self.log.append_records(records, codec=codec))
        assert appended.offset == len(self.model)
        self.add(records)
        assert appended.last_offset == len(self.model) - 1
        assert appended.address is not None
        found = self.log.read_at(appended.address)
        assert decode_header(found.data).base_offset == appended.offset

    @rule(groups=st.lists(RECORDS, min_size=2, max_size=5))
    def append_at_once(self, groups: list[list[Record]]) -> None:
        self.run(self.gather(groups))

    async def gather(self, groups: list[list[Record]]) -> None:
        results = await asyncio.gather(*(self.log.append_records(group) for group in groups))
        for group, appended in zip(groups, results, strict=True):
            assert appended.offset == len(self.model)
            self.add(group)

    @rule(groups=st.lists(st.tuples(RECORDS, st.booleans()), min_size=2, max_size=6))
    def append_with_refusals(self, groups: list[tuple[list[Record], bool]]) -> None:
        self.run(self.submit(groups))

    async def submit(self, groups: list[tuple[list[Record], bool]]) -> None:
        """Each appender is told its offset when it gets it; those that refuse it take none."""
        told: list[int] = []

        def take(offset: int) -> None:
            told.append(offset)

        def refuse(offset: int) -> None:
            told.append(offset)
            raise OutOfOrderSequence(f"not at {offset}")

        futures = [
            self.log.submit(build_batch(group, now_ms=0), on_admit=refuse if is_refused else take)
            for group, is_refused in groups
        ]
        results = await asyncio.gather(*futures, return_exceptions=True)
        for (group, is_refused), result, offset in zip(groups, results, told, strict=True):
            assert offset == len(self.model)
            if is_refused:
                assert isinstance(result, OutOfOrderSequence)
            else:
                assert result.offset == offset
                self.add(group)
        assert self.log.next_offset == self.log.end_offset == len(self.model)

    def add(self, records: list[Record]) -> None:
        for record in records:
            assert record.timestamp_ms is not None
            self.model.append(
                StoredRecord(
                    len(self.model),
                    record.timestamp_ms,
                    record.key,
                    record.value,
                    record.headers,
                )
            )

    @rule(seconds=st.sampled_from([1, 61]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(change=st.sampled_from([-10_000_000, 10_000_000]))
    def set_the_wall_clock(self, change: int) -> None:
        self.clock.jump_wall(change)

    @rule()
    def close_and_open(self) -> None:
        self.run(self.store.close())
        self.open()
        assert self.log.recovered.scanned_bytes == 0, "a clean start scans nothing"

    @rule()
    def die_and_open(self) -> None:
        self.disk = self.disk.copy()
        self.open()

    @rule(seed=st.none() | st.integers(0, 1000))
    def lose_power_and_open(self, seed: int | None) -> None:
        self.disk = self.disk.crash(seed)
        self.open()

    @rule()
    def begin_epoch(self) -> None:
        self.run(self.log.begin_epoch(self.log.partition.leader_epoch + 1))

    @rule(data=st.data())
    def delete_before(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(-1, len(self.model)))
        self.run(self.log.delete_before(offset))
        self.start = max(self.start, offset)
        assert self.log.start_offset == self.start

    @rule(beyond=st.integers(1, 3))
    def delete_what_is_not_there_yet(self, beyond: int) -> None:
        with pytest.raises(OffsetOutOfRange):
            self.run(self.log.delete_before(len(self.model) + beyond))

    @rule(segment=st.sampled_from([1024, 2048, 100_000]), is_weak=st.booleans())
    def reconfigure(self, segment: int, is_weak: bool) -> None:
        """Go by other settings, and come back to a class that keeps what it acknowledged."""
        if is_weak:
            weak = replace(self.config, durability=Durability.DISK)
            self.run(self.log.reconfigure(weak))
            self.append([Record(b"weak", timestamp_ms=5)], Codec.NONE)
        self.config = replace(self.config, segment_bytes_max=segment)
        self.run(self.log.reconfigure(self.config))

    @rule()
    def park(self) -> None:
        self.log.close_idle()
        assert not self.log.is_open_for_writing

    @rule(suffix=st.sampled_from(["index"]))
    def lose_derived_files(self, suffix: str) -> None:
        """Of a closed store: all that can be derived is, when it is missing."""
        self.run(self.store.close())
        for path in self.disk.paths():
            if path.endswith(suffix):
                self.disk.remove(path)
        self.open()

    # What must hold.

    @invariant()
    def nothing_is_damaged(self) -> None:
        if hasattr(self, "store"):
            assert self.store.damage() == {}

    @rule()
    def read_all(self) -> None:
        assert list(self.log.records()) == self.model[self.start :]
        assert (self.log.start_offset, self.log.end_offset) == (self.start, len(self.model))
        headers = [header for header, _ in self.log.headers(self.start)]
        assert sum(header.record_count for header in headers) >= len(self.model) - self.start
        assert [header.base_offset for header in headers][1:] == [
            header.next_offset for header in headers
        ][:-1]

    @invariant()
    def files_of_deleted_segments_go(self) -> None:
        """All but the one that says where the log ends, once nothing is under way."""
        if hasattr(self, "log"):
            self.run(turns())
            bases = [int(path[-24:-4]) for path in self.disk.paths() if path.endswith(".log")]
            assert len([base for base in bases if base <= self.start]) <= 2
            assert bases == [segment.base_offset for segment in self.log.segments]

    @precondition(lambda self: self.start < len(self.model))
    @rule(data=st.data())
    def read_from_anywhere(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(self.start, len(self.model) - 1))
        size_max = data.draw(st.sampled_from([1, 300, 10_000]))
        records_max = data.draw(st.none() | st.integers(1, 5))
        found = self.log.read(offset, size_max=size_max, records_max=records_max)
        header = decode_header(found.data)
        assert header.base_offset <= offset <= header.last_offset
        assert offset < found.next_offset <= len(self.model)
        assert len(found.data) <= size_max or len(found.data) == header.size
        if records_max is not None:
            count = found.next_offset - header.base_offset
            assert count <= records_max or count == header.record_count

    @rule(offset=st.sampled_from([-1, 1, 1000]))
    def read_out_of_range(self, offset: int) -> None:
        outside = self.start + offset if offset < 0 else len(self.model) + offset
        with pytest.raises(OffsetOutOfRange):
            self.log.read(outside)

    @rule(timestamp=st.integers(-1, 1001))
    def find_timestamp(self, timestamp: int) -> None:
        live = self.model[self.start :]
        expected = next((r for r in live if r.timestamp_ms >= timestamp), None)
        found = self.log.find_timestamp(timestamp)
        assert found == (expected and (expected.offset, expected.timestamp_ms))

    @rule()
    def find_latest(self) -> None:
        live = self.model[self.start :]
        expected = max(live, key=lambda r: (r.timestamp_ms, -r.offset), default=None)
        found = self.log.find_latest()
        assert found == (expected and (expected.offset, expected.timestamp_ms))

    @rule(first=st.integers(0, 1000), last=st.integers(0, 1001))
    def read_between(self, first: int, last: int) -> None:
        expected = [r for r in self.model[self.start :] if first <= r.timestamp_ms < last]
        assert list(self.log.records_between(first, last)) == expected


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
