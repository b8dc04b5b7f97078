"""Damaged and lost replicas are repaired by themselves, and nobody reads less than was written."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from millstream.cluster.control.node_row import NodeRow, encode_node
from millstream.cluster.replication_state import NO_LIFE, decode_state
from millstream.errors import DamagedRecords, MillstreamError
from millstream.metadata.interface import MetadataChange
from millstream.storage.append.pending_append import Appended
from tests.cluster.forwarding.cluster_http import send
from tests.cluster.local_cluster import (
    LONG_LEASE_MS,
    SHORT_LEASE_MS,
    LocalCluster,
    local_cluster,
    submit,
    until,
)
from tests.cluster.replication.damage import (
    SMALL_SEGMENTS,
    copy_directory,
    directory_of,
    expected,
    files_are_equal,
    fill,
    flip_bit,
    follower_of,
    seen,
    segment_files,
    until_equal,
)
from tests.in_loop import in_loop

RECORDS = 60


def read_all(cluster: LocalCluster, node_id: int) -> str:
    """Read everything on one node, as a reader does; return the error that it gets."""
    partition = cluster.partition(node_id, "t")
    log = partition.log
    offset = log.start_offset
    try:
        while offset < log.end_offset:
            offset = log.read(offset, size_max=1).next_offset
    except DamagedRecords as error:
        return str(error)
    return ""


@in_loop
@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
async def test_a_damaged_sealed_segment_is_replaced_after_a_read(tmp_path: Path, is_leader: bool):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        await fill(cluster, "t", RECORDS)
        leader = cluster.leader_of("t")
        assert leader is not None
        node_id = leader if is_leader else follower_of(cluster, "t")
        await until_equal(cluster, "t", expected(RECORDS))
        flip_bit(segment_files(directory_of(cluster, node_id, "t"))[1], 300)
        assert "checksum" in read_all(cluster, node_id)
        await until(lambda: not cluster.partition(node_id, "t").log.damage)
        await until_equal(cluster, "t", expected(RECORDS))
        assert cluster.leader_of("t") == leader
        assert files_are_equal(cluster, "t")
        await fill(cluster, "t", 5, first=RECORDS)
        await until_equal(cluster, "t", expected(RECORDS + 5))


@in_loop
@pytest.mark.parametrize("is_leader", [True, False], ids=["leader", "follower"])
async def test_damage_that_nobody_reads_is_found_by_a_scrub_and_repaired(
    tmp_path: Path, is_leader: bool
):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        await fill(cluster, "t", RECORDS)
        leader = cluster.leader_of("t")
        assert leader is not None
        node_id = leader if is_leader else follower_of(cluster, "t")
        await until_equal(cluster, "t", expected(RECORDS))
        flip_bit(segment_files(directory_of(cluster, node_id, "t"))[1], 300)
        segment_files(directory_of(cluster, node_id, "t"))[2].unlink()
        scrubber = cluster.nodes[node_id].broker.store.scrubber
        await scrubber.run_once()
        assert scrubber.counters.damaged_segments == 2
        await until(lambda: not cluster.partition(node_id, "t").log.damage)
        assert files_are_equal(cluster, "t")
        assert cluster.leader_of("t") == leader
        await until_equal(cluster, "t", expected(RECORDS))
        await scrubber.run_once()
        assert scrubber.counters.damaged_segments == 2, "all is well again"


@in_loop
async def test_a_leader_with_a_damaged_growing_segment_hands_over_and_is_repaired(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        await fill(cluster, "t", RECORDS)
        leader = cluster.leader_of("t")
        assert leader is not None
        await until_equal(cluster, "t", expected(RECORDS))
        flip_bit(segment_files(directory_of(cluster, leader, "t"))[-1], 100)
        assert "checksum" in read_all(cluster, leader)
        await until(lambda: cluster.leader_of("t") not in (None, leader))
        await fill(cluster, "t", 5, first=RECORDS)
        await until_equal(cluster, "t", expected(RECORDS + 5))
        await until(lambda: files_are_equal(cluster, "t"))


def delete_directory(directory: Path) -> None:
    shutil.rmtree(directory)


def delete_middle(directory: Path) -> None:
    segment_files(directory)[2].unlink()


def delete_first(directory: Path) -> None:
    segment_files(directory)[0].unlink()


def delete_last(directory: Path) -> None:
    segment_files(directory)[-1].unlink()


def shorten_last(directory: Path) -> None:
    path = segment_files(directory)[-1]
    path.write_bytes(path.read_bytes()[:200])


def shorten_middle(directory: Path) -> None:
    path = segment_files(directory)[2]
    path.write_bytes(path.read_bytes()[:200])


def delete_metadata(directory: Path) -> None:
    (directory / "partition.json").unlink()


def spoil_metadata(directory: Path) -> None:
    (directory / "partition.json").write_bytes(b"{}")


DAMAGES: list[Callable[[Path], None]] = [
    delete_directory,
    delete_first,
    delete_middle,
    delete_last,
    shorten_last,
    shorten_middle,
    delete_metadata,
    spoil_metadata,
]


@in_loop
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
async def test_what_was_damaged_while_a_node_was_down_is_repaired(
    tmp_path: Path, damage: Callable[[Path], None]
):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        await fill(cluster, "t", RECORDS)
        await until_equal(cluster, "t", expected(RECORDS))
        follower = follower_of(cluster, "t")
        await cluster.stop_node(follower)
        damage(directory_of(cluster, follower, "t"))
        await cluster.start_node(follower)
        await until_equal(cluster, "t", expected(RECORDS))
        await fill(cluster, "t", 5, first=RECORDS)
        await until_equal(cluster, "t", expected(RECORDS + 5))
        await until(lambda: files_are_equal(cluster, "t"))
        await until(lambda: not cluster.member(follower).replicas.problems())


def restore_older(cluster: LocalCluster, node_id: int) -> None:
    directory = directory_of(cluster, node_id, "t")
    copy_directory(cluster.directory / "older", directory)


LOSSES = [delete_directory, delete_last, shorten_last, None]


@in_loop
@pytest.mark.parametrize("damage", LOSSES, ids=["directory", "last", "end", "older-copy"])
async def test_a_node_that_lost_records_is_not_elected_before_it_is_repaired(
    tmp_path: Path, damage: Callable[[Path], None] | None
):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        await fill(cluster, "t", 20)
        follower = follower_of(cluster, "t")
        await cluster.stop_node(follower)
        copy_directory(directory_of(cluster, follower, "t"), tmp_path / "older")
        await cluster.start_node(follower)
        await fill(cluster, "t", 40, first=20)
        await until_equal(cluster, "t", expected(60))
        states = cluster.member(follower).state.partitions
        await until(lambda: all(state.is_counted(follower) for state in states.values()))
        # The last one to stop is in the ISR of every partition.
        for node_id in sorted(cluster.nodes, key=lambda node_id: node_id == follower):
            await cluster.stop_node(node_id)
        if damage is None:
            copy_directory(tmp_path / "older", directory_of(cluster, follower, "t"))
        else:
            damage(directory_of(cluster, follower, "t"))
        await cluster.start_node(follower)
        member = cluster.member(follower)
        await until(lambda: member.controller is not None and member.controller.is_controller)
        # The controller has looked at every partition when it leads those of the groups.
        await until(lambda: any(r.leader is not None for r in member.replicas.replicas.values()))
        assert cluster.leader_of("t") is None
        assert seen(cluster, follower, "t") is None
        for node_id in range(1, 4):
            if node_id != follower:
                await cluster.start_node(node_id)
        await until(lambda: cluster.leader_of("t") is not None)
        await until_equal(cluster, "t", expected(60))
        await fill(cluster, "t", 5, first=60)
        await until_equal(cluster, "t", expected(65))


@in_loop
async def test_an_older_copy_with_other_records_at_its_end_is_noticed_though_it_is_long_enough(
    tmp_path: Path,
):
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        await cluster.create("t")
        await fill(cluster, "t", 20)
        await until_equal(cluster, "t", expected(20))
        leader = cluster.leader_of("t")
        assert leader is not None
        cluster.isolate(leader)
        partition = cluster.partition(leader, "t")
        never = [submit(partition, f"never committed {number}") for number in range(10)]
        await until(lambda: partition.log.replication.durable_offset == 30)
        copy_directory(directory_of(cluster, leader, "t"), tmp_path / "older")
        await until(lambda: cluster.leader_of("t") not in (None, leader))
        await fill(cluster, "t", 10, first=20)
        cluster.heal(leader)
        await until_equal(cluster, "t", expected(30))
        assert all(isinstance(error, MillstreamError) for error in await outcomes(never))
        for node_id in sorted(cluster.nodes, key=lambda node_id: node_id == leader):
            await cluster.stop_node(node_id)
        restore_older(cluster, leader)
        await cluster.start_node(leader)
        member = cluster.member(leader)
        await until(lambda: member.controller is not None and member.controller.is_controller)
        await until(lambda: any(r.leader is not None for r in member.replicas.replicas.values()))
        assert cluster.leader_of("t") is None
        assert seen(cluster, leader, "t") is None
        for node_id in range(1, 4):
            if node_id != leader:
                await cluster.start_node(node_id)
        await until_equal(cluster, "t", expected(30))


async def outcomes(futures: Sequence[asyncio.Future[Appended]]) -> list[object]:
    return await asyncio.gather(*futures, return_exceptions=True)


@in_loop
async def test_a_node_that_lost_records_says_so_after_its_former_life_and_before_it_registers(
    tmp_path: Path,
):
    """Earlier, its leader could count the former life again; later, it could be elected."""
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        await fill(cluster, "t", 20)
        await until_equal(cluster, "t", expected(20))
        follower = follower_of(cluster, "t")
        for node_id in sorted(cluster.nodes, key=lambda node_id: node_id == follower):
            await cluster.stop_node(node_id)
        shutil.rmtree(directory_of(cluster, follower, "t"))
        outside = cluster.server.connect()
        key = f"nodes/{follower}"
        await outside.transact(puts={key: encode_node(FORMER_LIFE)})
        disowned: list[int] = []

        def note(change: MetadataChange) -> None:
            if change.value is not None:
                state = decode_state(change.value, change.revision)
                if (follower, NO_LIFE) in state.isr:
                    disowned.append(change.revision)

        watch = outside.watch("partitions/", note)
        starting = asyncio.create_task(cluster.start_node(follower))
        await until(lambda: "registered by another" in (problem_of(cluster, follower) or ""))
        assert not disowned
        gone = await outside.transact(deletes=[key])
        await starting
        await until(lambda: bool(disowned))
        assert gone is not None
        assert gone < disowned[0] < cluster.server.entries[key].created
        watch.cancel()


FORMER_LIFE = NodeRow(
    directory="former",
    release="0",
    kafka=("127.0.0.1", 1),
    http=("127.0.0.1", 2),
    peer=("127.0.0.1", 3),
)


def problem_of(cluster: LocalCluster, node_id: int) -> str | None:
    """Return why a node that starts has not registered yet."""
    node = cluster.nodes.get(node_id)
    if node is None or node._cluster is None:
        return None
    return node._cluster.member.membership.problem


@in_loop
async def test_the_only_replica_is_not_taken_for_an_empty_one(tmp_path: Path):
    """Nobody else has the records: an error, until an operator decides."""
    async with local_cluster(tmp_path, 1, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        await fill(cluster, "t", 20)
        await cluster.stop_node(1)
        shutil.rmtree(directory_of(cluster, 1, "t"))
        await cluster.start_node(1)
        member = cluster.member(1)
        await until(lambda: any(r.leader is not None for r in member.replicas.replicas.values()))
        assert cluster.leader_of("t") is None
        with pytest.raises(MillstreamError):
            await cluster.partition(1, "t").open()
        await cluster.nodes[1].broker.admin.elect_uncleanly("t", 0)
        await until(lambda: cluster.leader_of("t") == 1)
        await fill(cluster, "t", 3)
        assert seen(cluster, 1, "t") == expected(3)


@in_loop
async def test_http_readers_of_a_damaged_leader_get_an_error_and_then_every_record(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        await fill(cluster, "t", RECORDS)
        leader = cluster.leader_of("t")
        assert leader is not None
        flip_bit(segment_files(directory_of(cluster, leader, "t"))[1], 300)
        damaged = segment_files(directory_of(cluster, leader, "t"))[1]
        first = int(damaged.stem)
        path = f"/v1/topics/t/records?partition=0&from={first}"
        statuses = [(await send(cluster, leader, "GET", path)).status]
        await until(lambda: not cluster.partition(leader, "t").log.damage)
        statuses.append((await send(cluster, leader, "GET", path)).status)
        assert statuses in ([503, 200], [200, 200])
        count, offset = 0, 0
        while offset < RECORDS:
            answer = await send(
                cluster, leader, "GET", f"/v1/topics/t/records?partition=0&from={offset}"
            )
            page = json.loads(answer.body)
            assert answer.status == 200
            assert page["next"] > offset
            count += len(page["records"])
            offset = page["next"]
        assert count == RECORDS
