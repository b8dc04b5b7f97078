"""Power cuts and failing calls at any moment while segments of a replica are copied as files.

The log opens with what was installed, shows no record that its leader does not have there, and the
copy goes on to the end. Offsets of a segment that was moved aside are refused until it is replaced.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass

import pytest

from millstream.errors import CorruptFile, DamagedRecords, MillstreamError
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.log import Log
from millstream.storage.replica.segment_resync import ManifestSegment
from millstream.testing import Fault, FaultyFilesystem, SimulatedFilesystem, sample_crash_states
from tests.crash.test_io_errors import KINDS
from tests.crash.test_replica import SMALL
from tests.crash.test_truncation import make_store
from tests.crash.workload import damage_found
from tests.in_loop import in_loop
from tests.storage.logs import turns
from tests.storage.replica.replicas import fill, make_leader, segment_files, values

LONG = bool(os.environ.get("MILLSTREAM_LONG"))
SEEDS = range(40 if LONG else 3)
STATES = 60_000 if LONG else 300
STRIDE = 7
"""Of the calls of the workload, one of so many fails; all with `make test-long`."""
CHUNK = 300
"""Less than a third of a segment: a cut in the middle of a part is a state of its own."""


@dataclass(frozen=True)
class Installed:
    """The replica has everything before this offset, and reported so."""

    end: int


@dataclass(frozen=True)
class MovingAside:
    """A segment is being moved aside, and copied again."""

    first: int
    end: int


@dataclass(frozen=True)
class Replaced:
    """The segment that was moved aside is there again."""


async def make_source() -> Log:
    """Return a leader with several finished segments, in two epochs."""
    leader = await make_leader(1, SMALL)
    await fill(leader, 22)
    await leader.begin_epoch(2)
    await fill(leader, 16)
    await turns()
    return leader


async def copy(leader: Log, replica: Log, wanted: ManifestSegment) -> None:
    """Copy a segment in chunks, from where its part ends."""
    resync = replica.replication.resync
    position = min(resync.part_size(wanted), wanted.size)
    while position < wanted.size:
        size = min(CHUNK, wanted.size - position)
        data = leader.replication.resync.read_bytes(wanted.id, position, size)
        position = await resync.write_part(wanted, position, data)
    await resync.install(wanted)


def missing(leader: Log, replica: Log) -> list[ManifestSegment]:
    """Return the segments to copy: those behind the end, and those that are not there."""
    end = replica.replication.durable_offset
    own = {segment.base_offset for segment in replica.segments}
    return [
        entry
        for entry in leader.replication.resync.manifest()
        if entry.base_offset >= end or entry.base_offset not in own
    ]


async def live(disk: SimulatedFilesystem, filesystem: Filesystem, seed: int, leader: Log) -> None:
    """Copy all segments; then move one in the middle aside, and copy it again."""
    store = make_store(filesystem, seed)
    store.open()
    try:
        replica = await store.log("a")
        await replica.replication.become_replica()
        for wanted in missing(leader, replica):
            await copy(leader, replica, wanted)
            disk.note(Installed(wanted.next_offset))
        middle = leader.replication.resync.manifest()[1]
        disk.note(MovingAside(middle.base_offset, middle.next_offset))
        await replica.replication.resync.quarantine(middle.base_offset)
        await copy(leader, replica, middle)
        disk.note(Replaced())
        await replica.replication.resync.discard_parts()
    finally:
        if seed % 2:
            await store.close()


@pytest.mark.parametrize("seed", SEEDS)
@in_loop
async def test_a_power_cut_while_segments_are_copied_costs_nothing_that_was_installed(
    seed: int,
) -> None:
    disk, leader = SimulatedFilesystem(), await make_source()
    await live(disk, disk, seed, leader)
    for state in sample_crash_states(disk.trace, STATES // len(SEEDS), seed):
        after = state.filesystem()
        await check(after, state.notes, str(state), leader)
        if state.point % 7 == 0:
            for again in sample_crash_states(after.trace, 3, state.point):
                await check(again.filesystem(), state.notes, f"{state}, then {again}", leader)


async def check(disk: SimulatedFilesystem, notes: object, where: str, leader: Log) -> None:
    assert isinstance(notes, tuple | list)
    installed = max((note.end for note in notes if isinstance(note, Installed)), default=0)
    aside = next((note for note in notes if isinstance(note, MovingAside)), None)
    if aside is not None and any(isinstance(note, Replaced) for note in notes):
        aside = None
    store = make_store(disk)
    store.open()
    replica = await store.log("a")
    durable = replica.replication.durable_offset
    assert durable >= installed, f"{where}: installed {installed}, has {durable}"
    replica.replication.set_high_watermark(durable)  # Its leader tells it so.
    check_readers(replica, leader, aside, where)
    await replica.replication.become_replica()
    for wanted in missing(leader, replica):
        try:
            await copy(leader, replica, wanted)
        except CorruptFile:  # Bytes of the part did not reach the disk: it was removed.
            await copy(leader, replica, wanted)
    await replica.replication.resync.discard_parts()
    await turns()
    replica.replication.set_high_watermark(replica.replication.durable_offset)
    end = leader.replication.resync.manifest()[-1].next_offset
    assert values(replica) == values(leader)[:end], where
    assert replica.damage == [], where
    wanted_files = segment_files(leader)
    for name, content in segment_files(replica).items():
        assert content in (b"", wanted_files[name]), f"{where}: {name}"
    await store.close()
    assert not damage_found(disk), where


def check_readers(replica: Log, leader: Log, aside: MovingAside | None, where: str) -> None:
    """Read every offset: what the leader has, or an error where a segment was moved aside."""
    expected = values(leader)
    for offset in range(replica.start_offset, replica.end_offset):
        try:
            record = next(iter(replica.records(offset)))
        except DamagedRecords:
            assert aside is not None, f"{where}: offset {offset} is refused"
            assert aside.first <= offset < aside.end, f"{where}: offset {offset} is refused"
        else:
            assert (record.offset, record.value) == (offset, expected[offset]), where


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_call_while_segments_are_copied_costs_nothing_that_was_installed(
    kind: str, forever: bool
) -> None:
    async def run() -> None:
        leader = await make_source()
        call = 1
        while True:
            fault = Fault(call=call, forever=forever, **KINDS[kind])
            await asyncio.wait_for(check_fault(fault, leader), timeout=60)
            if not fault.hits:
                break
            call += 1 if LONG else STRIDE
        assert call > 10, "hardly any call was reached"

    asyncio.run(run())


async def check_fault(fault: Fault, leader: Log) -> None:
    disk = SimulatedFilesystem()
    with contextlib.suppress(MillstreamError):
        await live(disk, FaultyFilesystem(disk, fault), 1, leader)
    notes = [event.event for event in disk.trace.events if hasattr(event, "event")]
    for after in (disk.copy(), disk.crash()):
        await check(after, notes, fault.describe(), leader)
