"""What the leader of partitions answers to the fetches of a follower."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.replication.fetch_server import FetchServer
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.messages.peer_fetch import (
    PeerFetchRequest,
    PeerFetchRequestPartition,
    PeerFetchResponsePartition,
)
from tests.cluster.local_cluster import local_cluster
from tests.in_loop import in_loop

FOLLOWER = 9


def fetch(*, session_id: int, session_epoch: int, topics: tuple[uuid.UUID, ...]):
    return PeerFetchRequest(
        session_id=session_id,
        session_epoch=session_epoch,
        broker_epoch=1,
        wait_ms_max=0,
        bytes_max=1024,
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


@in_loop
async def test_a_refused_partition_is_not_refused_again_unless_it_is_named_again(tmp_path: Path):
    # It would end the wait of each later fetch, and leader and follower would run in circles.
    async with local_cluster(tmp_path, 1) as cluster:
        server = cluster.member(1).replicas.server
        topic_id = uuid.UUID(int=7)
        first = await server.fetch(
            fetch(session_id=0, session_epoch=0, topics=(topic_id,)), FOLLOWER
        )
        assert [result.error_code for result in first.partitions] == [
            PeerErrorCode.NOT_LEADER_OR_FOLLOWER
        ]
        second = await server.fetch(
            fetch(session_id=first.session_id, session_epoch=1, topics=()), FOLLOWER
        )
        assert second.partitions == ()
        third = await server.fetch(
            fetch(session_id=first.session_id, session_epoch=2, topics=(topic_id,)), FOLLOWER
        )
        assert len(third.partitions) == 1


@in_loop
async def test_partitions_whose_backlogs_fill_responses_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async def read_partition(
        _: FetchServer, key: PartitionId, *args: object
    ) -> PeerFetchResponsePartition:
        remaining = args[-1]
        assert isinstance(remaining, int)
        batches = memoryview(bytes(1000)) if remaining >= 1000 else None
        return PeerFetchResponsePartition(topic_id=key.topic_id, index=0, batches=batches)

    monkeypatch.setattr(FetchServer, "_read_partition", read_partition)
    topics = tuple(uuid.UUID(int=number) for number in range(1, 4))
    async with local_cluster(tmp_path, 1) as cluster:
        server = cluster.member(1).replicas.server
        named, session_id, served = topics, 0, []
        for session_epoch in range(6):
            response = await server.fetch(
                fetch(session_id=session_id, session_epoch=session_epoch, topics=named), FOLLOWER
            )
            session_id = response.session_id
            named = tuple(result.topic_id for result in response.partitions if result.batches)
            served += named
        assert served == [*topics, *topics]
