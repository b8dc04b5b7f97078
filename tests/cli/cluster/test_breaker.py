"""`millstream cluster breaker`: an operator stops requests to a node, and allows them again."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from click.testing import Result

from millstream.clients.peer.pool import PeerPool
from millstream.cluster.circuit_breaker import BreakerState
from millstream.protocols.peer.messages.append_batch import AppendBatchRequest
from millstream.testing.broker import RunningBroker
from tests.cli.commands import is_one_line, run
from tests.cluster.forwarding.cluster_http import (
    create,
    error_code,
    leader_of,
    others,
    send,
    url,
)
from tests.cluster.local_cluster import (
    LONG_LEASE_MS,
    LocalCluster,
    local_cluster,
    values_of,
)
from tests.in_loop import in_loop

RECORDS = {"records": [{"value": "a"}]}
APPENDS = "/v1/topics/t/records"


async def breaker(cluster: LocalCluster, node_id: int, *words: object) -> Result:
    server = url(cluster, node_id)
    return await asyncio.to_thread(lambda: run("cluster", "breaker", *words, server=server))


async def told(cluster: LocalCluster, node_id: int, *words: object) -> Any:
    result = await breaker(cluster, node_id, *words, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)["breakers"]


def peers_of(cluster: LocalCluster, node_id: int) -> PeerPool:
    part = cluster.nodes[node_id]._cluster
    assert part is not None
    return part.peers


def hold_appends(cluster: LocalCluster, leader: int) -> tuple[asyncio.Event, asyncio.Event]:
    """Let a node hold appends of other nodes; return what tells that one came, and what ends it."""
    held, released = asyncio.Event(), asyncio.Event()
    part = cluster.nodes[leader]._cluster
    assert part is not None
    append = part.listener.handlers[AppendBatchRequest]

    async def hold(request: Any, context: Any) -> Any:
        held.set()
        await released.wait()
        return append(request, context)

    part.listener.serve(AppendBatchRequest, hold)
    return held, released


@in_loop
async def test_a_tripped_breaker_stops_forwarding_until_it_is_reset(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await create(cluster, "t", factor=1)
        leader = leader_of(cluster, "t")
        asked, third = others(cluster, leader)
        answer = await told(cluster, asked, "trip", leader, "--here", "--yes")
        assert answer == [{"node_id": asked, "breaker": "tripped", "error": None}]
        refused = await send(cluster, asked, "POST", APPENDS, RECORDS)
        assert (refused.status, error_code(refused)) == (503, "peer_unavailable")
        assert (await send(cluster, third, "POST", APPENDS, RECORDS)).status == 201
        status = json.loads((await send(cluster, asked, "GET", "/v1/cluster")).body)
        assert {node["node_id"]: node["breaker"] for node in status["nodes"]}[leader] == "tripped"
        assert any(f"breaker reset {leader}" in warning for warning in status["warnings"])
        answer = await told(cluster, asked, "reset", leader, "--here")
        assert answer == [{"node_id": asked, "breaker": "closed", "error": None}]
        assert (await send(cluster, asked, "POST", APPENDS, RECORDS)).status == 201
        assert values_of(cluster.partition(leader, "t")) == ['"a"', '"a"']


@in_loop
async def test_all_live_nodes_trip_it_also_if_the_node_itself_is_asked(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        for asked in (1, 3):
            breakers = await told(cluster, asked, "trip", 3, "--yes")
            assert [(item["node_id"], item["breaker"]) for item in breakers] == [
                (1, "tripped"),
                (2, "tripped"),
            ]
            for node_id in (1, 2):
                states = peers_of(cluster, node_id).breaker_states()
                assert states[3] is BreakerState.TRIPPED
            breakers = await told(cluster, asked, "reset", 3)
            assert [item["breaker"] for item in breakers] == ["closed", "closed"]
        assert 3 not in peers_of(cluster, 3).breaker_states()


@in_loop
async def test_a_node_that_cannot_be_asked_is_named_and_the_command_fails(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await told(cluster, 1, "trip", 2, "--here", "--yes")
        result = await breaker(cluster, 1, "trip", 3, "--yes", "--json")
        assert result.exit_code == 1
        first, second = json.loads(result.stdout)["breakers"]
        assert (first["node_id"], first["breaker"]) == (1, "tripped")
        assert (second["node_id"], second["breaker"]) == (2, None)
        assert "its circuit breaker was tripped" in second["error"]
        table = await breaker(cluster, 1, "trip", 3, "--yes")
        assert table.exit_code == 1
        assert "its circuit breaker was tripped" in table.stdout


@in_loop
async def test_operators_are_served_while_clients_use_all_connections_for_forwarding(
    tmp_path: Path,
):
    async with local_cluster(tmp_path, 2, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await create(cluster, "t", factor=1)
        leader = leader_of(cluster, "t")
        (asked,) = others(cluster, leader)
        peers = peers_of(cluster, asked)
        peers.config = replace(peers.config, calls_in_flight_max=1, forwarding_connections_max=1)
        peers.forget(leader)  # The limits are those of new connections.
        held, released = hold_appends(cluster, leader)
        stuck = asyncio.create_task(send(cluster, asked, "POST", APPENDS, RECORDS))
        await held.wait()
        refused = await send(cluster, asked, "GET", APPENDS)
        assert (refused.status, error_code(refused)) == (503, "peer_unavailable")
        listed = await send(cluster, asked, "GET", "/v1/cluster/partitions?topic=t")
        (partition,) = json.loads(listed.body)["partitions"]
        assert (partition["end"], partition["problems"]) == (0, [])  # The leader has answered.
        released.set()
        assert (await stuck).status == 201


@in_loop
async def test_wrong_nodes_are_refused_with_those_that_are_allowed(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        for words, text in [
            (("trip", 9, "--yes"), "one of [2, 3], got 9"),
            (("reset", 9, "--here"), "one of [2, 3], got 9"),
            (("trip", 1, "--here", "--yes"), "one of [2, 3], got 1"),
        ]:
            result = await breaker(cluster, 1, *words)
            assert result.exit_code == 1, result.output
            assert is_one_line(result.stderr)
            assert text in result.stderr
        assert (await breaker(cluster, 1, "trip", 2)).exit_code == 2  # Nobody can be asked.
        assert (await breaker(cluster, 1, "open", 2)).exit_code == 2
        assert (await send(cluster, 1, "POST", "/v1/cluster/nodes/x/breaker", {})).status == 400
        wrong = {"action": "open"}
        answer = await send(cluster, 1, "POST", "/v1/cluster/nodes/2/breaker", wrong)
        assert answer.status == 400
        assert all(state is not BreakerState.TRIPPED for state in states_of(cluster, 1))


def states_of(cluster: LocalCluster, node_id: int) -> list[BreakerState]:
    return list(peers_of(cluster, node_id).breaker_states().values())


def test_a_lone_node_has_no_breakers(node: RunningBroker) -> None:
    for words in (("trip", 2, "--yes"), ("reset", 1)):
        result = run("cluster", "breaker", *words, server=node.url)
        assert result.exit_code == 1
        assert is_one_line(result.stderr)
        assert "the node is alone" in result.stderr
