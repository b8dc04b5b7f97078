"""Power cuts and failing calls at any moment while a replica applies decisions of its leader.

After the cut, a replica that is told the high watermark that it knew before shows exactly
what a leader shows: nothing that was deleted, everything else, and of each key what compaction
leaves. Decisions that are not committed have no effect.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass

import pytest

from millstream.config.schema import LogConfig
from millstream.errors import MillstreamError
from millstream.records.decision import CleaningDecision
from millstream.records.record import Record
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.log import Log
from millstream.storage.store import Store
from millstream.testing import (
    Fault,
    FaultyFilesystem,
    ManualClock,
    SimulatedFilesystem,
    sample_crash_states,
)
from tests.crash.test_io_errors import KINDS
from tests.crash.test_truncation import SeededBackground, SeededSyncer
from tests.crash.workload import damage_found
from tests.in_loop import in_loop
from tests.storage.replica.replicas import make_leader, replicate

LONG = bool(os.environ.get("MILLSTREAM_LONG"))
SEEDS = range(20 if LONG else 2)
STATES = 20_000 if LONG else 300
STRIDE = 1 if LONG else 7
CONFIG = LogConfig(
    segment_bytes_max=1024, index_interval_bytes=64, is_compacted=True, tombstone_ms=0
)


@dataclass(frozen=True)
class Told:
    """The replica knows this high watermark, and has applied what was decided before it."""

    offset: int


def make_store(filesystem: Filesystem) -> Store:
    return Store(
        "/data",
        log_config=CONFIG,
        filesystem=filesystem,
        clock=ManualClock(),
        background=SeededBackground(0),
        syncer=SeededSyncer(0),
    )


def shown(log: Log) -> list[tuple[int, bytes | None, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in log.records()]


async def clean(log: Log) -> None:
    await log.clean(
        background=SeededBackground(0),
        throttle=IoThrottle(2**40, monotonic=lambda: 0.0),
        memory_bytes_max=2**22,
        seed=1,
        is_forced=True,
    )


async def make_source() -> tuple[Log, list[int]]:
    """Return a leader that has decided and cleaned nothing, so that it has every byte.

    And the high watermarks of which its replica is told.
    """
    leader = await make_leader(config=CONFIG)
    await leader.replication.decisions.begin()
    ends = []
    for number in range(12):
        await leader.append_records([Record(b"v%d" % number, key=b"k%d" % (number % 4))])
        if number % 4 == 3:
            await leader.roll()
    ends.append(leader.end_offset)
    assert await leader.delete_keys(key=b"k1") == 3
    await leader.append_records([Record(b"again", key=b"k1"), Record(None, key=b"k2")])
    ends.append(leader.end_offset)
    await leader.roll()
    await leader.replication.decisions.decide(CleaningDecision(leader.end_offset, 15))
    await leader.append_records([Record(b"later", key=b"x1")])
    ends.append(leader.end_offset)
    assert await leader.delete_keys(prefix=b"x") == 1
    await leader.append_records([Record(b"end", key=b"k9")])
    ends.append(leader.end_offset)
    return leader, ends


FINAL = [
    (8, b"k0", b"v8"),
    (11, b"k3", b"v11"),
    (13, b"k1", b"again"),
    (18, b"k9", b"end"),
]
"""What is left when all decisions are carried out; offset 12 and others are decisions."""


async def live(
    filesystem: Filesystem, disk: SimulatedFilesystem, source: Log, ends: list[int]
) -> None:
    """Follow the leader, and apply its decisions, one high watermark after the other."""
    store = make_store(filesystem)
    store.open()
    try:
        replica = await store.log("a")
        replica.replication.set_high_watermark(0)
        await replica.replication.become_replica()
        await replicate(source, replica, size_max=200)
        for end in ends:
            replica.replication.set_high_watermark(end)
            await replica.replication.decisions.settle()
            disk.note(Told(end))
            await clean(replica)
    finally:
        await store.close()


async def check(
    disk: SimulatedFilesystem, notes: object, where: str, source: Log, ends: list[int]
) -> None:
    assert isinstance(notes, tuple | list)
    told = [note.offset for note in notes if isinstance(note, Told)]
    store = make_store(disk)
    store.open()
    assert store.damage() == {}, f"{where}: {store.damage()}"
    replica = await store.log("a")
    known = told[-1] if told else 0
    replica.replication.set_high_watermark(known)
    await replica.replication.become_replica()
    await replica.replication.decisions.settle()
    values = [value for _, key, value in shown(replica) if key == b"k1"]
    if known >= ends[1]:
        assert values == [b"again"], f"{where}: what was deleted is there again"
    elif known == ends[0]:
        assert len(values) in (0, 3), f"{where}: half of it was deleted"
    await replicate(source, replica)
    replica.replication.set_high_watermark(ends[-1])
    await replica.replication.decisions.settle()
    await clean(replica)
    assert shown(replica) == FINAL, where
    await store.close()


@pytest.mark.parametrize("seed", SEEDS)
@in_loop
async def test_a_power_cut_undoes_no_decision_and_makes_none(seed: int) -> None:
    source, ends = await make_source()
    disk = SimulatedFilesystem()
    await live(disk, disk, source, ends)
    for state in sample_crash_states(disk.trace, STATES // len(SEEDS), seed):
        after = state.filesystem()
        assert not damage_found(after), str(state)
        await check(after, state.notes, str(state), source, ends)


@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_call_undoes_no_decision(kind: str) -> None:
    async def run() -> None:
        source, ends = await make_source()
        call = 1
        while True:
            fault = Fault(call=call, forever=False, **KINDS[kind])
            disk = SimulatedFilesystem()
            with contextlib.suppress(MillstreamError, OSError):
                await live(FaultyFilesystem(disk, fault), disk, source, ends)
            if not fault.hits:
                break
            notes = [event.event for event in disk.trace.events if hasattr(event, "event")]
            for after in (disk.copy(), disk.crash()):
                await check(after, notes, fault.describe(), source, ends)
            call += STRIDE

    asyncio.run(run())
