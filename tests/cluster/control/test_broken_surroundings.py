"""Nodes in broken surroundings: each fault has a clear message, and harms nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream import node as node_module
from millstream.broker.loop_timers import LoopTimers
from millstream.broker.problems import ProblemCode
from millstream.broker.topics.topic import TopicRow, encode_row, topic_key
from millstream.broker.topics.topics import Replication
from millstream.clients.peer.connection import PeerConnection, connect
from millstream.clients.peer.counters import PeerClientCounters
from millstream.clock import SystemClock
from millstream.cluster.control.node_identity import CLUSTER_FILE
from millstream.cluster.hlc import HybridClock
from millstream.config.schema import (
    BrokerConfig,
    ClusterConfig,
    NodeConfig,
    PeerConfig,
)
from millstream.errors import (
    InvalidConfig,
    InvalidReplication,
    NotEnoughReplicas,
    NotLeader,
    PeerUnavailable,
    UnknownFormat,
)
from millstream.node import Node
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
)
from millstream.protocols.kafka.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.protocols.peer.handshake import Purpose
from millstream.protocols.peer.identity import PeerIdentity
from millstream.storage.files.document import encode_document
from millstream.testing.etcd import RunningEtcd, running_etcd
from millstream.testing.memory_metadata import MetadataServer
from tests.cluster.forwarding.cluster_http import create, error_code, others, send
from tests.cluster.local_cluster import (
    ANY_PORT,
    SHORT_LEASE_MS,
    LocalCluster,
    local_cluster,
    submit,
    until,
    values_of,
)
from tests.in_loop import in_loop
from tests.servers.kafka.client import RawClient

RECORDS = "/v1/topics/t/records"


def config_of(data: Path, node_id: int = 1, **cluster: Any) -> NodeConfig:
    return NodeConfig(
        data=str(data),
        kafka=ANY_PORT,
        http=ANY_PORT,
        broker=BrokerConfig(node_id=node_id),
        cluster=ClusterConfig(
            **{"name": "test", "peer": ANY_PORT, "lease_ttl_ms": 2_000, **cluster}
        ),
    )


async def asked(node: Node, path: str, body: Any = None) -> tuple[int, Any]:
    """Ask a node over HTTP; return the status and the answer."""

    def ask() -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{node.http}{path}", data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    return await asyncio.to_thread(ask)


# etcd.


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[RunningEtcd]:
    with running_etcd(tmp_path / "etcd") as running:
        yield running


def test_a_node_waits_for_etcd_says_so_and_lives_through_its_loss(
    tmp_path: Path, etcd: RunningEtcd
) -> None:
    @in_loop
    async def run() -> None:
        (member,) = etcd.members
        await asyncio.to_thread(member.kill)
        config = config_of(tmp_path / "1", etcd=tuple(etcd.endpoints), etcd_timeout_ms=500)
        node = Node(config)
        starting = asyncio.create_task(node.start())
        await until(lambda: "etcd cannot be reached at" in (node.waits_for or ""))
        status, answer = await asked(node, "/health/startup")
        assert status == 503
        assert "etcd cannot be reached at" in answer["problems"][0]["message"]
        await asyncio.to_thread(member.start)
        await starting
        try:
            await use_and_lose(node, member)
        finally:
            await node.stop()

    async def use_and_lose(node: Node, member: Any) -> None:
        await node.broker.topics.create("t")
        record = {"records": [{"value": 1}]}
        await until_async(lambda: status_of(node, RECORDS, record), 201)
        await asyncio.to_thread(member.kill)
        await until(lambda: ProblemCode.QUORUM_LOST in codes(node))
        status, answer = await asked(node, "/health/ready")
        assert status == 503
        assert "quorum_lost" in [problem["code"] for problem in answer["problems"]]
        # Read-only, and it says so: nothing is acknowledged that another node might not have.
        status, answer = await asked(node, RECORDS, record)
        assert status == 503
        status, answer = await asked(node, f"{RECORDS}?stale=true")
        assert (status, len(answer["records"])) == (200, 1), answer
        await asyncio.to_thread(member.start)
        await until(lambda: ProblemCode.QUORUM_LOST not in codes(node))
        await until_async(lambda: status_of(node, RECORDS, record), 201)

    run()


async def status_of(node: Node, path: str, body: Any = None) -> int:
    return (await asked(node, path, body))[0]


async def until_async(ask: Any, expected: object) -> None:
    async with asyncio.timeout(60):
        while await ask() != expected:  # noqa: ASYNC110 - anything may make it true.
            await asyncio.sleep(0.05)


def codes(node: Node) -> list[ProblemCode]:
    return [problem.code for problem in node.health().problems]


@in_loop
async def test_a_node_that_is_cut_off_is_read_only_and_the_others_go_on(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        await create(cluster, "t", factor=3)
        leader = cluster.leader_of("t")
        assert leader is not None
        await submit(cluster.partition(leader, "t"), "a")
        cluster.isolate(leader)
        await until(lambda: ProblemCode.QUORUM_LOST in codes(cluster.nodes[leader]))
        with pytest.raises(NotLeader):
            await submit(cluster.partition(leader, "t"), "lost")
        assert values_of(cluster.partition(leader, "t")) == ["a"]
        answer = await send(cluster, leader, "POST", RECORDS, {"records": [{"value": 1}]})
        assert answer.status == 503
        assert "retry-after" in answer.headers
        first, second = others(cluster, leader)
        await until(lambda: cluster.leader_of("t") in (first, second))
        await submit(cluster.partition(cluster.leader_of("t") or 0, "t"), "b")
        cluster.heal(leader)
        await until(lambda: values_of(cluster.partition(leader, "t")) == ["a", "b"])
        await until(lambda: ProblemCode.QUORUM_LOST not in codes(cluster.nodes[leader]))


# Identity.


async def start_and_stop(config: NodeConfig, server: MetadataServer) -> None:
    node = Node(config, metadata=server.connect())
    await node.start()
    await node.stop()


@in_loop
async def test_a_directory_keeps_its_cluster_and_its_node_id_for_life(tmp_path: Path):
    server = MetadataServer(LoopTimers())
    await start_and_stop(config_of(tmp_path / "1"), server)
    with pytest.raises(InvalidConfig, match="belongs to cluster 'test', and this node is conf"):
        await start_and_stop(config_of(tmp_path / "1", name="other"), server)
    with pytest.raises(InvalidConfig, match="belongs to node 1, and this node has id 2"):
        await start_and_stop(config_of(tmp_path / "1", 2), server)
    await start_and_stop(config_of(tmp_path / "1"), server)


@in_loop
async def test_a_second_node_with_the_same_id_waits_and_says_for_whom(tmp_path: Path):
    server = MetadataServer(LoopTimers())
    first = Node(config_of(tmp_path / "1"), metadata=server.connect())
    await first.start()
    second = Node(config_of(tmp_path / "2"), metadata=server.connect())
    starting = asyncio.create_task(second.start())
    await until(lambda: "node id 1 is registered by another node" in (second.waits_for or ""))
    status, answer = await asked(second, "/health/startup")
    assert status == 503
    assert str(first.peer) in answer["problems"][0]["message"]
    await first.broker.topics.create("t")  # The first one is not disturbed.
    await first.stop()
    await starting
    await second.stop()


# Later releases.


@pytest.mark.parametrize(
    "key",
    [
        "nodes/7",
        "lives/1",
        f"partitions/{uuid.UUID(int=7)}/0",
        topic_key("later"),
        "adopting",
        "quotas/later",
        "queues/later",
        "configs/later",
        f"deleted/{uuid.UUID(int=7)}",
    ],
)
def test_metadata_of_a_later_release_is_refused_and_left_alone(tmp_path: Path, key: str) -> None:
    @in_loop
    async def run() -> None:
        server = MetadataServer(LoopTimers())
        row = TopicRow(id=uuid.UUID(int=7), partitions=1, configs={})
        later = msgspec.json.decode(encode_row(row)) | {
            "version": 99,
            "directory": "d",
            "node_id": 7,
            "started_ms": 0,
            "release": "99",
            "kafka": ["h", 1],
            "http": ["h", 1],
            "peer": ["h", 1],
            # Of other rows.
            "entity": {},
            "rates": {},
            "name": "later",
            "nodes": [1],
            "token": "t",
            "since": 1,
        }
        await server.connect().transact(puts={key: msgspec.json.encode(later)})
        before = list(await server.connect().list(""))
        with pytest.raises(UnknownFormat, match="99"):
            await start_and_stop(config_of(tmp_path / "1"), server)
        assert list(await server.connect().list("")) == before

    run()


@pytest.mark.parametrize(
    ("name", "kind"), [(CLUSTER_FILE, "millstream-cluster"), ("node.json", "millstream-store")]
)
def test_a_directory_of_a_later_release_is_refused_and_left_alone(
    tmp_path: Path, name: str, kind: str
) -> None:
    @in_loop
    async def run() -> None:
        server = MetadataServer(LoopTimers())
        await start_and_stop(config_of(tmp_path / "1"), server)
        path = tmp_path / "1" / name
        later = encode_document(kind, 99, {"anything": 1})
        path.write_bytes(later)
        with pytest.raises(UnknownFormat, match="version 99"):
            await start_and_stop(config_of(tmp_path / "1"), server)
        assert path.read_bytes() == later

    run()


# Clocks.


class SkewedClock(SystemClock):
    """A clock whose time of day is wrong."""

    skew_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.skew_ms


@in_loop
async def test_clocks_that_are_hours_off_break_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    skews = iter([0, 5 * 3_600_000, -7 * 3_600_000])

    def skewed() -> SkewedClock:
        clock = SkewedClock()
        clock.skew_ms = next(skews, 0)
        return clock

    monkeypatch.setattr(node_module, "SystemClock", skewed)
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=3)
        written = []
        for _ in range(3):  # Leadership moves between nodes whose clocks differ.
            leader = cluster.leader_of("t")
            assert leader is not None
            written.append(f"by {leader}")
            await submit(cluster.partition(leader, "t"), written[-1])
            following = others(cluster, leader)
            replica = cluster.partition(leader, "t").replica
            assert replica is not None
            replica.hand_over()  # type: ignore[attr-defined]
            await until(lambda following=following: cluster.leader_of("t") in following)  # type: ignore[misc]
        for node_id in cluster.nodes:
            await until(
                lambda node_id=node_id: values_of(cluster.partition(node_id, "t")) == written  # type: ignore[misc]
            )


# Replication that cannot be.


@in_loop
async def test_more_replicas_than_nodes_are_refused_with_both_numbers(tmp_path: Path):
    async with local_cluster(tmp_path, count=2) as cluster:
        topics = cluster.nodes[1].broker.topics
        words = "replication factor must be between 1 and 2, the number of nodes, got 3"
        with pytest.raises(InvalidReplication, match=words):
            await topics.create("t", replication=Replication(factor=3))
        assert topics.find("t") is None
        await create(cluster, "t", factor=1)
        answer = await send(
            cluster,
            1,
            "POST",
            "/v1/cluster/reassign",
            {"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2, 3]}]},
        )
        assert answer.status == 400
        message = json.loads(answer.body)["error"]["message"]
        assert "[1, 2]" in message
        assert "[1, 2, 3]" in message


@in_loop
async def test_two_replicas_are_possible_and_one_of_them_is_not_enough_to_write(tmp_path: Path):
    async with local_cluster(tmp_path, count=2) as cluster:
        await create(cluster, "t", factor=2)
        leader = cluster.leader_of("t")
        assert leader is not None
        await submit(cluster.partition(leader, "t"), "a")
        answer = await send(cluster, leader, "GET", "/v1/cluster")
        (warning,) = json.loads(answer.body)["warnings"]
        assert (
            "the cluster has 2 nodes: if one is down, writes with acks=all are refused" in warning
        )
        (other,) = others(cluster, leader)
        await cluster.stop_node(other)
        assert values_of(cluster.partition(leader, "t")) == ["a"]
        with pytest.raises(NotEnoughReplicas, match=r"min\.insync\.replicas is 2"):
            await submit(cluster.partition(leader, "t"), "b")


@in_loop
async def test_two_replicas_of_three_nodes_are_warned_of(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        await create(cluster, "t", factor=2)
        answer = await send(cluster, 1, "GET", "/v1/cluster")
        (warning,) = json.loads(answer.body)["warnings"]
        assert warning.startswith("1 partitions have 2 replicas, such as t/0:")


@in_loop
async def test_a_partition_without_a_leader_is_told_to_clients_of_all_kinds(tmp_path: Path):
    async with local_cluster(tmp_path, count=2) as cluster:
        await create(cluster, "t", factor=1)
        leader = cluster.leader_of("t")
        assert leader is not None
        (other,) = others(cluster, leader)
        await cluster.stop_node(leader)
        await until(lambda: leader not in cluster.member(other).state.nodes)

        def ask(request: Any, version: int) -> Any:
            with RawClient(str(cluster.nodes[other].kafka)) as client:
                return client.call(request, version)

        asked_for = MetadataRequest(topics=(MetadataRequestTopic(name="t"),))
        metadata = await asyncio.to_thread(ask, asked_for, 9)
        (partition,) = metadata.topics[0].partitions
        assert partition.error_code == ErrorCode.LEADER_NOT_AVAILABLE
        assert partition.leader_id == -1
        fetched = await asyncio.to_thread(ask, fetch_request(-1), 11)
        (partition,) = fetched.responses[0].partitions
        assert partition.error_code in (
            ErrorCode.LEADER_NOT_AVAILABLE,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
        )
        answer = await send(cluster, other, "POST", RECORDS, {"records": [{"value": 1}]})
        assert (answer.status, error_code(answer)) == (503, "leader_not_available")
        assert answer.headers["retry-after"] == "1"


# Peers that are none.


async def forged(cluster: LocalCluster, local: PeerIdentity, target: int = 1) -> PeerConnection:
    peer = cluster.nodes[target].peer
    assert peer is not None
    return await connect(
        lambda: PeerConnection(
            local,
            target,
            peer,
            Purpose.REPLICATION,
            clock=SystemClock(),
            hlc=HybridClock(),
            config=PeerConfig(),
            counters=PeerClientCounters(),
            on_closed=lambda _: None,
        ),
        peer,
        timeout_s=30,
    )


@in_loop
async def test_a_peer_that_is_not_registered_gets_nothing(tmp_path: Path):
    async with local_cluster(tmp_path, count=2) as cluster:
        await create(cluster, "t", factor=2)
        known = cluster.nodes[2]._cluster
        assert known is not None
        incarnation = known.identity.incarnation
        cases = {
            "WRONG_CLUSTER": PeerIdentity("other", 2, incarnation, "1"),
            "UNKNOWN_NODE": PeerIdentity("test", 99, incarnation, "1"),
            "DUPLICATE_NODE": PeerIdentity("test", 2, uuid.UUID(int=5), "1"),
        }
        for code, identity in cases.items():
            with pytest.raises(PeerUnavailable, match=code):
                await forged(cluster, identity)
        leader = cluster.leader_of("t")
        assert leader is not None
        await submit(cluster.partition(leader, "t"), "a")
        await until(lambda: all(values_of(cluster.partition(n, "t")) == ["a"] for n in (1, 2)))


@pytest.mark.parametrize(
    "nonsense",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x7f\xff\xff\xff" + bytes(64),
        b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        bytes(100_000),
    ],
    ids=["tls", "huge", "negative", "http", "zeros"],
)
def test_nonsense_on_the_peer_port_disturbs_no_peer(tmp_path: Path, nonsense: bytes) -> None:
    @in_loop
    async def run() -> None:
        async with local_cluster(tmp_path, count=2) as cluster:
            await create(cluster, "t", factor=2)
            for node_id in (1, 2):
                peer = cluster.nodes[node_id].peer
                assert peer is not None
                reader, writer = await asyncio.open_connection(*peer)
                writer.write(nonsense)
                with contextlib.suppress(ConnectionError):
                    await asyncio.wait_for(reader.read(), 60)  # It is closed.
                writer.close()
            leader = cluster.leader_of("t")
            assert leader is not None
            await submit(cluster.partition(leader, "t"), "a")
            await until(lambda: all(values_of(cluster.partition(n, "t")) == ["a"] for n in (1, 2)))

    run()


# Replica requests on client ports.


def fetch_request(replica_id: int) -> FetchRequest:
    partition = FetchRequestPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    return FetchRequest(
        replica_id=replica_id,
        max_wait_ms=0,
        min_bytes=0,
        topics=(FetchRequestTopic(topic="t", partitions=(partition,)),),
    )


@in_loop
async def test_a_client_cannot_fetch_as_a_replica(tmp_path: Path):
    async with local_cluster(tmp_path, count=2) as cluster:
        await create(cluster, "t", factor=2)
        leader = cluster.leader_of("t")
        assert leader is not None
        await submit(cluster.partition(leader, "t"), "a")

        def fetch(replica_id: int) -> Any:
            with RawClient(str(cluster.nodes[leader].kafka)) as client:
                return client.call(fetch_request(replica_id), 11)

        refused = await asyncio.to_thread(fetch, 2)
        assert refused.error_code == ErrorCode.INVALID_REQUEST
        assert not refused.responses
        served = await asyncio.to_thread(fetch, -1)
        assert served.error_code == ErrorCode.NONE
        assert served.responses
