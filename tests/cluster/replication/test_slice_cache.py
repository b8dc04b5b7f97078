"""A slice that was read for one follower is given to others, for a moment."""

from __future__ import annotations

import uuid

from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.replication.slice_cache import BYTES_MAX, SECONDS_MAX, SliceCache
from millstream.protocols.peer.messages.peer_fetch import PeerFetchRequestPartition
from millstream.storage.segment.replica_slice import ReplicaSlice
from millstream.testing import ManualClock

KEY = PartitionId(uuid.UUID(int=1), 0)
LARGE = 2**30


def fetch(offset: int, *, epoch: int = 3) -> PeerFetchRequestPartition:
    return PeerFetchRequestPartition(
        topic_id=KEY.topic_id,
        index=KEY.partition,
        leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=epoch,
        log_start=0,
        bytes_max=LARGE,
    )


def slice_at(offset: int, size: int = 100) -> ReplicaSlice:
    return ReplicaSlice(
        leader_epoch=3,
        segment=0,
        position=0,
        offset=offset,
        next_offset=offset + 1,
        data=bytes(size),
    )


def test_a_fetch_at_the_same_offset_gets_the_slice_that_was_read() -> None:
    cache, source = SliceCache(ManualClock()), slice_at(5)
    cache.add(KEY, fetch(5), source)
    assert cache.get(KEY, fetch(5), LARGE) is source
    assert cache.get(KEY, fetch(5), LARGE) is source


def test_another_offset_epoch_partition_or_size_does_not() -> None:
    cache = SliceCache(ManualClock())
    cache.add(KEY, fetch(5), slice_at(5))
    assert cache.get(KEY, fetch(6), LARGE) is None
    assert cache.get(KEY, fetch(5, epoch=4), LARGE) is None
    assert cache.get(PartitionId(KEY.topic_id, 1), fetch(5), LARGE) is None
    assert cache.get(KEY, fetch(5), 99) is None


def test_a_slice_is_kept_for_a_moment_only() -> None:
    clock = ManualClock()
    cache = SliceCache(clock)
    cache.add(KEY, fetch(5), slice_at(5))
    clock.advance(SECONDS_MAX * 1.01)
    assert cache.get(KEY, fetch(5), LARGE) is None


def test_the_memory_is_given_back() -> None:
    clock = ManualClock()
    cache = SliceCache(clock)
    cache.add(KEY, fetch(5), slice_at(5))
    cache.add(KEY, fetch(6), slice_at(6, 40))
    assert cache.bytes == 40, "of a partition, the last one is kept"
    clock.advance(SECONDS_MAX * 1.01)
    cache.expire()
    assert cache.bytes == 0


def test_the_oldest_slices_give_way_when_there_are_too_many_bytes() -> None:
    cache = SliceCache(ManualClock())
    keys = [PartitionId(KEY.topic_id, index) for index in range(3)]
    for key in keys:
        cache.add(key, fetch(5), slice_at(5, BYTES_MAX // 2))
    found = [cache.get(key, fetch(5), LARGE) is not None for key in keys]
    assert found == [False, True, True]
    assert cache.bytes <= BYTES_MAX


def test_an_empty_slice_is_not_kept() -> None:
    cache = SliceCache(ManualClock())
    cache.add(KEY, fetch(5), slice_at(5, 0))
    assert cache.get(KEY, fetch(5), LARGE) is None
