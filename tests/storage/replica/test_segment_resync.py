"""A replica is repaired by whole segments, which are verified before they count."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.errors import (
    CorruptFile,
    DamagedRecords,
    InvalidAddress,
    ReplicaMismatch,
    RequestError,
)
from millstream.records.record import Record
from millstream.storage.disk.executor import ThreadExecutor
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.log import Log
from millstream.storage.replica.digest import record_digest, segment_identity
from millstream.storage.replica.segment_resync import ManifestSegment
from millstream.storage.segment.segment import SealedSegment
from millstream.testing import ManualClock, SimulatedFilesystem
from tests.crash.workload import damage_found
from tests.in_loop import in_loop
from tests.storage.logs import turns
from tests.storage.replica.replicas import (
    DIRECTORY,
    bases,
    fill,
    make_leader,
    make_replica,
    open_log,
    replicate,
    segment_files,
    values,
)


async def clean(log: Log) -> None:
    background = ThreadExecutor(1, name="clean")
    await log.clean(
        background=background,
        throttle=IoThrottle(0),
        memory_bytes_max=10**7,
        seed=1,
        is_forced=True,
    )
    background.close()
    await turns()


async def fetch(leader: Log, replica: Log, wanted: ManifestSegment, *, chunk: int = 300) -> None:
    """Copy a segment in chunks, from where the part ends."""
    resync = replica.replication.resync
    while (position := resync.part_size(wanted)) < wanted.size:
        data = leader.replication.resync.read_bytes(wanted.id, position, chunk)
        await resync.write_part(wanted, position, data)


async def fetch_all(leader: Log, replica: Log) -> None:
    own = {entry.base_offset: entry.digest for entry in replica.replication.resync.manifest()}
    for wanted in leader.replication.resync.manifest():
        if own.get(wanted.base_offset) != wanted.digest:
            await fetch(leader, replica, wanted)
            await replica.replication.resync.install(wanted)


def flip(disk: SimulatedFilesystem, name: str, position: int) -> None:
    path = f"{DIRECTORY}/{name}"
    content = bytearray(disk.content(path))
    content[position] ^= 1
    disk.replace_content(path, bytes(content))


@in_loop
async def test_an_empty_replica_gets_whole_segments_and_then_the_tail() -> None:
    disk = SimulatedFilesystem()
    leader, replica = await make_leader(2), await make_replica(disk)
    await fill(leader, 30)
    await leader.begin_epoch(3)
    await fill(leader, 12)
    await turns()
    await fetch_all(leader, replica)
    assert replica.end_offset == leader.sealed[-1].next_offset
    await replicate(leader, replica)
    assert segment_files(replica) == segment_files(leader)
    assert replica.partition.epochs == leader.partition.epochs
    assert [segment_identity(s.seal) for s in replica.sealed] == [
        segment_identity(s.seal) for s in leader.sealed
    ]
    assert not damage_found(disk)
    again = await make_replica(disk.crash())
    assert again.recovered.damage == []
    assert values(again) == values(leader)


@in_loop
async def test_a_segment_that_is_not_the_one_in_the_manifest_is_not_installed() -> None:
    leader, replica = await make_leader(), await make_replica()
    await fill(leader, 30)
    await turns()
    wanted = leader.replication.resync.manifest()[0]
    data = bytearray(leader.replication.resync.read_bytes(wanted.id, 0, wanted.size))
    resync = replica.replication.resync
    with pytest.raises(RequestError, match="fetch the segment first"):
        await resync.install(wanted)
    data[100] ^= 1
    await resync.write_part(wanted, 0, bytes(data))
    with pytest.raises(CorruptFile, match="is not the segment in the manifest"):
        await resync.install(wanted)
    assert resync.part_size(wanted) == 0, "it is fetched again"
    await fetch(leader, replica, wanted)
    with pytest.raises(CorruptFile, match="its digest differs"):
        await resync.install(replace(wanted, digest=bytes(16)))
    assert values(replica) == []
    await fetch(leader, replica, wanted)
    await resync.install(wanted)
    assert replica.end_offset == wanted.next_offset


@in_loop
async def test_a_part_continues_after_a_restart() -> None:
    disk = SimulatedFilesystem()
    leader = await make_leader()
    store, replica = await open_log(disk)
    await replica.replication.become_replica()
    await fill(leader, 10)
    await turns()
    wanted = leader.replication.resync.manifest()[0]
    await replica.replication.resync.write_part(
        wanted, 0, leader.replication.resync.read_bytes(wanted.id, 0, 100)
    )
    with pytest.raises(RequestError, match="has 100 bytes, cannot add at 50"):
        await replica.replication.resync.write_part(wanted, 50, b"x")
    await store.close()
    replica = await make_replica(disk)
    assert replica.replication.resync.part_size(wanted) == 100
    await fetch(leader, replica, wanted)
    await replica.replication.resync.install(wanted)
    assert replica.end_offset == wanted.next_offset
    await replica.replication.resync.discard_parts()


@in_loop
async def test_a_damaged_segment_is_quarantined_and_replaced_while_the_log_is_open() -> None:
    disk = SimulatedFilesystem()
    leader, replica = await make_leader(), await make_replica(disk)
    await fill(leader, 30)
    await replicate(leader, replica)
    await turns()
    base = bases(replica)[1]
    name = f"{base:020d}.log"
    end = replica.segments[1].next_offset
    await replica.replication.resync.quarantine(base)
    with pytest.raises(DamagedRecords, match="a segment is missing") as caught:
        replica.read(base)
    assert (caught.value.from_offset, caught.value.to_offset) == (base, end - 1)
    assert replica.read(end).data
    assert replica.end_offset == 30
    assert f"{name}.bad" in disk.list(DIRECTORY)
    wanted = leader.replication.resync.manifest()[1]
    await fetch(leader, replica, wanted)
    await replica.replication.resync.install(wanted)
    await replica.replication.resync.discard_parts()
    assert values(replica) == values(leader)
    assert replica.damage == []
    assert segment_files(replica) == segment_files(leader)
    assert disk.list(DIRECTORY) == [n for n in disk.list(DIRECTORY) if ".bad" not in n]


@in_loop
async def test_a_quarantined_segment_survives_a_crash_and_is_replaced_then() -> None:
    disk = SimulatedFilesystem()
    leader, replica = await make_leader(), await make_replica(disk)
    await fill(leader, 30)
    await replicate(leader, replica)
    await turns()
    base = bases(replica)[-2]
    assert isinstance(replica.segments[-2], SealedSegment)
    await replica.replication.resync.quarantine(base)
    disk.remove(f"{DIRECTORY}/checkpoint")
    disk = disk.crash()
    replica = await make_replica(disk)
    assert replica.end_offset == 30, "what follows is not taken for unacknowledged"
    assert replica.damage
    wanted = next(e for e in leader.replication.resync.manifest() if e.base_offset == base)
    await fetch(leader, replica, wanted)
    await replica.replication.resync.install(wanted)
    assert replica.damage == []
    assert values(replica) == values(leader)


@in_loop
async def test_a_segment_that_a_reader_found_damaged_is_replaced_under_its_name() -> None:
    disk = SimulatedFilesystem()
    leader = await make_leader()
    store, replica = await open_log(disk)
    await replica.replication.become_replica()
    await fill(leader, 30)
    await replicate(leader, replica)
    await turns()
    base = bases(replica)[1]
    await store.close()
    flip(disk, f"{base:020d}.log", 90)
    replica = await make_replica(disk)
    with pytest.raises(DamagedRecords):
        values(replica)
    assert replica.damage
    wanted = next(e for e in leader.replication.resync.manifest() if e.base_offset == base)
    await fetch(leader, replica, wanted)
    await replica.replication.resync.install(wanted)
    assert values(replica) == values(leader)
    assert replica.damage == []
    assert segment_files(replica).keys() == segment_files(leader).keys()


@pytest.mark.parametrize("position", [90, -1], ids=["first batch", "last batch"])
@in_loop
async def test_a_damaged_last_segment_is_cut_off_and_fetched_again(position: int) -> None:
    disk = SimulatedFilesystem()
    leader = await make_leader()
    store, replica = await open_log(disk)
    await replica.replication.become_replica()
    await fill(leader, 9)
    await replicate(leader, replica)
    base = bases(replica)[-1]
    await store.close()
    flip(disk, f"{base:020d}.log", position)
    replica = await make_replica(disk)
    with pytest.raises(DamagedRecords):
        values(replica)
    await fill(leader, 1)
    with pytest.raises(CorruptFile, match="must be repaired before a slice"):
        await replicate(leader, replica)
    await replica.replication.truncate(base)
    assert replica.damage == []
    await replicate(leader, replica)
    assert values(replica) == values(leader)


@in_loop
async def test_the_last_segment_is_not_quarantined() -> None:
    leader = await make_leader()
    await fill(leader, 10)
    for base in (leader.segments[-1].base_offset, 3):
        with pytest.raises(RequestError, match="can be quarantined"):
            await leader.replication.resync.quarantine(base)


@in_loop
async def test_a_cleaned_segment_replaces_all_in_its_range() -> None:
    disk = SimulatedFilesystem()
    leader, replica = await make_leader(), await make_replica(disk)
    for number in range(40):
        await leader.append_records([Record(b"x" * 100, key=b"k%d" % number)])
    await replicate(leader, replica)
    await turns()
    for number in range(5, 25):
        await leader.delete_keys(key=b"k%d" % number)
    await clean(leader)
    cleaned = [e for e in leader.replication.resync.manifest() if e.generation > 0]
    assert cleaned
    for wanted in cleaned:
        await fetch(leader, replica, wanted)
        await replica.replication.resync.install(wanted)
    assert values(replica) == values(leader)
    assert (replica.end_offset, replica.replication.position.offset) == (40, 40)
    assert not damage_found(disk)
    again = await make_replica(disk.crash())
    assert again.recovered.damage == []
    assert values(again) == values(leader)


@in_loop
async def test_a_segment_that_does_not_fit_is_refused() -> None:
    leader, replica = await make_leader(), await make_replica()
    await fill(leader, 30)
    await replicate(leader, replica)
    await turns()
    first, second = leader.replication.resync.manifest()[:2]
    await replica.replication.truncate(second.base_offset + 1)
    await fetch(leader, replica, second)
    with pytest.raises(ReplicaMismatch, match="segments begin and end elsewhere"):
        await replica.replication.resync.install(second)
    del first


@in_loop
async def test_bytes_of_a_segment_that_is_gone_are_not_handed_out() -> None:
    leader = await make_leader()
    await fill(leader, 30)
    await turns()
    wanted = leader.replication.resync.manifest()[0]
    with pytest.raises(InvalidAddress, match="position must be"):
        leader.replication.resync.read_bytes(wanted.id, wanted.size + 1, 10)
    await leader.delete_before(wanted.next_offset)
    await turns()
    with pytest.raises(InvalidAddress, match="no sealed segment"):
        leader.replication.resync.read_bytes(wanted.id, 0, 10)


@in_loop
async def test_a_replica_of_a_cleaned_log_has_the_same_records_in_other_bytes() -> None:
    leader, replica = await make_leader(), await make_replica()
    for number in range(40):
        await leader.append_records([Record(b"x" * 100, key=b"k%d" % number)])
    await replicate(leader, replica)
    await turns()
    behind = await make_replica()
    await behind.replication.append(leader.replication.read(0, size_max=300))
    for number in range(5, 25):
        await leader.delete_keys(key=b"k%d" % number)
    await clean(leader)
    slices = await replicate(leader, behind)
    assert any(source.generation > 0 for source in slices)
    assert values(behind) == values(leader)
    digests = [
        record_digest((batch for _, batch in log.headers(0)), start=0, end=40)
        for log in (leader, behind, replica)
    ]
    assert digests[0] == digests[1] != digests[2]
    await fill(leader, 10)
    await replicate(leader, behind)
    assert values(behind) == values(leader)


@in_loop
async def test_an_installed_segment_has_the_age_that_it_has_at_the_leader() -> None:
    clock, other = ManualClock(), ManualClock()
    other.advance(10**6)
    _, leader = await open_log(SimulatedFilesystem(), clock=clock)
    await fill(leader, 1)
    clock.advance(40)
    await leader.roll()
    clock.advance(20)
    store, replica = await open_log(SimulatedFilesystem(), clock=other)
    await replica.replication.become_replica()
    await fetch_all(leader, replica)
    seal = replica.sealed[0].seal
    ages = store.now_ms() - seal.created_ms, store.now_ms() - seal.sealed_ms
    assert ages == (60_000, 20_000)
