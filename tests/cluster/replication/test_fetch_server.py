"""What the leader of partitions answers to the fetches of a follower."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.replication import fetch_server
from millstream.cluster.replication.fetch_server import FetchServer
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.messages.peer_fetch import (
    PeerFetchRequest,
    PeerFetchRequestPartition,
    PeerFetchResponse,
    PeerFetchResponsePartition,
)
from millstream.storage.segment.replica_slice import ReplicaSlice
from tests.cluster.local_cluster import local_cluster, until
from tests.in_loop import in_loop

FOLLOWER = 9


def fetch(
    *,
    session_id: int,
    session_epoch: int,
    topics: tuple[uuid.UUID, ...],
    wait_ms_max: int = 0,
    bytes_max: int = 1024,
):
    return PeerFetchRequest(
        session_id=session_id,
        session_epoch=session_epoch,
        broker_epoch=1,
        wait_ms_max=wait_ms_max,
        bytes_max=bytes_max,
        partitions=tuple(
            PeerFetchRequestPartition(
                topic_id=topic_id,
                index=0,
                leader_epoch=1,
                fetch_offset=0,
                last_fetched_epoch=-1,
                log_start=0,
                bytes_max=1024,
            )
            for topic_id in topics
        ),
        forgotten=(),
    )


async def answer_of(server: FetchServer, request: PeerFetchRequest) -> PeerFetchResponse:
    answer: asyncio.Future[PeerFetchResponse] = asyncio.get_running_loop().create_future()
    server.fetch(request, FOLLOWER, answer.set_result)
    return await answer


@in_loop
async def test_a_refused_partition_is_not_refused_again_unless_it_is_named_again(tmp_path: Path):
    # It would end the wait of each later fetch, and leader and follower would run in circles.
    async with local_cluster(tmp_path, 1) as cluster:
        server = cluster.member(1).replicas.server
        topic_id = uuid.UUID(int=7)
        first = await answer_of(server, fetch(session_id=0, session_epoch=0, topics=(topic_id,)))
        assert [result.error_code for result in first.partitions] == [
            PeerErrorCode.NOT_LEADER_OR_FOLLOWER
        ]
        second = await answer_of(
            server, fetch(session_id=first.session_id, session_epoch=1, topics=())
        )
        assert second.partitions == ()
        third = await answer_of(
            server, fetch(session_id=first.session_id, session_epoch=2, topics=(topic_id,))
        )
        assert len(third.partitions) == 1


@in_loop
async def test_a_fetch_that_waits_looks_only_at_partitions_with_something_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    looks: list[int] = []
    full: set[int] = set()

    def read_partition(
        _: FetchServer, key: PartitionId, *_args: object
    ) -> PeerFetchResponsePartition:
        looks.append(key.topic_id.int)
        batches = memoryview(b"new") if key.topic_id.int in full else None
        return PeerFetchResponsePartition(
            topic_id=key.topic_id, index=0, high_watermark=7, batches=batches
        )

    monkeypatch.setattr(FetchServer, "_read_partition", read_partition)
    topics = tuple(uuid.UUID(int=number) for number in range(1, 4))
    async with local_cluster(tmp_path, 1) as cluster:
        server = cluster.member(1).replicas.server
        request = fetch(session_id=0, session_epoch=0, topics=topics, wait_ms_max=60_000)
        answer = asyncio.ensure_future(answer_of(server, request))
        await until(lambda: looks == [1, 2, 3])
        server.wake(PartitionId(topics[1], 0))
        await until(lambda: looks == [1, 2, 3, 2])
        server.wake(PartitionId(uuid.UUID(int=9), 0))
        full.add(3)
        server.wake(PartitionId(topics[2], 0))
        response = await answer
        assert looks == [1, 2, 3, 2, 3]
        found = {result.topic_id.int: bool(result.batches) for result in response.partitions}
        assert found == {1: False, 2: False, 3: True}, "with what was new in the others"


@in_loop
async def test_a_fetch_looks_at_what_is_new_and_at_times_at_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    looks: list[int] = []

    def read_partition(
        _: FetchServer, key: PartitionId, *args: object
    ) -> PeerFetchResponsePartition:
        looks.append(key.topic_id.int)
        remaining = args[-1]
        assert isinstance(remaining, int)
        batches = memoryview(bytes(1000)) if key.topic_id.int < 3 and remaining else None
        return PeerFetchResponsePartition(topic_id=key.topic_id, index=0, batches=batches)

    monkeypatch.setattr(FetchServer, "_read_partition", read_partition)
    monkeypatch.setattr(fetch_server, "COMPLETE_SECONDS", 3600.0)
    topics = tuple(uuid.UUID(int=number) for number in range(1, 5))
    async with local_cluster(tmp_path, 1) as cluster:
        server = cluster.member(1).replicas.server

        async def looked_at(session_epoch: int, *named: uuid.UUID) -> list[int]:
            looks.clear()
            request = fetch(
                session_id=session_id, session_epoch=session_epoch, topics=named, bytes_max=2000
            )
            await answer_of(server, request)
            return looks.copy()

        session_id = 0
        assert await looked_at(0, *topics) == [1, 2, 3, 4]
        session = server._sessions[FOLLOWER]
        session_id = session.id
        # There was no room for the last two, so they come first.
        assert await looked_at(1, topics[0]) == [3, 4, 1]
        server.wake(PartitionId(topics[3], 0))
        assert await looked_at(2, topics[1], topics[0]) == [4, 2, 1]
        session.complete_at = 0.0
        assert sorted(await looked_at(3)) == [1, 2, 3, 4]


@pytest.mark.parametrize("complete_seconds", [0.0, 3600.0])
@in_loop
async def test_partitions_whose_backlogs_fill_responses_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complete_seconds: float
):
    def read_partition(
        _: FetchServer, key: PartitionId, *args: object
    ) -> PeerFetchResponsePartition:
        remaining = args[-1]
        assert isinstance(remaining, int)
        batches = memoryview(bytes(1000)) if remaining else None
        return PeerFetchResponsePartition(topic_id=key.topic_id, index=0, batches=batches)

    monkeypatch.setattr(FetchServer, "_read_partition", read_partition)
    monkeypatch.setattr(fetch_server, "COMPLETE_SECONDS", complete_seconds)
    topics = tuple(uuid.UUID(int=number) for number in range(1, 4))
    async with local_cluster(tmp_path, 1) as cluster:
        server = cluster.member(1).replicas.server
        named, session_id, served = topics, 0, []
        for session_epoch in range(6):
            response = await answer_of(
                server,
                fetch(
                    session_id=session_id, session_epoch=session_epoch, topics=named, bytes_max=1000
                ),
            )
            session_id = response.session_id
            named = tuple(result.topic_id for result in response.partitions if result.batches)
            served += named
        assert served == [*topics, *topics]


@in_loop
async def test_a_response_has_as_many_cold_partitions_as_their_records_have_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """After a fail-over every partition has a finished segment, and most of them are small."""
    source = ReplicaSlice(
        leader_epoch=1, segment=0, position=0, offset=0, next_offset=1, data=bytes(100)
    )

    def read_partition(_: FetchServer, key: PartitionId, *args: object) -> object:
        log = SimpleNamespace(replication=SimpleNamespace(read=lambda *_, **__: source))
        replica = SimpleNamespace(key=key, partition=SimpleNamespace(log=log))
        result = PeerFetchResponsePartition(topic_id=key.topic_id, index=0)
        return fetch_server._ColdRead(cast("Any", replica), cast("Any", args[0]), result)

    monkeypatch.setattr(FetchServer, "_read_partition", read_partition)
    topics = tuple(uuid.UUID(int=number) for number in range(1, 21))
    async with local_cluster(tmp_path, 1) as cluster:
        server = cluster.member(1).replicas.server
        request = fetch(session_id=0, session_epoch=0, topics=topics, bytes_max=2048)
        response = await answer_of(server, request)
        assert [len(result.batches or b"") for result in response.partitions] == [100] * 20
        request = fetch(
            session_id=response.session_id, session_epoch=1, topics=topics, bytes_max=500
        )
        response = await answer_of(server, request)
        assert [len(result.batches or b"") for result in response.partitions] == [100] * 5


def noted_looks(monkeypatch: pytest.MonkeyPatch, full: set[int]) -> list[int]:
    """Return the partitions that are looked at from now on; those in `full` have records."""
    looks: list[int] = []

    def read_partition(
        _: FetchServer, key: PartitionId, *_args: object
    ) -> PeerFetchResponsePartition:
        looks.append(key.topic_id.int)
        batches = memoryview(bytes(10)) if key.topic_id.int in full else None
        return PeerFetchResponsePartition(topic_id=key.topic_id, index=0, batches=batches)

    monkeypatch.setattr(FetchServer, "_read_partition", read_partition)
    monkeypatch.setattr(fetch_server, "COMPLETE_SECONDS", 3600.0)
    return looks


@in_loop
async def test_the_first_fetch_of_another_life_of_a_node_is_one_of_all_its_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A node of an earlier release does not name them: it asks for the same as before."""
    looks = noted_looks(monkeypatch, set())
    topics = tuple(uuid.UUID(int=number) for number in range(1, 4))
    async with local_cluster(tmp_path, 1) as cluster:
        server = cluster.member(1).replicas.server
        first = await answer_of(server, fetch(session_id=0, session_epoch=0, topics=topics))
        request = fetch(session_id=first.session_id, session_epoch=1, topics=())
        looks.clear()
        server.fetch(replace(request, wait_ms_max=60_000), FOLLOWER, lambda _: None)
        assert looks == []
        request = fetch(session_id=first.session_id, session_epoch=2, topics=())
        life = replace(request, broker_epoch=request.broker_epoch + 1, wait_ms_max=60_000)
        server.fetch(life, FOLLOWER, lambda _: None).end()
        assert looks == [1, 2, 3]


@in_loop
async def test_what_a_response_that_was_not_sent_would_have_told_is_told_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    full: set[int] = set()
    looks = noted_looks(monkeypatch, full)
    topics = tuple(uuid.UUID(int=number) for number in range(1, 4))
    async with local_cluster(tmp_path, 1) as cluster:
        server = cluster.member(1).replicas.server
        first = await answer_of(server, fetch(session_id=0, session_epoch=0, topics=topics))
        looks.clear()
        request = fetch(session_id=first.session_id, session_epoch=1, topics=(), wait_ms_max=60_000)
        waiting = server.fetch(request, FOLLOWER, lambda _: None)
        waiting.end()  # Its connection is gone.
        full.add(2)
        server.wake(PartitionId(topics[1], 0))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert looks == []
        waiting.results[PartitionId(topics[2], 0)] = PeerFetchResponsePartition(
            topic_id=topics[2], index=0
        )
        request = fetch(session_id=first.session_id, session_epoch=2, topics=())
        answer = await answer_of(server, request)
        assert looks == [2, 3]
        assert [result.topic_id.int for result in answer.partitions if result.batches] == [2]
