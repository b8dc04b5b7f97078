"""`millstream cluster status|nodes|partitions|reassign|rebalance|remove|elect`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from millstream import AsyncClient
from millstream.errors import InvalidReplication
from millstream.testing.broker import RunningBroker
from tests.cli.commands import is_one_line, run
from tests.cluster.forwarding.cluster_http import (
    create,
    hold_fetches,
    leader_of,
    others,
    url,
)
from tests.cluster.local_cluster import LocalCluster, local_cluster, submit, until, values_of
from tests.in_loop import in_loop


async def command(cluster: LocalCluster, node_id: int, *words: object) -> Result:
    """Run a command beside the cluster, against one of its nodes."""
    server = url(cluster, node_id)
    return await asyncio.to_thread(lambda: run("cluster", *words, server=server))


async def told(cluster: LocalCluster, node_id: int, *words: object) -> Any:
    result = await command(cluster, node_id, *words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def replicas_of(cluster: LocalCluster, topic: str, index: int = 0) -> list[int]:
    node = next(iter(cluster.nodes.values()))
    return list(node.broker.admin.partition(topic, index).replicas)


def isr_of(cluster: LocalCluster, topic: str) -> list[int]:
    node = next(iter(cluster.nodes.values()))
    return sorted(node.broker.admin.partition(topic, 0).isr)


def is_whole(cluster: LocalCluster, but: str = "") -> bool:
    """Whether all partitions, internal ones too, have three replicas in sync."""
    topics = cluster.nodes[1].broker.topics.all()
    passed_over = {topic.id for topic in topics if topic.name == but}
    states = [
        state
        for key, state in cluster.member(1).state.partitions.items()
        if key.topic_id not in passed_over
    ]
    return len(states) >= 33 and all(len(state.isr) == 3 for state in states)


@in_loop
async def test_status_is_well_until_a_node_is_gone(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        await until(lambda: is_whole(cluster))
        result = await command(cluster, 2, "status")
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("cluster test: 3 nodes, controller is node ")
        assert "all replicas in sync" in result.stdout
        await cluster.stop_node(3)
        await until(lambda: 3 not in isr_of(cluster, "t"))
        result = await command(cluster, 2, "status")
        assert result.exit_code == 1
        assert "with a replica behind" in result.stdout
        assert any(line.split()[:2] == ["3", "gone"] for line in result.stdout.splitlines())
        (partition,) = (await told(cluster, 1, "partitions", "t"))["partitions"]
        assert 3 in partition["replicas"]
        assert 3 not in partition["isr"]
        nodes = (await told(cluster, 1, "nodes"))["nodes"]
        assert [node["is_alive"] for node in nodes] == [True, True, False]


@in_loop
async def test_a_partition_moves_with_its_records_while_it_is_written(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=1)
        before = leader_of(cluster, "t")
        target = others(cluster, before)
        await submit(cluster.partition(before, "t"), "a", "b")
        words = ("reassign", "t/0", "--to", ",".join(map(str, target)))
        answer = await told(cluster, before, *words)
        assert answer["moves"] == [
            {"topic": "t", "partition": 0, "before": [before], "after": target}
        ]
        assert replicas_of(cluster, "t") == target
        await until(lambda: cluster.leader_of("t") in target)
        await submit(cluster.partition(leader_of(cluster, "t"), "t"), "c")
        for node_id in target:
            await until(
                lambda node_id=node_id: (
                    values_of(cluster.partition(node_id, "t")) == ["a", "b", "c"]
                )
            )
        assert (await told(cluster, before, *words))["moves"] == []  # It is there already.


@in_loop
async def test_wrong_moves_name_what_was_found_and_what_is_allowed(tmp_path: Path):
    async with local_cluster(tmp_path, 2) as cluster:
        await create(cluster, "t", factor=2)
        for words, texts in [
            (("reassign", "t/0", "--to", "1,9"), ["9", "1, 2"]),
            (("reassign", "t/0", "--to", "1,1"), ["[1, 1]"]),
            (("reassign", "t/5", "--to", "1"), ["between 0 and 0", "got 5"]),
            (("reassign", "missing", "--to", "1"), ["missing"]),
            (("remove", "9"), ["[1, 2]", "got 9"]),
            (("remove", "1", "--cancel"), ["node 1 is not being removed"]),
            (("partitions", "missing"), ["missing"]),
        ]:
            result = await command(cluster, 1, *words)
            assert result.exit_code == 1, (words, result.output)
            assert is_one_line(result.stderr), (words, result.stderr)
            assert all(text in result.stderr for text in texts), (words, result.stderr)
        for words in [
            ("reassign", "t/0"),
            ("reassign", "t/0", "--to", "1", "--cancel"),
            ("reassign", "t/0", "--to", "one"),
            ("reassign", "t/x", "--to", "1"),
            ("elect", "t", "--leader", "1"),
        ]:
            assert (await command(cluster, 1, *words)).exit_code == 2, words
        assert replicas_of(cluster, "t") in ([1, 2], [2, 1])


@in_loop
async def test_a_removed_node_loses_its_replicas_and_gets_no_new_ones(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=2, partitions=3)
        await until(lambda: is_whole_but_t(cluster))
        planned = await told(cluster, 1, "remove", "3", "--dry-run", "--shrink")
        assert planned["replicas_left"] > 0
        refused = await command(cluster, 1, "remove", "3")
        assert refused.exit_code == 1  # Internal partitions have three replicas.
        assert is_one_line(refused.stderr)
        removed = await told(cluster, 1, "remove", "3", "--shrink")
        assert removed["replicas_left"] == 0
        states = cluster.member(1).state.partitions.values()
        assert not any(3 in state.replicas for state in states)
        await cluster.create("later", partitions=3)
        assert all(3 not in replicas_of(cluster, "later", index) for index in range(3))
        kept = await command(cluster, 1, "remove", "3", "--cancel")
        assert kept.exit_code == 0
        assert "node 3 stays" in kept.stderr


def is_whole_but_t(cluster: LocalCluster) -> bool:
    states = cluster.member(1).state.partitions.values()
    return len(states) >= 36 and all(len(state.isr) >= 2 for state in states)


@in_loop
async def test_the_preferred_replica_leads_again(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        preferred = replicas_of(cluster, "t")[0]
        await until(lambda: len(isr_of(cluster, "t")) == 3)
        answer = await told(cluster, preferred, "elect", "t")
        assert [item["is_elected"] for item in answer["elections"]] == [False]
        await cluster.stop_node(preferred)
        await until(lambda: cluster.leader_of("t") not in (None, preferred))
        refused = await command(cluster, leader_of(cluster, "t"), "elect", "t/0")
        assert refused.exit_code == 1
        assert f"node {preferred}" in refused.stderr
        await cluster.start_node(preferred)
        await until(lambda: len(isr_of(cluster, "t")) == 3)
        answer = await told(cluster, preferred, "elect", "t/0")
        assert answer["elections"][0]["leader"] == preferred
        assert answer["elections"][0]["is_elected"]


@in_loop
async def test_an_unclean_election_is_confirmed_and_says_with_whom_records_are_lost(
    tmp_path: Path,
):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=2, min_insync_replicas="1")
        leader = leader_of(cluster, "t")
        (follower,) = (node for node in replicas_of(cluster, "t") if node != leader)
        (third,) = others(cluster, leader, follower)
        await submit(cluster.partition(leader, "t"), "a")
        await until(lambda: len(isr_of(cluster, "t")) == 2)
        needless = await told(cluster, third, "elect", "t", "--unclean", "--yes")
        assert not needless["elections"][0]["is_elected"]
        await cluster.stop_node(follower)
        await until(lambda: isr_of(cluster, "t") == [leader])
        await submit(cluster.partition(leader, "t"), "b")
        await cluster.stop_node(leader)
        await cluster.start_node(follower)
        # Nobody leads it now: the one that is there lacks a committed record.
        unsure = await command(cluster, third, "elect", "t", "--unclean")
        assert unsure.exit_code == 2  # There is no terminal to ask on.
        answer = await told(cluster, third, "elect", "t", "--unclean", "--yes")
        (election,) = answer["elections"]
        assert (election["leader"], election["former_isr"]) == (follower, [leader])
        await until(lambda: cluster.leader_of("t") == follower)
        assert values_of(cluster.partition(follower, "t")) == ["a"]
        await submit(cluster.partition(follower, "t"), "c")
        # The node that had it comes back, and agrees with what was decided.
        await cluster.start_node(leader)
        await until(lambda: values_of_or_none(cluster, leader) == ["a", "c"])


def values_of_or_none(cluster: LocalCluster, node_id: int) -> list[str] | None:
    partition = cluster.partition(node_id, "t")
    return values_of(partition) if partition.is_open else None


@in_loop
async def test_a_new_node_gets_its_share_of_the_data(tmp_path: Path):
    async with local_cluster(tmp_path, 2) as cluster:
        await create(cluster, "t", factor=1, partitions=24)
        await cluster.start_node(3)
        await until(lambda: is_whole(cluster, but="t"))
        planned = await told(cluster, 1, "rebalance", "--dry-run")
        assert planned["moves"]
        assert all(len(move["after"]) == len(move["before"]) for move in planned["moves"])
        await told(cluster, 1, "rebalance")
        assert any(replicas_of(cluster, "t", index) == [3] for index in range(24))


@in_loop
async def test_moves_tell_their_progress_on_standard_error_and_their_result_on_standard_output(
    tmp_path: Path,
):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=1, partitions=3)
        result = await command(cluster, 1, "reassign", "t", "--replicas", "3", "--json")
        assert result.exit_code == 0, result.output
        assert len(json.loads(result.stdout)["moves"]) == 3
        assert result.stderr.splitlines()[-1] == "moving: 3 of 3 done"
        assert all(line.startswith("moving: ") for line in result.stderr.splitlines())
        assert all(len(replicas_of(cluster, "t", index)) == 3 for index in range(3))


@in_loop
async def test_resync_waits_for_replicas_that_live_and_names_those_that_are_gone(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await cluster.create("t")
        await until(lambda: is_whole(cluster))
        leader = leader_of(cluster, "t")
        whole = await command(cluster, leader, "resync")
        assert (whole.exit_code, whole.stdout) == (0, "")
        assert "All replicas are in sync." in whole.stderr
        (gone, asked) = others(cluster, leader)
        await cluster.stop_node(gone)
        await until(lambda: gone not in isr_of(cluster, "t"))
        await submit(cluster.partition(leader_of(cluster, "t"), "t"), "a", "b")
        # Nobody is waited for: the node is not there, and the command ends at once.
        result = await command(cluster, asked, "resync", "t", "--json")
        assert result.exit_code == 1
        (replica,) = json.loads(result.stdout)["replicas"]
        assert (replica["node_id"], replica["is_alive"]) == (gone, False)
        assert replica["lag_records"] == 2
        table = await command(cluster, asked, "resync", "t", "--no-wait")
        assert table.exit_code == 1
        assert table.stdout.splitlines()[1].split() == ["t", "0", str(gone), "gone", "2", "-"]
        await cluster.start_node(gone)
        back = await command(cluster, asked, "resync")
        assert back.exit_code == 0, back.output
        assert isr_of(cluster, "t") == [1, 2, 3]


@in_loop
async def test_resync_ends_after_its_time(tmp_path: Path):
    async with local_cluster(tmp_path, 2) as cluster:
        await create(cluster, "t", factor=1)
        leader = leader_of(cluster, "t")
        (other,) = others(cluster, leader)
        hold_fetches(cluster, leader)
        await command(cluster, leader, "reassign", "t", "--to", f"{leader},{other}", "--no-wait")
        await until(lambda: len(replicas_of(cluster, "t")) == 2)
        result = await command(cluster, leader, "resync", "t", "--timeout", "0.1", "--json")
        assert result.exit_code == 1, result.output
        (replica,) = json.loads(result.stdout)["replicas"]
        assert (replica["node_id"], replica["is_alive"]) == (other, True)
        assert result.stderr == "resync: 0 of 1 done\n"


@in_loop
async def test_a_topic_is_created_with_as_many_replicas_as_asked_for(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        server = url(cluster, 2)

        async def topic(*words: object) -> Result:
            return await asyncio.to_thread(lambda: run("topic", *words, server=server))

        assert (await topic("create", "t", "--replicas", "2")).exit_code == 0
        assert len(replicas_of(cluster, "t")) == 2
        refused = await topic("create", "u", "--replicas", "4")
        assert refused.exit_code == 1
        assert "between 1 and 3, the number of nodes, got 4" in refused.stderr
        async with AsyncClient(server) as client:
            await client.create_topic("t", replicas=2, partitions=2)  # It can be repeated.
            with pytest.raises(InvalidReplication, match="created with 2, got 3"):
                await client.create_topic("t", replicas=3)
        assert len(replicas_of(cluster, "t", 1)) == 2


def test_a_lone_node_is_shown_as_a_cluster_of_one(node: RunningBroker) -> None:
    run("topic", "create", "orders", server=node.url)
    result = run("cluster", "status", server=node.url)
    assert result.exit_code == 0, result.output
    assert ": 1 nodes, controller is node" in result.stdout
    listed = run("cluster", "partitions", "orders", "--json", server=node.url)
    assert [item["replicas"] for item in json.loads(listed.stdout)["partitions"]] == [[1]]
    refused = run("topic", "create", "more", "--replicas", "2", server=node.url)
    assert refused.exit_code == 1
    assert "replication factor must be 1, got 2" in refused.stderr
    refused = run("cluster", "reassign", "orders", "--to", "1,2", server=node.url)
    assert refused.exit_code == 1
    assert is_one_line(refused.stderr)
