"""`millstream verify --cluster`: what differs between replicas is named, and is repaired."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import Result

from millstream.broker.cluster_admin import ReplicaStatus
from millstream.cluster.administration.administrator import ClusterAdministrator
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.servers.http.handlers.cluster import replica_segments
from tests.cli.commands import run
from tests.cluster.forwarding.cluster_http import send, url
from tests.cluster.local_cluster import LONG_LEASE_MS, LocalCluster, local_cluster, until
from tests.cluster.replication.damage import (
    SMALL_SEGMENTS,
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

RECORDS = 60

LOOKS = 10
"""How often a node looks for its replica: more often than a list of all replicas takes."""


async def verify(cluster: LocalCluster, node_id: int, *words: object) -> Result:
    server = url(cluster, node_id)
    return await asyncio.to_thread(lambda: run("verify", "--cluster", *words, server=server))


@in_loop
async def test_damage_on_any_node_is_named_and_repaired_and_the_second_run_finds_nothing(
    tmp_path: Path,
):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        await fill(cluster, "t", RECORDS)
        await until_equal(cluster, "t", expected(RECORDS))
        result = await verify(cluster, 1)
        assert result.exit_code == 0, result.output
        assert result.stdout == ""
        assert "0 damaged, 0 different, 0 unchecked" in result.stderr
        leader, follower = cluster.leader_of("t"), follower_of(cluster, "t")
        assert leader is not None
        damaged = {
            leader: segment_files(directory_of(cluster, leader, "t"))[1],
            follower: segment_files(directory_of(cluster, follower, "t"))[3],
        }
        for path in damaged.values():
            flip_bit(path, 300)
        asked = next(node for node in cluster.nodes if node not in damaged)
        result = await verify(cluster, asked, "--topic", "t")
        assert result.exit_code == 1
        lines = sorted(result.stdout.splitlines())
        assert len(lines) == 2
        for line, node_id in zip(lines, sorted(damaged), strict=True):
            base = int(damaged[node_id].stem)
            assert line.startswith(f"damaged: node {node_id}: t/0: segment {base}: offset {base}: ")
            assert "checksum" in line
            assert str(tmp_path) not in line
        await until(lambda: files_are_equal(cluster, "t"))
        for node_id in damaged:
            log = cluster.partition(node_id, "t").log
            await until(lambda log=log: not log.damage)  # type: ignore[misc]
        result = await verify(cluster, asked, "--topic", "t")
        assert result.exit_code == 0, result.output


@in_loop
async def test_bytes_of_the_growing_segment_are_compared_too(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t")
        await fill(cluster, "t", 5)
        await until_equal(cluster, "t", expected(5))
        follower = follower_of(cluster, "t")
        flip_bit(segment_files(directory_of(cluster, follower, "t"))[0], 300)
        result = await verify(cluster, 1, "--topic", "t", "--json")
        assert result.exit_code == 1
        report = json.loads(result.stdout)
        [finding] = report["findings"]
        assert (finding["kind"], finding["node_id"], finding["segment"]) == ("damaged", follower, 0)
        assert report["damaged"] == 1
        assert not report["is_sound"]
        await until_equal(cluster, "t", expected(5))


@in_loop
async def test_a_node_that_is_down_is_named_as_unchecked(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        await fill(cluster, "t", 5)
        await until_equal(cluster, "t", expected(5))
        follower = follower_of(cluster, "t")
        await cluster.stop_node(follower)
        asked = next(iter(cluster.nodes))
        await until(lambda: follower not in cluster.member(asked).state.nodes)
        result = await verify(cluster, asked, "--topic", "t")
        assert result.exit_code == 1
        assert result.stdout == f"unchecked: node {follower}: t/0: the node is not alive\n"


@in_loop
async def test_a_replica_that_is_being_created_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t")
        await fill(cluster, "t", 5)
        await until_equal(cluster, "t", expected(5))
        replica = cluster.partition(follower_of(cluster, "t"), "t").replica
        assert isinstance(replica, LocalReplica)
        replica.is_present = False
        look = ClusterAdministrator.replica
        misses = 0

        def not_yet(self: ClusterAdministrator, topic: str, index: int) -> ReplicaStatus | None:
            nonlocal misses
            status = look(self, topic, index)
            misses += status is None
            replica.is_present = misses >= LOOKS
            return status

        monkeypatch.setattr(ClusterAdministrator, "replica", not_yet)
        result = await verify(cluster, 1, "--topic", "t")
        assert result.exit_code == 0, result.output
        assert "3 replicas of 1 partitions" in result.stderr


@pytest.mark.parametrize("is_named", [True, False])
@in_loop
async def test_a_replica_that_is_missing_is_named_as_unchecked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_named: bool
):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t")
        await fill(cluster, "t", 5)
        await until_equal(cluster, "t", expected(5))
        follower = follower_of(cluster, "t")
        replica = cluster.partition(follower, "t").replica
        assert isinstance(replica, LocalReplica)
        monkeypatch.setattr(replica_segments, "OPEN_SECONDS_MAX", 0.1)
        monkeypatch.setattr(replica, "is_present", False)
        if not is_named:  # Its metadata is late.
            del cluster.member(follower).state.partitions[replica.key]
        asked = next(node for node in cluster.nodes if node != follower)
        result = await verify(cluster, asked, "--topic", "t")
        assert result.exit_code == 1
        missing = "has not opened its replica of t/0 within 0.1 s" if is_named else "has no replica"
        assert result.stdout.startswith(f"unchecked: node {follower}: t/0: ")
        assert f"node {follower} {missing}" in result.stdout


@in_loop
async def test_requests_for_replicas_that_do_not_exist_are_refused_and_say_why(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t")
        path = "/v1/cluster/segments"
        for query, status, message in [
            ("node=9&topic=t&partition=0", 404, "the cluster has no node 9"),
            ("node=1&topic=nope&partition=0", 404, "nope"),
            ("node=1&topic=t&partition=7", 404, "7"),
            ("topic=t&partition=0", 400, "node"),
            ("node=1&topic=t&partition=0&until=-1", 400, "until"),
        ]:
            answer = await send(cluster, 1, "GET", f"{path}?{query}")
            assert answer.status == status, query
            assert message in json.loads(answer.body)["error"]["message"], query


@pytest.mark.parametrize(
    "words",
    [("--bootstrap", "127.0.0.1:1"), ("--data", "x"), ("--acknowledged", "x"), ("--seed", "1")],
    ids=lambda words: words[0],
)
def test_options_of_other_verifications_are_refused(words):
    result = run("verify", "--cluster", *words)
    assert result.exit_code == 2
    assert f"{words[0]} and --cluster cannot be combined" in result.stderr


def test_a_server_is_for_clusters_only():
    result = run("verify", "--server", "http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "--server is for --cluster" in result.stderr
