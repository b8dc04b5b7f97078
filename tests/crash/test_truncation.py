"""Power cuts and failing calls at any moment while a log is truncated.

The log ends where it ended before, or where it was to end. What is before that is there, nothing of
what is behind it comes back, and no state between is taken for damage.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass

import pytest

from millstream.config.schema import LogConfig
from millstream.errors import MillstreamError
from millstream.records.record import Record
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.inspect.readonly_log import ReadOnlyLog
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

SMALL = LogConfig(segment_bytes_max=1024, index_interval_bytes=64)
LONG = bool(os.environ.get("MILLSTREAM_LONG"))
SEEDS = range(40 if LONG else 4)
STATES = 100_000 if LONG else 2_500
DIRECTORY = "/data/topics/a/0"
AFTER = b"after the crash"


@dataclass(frozen=True)
class Acked:
    """A record was acknowledged."""

    offset: int
    value: bytes


@dataclass(frozen=True)
class Truncating:
    """A truncation was begun."""

    offset: int


@dataclass(frozen=True)
class Truncated:
    """The log reported that it was truncated."""

    offset: int


def make_store(filesystem: Filesystem, seed: int = 0) -> Store:
    return Store(
        "/data",
        log_config=SMALL,
        filesystem=filesystem,
        clock=ManualClock(),
        background=SeededBackground(seed),
        syncer=SeededSyncer(seed),
    )


class History:
    """What a log was told, and what it may hold after a crash at some moment."""

    def __init__(self, notes: object) -> None:
        self.certain: dict[int, bytes] = {}
        """Records that must be there, unless a truncation was under way."""
        self.cut: int | None = None
        """The offset of a truncation that may or may not have taken effect."""
        assert isinstance(notes, tuple | list)
        for note in notes:
            if isinstance(note, Acked):
                self.certain[note.offset] = note.value
            elif isinstance(note, Truncating):
                self.cut = note.offset
            elif isinstance(note, Truncated):
                self._drop(note.offset)
                self.cut = None

    def _drop(self, offset: int) -> None:
        self.certain = {o: v for o, v in self.certain.items() if o < offset}

    def check(self, log: Log, where: str) -> None:
        found = {record.offset: record.value for record in log.records()}
        assert list(found) == list(range(log.start_offset, log.end_offset)), where
        end = next((o for o, value in found.items() if value == AFTER), log.end_offset)
        if self.cut is not None and end <= max(self.certain, default=-1):
            assert end == self.cut, f"{where}: ends at {end}"
            self._drop(self.cut)
        lost = {o for o, v in self.certain.items() if found.get(o) != v}
        assert not lost, f"{where}: lost {sorted(lost)}"


async def append(disk: SimulatedFilesystem, log: Log, count: int, name: str) -> None:
    for number in range(count):
        value = f"{name}.{number}:".encode() + b"x" * (number % 3 * 200)
        appending = log.try_append_records([Record(value)])
        if log.replication.high_watermark is not None:
            await log.flush()  # Its leader and the others have it.
            log.replication.set_high_watermark(log.replication.durable_offset)
        disk.note(Acked((await appending).offset, value))


async def truncate(disk: SimulatedFilesystem, log: Log, offset: int) -> None:
    disk.note(Truncating(offset))
    await log.replication.truncate(offset, is_forced=True)
    disk.note(Truncated(offset))


async def live(disk: SimulatedFilesystem, seed: int) -> None:
    """Append and truncate: inside segments, at their ends, through epochs and restarts."""
    for life in range(2):
        store = make_store(disk, seed + life)
        store.open()
        log = await store.log("a")
        await append(disk, log, 9, f"{life}.first")
        await truncate(disk, log, log.end_offset - 2)
        await append(disk, log, 3, f"{life}.second")
        await log.begin_epoch(life + 1)
        await append(disk, log, 6, f"{life}.third")
        log.replication.set_high_watermark(log.end_offset)
        edge = log.segments[-1].base_offset
        await truncate(disk, log, edge)
        await append(disk, log, 2, f"{life}.fourth")
        await log.roll()
        await truncate(disk, log, log.segments[seed % 2].base_offset + 1)
        await append(disk, log, 2, f"{life}.fifth")
        if life == 0:
            await store.close()


@pytest.mark.parametrize("seed", SEEDS)
@in_loop
async def test_a_power_cut_while_a_log_is_truncated_leaves_it_as_before_or_truncated(
    seed: int,
) -> None:
    disk = SimulatedFilesystem()
    await live(disk, seed)
    for state in sample_crash_states(disk.trace, STATES // len(SEEDS), seed):
        after = state.filesystem()
        await check(after, state)
        if state.point % 7 == 0:
            for again in sample_crash_states(after.trace, 4, state.point):
                await check(again.filesystem(), state, f"{state}, then {again}")


async def check(disk: SimulatedFilesystem, state: CrashState, where: str = "") -> None:
    where = where or str(state)
    findings = damage_found(disk)
    assert not findings, f"{where}: unfinished taken for damaged: {findings}"
    if disk.list(DIRECTORY):
        shown = ReadOnlyLog(disk, DIRECTORY).reload()
        assert shown.lost is None, f"{where}: {shown.lost}"
    store = make_store(disk)
    store.open()
    assert store.damage() == {}, f"{where}: {store.damage()}"
    log = await store.log("a")
    assert log.partition.truncation is None, where
    History(state.notes).check(log, where)
    end = log.end_offset
    assert (await log.append_records([Record(AFTER)])).offset == end, where
    await store.close()
    assert not damage_found(disk), where


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_call_while_truncating_loses_nothing_else_and_hangs_nothing(
    kind: str, forever: bool
) -> None:
    hits = 0
    for fault in sweep(forever=forever, **KINDS[kind]):
        asyncio.run(asyncio.wait_for(check_fault(fault), timeout=60))
        hits += bool(fault.hits)
    assert hits > (20 if kind != "short write" else 5), "the sweep reached hardly any call"


async def check_fault(fault: Fault) -> None:
    disk = SimulatedFilesystem()
    store = make_store(FaultyFilesystem(disk, fault), 7)
    with contextlib.suppress(MillstreamError):
        store.open()
        try:
            await live_with_faults(disk, store)
        finally:
            await store.close()
    notes = [event.event for event in disk.trace.events if hasattr(event, "event")]
    for after in (disk.copy(), disk.crash()):
        store = make_store(after)
        store.open()
        assert store.damage() == {}, f"{fault.describe()}: {store.damage()}"
        History(notes).check(await store.log("a"), fault.describe())
        await store.close()


async def live_with_faults(disk: SimulatedFilesystem, store: Store) -> None:
    log = await store.log("a")
    for number in range(7):
        value = b"%d" % number + b"x" * 200
        appended = await log.append_records([Record(value)])
        disk.note(Acked(appended.offset, value))
    await truncate(disk, log, 6)
    await truncate(disk, log, 2)
    await append(disk, log, 1, "after")
