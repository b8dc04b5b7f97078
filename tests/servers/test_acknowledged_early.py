"""Records that are acknowledged and not synced yet: `acks=1`, or a topic of class `memory`.

Their producer knows their offsets, and readers do not see them. A request that depends on the end
of the partition waits for them instead of treating their offsets as unknown. The tests hold the
syncs of a real broker back.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.broker import Broker
from millstream.broker.partition.partition import Partition
from millstream.config.schema import KafkaConfig
from millstream.protocols.kafka.codec.message import decode, encode
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.messages.epochs import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochRequestPartition,
    OffsetForLeaderEpochRequestTopic,
)
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
from millstream.protocols.kafka.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.protocols.kafka.messages.records import (
    DeleteRecordsRequest,
    DeleteRecordsRequestPartition,
    DeleteRecordsRequestTopic,
)
from millstream.servers.deferred_response import DeferredResponse
from millstream.servers.http.live.start_position import StartPosition
from millstream.servers.kafka.fetch_session import FetchSessions
from millstream.servers.kafka.handlers.epochs import offset_for_leader_epoch
from millstream.servers.kafka.handlers.fetch import fetch
from millstream.servers.kafka.handlers.list_offsets import list_offsets
from millstream.servers.kafka.handlers.offsets import offset_commit
from millstream.servers.kafka.handlers.records import delete_records
from millstream.servers.kafka.request_context import RequestContext
from millstream.storage.disk.filesystem import File, OsFilesystem
from millstream.testing.clocks.manual_clock import ManualClock
from millstream.testing.clocks.manual_timers import ManualTimers
from tests.broker.partitions import append, batch
from tests.servers.http.app_node import AppNode
from tests.storage.logs import turns

TOPIC = "t"


class HeldFilesystem(OsFilesystem):
    """The real file system, whose syncs of a topic's records wait until the test lets them go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_free = threading.Event()
        self.is_free.set()

    def open(self, path: str) -> File:
        return self._held(path, super().open(path))

    def create(self, path: str) -> File:
        return self._held(path, super().create(path))

    def _held(self, path: str, file: File) -> File:
        if f"/topics/{TOPIC}/" in path and path.endswith(".log"):
            sync = file.sync

            def held_sync() -> None:
                self.is_free.wait()
                sync()

            file.sync = held_sync  # type: ignore[method-assign]
        return file


class HeldNode(AppNode):
    """A broker whose topic `t` has one synced record and one that is only acknowledged."""

    def __init__(self, broker: Broker, clock: ManualClock, timers: ManualTimers) -> None:
        super().__init__(broker, clock, timers)
        self._context = functools.partial(
            RequestContext,
            broker=broker,
            config=KafkaConfig(),
            fetch_sessions=FetchSessions(10),
            client_id="test",
        )

    @property
    def partition(self) -> Partition:
        return self.broker.topics.partition(TOPIC, 0)

    async def call(self, handler: Callable[..., Any], request: Any, version: int) -> Any:
        """Call a handler of the Kafka server, with its messages encoded as over the wire."""
        sent = decode(type(request), memoryview(encode(request, version)), version)
        answer = handler(sent, self._context(version=version))
        if isinstance(answer, Awaitable):
            answer = await answer
        if isinstance(answer, DeferredResponse):
            done = asyncio.get_running_loop().create_future()
            answer.then(done.set_result)
            answer = await done
        return answer

    async def delete_before(self, offset: int) -> tuple[int, int]:
        part = DeleteRecordsRequestPartition(partition_index=0, offset=offset)
        request = DeleteRecordsRequest(
            topics=(DeleteRecordsRequestTopic(name=TOPIC, partitions=(part,)),), timeout_ms=1000
        )
        (found,) = (await self.call(delete_records, request, 2)).topics[0].partitions
        return found.error_code, found.low_watermark


Work = Callable[[HeldNode], Coroutine[Any, Any, Any]]


def run_held(tmp_path: Path, work: Callable[[HeldNode, HeldFilesystem], Awaitable[None]]) -> None:
    async def live() -> None:
        clock, disk = ManualClock(), HeldFilesystem()
        timers = ManualTimers(clock)
        broker = await Broker.open(str(tmp_path), clock=clock, timers=timers, filesystem=disk)
        try:
            await broker.topics.create(TOPIC, partitions=1)
            node = HeldNode(broker, clock, timers)
            await node.partition.open()
            await append(node.partition, batch(b"a"))
            disk.is_free.clear()
            acked = await append(node.partition, batch(b"b"), is_early=True)
            assert (acked.offset, node.partition.high_watermark) == (1, 1)
            await asyncio.wait_for(work(node, disk), 60)
        finally:
            disk.is_free.set()
            await broker.close()

    asyncio.run(live())


async def list_end(node: HeldNode) -> int:
    part = ListOffsetsRequestPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(
        replica_id=-1, topics=(ListOffsetsRequestTopic(name=TOPIC, partitions=(part,)),)
    )
    (found,) = (await node.call(list_offsets, request, 7)).topics[0].partitions
    return int(found.offset)


async def delete_to_its_end(node: HeldNode) -> tuple[int, int]:
    return await node.delete_before(2)


