"""Power cuts and failing calls at any moment while records and topics are deleted.

Records whose deletion was reported stay deleted; the others are there; no offset is assigned twice;
and a topic exists completely or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass, replace

import pytest

from millstream.config.schema import Durability, LogConfig
from millstream.errors import LogClosed, MillstreamError
from millstream.records.record import Record
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
from millstream.testing.disk.crash_states import crash_states
from millstream.testing.disk.seeded_syncer import SeededSyncer
from tests.crash.test_io_errors import KINDS
from tests.crash.workload import Acked, damage_found
from tests.in_loop import in_loop

SMALL = LogConfig(segment_bytes_max=1024, index_interval_bytes=64)
LONG = bool(os.environ.get("MILLSTREAM_LONG"))
SEEDS = range(40 if LONG else 4)
STATES = 100_000 if LONG else 1_500


@dataclass(frozen=True)
class Deleting:
    """Deletion of all records before an offset was started."""

    offset: int


@dataclass(frozen=True)
class Deleted:
    """The store reported that all records before this offset are deleted."""

    offset: int


@dataclass(frozen=True)
class TopicDeleting:
    """Deletion of the topic was started."""


@dataclass(frozen=True)
class TopicDeleted:
    """The store reported that the topic is deleted."""


def make_store(filesystem: object, seed: int = 0, config: LogConfig = SMALL) -> Store:
    return Store(
        "/data",
        log_config=config,
        filesystem=filesystem,
        clock=ManualClock(),
        background=SeededBackground(seed),
        syncer=SeededSyncer(seed),
    )


async def append(disk: SimulatedFilesystem, log: Log, count: int, name: str) -> None:
    """Append one record after the other, and record each acknowledgement."""
    for number in range(count):
        value = f"{name}.{number}:".encode() + b"x" * (number % 3 * 150)
        appended = await log.append_records([Record(value, timestamp_ms=number)])
        disk.note(Acked("a", appended.offset, (value,)))


async def delete(disk: SimulatedFilesystem, log: Log, offset: int) -> None:
    disk.note(Deleting(offset))
    await log.delete_before(offset)
    disk.note(Deleted(offset))


# Records.


async def live_and_delete(
    disk: SimulatedFilesystem, seed: int, config: LogConfig = SMALL, *, lives: int = 2
) -> None:
    """Append and delete concurrently, through clean restarts and a new epoch."""
    for life in range(lives):
        store = make_store(disk, seed + life, config)
        store.open()
        log = await store.log("a")
        await append(disk, log, 5, f"{life}.first")
        start = log.start_offset
        await asyncio.gather(
            append(disk, log, 8, f"{life}.while"),
            *(delete(disk, log, min(start + step, log.end_offset)) for step in (1, 3, 5)),
        )
        if life % 2 == 0:
            await log.begin_epoch(life + 1)
        await delete(disk, log, log.end_offset - life)
        await append(disk, log, 2, f"{life}.last")
        if life < lives - 1:
            await store.close()


@pytest.mark.parametrize("seed", SEEDS)
@in_loop
async def test_a_power_cut_while_records_are_deleted_loses_nothing_else(seed: int) -> None:
    disk = SimulatedFilesystem()
    await live_and_delete(disk, seed)
    for state in sample_crash_states(disk.trace, STATES // len(SEEDS), seed):
        after = state.filesystem()
        await check_records(after, state)
        if state.point % 10 == 0:
            await check_crash_while_recovering(after, state)


async def check_records(disk: SimulatedFilesystem, state: CrashState, where: str = "") -> None:
    where = where or str(state)
    findings = damage_found(disk)
    assert not findings, f"{where}: unfinished taken for damaged: {findings}"
    store = make_store(disk)
    store.open()
    assert store.damage() == {}, f"{where}: {store.damage()}"
    log = await store.log("a")
    found = {record.offset: record.value for record in log.records()}
    begun = max((note.offset for note in state.notes if isinstance(note, Deleting)), default=0)
    done = max((note.offset for note in state.notes if isinstance(note, Deleted)), default=0)
    acked = {n.offset: n.values[0] for n in state.notes if isinstance(n, Acked)}
    start, end = log.start_offset, log.end_offset
    assert done <= start <= begun, f"{where}: starts at {start}, deleted {done}, asked {begun}"
    assert list(found) == list(range(start, end)), where
    assert end > max(acked, default=-1), f"{where}: an offset would be given twice"
    for offset, value in acked.items():
        if offset >= start:
            assert found[offset] == value, f"{where}: acknowledged and lost: {offset}"
    assert log.find_timestamp(-1) == ((start, log.find_timestamp(-1)[1]) if found else None)
    appended = await log.append_records([Record(b"after the crash")])
    assert appended.offset == end, where
    await store.close()
    assert not damage_found(disk), where


async def check_crash_while_recovering(disk: SimulatedFilesystem, state: CrashState) -> None:
    for again in sample_crash_states(disk.trace, 3, state.point):
        where = f"{state}, then {again}"
        store = make_store(again.filesystem())
        store.open()
        assert store.damage() == {}, f"{where}: {store.damage()}"
        log = await store.log("a")
        done = max((note.offset for note in state.notes if isinstance(note, Deleted)), default=0)
        assert log.start_offset >= done, where
        assert log.end_offset > max(
            (note.offset for note in state.notes if isinstance(note, Acked)), default=-1
        ), where
        assert [r.offset for r in log.records()] == list(range(log.start_offset, log.end_offset))
        await store.close()


@pytest.mark.parametrize("seed", SEEDS[:2])
@in_loop
async def test_class_disk_keeps_a_dense_log_through_power_cuts_and_deletions(seed: int) -> None:
    """It promises nothing about power cuts, but deletions hold, and the log is in order."""

    disk = SimulatedFilesystem()
    await live_and_delete(disk, seed, replace(SMALL, durability=Durability.DISK))
    for state in sample_crash_states(disk.trace, STATES // 4, seed):
        after = state.filesystem()
        assert not damage_found(after), str(state)
        store = make_store(after)
        store.open()
        assert store.damage() == {}, f"{state}: {store.damage()}"
        log = await store.log("a")
        done = [note.offset for note in state.notes if isinstance(note, Deleted)]
        assert log.start_offset >= max(done, default=0), str(state)
        offsets = [record.offset for record in log.records()]
        assert offsets == list(range(log.start_offset, log.end_offset)), str(state)
        appended = await log.append_records([Record(b"on")])
        assert appended.offset == log.end_offset - 1, str(state)
        await store.close()
        assert not damage_found(after), str(state)


# Topics.


async def live_and_delete_topic(disk: SimulatedFilesystem) -> None:
    store = make_store(disk, 3)
    store.open()
    log = await store.log("a")
    other = await store.log("b")
    await other.append_records([Record(b"neighbour")])
    await append(disk, log, 6, "old")
    disk.note(TopicDeleting())
    await store.delete("a")
    disk.note(TopicDeleted())
    log = await store.log("a")
    await append(disk, log, 3, "new")
    await store.close()


@in_loop
async def test_a_power_cut_leaves_a_deleted_topic_whole_or_gone() -> None:
    disk = SimulatedFilesystem()
    await live_and_delete_topic(disk)
    begun = next(
        point
        for point, event in enumerate(disk.trace.events, 1)
        if getattr(event, "event", None) == TopicDeleting()
    )
    points = range(begun, len(disk.trace.events) + 1)
    for state in crash_states(disk.trace, seed=1, points=points):
        await check_topic(state.filesystem(), state)


async def check_topic(disk: SimulatedFilesystem, state: CrashState) -> None:
    assert not damage_found(disk), str(state)
    store = make_store(disk)
    store.open()
    assert store.damage() == {}, f"{state}: {store.damage()}"
    is_gone = any(isinstance(note, TopicDeleted) for note in state.notes)
    acked = [note.values[0] for note in state.notes if isinstance(note, Acked)]
    old, new = acked[:6], acked[6:]
    log = await store.log("a")
    values = [record.value for record in log.records()]
    if is_gone:
        assert values[: len(new)] == new, str(state)
        assert not set(values) & set(old), f"{state}: what was deleted came back"
    else:
        assert values in ([], old), f"{state}: neither whole nor gone: {values}"
    assert [r.value for r in (await store.log("b")).records()] == [b"neighbour"]
    assert disk.list("/data/trash") == [], f"{state}: the trash was not emptied"
    await store.close()


# The durability class.


@in_loop
async def test_a_power_cut_while_the_class_changes_keeps_what_each_class_promised() -> None:
    disk = SimulatedFilesystem()
    store = make_store(disk, 5)
    store.open()
    log = await store.log("a")
    for turn, durability in enumerate((Durability.DISK, Durability.FSYNC) * 2):
        await append(disk, log, 2, f"{turn}.before")
        await log.reconfigure(replace(SMALL, durability=durability))
        if durability is Durability.FSYNC:
            await append(disk, log, 3, f"{turn}.strong")
            disk.note(log.end_offset)
    await store.close()
    for state in sample_crash_states(disk.trace, STATES, 1):
        await check_classes(state.filesystem(), state)


async def check_classes(disk: SimulatedFilesystem, state: CrashState) -> None:
    """All before an acknowledgement of class fsync is there, by whatever class it was written."""
    assert not damage_found(disk), str(state)
    store = make_store(disk)
    store.open()
    assert store.damage() == {}, f"{state}: {store.damage()}"
    log = await store.log("a")
    promised = max((note for note in state.notes if isinstance(note, int)), default=0)
    acked = {note.offset: note.values[0] for note in state.notes if isinstance(note, Acked)}
    found = {record.offset: record.value for record in log.records()}
    assert list(found) == list(range(len(found))), str(state)
    for offset in range(promised):
        assert found.get(offset) == acked[offset], f"{state}: lost: {offset}"
    await store.close()


# Failing calls.


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_call_while_deleting_loses_nothing_else_and_hangs_nothing(
    kind: str, forever: bool
) -> None:
    hits = 0
    for fault in sweep(forever=forever, **KINDS[kind]):
        asyncio.run(asyncio.wait_for(check_fault(fault), timeout=60))
        hits += bool(fault.hits)
    assert hits > (20 if kind != "short write" else 5), "the sweep reached hardly any call"


async def check_fault(fault: Fault) -> None:
    disk = SimulatedFilesystem()
    story = Story()
    store = make_store(FaultyFilesystem(disk, fault), 7)
    with contextlib.suppress(MillstreamError):
        store.open()
        try:
            await story.live(store)
        finally:
            await store.close()
    if not fault.hits:
        assert (len(story.acked), story.deleted, story.is_gone) == (15, 9, True)
    for after in (disk.copy(), disk.crash()):
        await story.check(after, fault.describe())


class Story:
    """Appends, deletes, changes the class, deletes another topic; and knows what it was told."""

    def __init__(self) -> None:
        self.acked: dict[int, bytes] = {}
        self.deleted = 0
        self.asked = 0
        self.is_gone = False

    async def live(self, store: Store) -> None:
        log = await store.log("a")
        other = await store.log("b")
        await self._attempt(other.append_records([Record(b"doomed")]))
        for number in range(3):
            for turn in range(5):
                value = f"{number}.{turn}:".encode() + b"x" * 100 * (turn % 3)
                appended = await self._attempt(log.append_records([Record(value)]))
                if appended:
                    assert appended.offset not in self.acked, "an offset was given twice"
                    self.acked[appended.offset] = value
            offset = min(3 * (number + 1), log.end_offset)
            self.asked = max(self.asked, offset)
            if await self._attempt(self._delete(log, offset)):
                self.deleted = max(self.deleted, offset)
            durability = (Durability.DISK, Durability.FSYNC)[number % 2]
            await self._attempt(log.reconfigure(replace(SMALL, durability=durability)))
            if log.config.durability is not Durability.FSYNC:
                await self._attempt(log.reconfigure(SMALL))
        self.is_gone = await self._attempt(self._delete_topic(store)) is True

    async def _delete(self, log: Log, offset: int) -> bool:
        await log.delete_before(offset)
        assert log.start_offset >= offset
        return True

    async def _delete_topic(self, store: Store) -> bool:
        await store.delete("b")
        return True

    async def _attempt(self, work: object) -> object:
        try:
            return await work
        except LogClosed:
            raise AssertionError("nothing was closed") from None
        except MillstreamError:
            return None

    async def check(self, disk: SimulatedFilesystem, where: str) -> None:
        store = make_store(disk)
        store.open()
        assert store.damage() == {}, f"{where}: {store.damage()}"
        log = await store.log("a")
        found = {record.offset: record.value for record in log.records()}
        assert self.deleted <= log.start_offset <= self.asked, where
        assert list(found) == list(range(log.start_offset, log.end_offset)), where
        lost = {
            offset: value
            for offset, value in self.acked.items()
            if offset >= log.start_offset and found.get(offset) != value
        }
        assert not lost, f"{where}: acknowledged and lost: {lost}"
        assert log.end_offset > max(self.acked, default=-1), where
        other = [record.value for record in (await store.log("b")).records()]
        if self.is_gone:
            assert other == [], f"{where}: what was deleted came back"
        await store.close()
