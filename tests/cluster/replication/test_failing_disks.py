"""Disks that fail under real replication: EIO and ENOSPC at the file system, and what clients see.

A writer appends numbered records as a client does: it repeats what was refused, wherever the leader
is then. What was acknowledged to it must be there at the end, on every node, once or more (an
append whose outcome is not known is repeated).
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Collection
from pathlib import Path

import pytest

from millstream.cluster.replication import replica_manager, replica_repair
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.cluster.replication.replica_fetcher import ReplicaFetcher, _SentPartition
from millstream.errors import (
    LogOffline,
    MillstreamError,
    OutcomeUnknown,
    StorageFailed,
    Unavailable,
)
from millstream.protocols.peer.messages.peer_fetch import PeerFetchResponsePartition
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.storage.files.names import PART_SUFFIX
from millstream.testing import Fault, FaultyFilesystem
from millstream.testing.disk.fault import Call
from tests.cluster.local_cluster import (
    LONG_LEASE_MS,
    LocalCluster,
    local_cluster,
    submit,
    until,
    values_of,
)
from tests.cluster.replication.damage import (
    SMALL_SEGMENTS,
    directory_of,
    expected,
    files_are_equal,
    fill,
    follower_of,
    is_in_sync,
    segment_files,
    until_equal,
    value,
)
from tests.in_loop import in_loop

WRITES = frozenset({"write_at", "sync", "create", "reserve"})
READS = frozenset({"read_at", "map"})
NEVER = 2**62

RETRIABLE = (Unavailable, OutcomeUnknown, LogOffline, StorageFailed)
"""What Kafka clients are told with a code that they retry, and HTTP clients with 503, 504 or 507.
The last two are KAFKA_STORAGE_ERROR."""


class DiskFault(Fault):
    """A fault that stays with the bad sectors of a file: another file of its name has others."""

    def strikes(self, call: Call) -> bool:
        if call.name == "rename" and call.path == self.path + PART_SUFFIX:
            self.call = NEVER
        return not call.path.endswith(PART_SUFFIX) and Fault.strikes(self, call)


class Disk:
    """The disk of one node, which fails when the test says so, below one topic."""

    def __init__(self) -> None:
        self._fault = DiskFault(call=NEVER, forever=True, path="/topics/t/")
        self.filesystem = FaultyFilesystem(OsFilesystem(), self._fault)

    def fail(self, error: int, only: Collection[str], path: str = "/topics/t/") -> None:
        self._fault.error, self._fault.only, self._fault.path = error, only, path
        self._fault.hits.clear()
        self._fault.call = 0  # From the next call on.

    def heal(self) -> None:
        self._fault.call = NEVER

    @property
    def has_failed(self) -> bool:
        return bool(self._fault.hits)


def make_disks() -> dict[int, Disk]:
    return {node_id: Disk() for node_id in (1, 2, 3)}


def filesystems(disks: dict[int, Disk]) -> dict[int, FaultyFilesystem]:
    return {node_id: disk.filesystem for node_id, disk in disks.items()}


class Writer:
    """Appends numbered records until it is stopped."""

    def __init__(self, cluster: LocalCluster, first: int = 0) -> None:
        self._cluster = cluster
        self.acked: list[str] = []
        self.refusals: list[MillstreamError] = []
        self._next = first
        self._is_over = False
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        while not self._is_over:
            await self._append(value(self._next))
            self._next += 1

    async def _append(self, text: str) -> None:
        while True:
            leader = self._cluster.leader_of("t")
            try:
                if leader is None:
                    await asyncio.sleep(0.02)
                    continue
                await submit(self._cluster.partition(leader, "t"), text)
            except RETRIABLE as error:
                self.refusals.append(error)
                await asyncio.sleep(0.02)
            else:
                self.acked.append(text)
                return

    async def until_acked(self, count: int) -> None:
        """Wait until so many more records are acknowledged."""
        wanted = len(self.acked) + count
        await until(lambda: len(self.acked) >= wanted or self._task.done())
        if self._task.done():
            await self._task

    async def stop(self) -> list[str]:
        self._is_over = True
        await self._task
        return self.acked


def replica_of(cluster: LocalCluster, node_id: int) -> LocalReplica:
    replica = cluster.partition(node_id, "t").replica
    assert isinstance(replica, LocalReplica)
    return replica


def is_complete(cluster: LocalCluster, node_id: int, acked: list[str]) -> bool:
    """Whether readers of a node see everything that was acknowledged, in order."""
    if not cluster.partition(node_id, "t").is_open:
        return False
    try:
        seen = values_of(cluster.partition(node_id, "t"))
    except MillstreamError:
        return False
    firsts = list(dict.fromkeys(seen))
    return set(acked) <= set(firsts) and [text for text in firsts if text in set(acked)] == acked


async def until_healed(cluster: LocalCluster, acked: list[str]) -> None:
    """Wait until all replicas are in sync, complete and equal, and have no problem."""
    await until(lambda: all(is_complete(cluster, node, acked) for node in cluster.nodes))
    await until(lambda: is_in_sync(cluster, "t"))
    await until(lambda: files_are_equal(cluster, "t"))
    for node in cluster.nodes:
        await until(lambda node=node: not cluster.member(node).replicas.problems())  # type: ignore[misc]


@in_loop
@pytest.mark.parametrize(
    ("error", "is_leader"),
    [(errno.EIO, True), (errno.EIO, False), (errno.ENOSPC, False)],
    ids=["EIO-leader", "EIO-follower", "ENOSPC-follower"],
)
async def test_writes_go_on_while_a_disk_fails_and_the_replica_heals_with_it(
    tmp_path: Path, error: int, is_leader: bool
):
    disks = make_disks()
    async with local_cluster(
        tmp_path, lease_ttl_ms=LONG_LEASE_MS, disks=filesystems(disks), replica_lag_ms_max=1_000
    ) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        writer = Writer(cluster)
        await writer.until_acked(30)
        leader = cluster.leader_of("t")
        assert leader is not None
        broken = leader if is_leader else leader % 3 + 1
        disks[broken].fail(error, WRITES)
        await until(lambda: disks[broken].has_failed)
        await writer.until_acked(30)
        if is_leader:
            assert cluster.leader_of("t") != broken
        else:
            assert cluster.leader_of("t") == leader
        assert not is_in_sync(cluster, "t")
        disks[broken].heal()
        await writer.until_acked(10)
        acked = await writer.stop()
        await until_healed(cluster, acked)


@in_loop
@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
async def test_a_segment_that_the_disk_cannot_read_is_copied_from_another_replica(
    tmp_path: Path, is_leader: bool
):
    disks = make_disks()
    async with local_cluster(
        tmp_path, lease_ttl_ms=LONG_LEASE_MS, disks=filesystems(disks)
    ) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        await fill(cluster, "t", 60)
        await until_equal(cluster, "t", expected(60))
        leader = cluster.leader_of("t")
        assert leader is not None
        broken = leader if is_leader else leader % 3 + 1
        bad = segment_files(directory_of(cluster, broken, "t"))[2]
        store = cluster.nodes[broken].broker.store
        for segment in cluster.partition(broken, "t").log.sealed:
            segment.forget()  # As after a while: they are mapped again when they are read.
        disks[broken].fail(errno.EIO, READS, path=str(bad))
        with pytest.raises(MillstreamError):
            values_of(cluster.partition(broken, "t"))
        assert store.damage()
        await until_equal(cluster, "t", expected(60))
        await until(lambda: not store.damage())
        assert files_are_equal(cluster, "t")
        assert cluster.leader_of("t") == leader


@in_loop
async def test_a_repair_that_failed_leaves_no_problem_if_the_state_changed_before_the_next_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t")
        await fill(cluster, "t", 10)
        await until_equal(cluster, "t", expected(10))
        broken = follower_of(cluster, "t")
        manager = cluster.member(broken).replicas
        replica = replica_of(cluster, broken)

        async def fail(*, removes_damaged_end: bool = False) -> None:
            raise Unavailable("the disk does not answer")

        with monkeypatch.context() as patch:
            patch.setattr(replica.partition, "reopen", fail)
            replica.partition.log._go_offline(OSError(errno.EIO, "a sync failed"))
            await until(
                lambda: (
                    "the disk does not answer" in str(replica.problem)
                    and not manager.repair._tasks
                    and replica.key not in manager._applying
                )
            )
        manager._on_partition(replica.key, None)  # As the watch of the metadata store does.
        await until_equal(cluster, "t", expected(10))
        await until(lambda: replica.problem is None)


@in_loop
async def test_a_follower_whose_log_is_offline_after_a_fetch_has_no_problem_once_it_is_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    finish = ReplicaFetcher._finish
    failing: list[LocalReplica] = []

    async def finish_offline(
        fetcher: ReplicaFetcher, sent: _SentPartition, result: PeerFetchResponsePartition
    ) -> None:
        if sent.replica in failing:
            failing.remove(sent.replica)
            sent.replica.partition.log._go_offline(OSError(errno.EIO, "a seal was not written"))
            await finish(fetcher, sent, result)
            assert "a seal was not written" in str(sent.replica.problem)
        else:
            await finish(fetcher, sent, result)

    monkeypatch.setattr(ReplicaFetcher, "_finish", finish_offline)
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t")
        await fill(cluster, "t", 1)
        await until_equal(cluster, "t", expected(1))
        replica = replica_of(cluster, follower_of(cluster, "t"))
        failing.append(replica)
        await fill(cluster, "t", 1, first=1)
        await until(lambda: not failing)
        await until_equal(cluster, "t", expected(2))
        await until(lambda: replica.problem is None)


@in_loop
async def test_a_role_that_is_tried_again_in_vain_does_not_hasten_the_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Else each replica of a dead disk is repaired every second, with two lines in the log."""
    monkeypatch.setattr(replica_manager, "ROLE_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(replica_repair, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(replica_repair, "RETRY_SECONDS_MIN", 0.05)
    disks = make_disks()
    async with local_cluster(
        tmp_path, lease_ttl_ms=LONG_LEASE_MS, disks=filesystems(disks), replica_lag_ms_max=1_000
    ) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        await fill(cluster, "t", 10)
        broken = follower_of(cluster, "t")
        manager = cluster.member(broken).replicas
        replica = replica_of(cluster, broken)
        disks[broken].fail(errno.EIO, WRITES | READS)
        await fill(cluster, "t", 10, first=10)
        await until(lambda: not replica.partition.is_open)
        manager._on_partition(replica.key, None)
        await until(lambda: "cannot take its role" in str(replica.role_problem))
        attempts = manager.repair._attempts
        await until(lambda: replica.key in attempts and attempts[replica.key].failures > 4)
        disks[broken].heal()
        await until_equal(cluster, "t", expected(20))
        await until(lambda: not manager.problems())
