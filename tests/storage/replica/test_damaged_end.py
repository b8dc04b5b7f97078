"""The damaged end of a replica is removed, and fetched again from its leader."""

from __future__ import annotations

import pytest

from millstream.errors import LogOffline
from millstream.testing import SimulatedFilesystem
from tests.crash.workload import damage_found
from tests.in_loop import in_loop
from tests.storage.replica.replicas import (
    DIRECTORY,
    fill,
    make_leader,
    open_log,
    replicate,
    segment_files,
    values,
)
from tests.storage.replica.test_segment_resync import flip


@pytest.mark.parametrize("damage", ["flipped", "missing", "first batch", "sealed and missing"])
@in_loop
async def test_a_replica_with_a_damaged_end_is_repaired_by_its_leader(damage: str) -> None:
    disk = SimulatedFilesystem()
    leader = await make_leader()
    store, replica = await open_log(disk)
    await replica.replication.become_replica()
    await fill(leader, 22)
    await replicate(leader, replica)
    last = f"{replica.segments[-1].base_offset:020d}.log"
    base = replica.segments[-1].base_offset
    if damage == "sealed and missing":
        await store.close()
    disk = disk.copy()
    if "missing" in damage:
        disk.remove(f"{DIRECTORY}/{last}")
    else:
        flip(
            disk,
            last,
            80 if damage == "first batch" else len(disk.content(f"{DIRECTORY}/{last}")) - 5,
        )
    store, replica = await open_log(disk)
    assert replica.offline is not None
    with pytest.raises(LogOffline):
        await replica.replication.truncate(base)
    replica = await store.reopen("a", removes_damaged_end=True)
    assert replica.offline is None
    assert replica.damage == []
    assert base <= replica.end_offset < 22 or damage == "missing"
    await replica.replication.become_replica()
    await replicate(leader, replica)
    assert segment_files(replica) == segment_files(leader)
    assert values(replica) == values(leader)
    await store.close()
    assert not damage_found(disk)


@in_loop
async def test_a_log_without_damage_keeps_its_end() -> None:
    disk = SimulatedFilesystem()
    store, log = await open_log(disk)
    await fill(log, 5)
    log = await store.reopen("a", removes_damaged_end=True)
    assert len(values(log)) == 5


@in_loop
async def test_a_log_whose_start_is_lost_too_is_empty_there() -> None:
    disk = SimulatedFilesystem()
    store, log = await open_log(disk)
    await fill(log, 22)
    await log.delete_before(log.segments[-1].base_offset + 1)
    start = log.start_offset
    last = f"{log.segments[-1].base_offset:020d}.log"
    disk = disk.copy()
    flip(disk, last, 80)
    store, log = await open_log(disk)
    log = await store.reopen("a", removes_damaged_end=True)
    assert (log.start_offset, log.end_offset, log.offline) == (start, start, None)
