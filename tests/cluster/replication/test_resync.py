"""A replica that lacks whole segments copies them as files, proved by their digests."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from millstream.cluster.replication import replica_fetcher, segment_copier
from millstream.storage.replica.segment_resync import SegmentResync
from tests.cluster.local_cluster import LONG_LEASE_MS, LocalCluster, local_cluster, until
from tests.cluster.replication.damage import (
    SMALL_SEGMENTS,
    copy_directory,
    directory_of,
    expected,
    files_are_equal,
    fill,
    flip_bit,
    follower_of,
    segment_files,
    until_equal,
)
from tests.in_loop import in_loop

RECORDS = 100


def copied_bytes(cluster: LocalCluster, node_id: int) -> int:
    return cluster.member(node_id).replicas.context.counters.resync_bytes


async def lose_disk(cluster: LocalCluster, node_id: int) -> None:
    """Stop a node, and leave nothing of its directory but its identity."""
    await cluster.stop_node(node_id)
    directory = cluster.directory / str(node_id)
    identity = (directory / "node.json").read_bytes()
    shutil.rmtree(directory)
    directory.mkdir()
    (directory / "node.json").write_bytes(identity)


@in_loop
async def test_a_node_with_an_empty_disk_copies_segments_and_joins(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS, resync_bytes_min=1) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        await fill(cluster, "t", RECORDS)
        follower = follower_of(cluster, "t")
        await lose_disk(cluster, follower)
        await cluster.start_node(follower)
        await until_equal(cluster, "t", expected(RECORDS))
        sealed = segment_files(directory_of(cluster, follower, "t"))[:-1]
        assert len(sealed) > 5
        assert copied_bytes(cluster, follower) >= sum(path.stat().st_size for path in sealed)
        assert files_are_equal(cluster, "t")
        await fill(cluster, "t", 10, first=RECORDS)
        await until_equal(cluster, "t", expected(RECORDS + 10))


@in_loop
async def test_a_short_distance_is_fetched_record_by_record(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        follower = follower_of(cluster, "t")
        await cluster.stop_node(follower)
        await fill(cluster, "t", RECORDS)
        await cluster.start_node(follower)
        await until_equal(cluster, "t", expected(RECORDS))
        assert copied_bytes(cluster, follower) == 0
        assert files_are_equal(cluster, "t")


@in_loop
async def test_a_replica_at_the_start_of_an_unfinished_segment_fetches_it_slice_by_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It may be larger than one slice, and there is nothing to copy: it is still being written."""
    monkeypatch.setattr(replica_fetcher, "PARTITION_BYTES_MAX", 1)  # One batch.
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t")
        follower = follower_of(cluster, "t")
        await cluster.stop_node(follower)
        await fill(cluster, "t", RECORDS)
        await cluster.start_node(follower)
        await until_equal(cluster, "t", expected(RECORDS))
        assert copied_bytes(cluster, follower) == 0


@in_loop
async def test_files_that_an_operator_copied_are_kept_if_their_digests_prove_them(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS, resync_bytes_min=1) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        await fill(cluster, "t", RECORDS)
        leader, follower = cluster.leader_of("t"), follower_of(cluster, "t")
        assert leader is not None
        await lose_disk(cluster, follower)
        seeded = directory_of(cluster, follower, "t")
        copy_directory(directory_of(cluster, leader, "t"), seeded)
        damaged = segment_files(seeded)[2]
        flip_bit(damaged, 200)
        await cluster.start_node(follower)
        await until_equal(cluster, "t", expected(RECORDS))
        assert files_are_equal(cluster, "t")
        assert 0 < copied_bytes(cluster, follower) < 3 * damaged.stat().st_size


@in_loop
async def test_files_of_another_log_are_replaced(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS, resync_bytes_min=1) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        await cluster.create("other", configs=SMALL_SEGMENTS)
        await fill(cluster, "t", RECORDS)
        await fill(cluster, "other", RECORDS, first=RECORDS)
        follower = follower_of(cluster, "t")
        await lose_disk(cluster, follower)
        seeded = directory_of(cluster, follower, "t")
        copy_directory(directory_of(cluster, next(iter(cluster.nodes)), "other"), seeded)
        (seeded / "partition.json").unlink()
        await cluster.start_node(follower)
        await until_equal(cluster, "t", expected(RECORDS))
        assert files_are_equal(cluster, "t")


@in_loop
async def test_a_copy_goes_on_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS, resync_bytes_min=1) as cluster:
        await cluster.create("t", configs={"segment.bytes": "40960"})
        await fill(cluster, "t", 300)
        follower = follower_of(cluster, "t")
        await lose_disk(cluster, follower)
        monkeypatch.setattr(segment_copier, "CHUNK_BYTES", 4096)
        cluster.settings["resync_bytes_per_second_max"] = 50_000
        await cluster.start_node(follower)
        await until(lambda: copied_bytes(cluster, follower) > 10_000)
        status = cluster.nodes[follower].broker.admin.replica("t", 0)
        assert status is None or status.resync is None or status.resync.bytes_left > 0
        first = copied_bytes(cluster, follower)
        await cluster.stop_node(follower)
        cluster.settings["resync_bytes_per_second_max"] = 0
        await cluster.start_node(follower)
        await until_equal(cluster, "t", expected(300))
        sealed = segment_files(directory_of(cluster, follower, "t"))[:-1]
        total = sum(path.stat().st_size for path in sealed)
        assert first + copied_bytes(cluster, follower) <= total + 2 * 4096
        assert files_are_equal(cluster, "t")


@in_loop
async def test_a_chunk_that_is_not_what_the_manifest_says_is_never_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    read_bytes = SegmentResync.read_bytes
    spoiled: list[int] = []

    def spoil_once(self: SegmentResync, segment: tuple[int, int], position: int, size: int):
        chunk = bytearray(read_bytes(self, segment, position, size))
        if not spoiled:
            spoiled.append(position)
            chunk[150] ^= 1
        return memoryview(chunk)

    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS, resync_bytes_min=1) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        await fill(cluster, "t", RECORDS)
        follower = follower_of(cluster, "t")
        await lose_disk(cluster, follower)
        monkeypatch.setattr(SegmentResync, "read_bytes", spoil_once)
        await cluster.start_node(follower)
        await until_equal(cluster, "t", expected(RECORDS))
        assert spoiled
        assert files_are_equal(cluster, "t")
        assert cluster.member(follower).replicas.context.counters.resync_refusals == 1
