"""Whatever moment the power goes, or a call fails, while data is evicted, deleted and compacted.

The old files count or the new ones, never a mix (P22): what was deleted, and reported so, stays
deleted; the latest of each key is there; a tombstone that went takes nothing back with it; and no
offset is given twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest

from millstream.config.schema import Durability, LogConfig, StoreConfig
from millstream.errors import MillstreamError
from millstream.records.record import Record, StoredRecord
from millstream.storage.log import Log
from millstream.storage.store import Store
from millstream.testing import (
    CrashState,
    Fault,
    FaultyFilesystem,
    ManualClock,
    SimulatedFilesystem,
    sample_crash_states,
    sweep,
)
from millstream.testing.clocks.seeded_background import SeededBackground
from millstream.testing.disk.seeded_syncer import SeededSyncer
from tests.crash.test_io_errors import KINDS
from tests.crash.workload import damage_found
from tests.in_loop import in_loop

TOMBSTONE_MS = 1_000
COMPACTED = LogConfig(
    segment_bytes_max=1024,
    index_interval_bytes=64,
    is_compacted=True,
    tombstone_ms=TOMBSTONE_MS,
    dirty_ratio_min=0.0,
)
LONG = bool(os.environ.get("MILLSTREAM_LONG"))
SEEDS = range(40 if LONG else 4)
STATES = 100_000 if LONG else 800
KEYS = [b"a", b"ab", b"b", b"c", b"gone"]


@dataclass(frozen=True)
class Acked:
    """A record was acknowledged."""

    offset: int
    key: bytes
    value: bytes | None


@dataclass(frozen=True)
class Asked:
    """Someone began to delete records by key."""

    key: bytes
    before: int


@dataclass(frozen=True)
class Deleted:
    """They are deleted, by what the log said."""

    key: bytes
    before: int


@dataclass(frozen=True)
class Floor:
    """All before was evicted, or is about to be."""

    offset: int
    is_done: bool


def make_store(
    filesystem: object, seed: int = 0, config: LogConfig = COMPACTED, clock: object = None
) -> Store:
    return Store(
        "/data",
        log_config=config,
        config=StoreConfig(cleaning_bytes_per_second_max=0),
        filesystem=filesystem,
        clock=clock or ManualClock(),
        background=SeededBackground(seed),
        syncer=SeededSyncer(seed),
    )


class Life:
    """A short life of a log, with everything noted that it was told."""

    def __init__(self, disk: SimulatedFilesystem, seed: int, config: LogConfig) -> None:
        self.disk = disk
        self.seed = seed
        self.config = config
        self.clock = ManualClock()
        self.notes: list[object] = []
        self.filesystem: object = disk

    def note(self, note: object) -> None:
        self.notes.append(note)
        self.disk.note(note)

    async def live_briefly(self) -> None:
        """One life with a deletion, an eviction and a compaction, in few calls."""
        store = make_store(self.filesystem, self.seed, self.config, self.clock)
        store.open()
        log = await store.log("t")
        await self._append(log, 10)
        await self._attempt(self._delete(log, b"b"))
        self.clock.advance(2 * TOMBSTONE_MS / 1000)
        await self._attempt(store.maintenance.run_once(is_forced=True))
        await self._append(log, 2)
        await self._attempt(self._evict(log))
        await store.close()

    async def live(self, *, lives: int = 2) -> None:
        for life in range(lives):
            store = make_store(self.filesystem, self.seed + life, self.config, self.clock)
            store.open()
            try:
                await self._live_once(store, life)
            finally:
                if life < lives - 1:
                    await store.close()

    async def _live_once(self, store: Store, life: int) -> None:
        log = await store.log("t")
        await self._append(log, 14)
        await self._attempt(self._delete(log, b"b"))
        await self._attempt(store.maintenance.run_once())
        self.clock.advance(2 * TOMBSTONE_MS / 1000)
        await asyncio.gather(
            self._append(log, 10),
            self._attempt(self._delete(log, b"a")),
            self._attempt(store.maintenance.run_once(is_forced=True)),
        )
        if life % 2 == 0:
            await self._attempt(log.begin_epoch(log.partition.leader_epoch + 1))
        await self._append(log, 4)
        await self._attempt(self._evict(log))
        await self._attempt(store.maintenance.run_once(is_forced=True))

    async def _append(self, log: Log, count: int) -> None:
        for number in range(count):
            key = KEYS[number % len(KEYS)]
            value = None if key == b"gone" else b"%d" % number + b"x" * (number % 3 * 90)
            record = Record(value, key=key, timestamp_ms=number)
            if appended := await self._attempt(log.append_records([record])):
                self.note(Acked(appended.offset, key, value))

    async def _delete(self, log: Log, key: bytes) -> None:
        before = log.end_offset
        self.note(Asked(key, before))
        await log.delete_keys(key=key, before=before)
        self.note(Deleted(key, before))
        found = [r for r in log.records() if isinstance(r, StoredRecord) and r.key == key]
        assert all(record.offset >= before for record in found)

    async def _evict(self, log: Log) -> None:
        sealed = [s for s in log.segments if s.next_offset < log.end_offset]
        if sealed:
            offset = sealed[0].next_offset
            self.note(Floor(offset, is_done=False))
            await log.evict_before(offset)
            self.note(Floor(offset, is_done=True))

    async def _attempt(self, work: object) -> object:
        try:
            return await work
        except MillstreamError:
            return None


def check_what_is_seen(log: Log, notes: Iterable[object], where: str) -> None:
    """Compare what a reader sees with what was promised up to now."""
    notes = list(notes)
    found = {r.offset: r for r in log.records() if isinstance(r, StoredRecord)}
    acked = {n.offset: n for n in notes if isinstance(n, Acked)}
    floors = [n for n in notes if isinstance(n, Floor)]
    done = max((n.offset for n in floors if n.is_done), default=0)
    begun = max((n.offset for n in floors), default=0)
    assert done <= log.eviction_floor <= begun, f"{where}: floor {log.eviction_floor}"
    assert log.end_offset > max(acked, default=-1), f"{where}: an offset would be given twice"
    for offset, record in found.items():
        if offset in acked:
            expected = acked[offset]
            assert (record.key, record.value) == (expected.key, expected.value), where
        for note in notes:
            if isinstance(note, Deleted) and record.key == note.key:
                assert offset >= note.before, f"{where}: {note} came back at {offset}"
    for key in KEYS:
        check_key(key, found, acked, notes, log, where)


def check_key(
    key: bytes,
    found: dict[int, StoredRecord],
    acked: dict[int, Acked],
    notes: list[object],
    log: Log,
    where: str,
) -> None:
    """The latest of a key is there, unless something was said to remove it."""
    asked = max((n.before for n in notes if isinstance(n, Asked) and n.key == key), default=0)
    offsets = [o for o, n in acked.items() if n.key == key and o >= log.start_offset]
    latest = max(offsets, default=-1)
    if latest < asked:
        return
    if acked[latest].value is not None:
        unacked = [o for o in found if o > latest and found[o].key == key]
        assert latest in found or unacked, f"{where}: lost: {acked[latest]}"
    elif latest not in found:
        assert not [o for o in found if found[o].key == key and o < latest], (
            f"{where}: {key!r} came back after its tombstone had gone"
        )


@pytest.mark.parametrize("seed", SEEDS)
@in_loop
async def test_a_power_cut_at_any_step_leaves_the_old_files_or_the_new(seed: int) -> None:
    disk = SimulatedFilesystem()
    await Life(disk, seed, COMPACTED).live()
    found = sample_crash_states(disk.trace, STATES // len(SEEDS), seed)
    for number, state in enumerate(found, 1):
        after = state.filesystem()
        await check_state(after, state, str(state))
        if number % 10 == 0:
            for again in sample_crash_states(after.trace, 2, number):
                where = f"{state}, then {again}"
                await check_state(again.filesystem(), state, where)


async def check_state(disk: SimulatedFilesystem, state: CrashState, where: str) -> None:
    findings = damage_found(disk)
    assert not findings, f"{where}: unfinished taken for damaged: {findings}"
    store = make_store(disk)
    store.open()
    assert store.damage() == {}, f"{where}: {store.damage()}"
    log = await store.log("t")
    check_what_is_seen(log, state.notes, where)
    end = log.end_offset
    appended = await log.append_records([Record(b"after the crash", key=b"new")])
    assert appended.offset == end, where
    await store.maintenance.run_once(is_forced=True)
    check_what_is_seen(log, state.notes, f"{where}, cleaned")
    await store.close()
    assert not damage_found(disk), where


@pytest.mark.parametrize("seed", SEEDS[:2])
@in_loop
async def test_class_disk_keeps_a_dense_log_and_its_deletions_through_power_cuts(seed: int) -> None:
    """It promises no record; but what was deleted stays so, also for offsets given again."""

    disk = SimulatedFilesystem()
    await Life(disk, seed, replace(COMPACTED, durability=Durability.DISK)).live()
    for state in sample_crash_states(disk.trace, STATES // 10, seed):
        after = state.filesystem()
        assert not damage_found(after), str(state)
        store = make_store(after, config=replace(COMPACTED, durability=Durability.DISK))
        store.open()
        assert store.damage() == {}, f"{state}: {store.damage()}"
        log = await store.log("t")
        end = log.end_offset
        for key in KEYS:
            await log.append_records([Record(b"again", key=key)])
        await store.close()
        store = make_store(after)
        store.open()
        log = await store.log("t")
        values = [r.value for r in log.records(end)]
        assert values == [b"again"] * len(KEYS), f"{state}: an old deletion hit a new record"
        await store.close()


@pytest.mark.parametrize(
    ("kind", "forever"),
    [*((kind, False) for kind in KINDS), ("EIO", True), ("ENOSPC", True)],
)
def test_a_failing_call_while_cleaning_loses_nothing_and_hangs_nothing(
    kind: str, forever: bool
) -> None:
    hits = 0
    for fault in sweep(forever=forever, **KINDS[kind]):
        asyncio.run(asyncio.wait_for(check_fault(fault), timeout=60))
        hits += bool(fault.hits)
    assert hits > (40 if kind != "short write" else 5), "the sweep reached hardly any call"


async def check_fault(fault: Fault) -> None:
    disk = SimulatedFilesystem()
    life = Life(disk, 7, COMPACTED)
    life.filesystem = FaultyFilesystem(disk, fault)
    with contextlib.suppress(MillstreamError):
        await life.live_briefly()
    for after in (disk.copy(), disk.crash()):
        where = fault.describe()
        store = make_store(after)
        store.open()
        assert store.damage() == {}, f"{where}: {store.damage()}"
        check_what_is_seen(await store.log("t"), life.notes, where)
        await store.close()
