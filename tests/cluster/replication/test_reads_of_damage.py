"""Clients that read damaged records are asked to try again while another replica has them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from millstream import AsyncClient, TopicRecord
from millstream.clients.kafka.connection import BrokerConnection
from millstream.cluster.replication import local_replica
from millstream.cluster.replication.replica_repair import ReplicaRepair
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchRequestPartition,
    FetchRequestTopic,
)
from millstream.protocols.kafka.messages.list_offsets import (
    ListOffsetsRequest,
    ListOffsetsRequestPartition,
    ListOffsetsRequestTopic,
)
from tests.cluster.forwarding.cluster_http import error_code, in_time, leader_of, send, url, urls
from tests.cluster.local_cluster import (
    LONG_LEASE_MS,
    WAIT_SECONDS,
    LocalCluster,
    local_cluster,
    until,
)
from tests.cluster.replication.damage import (
    SMALL_SEGMENTS,
    VALUE,
    directory_of,
    expected,
    fill,
    flip_bit,
    segment_files,
    until_equal,
)
from tests.in_loop import in_loop

RECORDS = 60


@contextmanager
def repair_held() -> Iterator[None]:
    """Let no node begin a repair meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ReplicaRepair, "_begin", lambda *_: None)
        yield


async def call(cluster: LocalCluster, node_id: int, request: Any) -> Any:
    def ask() -> Any:
        address = cluster.nodes[node_id].kafka
        with BrokerConnection(*address, client_id="test", timeout_s=WAIT_SECONDS) as connection:
            return connection.call(request)

    return await asyncio.to_thread(ask)


async def fetched_code(cluster: LocalCluster, node_id: int, offset: int) -> ErrorCode:
    """Fetch as a Kafka consumer does, and return the code."""
    part = FetchRequestPartition(partition=0, fetch_offset=offset, partition_max_bytes=1000)
    topic_id = cluster.nodes[node_id].broker.topics.get("t").id
    topic = FetchRequestTopic(topic="t", topic_id=topic_id, partitions=(part,))
    request = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=1000, topics=(topic,))
    answer = await call(cluster, node_id, request)
    return ErrorCode(answer.responses[0].partitions[0].error_code)


async def with_damage(cluster: LocalCluster) -> tuple[int, int]:
    """Fill a topic, and damage a record at the leader; return leader and offset."""
    await cluster.create("t", configs=SMALL_SEGMENTS)
    await fill(cluster, "t", RECORDS)
    if len(cluster.nodes) > 1:
        await until_equal(cluster, "t", expected(RECORDS))
    leader = leader_of(cluster, "t")
    path = segment_files(directory_of(cluster, leader, "t"))[1]
    flip_bit(path, 300)
    return leader, int(path.stem)


