"""The life of data against a model: what must be seen, what may be, and what never again.

Appends, retention, deletion by offset, key and prefix, compaction, merging, closings, power cuts
and the passing of time are mixed at will. The model does not know which records compaction has
removed by now; it knows which it had to leave, which it may take, and that what is gone stays gone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from millstream.config.schema import LogConfig, StoreConfig
from millstream.records.compression import Codec
from millstream.records.record import Gap, Record, StoredRecord
from millstream.storage.store import Store
from millstream.testing import ManualClock, SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground

from .logs import turns

T = TypeVar("T")
EXAMPLES = 10_000 if os.environ.get("MILLSTREAM_LONG") else 200
TOMBSTONE_MS = 60_000
RETENTION_MS = 600_000

KEYS = [b"a", b"aa", b"ab", b"b", b"", None]
RECORDS = st.lists(
    st.builds(
        Record,
        value=st.sampled_from([None, b"", b"v", b"w" * 150]),
        key=st.sampled_from(KEYS),
        timestamp_ms=st.integers(0, 1000),
    ),
    min_size=1,
    max_size=4,
)


class LifeMachine(RuleBasedStateMachine):
    """Drives one log and its model."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.disk = SimulatedFilesystem()
        self.clock = ManualClock()
        self.model: list[StoredRecord] = []
        self.appended_at: list[float] = []
        self.hidden: set[int] = set()
        """Deleted by key or prefix: never seen again."""
        self.start = 0
        self.floor = 0
        self.seen: set[int] = set()
        """What the last reader saw: nothing else from before may be seen again."""
        self.seed = 0

    @initialize(
        segment=st.sampled_from([1024, 2048]),
        is_compacted=st.booleans(),
        is_kept_for_ever=st.booleans(),
        records_max=st.sampled_from([None, 5]),
    )
    def begin(
        self, segment: int, is_compacted: bool, is_kept_for_ever: bool, records_max: int | None
    ) -> None:
        self.config = LogConfig(
            segment_bytes_max=segment,
            index_interval_bytes=64,
            segment_age_ms_max=120_000,
            is_compacted=is_compacted,
            tombstone_ms=TOMBSTONE_MS,
            dirty_ratio_min=0.0,
            retention_ms=None if is_kept_for_ever else RETENTION_MS,
            retention_records=records_max,
        )
        self.open()

    def open(self) -> None:
        self.seed += 1
        self.store = Store(
            "/data",
            log_config=self.config,
            config=StoreConfig(cleaning_bytes_per_second_max=0),
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

    @rule(records=RECORDS, codec=st.sampled_from([Codec.NONE, Codec.LZ4]))
    def append(self, records: list[Record], codec: Codec) -> None:
        appended = self.run(self.log.append_records(records, codec=codec))
        assert appended.offset == len(self.model)
        for record in records:
            offset = len(self.model)
            assert record.timestamp_ms is not None
            self.model.append(
                StoredRecord(offset, record.timestamp_ms, record.key, record.value, ())
            )
            self.appended_at.append(self.clock.monotonic())
            self.seen.add(offset)
        self.note_eviction(len(self.model))
        limit = self.config.retention_records
        if limit is not None and not self.config.is_compacted and not self.hidden:
            assert len(self.model) - self.log.start_offset <= limit, "more than allowed"

    @rule(seconds=st.sampled_from([1, 61, 130, 700]))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @rule(change=st.sampled_from([-(10**11), 10**11]))
    def set_the_wall_clock(self, change: int) -> None:
        self.clock.jump_wall(change)

    @rule(data=st.data())
    def delete_before(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, len(self.model)))
        self.run(self.log.delete_before(offset))
        self.start = max(self.start, offset)

    @rule(key=st.sampled_from([key for key in KEYS if key is not None]))
    def delete_key(self, key: bytes) -> None:
        self.check_deletion({r.offset for r in self.model if r.key == key}, key=key)

    @rule(prefix=st.sampled_from([b"a", b"ab", b"b"]))
    def delete_prefix(self, prefix: bytes) -> None:
        hit = {r.offset for r in self.model if r.key is not None and r.key.startswith(prefix)}
        self.check_deletion(hit, prefix=prefix)

    @rule(data=st.data(), key=st.sampled_from([b"a", b"b"]))
    def delete_key_before(self, data: st.DataObject, key: bytes) -> None:
        before = data.draw(st.integers(0, len(self.model)))
        hit = {r.offset for r in self.model[:before] if r.key == key}
        self.check_deletion(hit, key=key, before=before)

    def check_deletion(self, hit: set[int], **what: Any) -> None:
        visible = self.visible()
        deleted = self.run(self.log.delete_keys(**what))
        assert deleted == len(hit & visible)
        self.hidden |= hit
        assert self.visible() == visible - hit

    @rule()
    def roll(self) -> None:
        self.run(self.log.roll())

    @rule()
    def look_after_the_store(self) -> None:
        """Retention, reclaiming and compaction, as time brings them."""
        end = len(self.model)
        self.run(self.store.maintenance.run_once())
        self.note_eviction(end)

    @rule()
    def compact_all(self) -> None:
        end = len(self.model)
        self.run(self.store.maintenance.run_once(is_forced=True))
        self.note_eviction(end)

    def note_eviction(self, end: int) -> None:
        floor = self.log.eviction_floor
        assert self.floor <= floor <= end
        if floor > self.floor:
            self.check_eviction(floor)
        self.floor = floor
        self.start = max(self.start, floor)

    def check_eviction(self, floor: int) -> None:
        """Nothing younger than the policy goes, whatever the clocks say (P24)."""
        config = self.config
        age_ms = (self.clock.monotonic() - self.appended_at[floor - 1]) * 1000
        is_old = config.retention_ms is not None and age_ms > config.retention_ms
        is_many = config.retention_records is not None
        if is_many and not is_old:
            assert config.retention_records is not None
            assert len(self.model) - floor >= config.retention_records
        assert is_old or is_many

    @rule()
    def close_and_open(self) -> None:
        self.run(self.store.close())
        self.open()

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

    # What must hold.

    def visible(self) -> set[int]:
        return {r.offset for r in self.log.records() if isinstance(r, StoredRecord)}

    def is_latest(self, record: StoredRecord) -> bool:
        later = self.model[record.offset + 1 :]
        return not any(r.key == record.key and r.offset not in self.hidden for r in later)

    def must_be_seen(self, record: StoredRecord) -> bool:
        if record.offset < self.start or record.offset in self.hidden:
            return False
        if not self.config.is_compacted or record.key is None:
            return True
        if not self.is_latest(record):
            return False
        age_ms = (self.clock.monotonic() - self.appended_at[record.offset]) * 1000
        return record.value is not None or age_ms < TOMBSTONE_MS

    @invariant()
    def readers_see_what_they_must_and_nothing_that_went(self) -> None:
        if not hasattr(self, "log"):
            return
        self.run(turns())
        assert self.store.damage() == {}
        assert (self.log.start_offset, self.log.end_offset) == (self.start, len(self.model))
        found = [record for record in self.log.records() if isinstance(record, StoredRecord)]
        assert found == [self.model[record.offset] for record in found], "other bytes"
        seen = {record.offset for record in found}
        assert [r.offset for r in found] == sorted(seen)
        missing = {r.offset for r in self.model if self.must_be_seen(r)} - seen
        assert not missing, f"lost: {missing}"
        assert not {o for o in seen if o < self.start or o in self.hidden}, "deleted, and seen"
        assert seen <= self.seen, f"came back: {seen - self.seen}"
        self.seen = seen
        self.check_no_resurrection(seen)

    def check_no_resurrection(self, seen: set[int]) -> None:
        """Where a tombstone has gone, nothing older of its key is seen (P23)."""
        for key in {r.key for r in self.model if r.key is not None}:
            records = [r for r in self.model if r.key == key and r.offset not in self.hidden]
            if records and records[-1].value is None and records[-1].offset not in seen:
                assert not {r.offset for r in records} & seen, f"{key!r} came back"

    @rule(data=st.data())
    def read_from_anywhere(self, data: st.DataObject) -> None:
        """A reader below the floor is told its gap; one at a deleted front is not."""
        offset = data.draw(st.integers(0, len(self.model)))
        items = list(self.log.records(offset))
        if offset < self.floor:
            gap = items[0]
            assert isinstance(gap, Gap)
            assert (gap.from_offset, gap.to_offset) == (offset, self.floor - 1)
            assert gap.reason in ("age", "bytes", "records")
            items = items[1:]
        offsets = [item.offset for item in items if isinstance(item, StoredRecord)]
        assert len(offsets) == len(items), "one gap is enough"
        assert offsets == sorted(o for o in self.visible() if o >= offset)

    @rule(timestamp=st.integers(-1, 1001))
    def find_timestamp(self, timestamp: int) -> None:
        live = [self.model[offset] for offset in sorted(self.visible())]
        expected = next((r for r in live if r.timestamp_ms >= timestamp), None)
        found = self.log.find_timestamp(timestamp)
        assert found == (expected and (expected.offset, expected.timestamp_ms))

    @rule()
    def find_latest(self) -> None:
        live = [self.model[offset] for offset in sorted(self.visible())]
        expected = max(live, key=lambda r: (r.timestamp_ms, -r.offset), default=None)
        found = self.log.find_latest()
        assert found == (expected and (expected.offset, expected.timestamp_ms))

    @rule(first=st.integers(0, 1000), last=st.integers(0, 1001))
    def read_between(self, first: int, last: int) -> None:
        live = [self.model[offset] for offset in sorted(self.visible())]
        expected = [r for r in live if first <= r.timestamp_ms < last]
        assert list(self.log.records_between(first, last)) == expected


TestLife = LifeMachine.TestCase
TestLife.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
