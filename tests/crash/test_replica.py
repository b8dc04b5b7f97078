"""Power cuts and failing calls at any moment while a replica follows its leader.

What a replica has acknowledged is there after the cut, its log is that of a leader, byte for byte,
as far as it reaches, and it can go on from there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from dataclasses import dataclass

import pytest

from millstream.config.schema import LogConfig
from millstream.errors import MillstreamError
from millstream.storage.log import Log
from millstream.testing import (
    Fault,
    FaultyFilesystem,
    SimulatedFilesystem,
    sample_crash_states,
)
from tests.crash.test_io_errors import KINDS
from tests.crash.test_truncation import make_store
from tests.crash.workload import damage_found
from tests.in_loop import in_loop
from tests.storage.logs import turns
from tests.storage.replica.replicas import fill, make_leader, replicate, segment_files, values

LONG = bool(os.environ.get("MILLSTREAM_LONG"))
SEEDS = range(40 if LONG else 3)
STATES = 60_000 if LONG else 900
STRIDE = 5
"""Of the calls of the workload, one of so many fails; all with `make test-long`."""
SMALL = LogConfig(segment_bytes_max=1024, index_interval_bytes=64)


@dataclass(frozen=True)
class Durable:
    """The replica reported this end; it is that of the log of leader `number`."""

    number: int
    offset: int


@dataclass(frozen=True)
class Cutting:
    """The replica begins to follow another leader, whose log parts from its own here."""

    number: int
    offset: int


async def follow(disk: SimulatedFilesystem, number: int, leader: Log, replica: Log) -> None:
    while True:
        offset = replica.replication.position.offset
        source = leader.replication.read(offset, size_max=300)
        await replica.replication.append(source)
        disk.note(Durable(number, replica.replication.durable_offset))
        if not source.data:
            return


async def install(disk: SimulatedFilesystem, number: int, leader: Log, replica: Log) -> None:
    """Fetch finished segments behind the end of the replica as a whole."""
    for wanted in leader.replication.resync.manifest():
        if wanted.base_offset == replica.replication.position.offset:
            data = leader.replication.resync.read_bytes(wanted.id, 0, wanted.size)
            await replica.replication.resync.write_part(wanted, 0, data)
            await replica.replication.resync.install(wanted)
            disk.note(Durable(number, replica.replication.durable_offset))


async def leaders() -> list[Log]:
    """Two leaders: the second has the first part of the log of the first, and then its own."""
    first = await make_leader(1, SMALL)
    await fill(first, 12, name="common")
    second = await make_leader(1, SMALL)
    await second.replication.become_replica()
    await replicate(first, second)
    await second.begin_epoch(2)
    await fill(first, 4, name="lost")
    await fill(second, 12, name="new")
    await turns()
    return [first, second]


async def live(disk: SimulatedFilesystem, filesystem: object, seed: int, logs: list[Log]) -> None:
    first, second = logs
    store = make_store(filesystem, seed)  # type: ignore[arg-type]
    store.open()
    try:
        replica = await store.log("a")
        await replica.replication.become_replica()
        replica.replication.set_high_watermark(0)
        await follow(disk, 0, first, replica)
        replica.replication.set_high_watermark(12)
        disk.note(Cutting(1, 12))
        await replica.replication.truncate(12)
        await install(disk, 1, second, replica)
        await follow(disk, 1, second, replica)
    finally:
        if seed % 2:
            await store.close()


@pytest.mark.parametrize("seed", SEEDS)
@in_loop
async def test_a_power_cut_leaves_a_replica_with_what_it_acknowledged(seed: int) -> None:
    disk, logs = SimulatedFilesystem(), await leaders()
    await live(disk, disk, seed, logs)
    for state in sample_crash_states(disk.trace, STATES // len(SEEDS), seed):
        after = state.filesystem()
        findings = damage_found(after)
        assert not findings, f"{state}: unfinished taken for damaged: {findings}"
        await check(after, state.notes, str(state), logs)
        assert not damage_found(after), str(state)


async def check(disk: SimulatedFilesystem, notes: object, where: str, logs: list[Log]) -> None:
    assert isinstance(notes, tuple | list)
    told = [note for note in notes if isinstance(note, Durable)]
    acked = told[-1].offset if told else 0
    if notes and isinstance(notes[-1], Cutting):
        acked = min(acked, notes[-1].offset)
    store = make_store(disk)
    store.open()
    assert store.damage() == {}, f"{where}: {store.damage()}"
    replica = await store.log("a")
    assert replica.end_offset >= acked, f"{where}: acknowledged {acked}, has {replica.end_offset}"
    found = values(replica)
    origin = [log for log in logs if values(log)[: len(found)] == found]
    assert origin, f"{where}: the replica has what no leader has"
    await replica.replication.become_replica()
    leader = logs[1]
    end = leader.replication.epoch_end(replica.replication.last_epoch or 0)
    if end is not None and end[1] < replica.end_offset:
        await replica.replication.truncate(end[1])
    await replicate(leader, replica)
    await turns()
    assert segment_files(replica) == segment_files(leader), f"{where}: bytes differ"
    assert replica.partition.epochs == leader.partition.epochs, where
    await store.close()


@pytest.mark.parametrize("forever", [False, True], ids=["once", "forever"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_call_costs_a_replica_nothing_that_it_acknowledged(
    kind: str, forever: bool
) -> None:
    async def run() -> None:
        logs = await leaders()
        call = 1
        while True:
            fault = Fault(call=call, forever=forever, **KINDS[kind])
            await asyncio.wait_for(check_fault(fault, logs), timeout=60)
            if not fault.hits:
                break
            call += 1 if LONG else STRIDE
        assert call > (40 if kind != "short write" else 10), "hardly any call was reached"

    asyncio.run(run())


async def check_fault(fault: Fault, logs: list[Log]) -> None:
    disk = SimulatedFilesystem()
    with contextlib.suppress(MillstreamError):
        await live(disk, FaultyFilesystem(disk, fault), 1, logs)
    notes = [event.event for event in disk.trace.events if hasattr(event, "event")]
    for after in (disk.copy(), disk.crash()):
        await check(after, notes, fault.describe(), logs)