@in_loop
async def test_kafka_consumers_wait_for_the_repair_and_read_every_record(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        leader, offset = await with_damage(cluster)
        with repair_held():
            assert await fetched_code(cluster, leader, offset) is ErrorCode.KAFKA_STORAGE_ERROR
            part = ListOffsetsRequestPartition(partition_index=0, timestamp=1)
            topic = ListOffsetsRequestTopic(name="t", partitions=(part,))
            flip_bit(segment_files(directory_of(cluster, leader, "t"))[0], 65)
            answer = await call(cluster, leader, ListOffsetsRequest(topics=(topic,)))
            code = answer.topics[0].partitions[0].error_code
            assert code == ErrorCode.KAFKA_STORAGE_ERROR
            meetings = count_meetings(cluster.partition(leader, "t").replica)
            reading = asyncio.ensure_future(asyncio.to_thread(consume, cluster))
            await until(lambda: len(meetings) > 1)
            assert not reading.done()
        assert await in_time(reading) == expected(RECORDS)
        assert not cluster.partition(leader, "t").log.damage
        assert await fetched_code(cluster, leader, offset) is ErrorCode.NONE


def count_meetings(replica: Any) -> list[bool]:
    """Return a list that gets an item whenever a reader meets damage."""
    meetings: list[bool] = []
    ask = replica.awaits_repair

    def note() -> bool:
        meetings.append(ask())
        return meetings[-1]

    replica.awaits_repair = note
    return meetings


def consume(cluster: LocalCluster) -> list[str]:
    """Read all records with librdkafka; an error that it reports fails the test."""
    consumer = Consumer(
        {
            "bootstrap.servers": ",".join(
                f"{node.kafka[0]}:{node.kafka[1]}" for node in cluster.nodes.values()
            ),
            "group.id": "g",
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    consumer.subscribe(["t"])
    values: list[str] = []
    try:
        while len(values) < RECORDS:
            message = consumer.poll(WAIT_SECONDS)
            assert message is not None, f"nothing came after {len(values)} records"
            assert message.error() is None, message.error()
            values.append(message.value().decode())
    finally:
        consumer.close()
    return values


@in_loop
async def test_a_repair_that_takes_too_long_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        leader, offset = await with_damage(cluster)
        with repair_held():
            assert await fetched_code(cluster, leader, offset) is ErrorCode.KAFKA_STORAGE_ERROR
            monkeypatch.setattr(local_replica, "REPAIR_SECONDS_MAX", 0.0)
            assert await fetched_code(cluster, leader, offset) is ErrorCode.CORRUPT_MESSAGE
        monkeypatch.undo()
        await until(lambda: not cluster.partition(leader, "t").log.damage)
        assert await fetched_code(cluster, leader, offset) is ErrorCode.NONE
        with repair_held():  # The next damage is given its time again.
            flip_bit(segment_files(directory_of(cluster, leader, "t"))[2], 300)
            offset = int(segment_files(directory_of(cluster, leader, "t"))[2].stem)
            assert await fetched_code(cluster, leader, offset) is ErrorCode.KAFKA_STORAGE_ERROR


@in_loop
async def test_while_the_other_replicas_are_down_readers_are_asked_to_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(local_replica, "REPAIR_SECONDS_MAX", 0.0)
    async with local_cluster(tmp_path) as cluster:
        leader, offset = await with_damage(cluster)
        downs = [node_id for node_id in cluster.nodes if node_id != leader]
        with repair_held():
            for node_id in downs:
                await cluster.stop_node(node_id)
            await until(lambda: cluster.leader_of("t") == leader)
            await until(lambda: set(cluster.member(leader).state.nodes) == {leader})
            assert await fetched_code(cluster, leader, offset) is ErrorCode.KAFKA_STORAGE_ERROR
        for node_id in downs:
            await cluster.start_node(node_id)
        await until(lambda: not cluster.partition(leader, "t").log.damage)
        await until(lambda: cluster.leader_of("t") is not None)
        assert await fetched_code(cluster, leader_of(cluster, "t"), offset) is ErrorCode.NONE


@in_loop
async def test_without_another_replica_the_damage_is_told_at_once(tmp_path: Path):
    async with local_cluster(tmp_path, 1, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        leader, offset = await with_damage(cluster)
        assert await fetched_code(cluster, leader, offset) is ErrorCode.CORRUPT_MESSAGE
        answer = await send(cluster, leader, "GET", f"/v1/topics/t/records?from={offset}")
        assert (answer.status, error_code(answer)) == (500, "damaged_records")


@in_loop
async def test_http_readers_are_asked_to_try_again(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        leader, offset = await with_damage(cluster)
        with repair_held():
            answer = await send(cluster, leader, "GET", f"/v1/topics/t/records?from={offset}")
            assert (answer.status, error_code(answer)) == (503, "records_in_repair")
            assert str(tmp_path) not in answer.body.decode()
            before = await send(cluster, leader, "GET", "/v1/topics/t/records?from=0")
            assert json.loads(before.body)["next"] == offset, "what is before it is served"
        await until(lambda: not cluster.partition(leader, "t").log.damage)
        answer = await send(cluster, leader, "GET", f"/v1/topics/t/records?from={offset}")
        assert answer.status == 200


@in_loop
async def test_a_live_connection_waits_for_the_repair_and_has_no_gap(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        async with AsyncClient(urls(cluster)) as client:
            for number in range(RECORDS):
                await client.append("t", f"{number} {VALUE}")
        leader = leader_of(cluster, "t")
        await until(lambda: cluster.partition(leader, "t").high_watermark == RECORDS)
        flip_bit(segment_files(directory_of(cluster, leader, "t"))[1], 300)
        first = int(segment_files(directory_of(cluster, leader, "t"))[1].stem)
        offsets: list[int] = []
        is_there = asyncio.Event()

        async def follow() -> None:
            async with AsyncClient(url(cluster, leader)) as client:
                async for record in client.follow("t", from_="earliest"):
                    assert isinstance(record, TopicRecord), record
                    offsets.append(record.offset)
                    if record.offset == first - 1:
                        is_there.set()
                    if record.offset == RECORDS - 1:
                        return

        with repair_held():
            following = asyncio.ensure_future(follow())
            await in_time(is_there.wait())
        await in_time(following)
        assert offsets == list(range(RECORDS))


@in_loop
async def test_a_queue_delivers_damaged_jobs_after_their_repair_and_buries_none(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=LONG_LEASE_MS) as cluster:
        await cluster.create("t", configs=SMALL_SEGMENTS)
        async with AsyncClient(urls(cluster)) as client:
            await client.create_queue("t")
            for number in range(RECORDS):
                await client.append("t", f"{number} {VALUE}")
            await until(
                lambda: all(
                    cluster.partition(node, "t").high_watermark == RECORDS for node in cluster.nodes
                )
            )
            # Whichever replica the queue reads has damage, and two others have the records.
            for node_id in cluster.nodes:
                flip_bit(segment_files(directory_of(cluster, node_id, "t"))[node_id], 300)
            queue = client.queue("t")
            done: list[str] = []
            with repair_held():
                refusals = 0
                while not refusals:
                    body = {"max": 100}
                    answer = await send(cluster, 1, "POST", "/v1/queues/t/claim", body)
                    if answer.status == 503:
                        assert error_code(answer) == "records_in_repair"
                        refusals += 1
                        continue
                    assert answer.status == 200, answer.body
                    jobs = json.loads(answer.body)["jobs"]
                    assert jobs, "an empty answer would say that there is nothing to do"
                    done += [job["value"] for job in jobs]
                    receipts = {"receipts": [job["receipt"] for job in jobs]}
                    await send(cluster, 1, "POST", "/v1/queues/t/ack", receipts)
                assert 0 < len(done) < RECORDS, "those before the damage were delivered"
            while len(done) < RECORDS:
                for job in await in_time(queue.claim(10, wait_ms=20_000)):
                    done.append(job.value)
                    await queue.ack([job])
            counts = await queue.counts()
            assert counts.dead == 0
            assert sorted(done) == sorted(f"{number} {VALUE}" for number in range(RECORDS))
