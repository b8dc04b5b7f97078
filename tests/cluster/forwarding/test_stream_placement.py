"""Durable streams whose coordinator does not lead the partition of the stream."""

from __future__ import annotations

import asyncio
from pathlib import Path

from millstream import AsyncClient
from millstream.broker.state.internal_partitions import STREAMS, InternalPartition
from millstream.clients.http.core.config import ClientConfig
from millstream.clients.http.core.requests import Idempotency, Request
from millstream.clients.http.core.responses import ClientResponse
from millstream.errors import NodeUnreachable, NotLeader
from tests.cluster.forwarding.cluster_http import leader_of, others, url
from tests.cluster.local_cluster import SHORT_LEASE_MS, LocalCluster, local_cluster, submit, until
from tests.in_loop import in_loop

TEXT = ("content-type", "text/plain")


async def request(
    cluster: LocalCluster,
    node_id: int,
    method: str,
    path: str,
    body: bytes = b"",
    **headers: str,
) -> ClientResponse:
    async with AsyncClient(url(cluster, node_id), config=ClientConfig(answer_s_max=40)) as client:
        fields = [TEXT] + [(name.replace("_", "-"), value) for name, value in headers.items()]
        message = Request(method, f"/v1/streams/{path}", Idempotency.EACH, body, tuple(fields))
        return await client.connections(client.address).send(message, 40)


def error_is_loading(answer: ClientResponse) -> bool:
    return answer.status == 503 and b"coordinator_loading" in answer.body


def coordinator_of(cluster: LocalCluster, node_id: int) -> int:
    return cluster.member(node_id).partitions.leader_of(InternalPartition(STREAMS))


async def streams_elsewhere(cluster: LocalCluster, count: int = 3) -> list[str]:
    """Create streams until so many are led by nodes that do not coordinate them."""
    await until(lambda: coordinator_of(cluster, 1) > 0)
    found: list[str] = []
    for number in range(20):
        path = f"s{number}"
        answer = await request(cluster, 1 + number % 3, "PUT", path)
        while error_is_loading(answer):  # The coordinator was elected a moment ago.
            answer = await request(cluster, 1 + number % 3, "PUT", path)
        assert answer.status in (200, 201), answer.body
        await until(lambda path=path: cluster.leader_of(path) is not None)
        if leader_of(cluster, path) != coordinator_of(cluster, 1):
            found.append(path)
        if len(found) == count:
            return found
    raise AssertionError("the coordinator leads everything")


async def body_of(cluster: LocalCluster, node_id: int, path: str) -> bytes:
    answer = await request(cluster, node_id, "GET", f"{path}?offset=-1")
    assert answer.status == 200, answer.body
    return answer.body


