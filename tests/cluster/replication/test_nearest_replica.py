"""Kafka consumers read from a replica in their rack (KIP-392)."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer

from millstream.clients.kafka.connection import BrokerConnection
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
    FetchResponsePartition,
)
from tests.cluster.forwarding.cluster_http import hold_fetches, leader_of, others
from tests.cluster.local_cluster import (
    SHORT_LEASE_MS,
    WAIT_SECONDS,
    LocalCluster,
    local_cluster,
    submit,
    until,
)
from tests.in_loop import in_loop

RACKS = ("a", "b", "c")


async def fetch(
    cluster: LocalCluster, node_id: int, rack: str, offset: int = 0, *, epoch: int = -1
) -> FetchResponsePartition:
    """Ask a node for records as a consumer in a rack does."""
    node = cluster.nodes[node_id]
    part = FetchRequestPartition(
        partition=0, fetch_offset=offset, partition_max_bytes=1000, current_leader_epoch=epoch
    )
    topic_id = node.broker.topics.get("t").id
    topic = FetchRequestTopic(topic="t", topic_id=topic_id, partitions=(part,))
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, max_bytes=1000, rack_id=rack, topics=(topic,)
    )

    def call() -> FetchResponsePartition:
        with BrokerConnection(*node.kafka, client_id="test", timeout_s=WAIT_SECONDS) as connection:
            answer: Any = connection.call(request)
        part: FetchResponsePartition = answer.responses[0].partitions[0]
        return part

    return await asyncio.to_thread(call)


async def with_records(cluster: LocalCluster) -> tuple[int, int]:
    """Create a topic with two records; return its leader and a follower that has them."""
    await cluster.create("t")
    leader = leader_of(cluster, "t")
    await submit(cluster.partition(leader, "t"), "1", "2")
    follower = others(cluster, leader)[0]
    await until(lambda: cluster.partition(follower, "t").high_watermark == 2)
    return leader, follower


@in_loop
async def test_the_leader_names_the_replica_in_the_rack_of_a_consumer(tmp_path: Path):
    async with local_cluster(tmp_path, racks=RACKS) as cluster:
        leader, follower = await with_records(cluster)
        answer = await fetch(cluster, leader, RACKS[follower - 1])
        assert answer.preferred_read_replica == follower
        assert (answer.error_code, answer.high_watermark) == (0, 2)
        assert not answer.records
        for rack in (RACKS[leader - 1], "elsewhere", ""):
            answer = await fetch(cluster, leader, rack)
            assert answer.preferred_read_replica == -1
            assert answer.records
        answer = await fetch(cluster, leader, RACKS[follower - 1], offset=9)
        assert answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@in_loop
async def test_a_follower_serves_its_own_rack_up_to_its_high_watermark(tmp_path: Path):
    async with local_cluster(tmp_path, racks=RACKS) as cluster:
        leader, follower = await with_records(cluster)
        rack = RACKS[follower - 1]
        epoch = cluster.partition(leader, "t").offsets.leader_epoch
        answer = await fetch(cluster, follower, rack, epoch=epoch)
        assert (answer.error_code, answer.high_watermark) == (0, 2)
        assert answer.records
        answer = await fetch(cluster, follower, rack, offset=2)
        assert (answer.error_code, answer.records) == (0, b"")
        answer = await fetch(cluster, follower, rack, offset=3)
        assert answer.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
        for other in (RACKS[leader - 1], ""):
            answer = await fetch(cluster, follower, other)
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert answer.current_leader.leader_id == leader
        answer = await fetch(cluster, follower, rack, epoch=epoch + 1)
        assert answer.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
        answer = await fetch(cluster, follower, rack, epoch=epoch - 1)
        assert answer.error_code == ErrorCode.FENCED_LEADER_EPOCH


@in_loop
async def test_a_follower_shows_no_record_that_is_not_committed(tmp_path: Path):
    async with local_cluster(tmp_path, racks=RACKS) as cluster:
        leader, follower = await with_records(cluster)
        hold_fetches(cluster, leader)
        waiting = submit(cluster.partition(leader, "t"), "3")
        answer = await fetch(cluster, follower, RACKS[follower - 1], offset=2)
        assert (answer.error_code, answer.high_watermark, answer.records) == (0, 2, b"")
        waiting.cancel()


@in_loop
async def test_a_follower_that_is_cut_off_sends_consumers_back_to_the_leader(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS, racks=RACKS) as cluster:
        _, follower = await with_records(cluster)
        cluster.isolate(follower)
        membership = cluster.member(follower).membership
        await until(lambda: not membership.belief.is_valid(membership._clock.monotonic()))
        answer = await fetch(cluster, follower, RACKS[follower - 1])
        assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


@in_loop
async def test_a_real_consumer_reads_what_is_committed_from_the_replica_in_its_rack(tmp_path: Path):
    async with local_cluster(tmp_path, racks=RACKS) as cluster:
        await cluster.create("t")
        leader = leader_of(cluster, "t")
        follower = others(cluster, leader)[0]
        bootstrap = ",".join(str(node.kafka) for node in cluster.nodes.values())
        values, readers = await asyncio.to_thread(
            write_and_read, bootstrap, RACKS[follower - 1], follower
        )
        assert values == [b"%d" % number for number in range(0, 20, 2)]
        assert follower in readers


def write_and_read(bootstrap: str, rack: str, follower: int) -> tuple[list[bytes], set[int]]:
    """Write transactions, every second one aborted, while a consumer in a rack reads.

    Returns what it read, and the nodes that it read from. It ends when it has everything, and the
    node that it reads from is the follower.
    """
    nodes: set[int] = set()

    def note(text: str) -> None:
        topics = json.loads(text)["topics"]
        if "t" in topics:
            nodes.add(topics["t"]["partitions"]["0"]["broker"])

    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "x", "log_level": 0})
    producer.init_transactions(WAIT_SECONDS)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "client.rack": rack,
            "auto.offset.reset": "earliest",
            "statistics.interval.ms": 100,
            "stats_cb": note,
            "log_level": 0,
        }
    )
    consumer.subscribe(["t"])
    values: list[bytes] = []
    for number in range(20):
        producer.begin_transaction()
        producer.produce("t", b"%d" % number)
        producer.flush(WAIT_SECONDS)
        if number % 2:
            producer.abort_transaction(WAIT_SECONDS)
        else:
            producer.commit_transaction(WAIT_SECONDS)
            message = consumer.poll(WAIT_SECONDS)
            assert message is not None, f"{number} was not read"
            assert message.error() is None, message.error()
            values.append(message.value())
    while follower not in nodes:
        assert consumer.poll(0.1) is None
    consumer.close()
    return values, nodes
