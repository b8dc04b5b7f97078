"""A replica appends slices of its leader, at the same position of the same segment, or refuses."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from millstream.config.schema import Durability, LogConfig
from millstream.errors import (
    InvalidBatch,
    NotLeaderAnymore,
    OffsetOutOfRange,
    ReplicaMismatch,
    RequestError,
    Unavailable,
)
from millstream.records.record import Record
from millstream.storage.log import Log
from millstream.storage.segment.segment import SealedSegment
from millstream.testing import ManualClock, SimulatedFilesystem
from tests.in_loop import in_loop
from tests.storage.logs import HeldSyncer, batch_of, make_store, turns
from tests.storage.replica.replicas import (
    SMALL,
    bases,
    fill,
    make_leader,
    make_replica,
    open_log,
    replicate,
    segment_files,
    values,
)


@pytest.mark.parametrize("size_max", [1, 150, 400, 100_000])
@in_loop
async def test_a_replica_has_the_same_bytes_in_the_same_segments(size_max: int) -> None:
    leader, replica = await make_leader(), await make_replica()
    await fill(leader, 30)
    await leader.begin_epoch(2)
    await fill(leader, 12, name="w")
    await replicate(leader, replica, size_max=size_max)
    assert values(replica) == values(leader)
    assert segment_files(replica) == segment_files(leader)
    assert bases(replica) == bases(leader)
    assert replica.partition.epochs == leader.partition.epochs


@in_loop
async def test_segments_of_a_replica_are_sealed_when_those_of_the_leader_are() -> None:
    leader, replica = await make_leader(), await make_replica()
    await fill(leader, 3)
    await leader.roll()
    source = leader.replication.read(0)
    assert source.is_last_of_segment
    await replica.replication.append(source)
    await turns()
    assert [s.seal.digest for s in replica.sealed] == [s.seal.digest for s in leader.sealed]
    assert all(isinstance(segment, SealedSegment) for segment in replica.segments)


@in_loop
async def test_a_segment_is_finished_by_an_empty_slice_too() -> None:
    leader, replica = await make_leader(), await make_replica()
    await fill(leader, 3)
    await replica.replication.append(leader.replication.read(0))
    await leader.roll()
    source = leader.replication.read(3)
    assert (source.is_last_of_segment, len(source.data)) == (True, 0)
    await replica.replication.append(source)
    await turns()
    assert [s.seal.digest for s in replica.sealed] == [s.seal.digest for s in leader.sealed]
    await replica.replication.append(source)  # Again: nothing is left to finish.


@in_loop
async def test_a_replica_rolls_when_the_leader_starts_another_segment_without_having_said_so() -> (
    None
):
    leader, replica = await make_leader(), await make_replica()
    await fill(leader, 3)
    source = leader.replication.read(0)
    assert not source.is_last_of_segment
    await replica.replication.append(source)
    await leader.roll()
    await fill(leader, 1)
    source = leader.replication.read(3)
    assert (source.segment, source.position) == (3, 0)
    await replica.replication.append(source)
    await turns()
    assert bases(replica) == bases(leader) == [0, 3]


@in_loop
async def test_a_replica_never_rolls_by_itself() -> None:
    leader = await make_leader(config=LogConfig(segment_bytes_max=100_000))
    replica = await make_replica(config=replace(SMALL, segment_records_max=1))
    await fill(leader, 30)
    await replicate(leader, replica)
    assert bases(replica) == [0]
    with pytest.raises(Unavailable, match="its leader decides"):
        await replica.roll()


@in_loop
async def test_a_slice_at_another_position_is_refused_with_both() -> None:
    leader, replica = await make_leader(), await make_replica()
    await fill(leader, 3)
    first = leader.replication.read(0, size_max=1)
    await replica.replication.append(first)
    second = leader.replication.read(1, size_max=1)
    own = replica.replication.position
    with pytest.raises(ReplicaMismatch, match="positions differ") as caught:
        await replica.replication.append(replace(second, position=second.position + 1))
    assert caught.value.own == own == (1, 0, len(first.data))
    assert caught.value.given == (1, 0, len(first.data) + 1)
    await replica.replication.append(second)
    assert values(replica) == values(leader)[:2]


@in_loop
async def test_a_slice_that_does_not_continue_the_replica_is_refused() -> None:
    leader, replica = await make_leader(), await make_replica()
    await fill(leader, 4)
    with pytest.raises(ReplicaMismatch, match="does not begin at the end"):
        await replica.replication.append(leader.replication.read(1, size_max=1))
    await replica.replication.append(leader.replication.read(0, size_max=1))
    other = replace(leader.replication.read(1, size_max=1), segment=7)
    with pytest.raises(ReplicaMismatch, match="a segment begins at the end"):
        await replica.replication.append(other)
    assert replica.end_offset == 1


@in_loop
async def test_a_slice_of_an_older_epoch_is_refused() -> None:
    old, leader, replica = await make_leader(1), await make_leader(2), await make_replica()
    await fill(old, 2)
    await fill(leader, 1)
    await replicate(leader, replica)
    with pytest.raises(ReplicaMismatch, match="epoch 1, the replica has 2"):
        await replica.replication.append(old.replication.read(1))


@in_loop
async def test_a_slice_with_a_damaged_batch_is_refused() -> None:
    leader, replica = await make_leader(), await make_replica()
    await fill(leader, 2)
    source = leader.replication.read(0)
    damaged = bytearray(source.data)
    damaged[-1] ^= 1
    with pytest.raises(InvalidBatch, match="checksum"):
        await replica.replication.append(replace(source, data=bytes(damaged)))
    with pytest.raises(InvalidBatch, match="must end at offset 3"):
        await replica.replication.append(replace(source, next_offset=3))
    with pytest.raises(InvalidBatch, match="epoch 1, its segment has 4"):
        await replica.replication.append(replace(source, leader_epoch=4))
    assert replica.replication.position == (0, -1, 0)


@in_loop
async def test_slices_may_follow_each_other_without_waiting() -> None:
    leader, replica = await make_leader(), await make_replica()
    await fill(leader, 25)
    pending, offset = [], 0
    while offset < 25:
        source = leader.replication.read(offset, size_max=200)
        pending.append(replica.replication.append(source))
        offset = source.next_offset
    await asyncio.gather(*pending)
    assert segment_files(replica) == segment_files(leader)


@in_loop
async def test_a_replica_acknowledges_a_slice_when_it_is_synced() -> None:
    leader, syncer = await make_leader(), HeldSyncer()
    store = make_store(config=SMALL, syncer=syncer)
    replica = await store.log("a")
    await replica.replication.become_replica()
    await fill(leader, 2)
    await replica.replication.append(leader.replication.read(0, size_max=1))  # Opens the file.
    acked = replica.replication.append(leader.replication.read(1, size_max=1))
    await turns()
    assert not acked.done()
    assert replica.replication.durable_offset == 1
    syncer.sync_now()
    syncer.tell()
    assert (await acked).last_offset == 1
    assert replica.replication.durable_offset == 2


@in_loop
async def test_what_is_not_synced_is_no_part_of_what_is_durable() -> None:
    syncer = HeldSyncer()
    store = make_store(config=SMALL, syncer=syncer)
    leader = await store.log("a")
    await fill(leader, 1)
    acked = leader.submit(batch_of(b"unsynced"))
    await turns()
    source = leader.replication.read(0)
    assert (source.next_offset, leader.next_offset) == (1, 2)
    assert not leader.replication.read(1).data
    with pytest.raises(OffsetOutOfRange):
        leader.replication.read(2)
    syncer.sync_now()
    syncer.tell()
    await acked
    assert leader.replication.read(1).next_offset == 2


async def leader_with_an_unsynced_batch() -> tuple[Log, HeldSyncer]:
    """Return a log with a durable batch and one whose sync does not end."""
    syncer = HeldSyncer()
    leader = await make_store(config=SMALL, syncer=syncer).log("a")
    await fill(leader, 1)
    leader.submit(batch_of(b"unsynced"))
    await turns()
    return leader, syncer


@in_loop
async def test_replicas_may_fetch_what_is_written_before_it_is_synced() -> None:
    leader, syncer = await leader_with_an_unsynced_batch()
    replication = leader.replication
    assert (replication.written_offset, replication.durable_offset) == (2, 1)
    early = replication.read(1, is_durable=False)
    assert early.next_offset == 2
    assert not replication.read(2, is_durable=False).data
    with pytest.raises(OffsetOutOfRange):
        replication.read(3, is_durable=False)
    syncer.sync_now()
    syncer.tell()
    await turns()
    assert replication.read(1) == early, "it is the same before and after the sync"


@in_loop
async def test_after_a_failed_sync_nothing_unsynced_is_handed_out() -> None:
    leader, syncer = await leader_with_an_unsynced_batch()
    syncer.fail()
    await turns()
    assert leader.offline is not None
    assert leader.replication.written_offset == leader.replication.durable_offset == 1
    assert not leader.replication.read(1, is_durable=False).data


@in_loop
async def test_a_former_leader_is_a_replica_once_all_that_it_wrote_is_durable() -> None:
    # It fetches from its durable end on, and the next leader may have what it only wrote.
    leader, syncer = await leader_with_an_unsynced_batch()
    becoming = asyncio.ensure_future(leader.replication.become_replica())
    await turns()
    assert not becoming.done()
    syncer.sync_now()
    syncer.tell()
    await becoming
    assert leader.replication.durable_offset == leader.replication.position.offset == 2


@in_loop
async def test_a_former_leader_acknowledges_nothing_that_was_being_synced() -> None:
    # No other replica has it. Its successor truncates it, and its client must not believe in it.
    syncer = HeldSyncer()
    leader = await make_store(config=SMALL, syncer=syncer).log("a")
    await fill(leader, 1)
    leader.replication.set_high_watermark(1)
    append = leader.submit(batch_of(b"unsynced"))
    await turns()
    leader.replication.refuse_unreplicated(NotLeaderAnymore("another node leads"))
    becoming = asyncio.ensure_future(leader.replication.become_replica())
    await turns()
    syncer.sync_now()
    syncer.tell()
    await becoming
    assert leader.replication.durable_offset == 2
    with pytest.raises(NotLeaderAnymore):
        await append


@in_loop
async def test_a_replica_takes_no_batch_of_anyone_else_and_a_leader_no_slice() -> None:
    leader, replica = await make_leader(), await make_replica()
    with pytest.raises(Unavailable, match="is a replica"):
        await replica.append_records([Record(b"mine")])
    for change in (
        replica.delete_before(0),
        replica.evict_before(0),
        replica.delete_keys(key=b"k"),
        replica.roll(),
    ):
        with pytest.raises(Unavailable, match="its leader decides"):
            await change
    await fill(leader, 1)
    with pytest.raises(RequestError, match="is no replica"):
        await leader.replication.append(leader.replication.read(0))


@in_loop
async def test_a_replica_that_becomes_the_leader_continues_in_another_segment() -> None:
    leader, replica = await make_leader(), await make_replica()
    await fill(leader, 3)
    await replicate(leader, replica)
    await replica.begin_epoch(2)
    await fill(replica, 2, name="new")
    assert [segment.leader_epoch for segment in replica.segments] == [1, 2]
    await leader.replication.become_replica()
    await replicate(replica, leader)
    await turns()
    assert segment_files(replica) == segment_files(leader)
    assert leader.partition.epochs == replica.partition.epochs


@in_loop
async def test_a_leader_without_a_batch_forgets_its_epoch_when_another_leads() -> None:
    old, other = await make_leader(1), await make_leader(1)
    await fill(old, 2)
    await fill(other, 4)
    await old.begin_epoch(2)
    await other.begin_epoch(3)
    await old.replication.become_replica()
    assert old.partition.leader_epoch == 1
    await fill(other, 1)
    await replicate(other, old)
    assert old.partition.epochs == other.partition.epochs
    assert segment_files(old) == segment_files(other)


@in_loop
async def test_an_epoch_is_durable_before_a_batch_of_a_replica_has_it() -> None:
    disk = SimulatedFilesystem()
    leader, replica = await make_leader(5), await make_replica(disk)
    await fill(leader, 1)
    await replicate(leader, replica)
    _, log = await open_log(disk.crash())
    assert log.partition.leader_epoch == 5
    assert values(log) == values(leader)


@in_loop
async def test_a_restarted_replica_continues_in_its_segment() -> None:
    disk = SimulatedFilesystem()
    leader = await make_leader()
    store, replica = await open_log(disk)
    await replica.replication.become_replica()
    await fill(leader, 4)
    await replicate(leader, replica)
    await store.close()
    replica = await make_replica(disk)
    await fill(leader, 2, name="w")
    await replicate(leader, replica)
    assert segment_files(replica) == segment_files(leader)
    crashed = await make_replica(disk.crash())
    await fill(leader, 6, name="z")
    await replicate(leader, crashed)
    assert segment_files(crashed) == segment_files(leader)


@in_loop
async def test_a_replica_of_a_full_disk_refuses_and_continues_when_there_is_space() -> None:
    disk = SimulatedFilesystem(bytes_max=9_000)
    leader, replica = await make_leader(), await make_replica(disk)
    await fill(leader, 60, size=200)
    with pytest.raises(Unavailable):
        await replicate(leader, replica)
    end = replica.replication.position
    assert end.offset == replica.replication.durable_offset < 60
    disk.bytes_max = 1_000_000
    await replicate(leader, replica)
    assert segment_files(replica) == segment_files(leader)


@pytest.mark.parametrize("durability", list(Durability))
@in_loop
async def test_every_durability_class_can_be_replicated(durability: Durability) -> None:
    config = replace(SMALL, durability=durability)
    leader, replica = await make_leader(config=config), await make_replica(config=config)
    await fill(leader, 10)
    if durability is Durability.MEMORY:
        await turns()
    await replicate(leader, replica)
    await turns()
    assert segment_files(replica) == segment_files(leader)


@in_loop
async def test_a_segment_has_the_age_on_a_replica_that_it_has_at_the_leader() -> None:
    """Each node has a retention clock of its own, so dates differ and ages do not."""
    clock = ManualClock()
    _, leader = await open_log(SimulatedFilesystem(), clock=clock)
    await fill(leader, 1)
    clock.advance(50)
    await leader.roll()
    clock.advance(30)
    source = leader.replication.read(0)
    assert source.is_last_of_segment
    assert (source.created_age_ms, source.sealed_age_ms) == (80_000, 30_000)
    other = ManualClock()
    other.advance(1_000_000)
    store, replica = await open_log(SimulatedFilesystem(), clock=other)
    await replica.replication.become_replica()
    await replica.replication.append(source)
    await turns()
    seal = replica.sealed[0].seal
    assert store.now_ms() - seal.created_ms == 80_000
    assert store.now_ms() - seal.sealed_ms == 30_000