async def delete_everything(node: HeldNode) -> tuple[int, int]:
    return await node.delete_before(-1)


async def read_over_http(node: HeldNode) -> tuple[int, list[str], int]:
    found = await node.ask("GET", f"/v1/topics/{TOPIC}/records?from=2")
    return len(found["records"]), found["gaps"], found["head"]


async def resume_after_it(node: HeldNode) -> list[int]:
    topic = node.broker.topics.get(TOPIC)
    cursor = f"{TOPIC}:0:2"
    [offsets] = (await StartPosition(cursor).starts([topic])).values()
    return [start.offset for start in offsets.values()]


async def watch_from_now_on(node: HeldNode) -> list[int]:
    topic = node.broker.topics.get(TOPIC)
    [offsets] = (await StartPosition("latest").starts([topic])).values()
    return [start.offset for start in offsets.values()]


WAITING: list[tuple[Work, Any]] = [
    (list_end, 2),
    (delete_to_its_end, (0, 2)),
    (delete_everything, (0, 2)),
    (read_over_http, (0, [], 2)),
    (resume_after_it, [2]),
    (watch_from_now_on, [2]),
]


@pytest.mark.parametrize(("work", "expected"), WAITING, ids=[work.__name__ for work, _ in WAITING])
def test_a_request_about_the_end_waits_for_what_was_acknowledged(tmp_path, work, expected):
    async def scenario(node: HeldNode, disk: HeldFilesystem) -> None:
        asked = asyncio.create_task(work(node))
        await turns(50)
        assert not asked.done(), asked.result()
        disk.is_free.set()
        assert await asked == expected

    run_held(tmp_path, scenario)


@pytest.mark.parametrize("offset", [0, 1])
def test_a_deletion_before_it_does_not_wait(tmp_path, offset):
    async def scenario(node: HeldNode, disk: HeldFilesystem) -> None:
        assert await node.delete_before(offset) == (0, offset)

    run_held(tmp_path, scenario)


@pytest.mark.parametrize("offset", [3, 2**63 - 1])
def test_an_offset_that_nobody_was_told_of_is_out_of_range_at_once(tmp_path, offset):
    async def scenario(node: HeldNode, disk: HeldFilesystem) -> None:
        assert await node.delete_before(offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)

    run_held(tmp_path, scenario)


def test_a_waiting_deletion_ends_with_the_topic(tmp_path):
    async def scenario(node: HeldNode, disk: HeldFilesystem) -> None:
        asked = asyncio.create_task(node.delete_before(2))
        await turns(50)
        node.partition.delete()
        code, _ = await asked
        assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run_held(tmp_path, scenario)


@pytest.mark.parametrize("offset", [1, 2])
def test_the_end_of_an_epoch_covers_what_was_acknowledged(tmp_path, offset):
    """A consumer takes an end before its own position for lost records."""

    async def scenario(node: HeldNode, disk: HeldFilesystem) -> None:
        epoch = node.partition.offsets.leader_epoch
        part = OffsetForLeaderEpochRequestPartition(partition=0, leader_epoch=epoch)
        request = OffsetForLeaderEpochRequest(
            topics=(OffsetForLeaderEpochRequestTopic(topic=TOPIC, partitions=(part,)),)
        )
        answer = await node.call(offset_for_leader_epoch, request, 4)
        assert answer.topics[0].partitions[0].end_offset == 2
        fetched = FetchRequestPartition(
            partition=0, fetch_offset=offset, last_fetched_epoch=epoch, partition_max_bytes=1000
        )
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            topics=(FetchRequestTopic(topic=TOPIC, partitions=(fetched,)),),
        )
        found = (await node.call(fetch, request, 12)).responses[0].partitions[0]
        assert (found.error_code, found.diverging_epoch.end_offset) == (0, -1)

    run_held(tmp_path, scenario)


def test_a_fetch_after_it_waits_and_is_answered_with_it(tmp_path):
    async def scenario(node: HeldNode, disk: HeldFilesystem) -> None:
        part = FetchRequestPartition(partition=0, fetch_offset=1, partition_max_bytes=1000)
        request = FetchRequest(
            max_wait_ms=10_000,
            min_bytes=1,
            topics=(FetchRequestTopic(topic=TOPIC, partitions=(part,)),),
        )
        asked = asyncio.create_task(node.call(fetch, request, 11))
        await turns(50)
        assert not asked.done()
        disk.is_free.set()
        found = (await asked).responses[0].partitions[0]
        assert (found.error_code, found.high_watermark) == (0, 2)

    run_held(tmp_path, scenario)


def test_a_group_commits_an_offset_after_it(tmp_path):
    async def scenario(node: HeldNode, disk: HeldFilesystem) -> None:
        part = OffsetCommitRequestPartition(partition_index=0, committed_offset=2)
        request = OffsetCommitRequest(
            group_id="g",
            member_id="",
            topics=(OffsetCommitRequestTopic(name=TOPIC, partitions=(part,)),),
        )
        answer = await node.call(offset_commit, request, 8)
        assert answer.topics[0].partitions[0].error_code == 0

    run_held(tmp_path, scenario)