@in_loop
async def test_appends_through_each_node_are_read_at_once_through_the_others(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        [path, *_] = await streams_elsewhere(cluster)
        written = b""
        for number in range(12):
            text = b"%d," % number
            answer = await request(cluster, 1 + number % 3, "POST", path, text)
            assert answer.status == 204, answer.body
            written += text
            assert await body_of(cluster, 1 + (number + 1) % 3, path) == written


@in_loop
async def test_the_rules_of_writers_hold_when_another_node_leads(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        [path, other, *_] = await streams_elsewhere(cluster)

        async def write(number: int, body: bytes, node_id: int) -> int:
            answer = await request(
                cluster,
                node_id,
                "POST",
                path,
                body,
                producer_id="p",
                producer_epoch="0",
                producer_seq=str(number),
            )
            return answer.status

        assert await write(0, b"a", 1) == 200
        assert await write(0, b"a", 2) == 204, "a duplicate"
        assert await write(1, b"b", 3) == 200
        assert await write(3, b"d", 1) == 409, "a gap"
        sequence = {"stream_seq": "5"}
        assert (await request(cluster, 1, "POST", path, b"c", **sequence)).status == 204
        assert (await request(cluster, 2, "POST", path, b"x", **sequence)).status == 409
        closing = await request(cluster, 3, "POST", path, b"", stream_closed="true")
        assert (closing.status, closing.headers["stream-closed"]) == (204, "true")
        for node_id in cluster.nodes:
            assert (await request(cluster, node_id, "POST", path, b"late")).status == 409
            assert await body_of(cluster, node_id, path) == b"abc"
        fork = {"stream_forked_from": f"/v1/streams/{path}"}
        answer = await request(cluster, 2, "PUT", "fork", b"", **fork)
        assert answer.status == 201, answer.body
        assert (await request(cluster, 1, "POST", "fork", b"!")).status == 204
        for node_id in cluster.nodes:
            assert await body_of(cluster, node_id, "fork") == b"abc!"
        assert await body_of(cluster, 1, other) == b""


@in_loop
async def test_concurrent_appends_are_stored_once_and_in_order(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        [path, *_] = await streams_elsewhere(cluster)

        async def produce(name: str) -> None:
            for number in range(15):
                body = f"{name}{number:02d}".encode()
                for _ in range(2):
                    answer = await request(
                        cluster,
                        1 + number % 3,
                        "POST",
                        path,
                        body,
                        producer_id=name,
                        producer_epoch="0",
                        producer_seq=str(number),
                    )
                    assert answer.status in (200, 204), answer.body

        await asyncio.gather(*map(produce, "abc"))
        data = (await body_of(cluster, 1, path)).decode()
        records = [data[at : at + 3] for at in range(0, len(data), 3)]
        for name in "abc":
            own = [record for record in records if record[0] == name]
            assert own == [f"{name}{number:02d}" for number in range(15)]


@in_loop
async def test_a_batch_of_a_deposed_coordinator_is_seen_by_the_next_append(tmp_path: Path):
    """An earlier coordinator may have sent a batch that arrives after its successor has loaded."""
    async with local_cluster(tmp_path) as cluster:
        [path, *_] = await streams_elsewhere(cluster)
        marks = {"producer_id": "p", "producer_epoch": "0"}
        answer = await request(cluster, 1, "POST", path, b"a", **marks, producer_seq="0")
        assert answer.status == 200
        coordinator = cluster.nodes[coordinator_of(cluster, 1)].broker
        stream = coordinator.streams.of(path).get(path)
        sent: list[tuple[bytes, int]] = []
        append_batch = coordinator.appends.append_batch

        async def note(partition, data, *, expected_offset=-1, **more):
            sent.append((data, expected_offset))
            return await append_batch(partition, data, expected_offset=expected_offset, **more)

        coordinator.appends.append_batch = note  # type: ignore[method-assign]
        answer = await request(cluster, 2, "POST", path, b"b", **marks, producer_seq="1")
        assert answer.status == 200
        [(late, offset)] = sent
        # What the next coordinator knows is everything before that batch.
        stream.writers.producers["p"] = type(stream.writers.producers["p"])(0, 0)
        stream._applied_end = stream._expected_end = offset
        answer = await request(cluster, 3, "POST", path, b"b", **marks, producer_seq="1")
        assert answer.status == 204, "it is a duplicate"
        assert await body_of(cluster, 1, path) == b"ab"
        assert late in [data for data, _ in sent]


@in_loop
async def test_a_coordinator_that_may_have_been_replaced_answers_no_success(tmp_path: Path):
    """Its successor may have closed the stream before the batch."""
    async with local_cluster(tmp_path) as cluster:
        [path, *_] = await streams_elsewhere(cluster)
        assert (await request(cluster, 1, "POST", path, b"a")).status == 204
        streams = cluster.nodes[coordinator_of(cluster, 1)].broker.streams

        def refuse() -> None:
            raise NotLeader("a successor was proposed")

        streams.of(path).get(path)._check_leading = refuse
        answer = await request(cluster, 2, "POST", path, b"b")
        assert answer.status == 504, answer.body


@in_loop
async def test_a_stream_takes_records_of_kafka_clients_between_its_own(tmp_path: Path):
    async with local_cluster(tmp_path) as cluster:
        [path, *_] = await streams_elsewhere(cluster)
        assert (await request(cluster, 1, "POST", path, b"a")).status == 204
        await submit(cluster.partition(leader_of(cluster, path), path), "k")
        assert (await request(cluster, 2, "POST", path, b"b")).status == 204
        for node_id in cluster.nodes:
            assert await body_of(cluster, node_id, path) == b"akb"


@in_loop
async def test_writers_lose_and_double_nothing_when_nodes_are_replaced(tmp_path: Path):
    async with local_cluster(tmp_path, lease_ttl_ms=SHORT_LEASE_MS) as cluster:
        paths = await streams_elsewhere(cluster)
        written = 0

        async def produce(path: str, stop_at: int) -> None:
            """Write numbers, each until it is acknowledged, as a client that retries does."""
            nonlocal written
            for number in range(stop_at):
                node_id = 1 + number % 3
                while True:
                    try:
                        answer = await request(
                            cluster,
                            node_id,
                            "POST",
                            path,
                            b"%02d" % number,
                            producer_id="p",
                            producer_epoch="0",
                            producer_seq=str(number),
                        )
                    except NodeUnreachable:
                        answer = None
                    if answer is not None and answer.status in (200, 204):
                        break
                    assert answer is None or answer.status in (503, 504), answer.body
                    node_id = 1 + node_id % 3
                    await asyncio.sleep(0.05)
                written += 1

        producing = [asyncio.create_task(produce(path, 30)) for path in paths]
        await until(lambda: written >= 10)
        # The first node of a cluster may have created the internal topic before there were more.
        # It is the only one that can be elected until the others have joined the ISR.
        placement = cluster.nodes[1].broker.cluster.placement
        await until(lambda: len(placement("__streams", 0).isr) == len(cluster.nodes))
        lost = coordinator_of(cluster, 1)
        cluster.isolate(lost)
        [left, _] = others(cluster, lost)
        await until(lambda: coordinator_of(cluster, left) not in (lost, -1))
        cluster.heal(lost)
        await until(lambda: written >= 30)
        leader = cluster.leader_of(paths[0])
        if leader is not None:
            cluster.isolate(leader)
            [left, _] = others(cluster, leader)
            await until(lambda: cluster.leader_of(paths[0]) not in (leader, None))
            cluster.heal(leader)
        await asyncio.wait_for(asyncio.gather(*producing), 90)
        expected = b"".join(b"%02d" % number for number in range(30))
        await until(lambda: coordinator_of(cluster, left) > 0)
        for path in paths:
            answer = await request(cluster, left, "GET", f"{path}?offset=-1")
            assert (answer.status, answer.body) == (200, expected)
