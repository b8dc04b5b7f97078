"""Deletion by key and compaction in a cluster: decided by the leader, true on every node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from millstream.broker.partition.partition import Partition
from millstream.errors import InvalidConfig, NotEnoughReplicas, NotLeader
from millstream.records.build import build_batch
from millstream.records.record import Record
from millstream.storage.append.pending_append import Appended
from millstream.storage.replica.digest import record_digest
from tests.cluster.local_cluster import LocalCluster, local_cluster, until
from tests.in_loop import in_loop


def submit_records(partition: Partition, *records: Record) -> asyncio.Future[Appended]:
    future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
    partition.appender.append(build_batch(records, now_ms=1), future)
    return future


async def write(partition: Partition, *pairs: tuple[str, str | None]) -> None:
    """Append records, each in a batch of its own; `None` is a tombstone."""
    for key, value in pairs:
        record = Record(None if value is None else value.encode(), key=key.encode())
        await submit_records(partition, record)


def state_of(partition: Partition) -> list[tuple[int, str, str | None]]:
    """Return what a reader sees: offsets, keys and values."""
    return [
        (record.offset, (record.key or b"").decode(), record.value and record.value.decode())
        for record in partition.log.records()
    ]


def values_of(partition: Partition) -> list[str | None]:
    return [value for _, _, value in state_of(partition)]


def digest_of(partition: Partition) -> bytes:
    """Return the digest of all records that readers see, without control batches."""
    log = partition.log
    batches = [batch for header, batch in log.headers(log.start_offset) if not header.is_control]
    return record_digest(batches, start=log.start_offset, end=log.end_offset)


async def until_caught_up(cluster: LocalCluster, topic: str) -> None:
    """Return when all nodes have the same end, and have applied what was decided."""

    def is_done() -> bool:
        partitions = [cluster.partition(node_id, topic) for node_id in cluster.nodes]
        if not all(partition.is_open for partition in partitions):
            return False
        logs = [partition.log for partition in partitions]
        ends = {log.end_offset for log in logs} | {log.replication.durable_offset for log in logs}
        return len(ends) == 1 and not any(log.replication.decisions.pending_count for log in logs)

    await until(is_done)


async def leader_of(cluster: LocalCluster, topic: str) -> tuple[int, Partition]:
    await until(lambda: cluster.leader_of(topic) is not None)
    node_id = cluster.leader_of(topic)
    assert node_id is not None
    return node_id, cluster.partition(node_id, topic)


async def clean(cluster: LocalCluster, topic: str, nodes: Sequence[int] | None = None) -> None:
    """Let some nodes do what their cleaner would do in time; all of them, the leader first."""
    if nodes is None:
        leader_id, _ = await leader_of(cluster, topic)
        nodes = [leader_id, *(node_id for node_id in cluster.nodes if node_id != leader_id)]
    for node_id in nodes:
        store = cluster.nodes[node_id].broker.store
        await store.maintenance.clean(cluster.partition(node_id, topic).log, is_forced=True)
        await until_caught_up(cluster, topic)


@in_loop
async def test_deleted_records_are_invisible_on_every_node_and_after_a_fail_over(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        leader_id, leader = await leader_of(cluster, "t")
        await write(leader, ("a", "1"), ("b", "2"), ("ab", "3"), ("a", "4"))
        assert await leader.delete_keys(key=b"a") == 2
        assert values_of(leader) == ["2", "3"]
        await write(leader, ("a", "5"))
        await until_caught_up(cluster, "t")
        for node_id in cluster.nodes:
            assert values_of(cluster.partition(node_id, "t")) == ["2", "3", "5"]
        follower = next(cluster.partition(n, "t") for n in cluster.nodes if n != leader_id)
        with pytest.raises(NotLeader):
            await follower.delete_keys(key=b"a")
        await cluster.stop_node(leader_id)
        _, successor = await leader_of(cluster, "t")
        assert values_of(successor) == ["2", "3", "5"]
        assert await successor.delete_keys(prefix=b"a") == 2
        await cluster.start_node(leader_id)
        await until_caught_up(cluster, "t")
        for node_id in cluster.nodes:
            assert values_of(cluster.partition(node_id, "t")) == ["2"]


@in_loop
async def test_a_replica_that_was_down_applies_what_was_deleted_meanwhile(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        leader_id, leader = await leader_of(cluster, "t")
        await write(leader, ("a", "1"), ("b", "2"))
        await until_caught_up(cluster, "t")
        absent = next(n for n in cluster.nodes if n != leader_id)
        await cluster.stop_node(absent)
        assert await leader.delete_keys(key=b"a", before=1) == 1
        await cluster.start_node(absent)
        await until_caught_up(cluster, "t")
        assert values_of(cluster.partition(absent, "t")) == ["2"]
        # Its own restart does not bring them back.
        await cluster.stop_node(absent)
        await cluster.start_node(absent)
        await until_caught_up(cluster, "t")
        assert values_of(cluster.partition(absent, "t")) == ["2"]


@in_loop
async def test_a_cluster_refuses_ephemeral_topics(tmp_path: Path):
    async with local_cluster(tmp_path, 1) as cluster:
        with pytest.raises(InvalidConfig, match="a cluster has no ephemeral topics"):
            await cluster.nodes[1].broker.topics.create(
                "t", partitions=1, configs={"millstream.durability": "ephemeral"}
            )
        assert cluster.nodes[1].broker.topics.find("t") is None


@in_loop
async def test_nothing_is_deleted_while_too_few_replicas_are_in_sync(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        leader_id, leader = await leader_of(cluster, "t")
        await write(leader, ("a", "1"))
        for node_id in [n for n in cluster.nodes if n != leader_id]:
            await cluster.stop_node(node_id)

        def is_refused() -> bool:
            assert leader.replica is not None
            try:
                leader.replica.check_append(is_all=True)
            except NotEnoughReplicas:
                return True
            return False

        await until(is_refused)
        with pytest.raises(NotEnoughReplicas):
            await leader.delete_keys(key=b"a")
        assert values_of(leader) == ["1"]


@in_loop
async def test_every_replica_is_compacted_to_the_same_records(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create_compacted("t")
        leader_id, leader = await leader_of(cluster, "t")
        for number in range(3):
            await write(leader, ("a", f"a{number}"), ("b", f"b{number}"))
            await leader.log.roll()
        await write(leader, ("a", "late"))
        await until_caught_up(cluster, "t")
        await clean(cluster, "t")
        expected = ["a2", "b2", "late"]
        for node_id in cluster.nodes:
            partition = cluster.partition(node_id, "t")
            assert values_of(partition) == expected
            assert partition.log.partition.cleaned_offset == 6
        assert len({digest_of(cluster.partition(n, "t")) for n in cluster.nodes}) == 1
        await cluster.stop_node(leader_id)
        _, successor = await leader_of(cluster, "t")
        assert values_of(successor) == expected


@in_loop
async def test_a_tombstone_stays_until_its_time_is_over_and_all_replicas_have_compacted(
    tmp_path: Path,
):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create_compacted("t", {"delete.retention.ms": "0"})
        leader_id, leader = await leader_of(cluster, "t")
        await write(leader, ("a", "old"), ("b", "kept"))
        await leader.log.roll()
        await write(leader, ("a", None))
        await leader.log.roll()
        await write(leader, ("c", "end"))
        await until_caught_up(cluster, "t")
        others = [node_id for node_id in cluster.nodes if node_id != leader_id]
        seen = ["kept", None, "end"]
        # The first decision compacts; the tombstone is as old as it has to be, by a clock.
        await clean(cluster, "t", [leader_id, others[0]])
        assert values_of(leader) == values_of(cluster.partition(others[0], "t")) == seen
        # One replica has not compacted: it still has the old record, so the tombstone stays.
        await write(leader, ("d", "more"))
        await leader.log.roll()
        await clean(cluster, "t", [leader_id, others[0]])
        assert values_of(leader) == [*seen, "more"]
        assert values_of(cluster.partition(others[1], "t"))[0] == "old"
        await clean(cluster, "t", [others[1]])
        assert values_of(cluster.partition(others[1], "t")) == [*seen, "more"]
        # Now nobody has it.
        await until(lambda: cleaned_everywhere(leader) >= 4)
        await write(leader, ("e", "last"))
        await leader.log.roll()
        await clean(cluster, "t")
        for node_id in cluster.nodes:
            assert values_of(cluster.partition(node_id, "t")) == ["kept", "end", "more", "last"]
        assert len({digest_of(cluster.partition(n, "t")) for n in cluster.nodes}) == 1


def cleaned_everywhere(leader: Partition) -> int:
    return leader.log.replication.decisions.cleaned_elsewhere


@in_loop
async def test_a_replica_with_files_from_before_a_removed_tombstone_copies_everything(
    tmp_path: Path,
):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create_compacted("t", {"delete.retention.ms": "0"})
        leader_id, leader = await leader_of(cluster, "t")
        await write(leader, ("a", "old"), ("b", "kept"))
        await leader.log.roll()
        await until_caught_up(cluster, "t")
        outdated = next(n for n in cluster.nodes if n != leader_id)
        await cluster.stop_node(outdated)
        aside = tmp_path / "older"
        (tmp_path / str(outdated)).rename(aside)  # A backup, which is put back later.
        await cluster.start_node(outdated)
        await write(leader, ("a", None))
        await leader.log.roll()
        await write(leader, ("c", "end"))
        await until_caught_up(cluster, "t")
        for _ in range(3):
            await clean(cluster, "t")
            await until(lambda: cleaned_everywhere(leader) >= 3)
            await write(leader, ("c", "end"))
            await leader.log.roll()
        assert values_of(leader)[:1] == ["kept"]
        assert None not in values_of(leader)
        await cluster.stop_node(outdated)
        (tmp_path / str(outdated)).rename(tmp_path / "newer")
        aside.rename(tmp_path / str(outdated))
        await cluster.start_node(outdated)
        await until_caught_up(cluster, "t")
        assert "old" not in values_of(cluster.partition(outdated, "t"))
