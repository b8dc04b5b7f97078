"""Appends over HTTP through nodes that do not lead the partitions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from millstream import AsyncClient
from millstream.records.record import Record
from tests.cluster.forwarding.cluster_http import (
    create,
    error_code,
    forwards,
    hold_fetches,
    leader_of,
    others,
    send,
    url,
    urls,
)
from tests.cluster.local_cluster import SHORT_LEASE_MS, local_cluster, until, values_of
from tests.in_loop import in_loop

RECORDS = "/v1/topics/t/records"


@pytest.mark.parametrize("factor", [1, 2, 3])
@in_loop
async def test_records_can_be_appended_through_each_node(tmp_path: Path, factor: int):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=factor)
        leader = leader_of(cluster, "t")
        for number, node_id in enumerate(cluster.nodes):
            async with AsyncClient(url(cluster, node_id)) as client:
                placed = await client.append("t", {"n": node_id})
                assert (placed.partition, placed.offset) == (0, number)
        assert values_of(cluster.partition(leader, "t")) == [
            f'{{"n":{node_id}}}' for node_id in cluster.nodes
        ]
        for node_id in cluster.nodes:
            assert forwards(cluster, node_id).outcomes["append", "answered"] == (node_id != leader)


@in_loop
async def test_records_of_one_request_go_to_all_leaders_of_their_partitions(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=1, partitions=3)
        assert len({leader_of(cluster, "t", index) for index in range(3)}) == 3
        body = {"records": [{"value": n, "partition": n % 3} for n in range(6)]}
        for round_number, node_id in enumerate(cluster.nodes):
            answer = await send(cluster, node_id, "POST", RECORDS, body)
            assert answer.status == 201
            first = 2 * round_number
            assert json.loads(answer.body)["offsets"] == [first] * 3 + [first + 1] * 3
        for index in range(3):
            partition = cluster.partition(leader_of(cluster, "t", index), "t", index)
            assert values_of(partition) == [str(index), str(index + 3)] * 3


@in_loop
async def test_errors_of_the_leader_are_those_of_every_node(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=2, cleanup_policy="compact")
        keyless = {"records": [{"value": 1, "key": "k"}, {"value": 2}]}
        answers = [
            await send(cluster, node_id, "POST", RECORDS, keyless) for node_id in cluster.nodes
        ]
        assert {answer.status for answer in answers} == {400}
        assert {answer.body for answer in answers} == {answers[0].body}
        assert json.loads(answers[0].body)["error"]["detail"] == {"records": [1]}
        body = {
            "records": [{"value": 1, "key": "k"}],
            "producer": {"id": 7, "epoch": 0, "sequence": 5},
        }
        answers = [await send(cluster, node_id, "POST", RECORDS, body) for node_id in cluster.nodes]
        assert {answer.status for answer in answers} == {409}
        assert {answer.body for answer in answers} == {answers[0].body}
        assert values_of(cluster.partition(leader_of(cluster, "t"), "t")) == []


@in_loop
async def test_a_repeated_append_of_a_producer_is_stored_once_whichever_nodes_it_went_through(
    tmp_path: Path,
):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=3)
        produced = await send(cluster, 1, "POST", "/v1/producers")
        producer = json.loads(produced.body)
        for sequence in range(3):
            body = {
                "records": [{"value": sequence}],
                "producer": {**producer, "sequence": sequence},
            }
            for node_id in cluster.nodes:
                answer = await send(cluster, node_id, "POST", RECORDS, body)
                assert json.loads(answer.body)["offsets"] == [sequence]
        assert values_of(cluster.partition(leader_of(cluster, "t"), "t")) == ["0", "1", "2"]


@in_loop
async def test_appends_without_a_leader_are_refused_with_a_time_to_retry(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        await create(cluster, "t", factor=1)
        leader = leader_of(cluster, "t")
        cluster.isolate(leader)
        [first, _] = others(cluster, leader)
        await until(lambda: leader not in cluster.member(first).state.nodes)
        answer = await send(cluster, first, "POST", RECORDS, {"records": [{"value": 1}]})
        assert (answer.status, error_code(answer)) == (503, "leader_not_available")
        assert answer.headers["retry-after"] == "1"
        cluster.heal(leader)


@in_loop
async def test_the_outcome_of_a_batch_whose_leader_is_lost_is_unknown_and_not_repeated(
    tmp_path: Path,
):
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        await create(cluster, "t", factor=3)
        leader = leader_of(cluster, "t")
        [first, _] = others(cluster, leader)
        hold_fetches(cluster, leader)
        body = {"records": [{"value": "unsure"}]}
        sending = asyncio.create_task(send(cluster, first, "POST", RECORDS, body))
        await until(lambda: cluster.partition(leader, "t").log.replication.durable_offset == 1)
        cluster.isolate(leader)
        answer = await sending
        assert (answer.status, error_code(answer)) == (504, "outcome_unknown")
        assert forwards(cluster, first).outcomes["append", "unknown"] == 1
        assert forwards(cluster, first).retries["append"] == 0
        cluster.heal(leader)


@in_loop
async def test_a_client_of_all_nodes_loses_doubles_and_reorders_nothing_when_the_leader_is_replaced(
    tmp_path: Path,
):
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        await create(cluster, "t", factor=3)
        old = leader_of(cluster, "t")
        async with AsyncClient(urls(cluster, first=others(cluster, old)[0])) as client:
            for number in range(20):
                await client.append("t", number)
            cluster.isolate(old)
            for number in range(20, 40):
                await client.append("t", number)
        await until(lambda: cluster.leader_of("t") not in (None, old))
        expected = [str(number) for number in range(40)]
        assert values_of(cluster.partition(leader_of(cluster, "t"), "t")) == expected
        cluster.heal(old)
        await until(lambda: values_of(cluster.partition(old, "t")) == expected)


@in_loop
async def test_concurrent_appends_through_a_follower_keep_the_order_of_the_connection(
    tmp_path: Path,
):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=2)
        leader = leader_of(cluster, "t")
        node = cluster.nodes[others(cluster, leader)[0]]
        topic = node.broker.topics.get("t")
        await asyncio.gather(
            *(node.broker.appends.append(topic, [Record(b"%d" % n)]) for n in range(200))
        )
        expected = [str(number) for number in range(200)]
        assert values_of(cluster.partition(leader, "t")) == expected
