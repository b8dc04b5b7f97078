"""Whatever moment the power goes, or a call fails, while segments move to a cold store.

The cold store is a directory of the same simulated disk, so the states are those of both stores.
A record that was acknowledged is read from the one or the other; one that was evicted stays away;
and nothing that has a marker lacks its object.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from millstream.errors import MillstreamError
from millstream.records.record import Record
from millstream.storage.log import Log
from millstream.storage.segment.cold_segment import ColdSegment
from millstream.storage.tier.cold_store import DirectoryStore
from millstream.testing import (
    CrashState,
    Fault,
    FaultyFilesystem,
    ManualClock,
    SimulatedFilesystem,
    sample_crash_states,
    sweep,
)
from tests.crash.test_io_errors import KINDS
from tests.crash.workload import damage_found
from tests.in_loop import in_loop
from tests.storage.tier.stores import make_store, numbers, values

LONG = bool(os.environ.get("MILLSTREAM_LONG"))
SEEDS = range(20 if LONG else 2)
STATES = 50_000 if LONG else 120


@dataclass(frozen=True)
class Acked:
    """All before this offset was acknowledged."""

    end: int


@dataclass(frozen=True)
class Floor:
    """All before was evicted, or is about to be."""

    offset: int
    is_done: bool


class Life:
    """A short life of a log with a tier."""

    def __init__(self, disk: SimulatedFilesystem, seed: int) -> None:
        self.disk = disk
        self.seed = seed
        self.filesystem: object = disk
        self.notes: list[object] = []
        self.count = 0

    def note(self, note: object) -> None:
        self.notes.append(note)
        self.disk.note(note)

    async def live(self, *, lives: int = 2, appends: int = 12) -> None:
        for life in range(lives):
            store = make_store(self.filesystem, seed=self.seed + life)
            store.open()
            try:
                log = await store.log("t")
                await self._append(log, appends)
                await asyncio.gather(store.relocator.run_once(), self._append(log, 4))
                await self._evict(log)
                await store.relocator.run_once()
                await asyncio.gather(self._append(log, 2), store.relocator.run_once())
            finally:
                with contextlib.suppress(MillstreamError):
                    await store.close()

    async def _append(self, log: Log, count: int) -> None:
        for _ in range(count):
            number = log.next_offset
            value = b"%d" % number + b"x" * 200
            await log.append_records([Record(value, timestamp_ms=number)])
            self.note(Acked(number + 1))

    async def _evict(self, log: Log) -> None:
        offset = log.segments[1].base_offset + 1
        self.note(Floor(offset, is_done=False))
        await log.evict_before(offset)
        self.note(Floor(offset, is_done=True))


async def check_disk(
    disk: SimulatedFilesystem, notes: Sequence[object], where: str, *, turns: int = 2
) -> None:
    """Open the log, read all of it, let it go on, and open it once more."""
    findings = damage_found(disk)
    assert not findings, f"{where}: unfinished taken for damaged: {findings}"
    clock = ManualClock()
    for turn in range(turns):
        store = make_store(disk, clock=clock)
        store.open()
        assert store.damage() == {}, f"{where}: {store.damage()}"
        log = await store.log("t")
        check_what_is_seen(log, notes, f"{where}, opened {turn + 1} times")
        await store.relocator.run_once()
        assert not store.tier_problems(), f"{where}: {store.tier_problems()}"
        check_what_is_seen(log, notes, f"{where}, relocated {turn + 1} times")
        await check_objects(store, log, where)
        await store.close()
        assert not damage_found(disk), where


def check_what_is_seen(log: Log, notes: Sequence[object], where: str) -> None:
    acked = max((n.end for n in notes if isinstance(n, Acked)), default=0)
    floors = [n for n in notes if isinstance(n, Floor)]
    done = max((n.offset for n in floors if n.is_done), default=0)
    begun = max((n.offset for n in floors), default=0)
    assert done <= log.start_offset <= begun, f"{where}: starts at {log.start_offset}"
    assert log.end_offset >= acked, f"{where}: ends at {log.end_offset}, {acked} were acknowledged"
    assert values(log) == numbers(log.start_offset, log.end_offset), where


async def check_objects(store: object, log: Log, where: str) -> None:
    """Each segment in the cold store has its object, and nothing else is left after a day."""
    await store.relocator.run_once()
    await store.relocator.sweep()
    store._clock.advance(25 * 3600)
    await store.relocator.sweep()
    segments = [segment for segment in log.segments if isinstance(segment, ColdSegment)]
    keys = set(DirectoryStore("/cold", store.filesystem).list(f"{store.store_id}/"))
    expected = {k for s in segments for k in (s.marker.key, s.marker.index_key, s.marker.seal_key)}
    assert keys == expected, where


@pytest.mark.parametrize("seed", SEEDS)
@in_loop
async def test_a_power_cut_at_any_step_loses_no_record(seed: int) -> None:
    disk = SimulatedFilesystem()
    await Life(disk, seed).live()
    reached: set[str] = set()
    states = sample_crash_states(disk.trace, STATES // len(SEEDS), seed)
    for number, state in enumerate(states, 1):
        after = state.filesystem()
        reached |= _stages(after)
        await check_disk(after, state.notes, str(state))
        if number % 20 == 0:
            await _check_again(after, state, number)
    assert reached == {"local", "both", "cold"}, "every row of the table was met"


async def _check_again(disk: SimulatedFilesystem, state: CrashState, seed: int) -> None:
    for again in sample_crash_states(disk.trace, 2, seed):
        await check_disk(again.filesystem(), state.notes, f"{state}, then {again}")


def _stages(disk: SimulatedFilesystem) -> set[str]:
    names = set(disk.list("/data/topics/t/0"))
    markers = {name.split(".")[0] for name in names if name.endswith(".cold")}
    logs = {name.split(".")[0] for name in names if name.endswith(".log")}
    stages = {"both"} if markers & logs else set()
    return stages | ({"cold"} if markers - logs else set()) | ({"local"} if not markers else set())


@pytest.mark.parametrize(
    ("kind", "forever"),
    [*((kind, False) for kind in KINDS), ("EIO", True), ("ENOSPC", True)],
)
def test_a_failing_call_loses_nothing_and_hangs_nothing(kind: str, forever: bool) -> None:
    hits = 0
    for fault in sweep(forever=forever, **KINDS[kind]):
        asyncio.run(asyncio.wait_for(_check_fault(fault), timeout=60))
        hits += bool(fault.hits)
    assert hits > (40 if kind != "short write" else 5), "the sweep reached hardly any call"


async def _check_fault(fault: Fault) -> None:
    disk = SimulatedFilesystem()
    life = Life(disk, 7)
    life.filesystem = FaultyFilesystem(disk, fault)
    with contextlib.suppress(MillstreamError, OSError):
        await life.live(lives=1, appends=8)
    await check_disk(disk.crash(), life.notes, fault.describe(), turns=1)
