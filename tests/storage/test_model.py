"""The log against a list: whatever is done to both, they say the same.

The list is what must be readable, and a second one what may be: what was appended and not yet
acknowledged when the power went. Deaths of the process, power cuts, clean closings and all reads
are mixed at will.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.config import LogConfig
from millstream.errors import OffsetOutOfRange
from millstream.records.batch import decode_header
from millstream.records.compression import Codec
from millstream.records.record import Record, StoredRecord
from millstream.storage.store import Store
from millstream.testing import ManualClock, SimulatedFilesystem
from millstream.testing.background import SeededBackground

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

    @rule()
    def park(self) -> None:
        self.log.park()
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
        assert list(self.log.records()) == self.model
        assert (self.log.start_offset, self.log.end_offset) == (0, len(self.model))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def read_from_anywhere(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.model) - 1))
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
        outside = offset if offset < 0 else len(self.model) + offset
        with pytest.raises(OffsetOutOfRange):
            self.log.read(outside)

    @rule(timestamp=st.integers(-1, 1001))
    def find_timestamp(self, timestamp: int) -> None:
        expected = next((r for r in self.model if r.timestamp_ms >= timestamp), None)
        found = self.log.find_timestamp(timestamp)
        assert found == (expected and (expected.offset, expected.timestamp_ms))

    @rule(first=st.integers(0, 1000), last=st.integers(0, 1001))
    def read_between(self, first: int, last: int) -> None:
        expected = [r for r in self.model if first <= r.timestamp_ms < last]
        assert list(self.log.records_between(first, last)) == expected


TestLog = LogMachine.TestCase
TestLog.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
