"""Queues in a cluster: coordinated by the leader of their internal partition."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from millstream.broker.queues.queues import HOLD_REPORT_SECONDS, WorkQueues, log_name
from millstream.broker.queues.retention_holds import ReportedHold, UnfinishedJobsHold
from millstream.broker.queues.row import decode_row, encode_row, queue_key
from millstream.broker.queues.values import QueueChanges
from millstream.broker.state.coordinators import LOAD_RETRY_SECONDS
from millstream.broker.state.internal_partitions import InternalPartition
from millstream.broker.topics.topic import Topic
from millstream.errors import (
    Busy,
    CoordinatorLoading,
    CorruptData,
    NotCoordinator,
    NotCoordinatorAnymore,
    StaleReceipt,
    UnknownQueue,
)
from millstream.metadata.interface import Compare, MetadataChange
from millstream.records.record import Record
from tests.broker.queues.queue_node import Node, Rows
from tests.broker.state.internal_nodes import ElectedPartitions, turns
from tests.in_loop import in_loop


class WatchedRows(Rows):
    """Metadata that tells of changes."""

    def __init__(self) -> None:
        super().__init__()
        self._watches: list[tuple[str, Callable[[MetadataChange], None]]] = []

    def watch(self, prefix: str, callback: Callable[[MetadataChange], None]) -> Any:
        self._watches.append((prefix, callback))
        return self

    def cancel(self) -> None:
        self._watches.clear()

    async def transact(
        self,
        *,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Collection[str] = (),
    ) -> int | None:
        revision = await super().transact(compares=compares, puts=puts, deletes=deletes)
        changed: dict[str, bytes | None] = {**(puts or {}), **dict.fromkeys(deletes)}
        for key, value in changed.items() if revision is not None else ():
            for prefix, callback in self._watches:
                if key.startswith(prefix):
                    callback(MetadataChange(key, value, revision or 0))
        return revision


class Reports:
    def __init__(self) -> None:
        self.sent: list[tuple[str, dict[int, int]]] = []

    async def send(self, topic: Topic, needed_offsets: Mapping[int, int]) -> None:
        self.sent.append((topic.name, dict(needed_offsets)))


class ClusterNode(Node):
    """A node whose topics are its own and whose queues are those of a cluster."""

    def __init__(self) -> None:
        super().__init__(metadata=WatchedRows())
        self.internal = ElectedPartitions()
        self.reports = Reports()

    async def start(self) -> None:
        await super().start()
        await self.queues.close()
        self.queues = self.shared_queues()
        await self.queues.open()

    def shared_queues(self) -> WorkQueues:
        return WorkQueues(
            topics=self.topics,
            partitions=self.internal,
            log_config=self.internal.store.log_config,
            metadata=self.metadata,  # type: ignore[arg-type]
            appends=self.appends,
            clock=self.clock,
            timers=self.timers,
            background=self.internal.background,
            is_shared=True,
            hold_reports=self.reports,
        )

    def partition_of(self, name: str) -> InternalPartition:
        return InternalPartition(log_name(self.topics.get(name).id))

    async def pass_time(self, seconds: float) -> None:
        self.timers.advance(seconds)
        await turns()


@asynccontextmanager
async def a_node(*jobs: bytes) -> AsyncIterator[ClusterNode]:
    """A node that coordinates queue q, which has some jobs."""
    node = ClusterNode()
    await node.start()
    try:
        await node.queues.put("q", QueueChanges())
        if jobs:
            await node.appends.append(node.topics.get("q"), [Record(job) for job in jobs])
        yield node
    finally:
        await node.queues.close()
        await node.topics.close()
        await node.state.close()
        await node.store.close()
        await node.internal.store.close()


@in_loop
async def test_a_queue_is_created_where_its_partition_is_led() -> None:
    async with a_node(b"job") as node:
        queue = node.queues.get("q")
        assert [job.record.value for job in (await queue.claim()).jobs] == [b"job"]
        assert node.queues.names() == ["q"]


@in_loop
async def test_a_queue_whose_partition_another_node_gets_is_created_and_refused_here() -> None:
    async with a_node() as node:

        async def elect_another(name: str) -> None:
            node.internal.leaders[InternalPartition(name)] = 2

        node.internal.create = elect_another  # type: ignore[method-assign]
        with pytest.raises(NotCoordinator, match="node 2 does") as refused:
            await node.queues.put("other", QueueChanges())
        assert refused.value.coordinator == 2
        assert node.queues.names() == ["other", "q"]
        with pytest.raises(NotCoordinator):
            node.queues.get("other")
        with pytest.raises(UnknownQueue):
            node.queues.get("third")
        assert [queue.name for queue in node.queues.all()] == ["q"]


@in_loop
async def test_a_queue_is_refused_while_it_is_loaded_and_then_has_its_jobs() -> None:
    async with a_node(b"a", b"b") as node:
        leased = await node.queues.get("q").claim()
        partition = node.partition_of("q")
        await node.internal.lose(partition)
        node.internal.opening = asyncio.Event()
        await node.internal.take(partition, epoch=3)
        with pytest.raises(CoordinatorLoading):
            node.queues.get("q")
        node.internal.opening.set()
        await turns()
        queue = node.queues.get("q")
        assert queue.counts().leased == 1, "what was acknowledged is known"
        await queue.ack([leased.jobs[0].receipt])
        assert [job.record.value for job in (await queue.claim()).jobs] == [b"b"]


@in_loop
async def test_claims_that_wait_are_told_when_the_coordinator_is_deposed() -> None:
    async with a_node() as node:
        claiming = asyncio.create_task(node.queues.get("q").claim(wait_ms=10_000))
        await turns()
        assert not claiming.done()
        node.internal.depose(node.partition_of("q"), leader=3)
        with pytest.raises(NotCoordinator) as refused:
            await claiming
        assert refused.value.coordinator == 3


@in_loop
async def test_an_ack_in_flight_is_no_success_when_the_coordinator_is_deposed() -> None:
    async with a_node(b"job") as node:
        queue = node.queues.get("q")
        leased = await queue.claim()
        partition = node.partition_of("q")
        log = node.internal.logs.pop(partition)
        log.is_held = True
        acking = asyncio.create_task(queue.ack([leased.jobs[0].receipt]))
        await turns()
        node.internal.depose(partition)
        log.let_go()
        with pytest.raises(NotCoordinatorAnymore):
            await acking


@in_loop
async def test_a_deposed_queue_answers_and_writes_nothing() -> None:
    async with a_node(b"a", b"b") as node:
        late = node.queues.get("q")
        leased = await late.claim()
        partition = node.partition_of("q")
        log = node.internal.logs.pop(partition)
        end = log.end_offset
        node.internal.depose(partition)
        receipt = leased.jobs[0].receipt
        for attempt in (
            late.claim,
            lambda: late.ack([receipt]),
            lambda: late.nack([receipt]),
            lambda: late.release([receipt]),
            lambda: late.extend([receipt]),
        ):
            with pytest.raises((NotCoordinator, NotCoordinatorAnymore)):
                await attempt()
        await node.pass_time(120)
        assert log.end_offset == end


@in_loop
async def test_a_log_that_refuses_its_former_leader_refuses_the_queue() -> None:
    async with a_node(b"a", b"b") as node:
        queue = node.queues.get("q")
        log = node.internal.logs[node.partition_of("q")]
        log.is_led = False
        with pytest.raises(NotCoordinator):
            await queue.claim()
        await turns()
        log.is_led = True
        with pytest.raises(NotCoordinator):
            await queue.claim()
        with pytest.raises(NotCoordinator):
            node.queues.get("q")


@in_loop
async def test_receipts_of_one_coordinator_are_read_by_the_next() -> None:
    async with a_node(b"a") as node:
        leased = await node.queues.get("q").claim()
        await node.internal.take(node.partition_of("q"), epoch=2)
        queue = node.queues.get("q")
        assert (await queue.ack([leased.jobs[0].receipt])).count == 1
        forged = leased.jobs[0].receipt[:-1] + ("A" if leased.jobs[0].receipt[-1] != "A" else "B")
        with pytest.raises(StaleReceipt):
            await queue.ack([forged])


@in_loop
async def test_settings_that_another_node_changes_are_followed() -> None:
    async with a_node() as node:
        key = queue_key(node.topics.get("q").id)
        row = decode_row(key, node.metadata.rows[key].value)
        config = msgspec.structs.replace(row.config, lease_ms=1234)
        changed = encode_row(msgspec.structs.replace(row, config=config))
        await node.metadata.transact(puts={key: changed})
        await turns()
        assert node.queues.get("q").config.lease_ms == 1234
        await node.queues.put("q", QueueChanges(lease_ms=4321))
        assert node.queues.get("q").config.lease_ms == 4321


@in_loop
async def test_a_change_over_one_of_another_node_is_refused() -> None:
    async with a_node() as node:
        key = queue_key(node.topics.get("q").id)
        node.metadata.rows[key] = node.metadata.rows[key]._replace(revision=1_000)
        with pytest.raises(Busy):
            await node.queues.put("q", QueueChanges(lease_ms=4321))


@in_loop
async def test_a_queue_that_another_node_creates_is_known_and_opened_when_it_is_led() -> None:
    async with a_node() as node:
        topic = await node.topics.create("new")
        key = queue_key(node.topics.get("q").id)
        row = decode_row(key, node.metadata.rows[key].value)
        made = encode_row(msgspec.structs.replace(row, name="new", topic_id=topic.id))
        await node.metadata.transact(puts={queue_key(topic.id): made})
        await turns()
        assert node.queues.knows("new")
        with pytest.raises(NotCoordinator):
            node.queues.get("new")
        assert isinstance(topic.partitions[0].retention_hold, ReportedHold)
        assert topic.partitions[0].is_queue
        await node.internal.take(node.partition_of("new"))
        assert node.queues.get("new").name == "new"
        assert isinstance(topic.partitions[0].retention_hold, UnfinishedJobsHold)


@in_loop
async def test_a_queue_that_another_node_deletes_is_gone() -> None:
    async with a_node() as node:
        topic = node.topics.get("q")
        claiming = asyncio.create_task(node.queues.get("q").claim(wait_ms=10_000))
        await turns()
        await node.metadata.transact(deletes=[queue_key(topic.id)])
        await turns()
        with pytest.raises(UnknownQueue):
            await claiming
        with pytest.raises(UnknownQueue):
            node.queues.get("q")
        assert topic.partitions[0].retention_hold is None


@in_loop
async def test_a_row_of_a_topic_that_was_deleted_is_removed_at_the_start() -> None:
    async with a_node() as node:
        key = queue_key(node.topics.get("q").id)
        row = decode_row(key, node.metadata.rows[key].value)
        gone = uuid.uuid4()
        made = encode_row(msgspec.structs.replace(row, name="gone", topic_id=gone))
        await node.queues.close()
        await node.metadata.transact(puts={queue_key(gone): made})
        node.queues = node.shared_queues()
        await node.queues.open()
        assert node.queues.names() == ["q"]
        assert queue_key(gone) not in node.metadata.rows


@in_loop
async def test_a_queue_that_cannot_be_loaded_is_told_and_loaded_again() -> None:
    async with a_node() as node:
        partition = node.partition_of("q")
        await node.internal.lose(partition)
        node.internal.error = CorruptData("the log is damaged")
        await node.internal.take(partition, epoch=2)
        with pytest.raises(CorruptData):
            node.queues.get("q")
        node.internal.error = None
        await node.pass_time(LOAD_RETRY_SECONDS)
        assert node.queues.get("q").name == "q"


# Retention.


@in_loop
async def test_leaders_are_told_which_jobs_are_finished_once_that_is_durable() -> None:
    async with a_node(b"a", b"b", b"c") as node:
        queue = node.queues.get("q")
        leased = await queue.claim(max_jobs=2)
        await queue.ack([job.receipt for job in leased.jobs])
        await node.pass_time(HOLD_REPORT_SECONDS)
        assert node.reports.sent[-1] == ("q", {0: 2})
        count = len(node.reports.sent)
        await node.pass_time(HOLD_REPORT_SECONDS)
        assert len(node.reports.sent) == count, "nothing has changed"
        log = node.internal.logs[node.partition_of("q")]
        (job,) = (await queue.claim()).jobs
        log.is_held = True
        acking = asyncio.create_task(queue.ack([job.receipt]))
        await node.pass_time(HOLD_REPORT_SECONDS)
        assert len(node.reports.sent) == count, "the ack may be lost"
        log.let_go()
        await acking
        await turns()
        await node.pass_time(HOLD_REPORT_SECONDS)
        assert node.reports.sent[-1] == ("q", {0: 3})


@in_loop
async def test_a_deposed_coordinator_never_lets_go_of_unfinished_jobs() -> None:
    async with a_node(b"a", b"b") as node:
        queue, topic = node.queues.get("q"), node.topics.get("q")
        partition = topic.partitions[0]
        (job,) = (await queue.claim()).jobs
        await queue.ack([job.receipt])
        assert partition.retention_hold is not None
        assert partition.retention_hold.needed_offset() == 1
        log = node.internal.logs[node.partition_of("q")]
        log.deleting = asyncio.Event()
        await queue.store.compact()  # The events before it are being deleted.
        node.internal.depose(node.partition_of("q"))
        for _ in range(60):
            assert partition.retention_hold is not None
            assert partition.retention_hold.needed_offset() == 0, "until the new one has told"
            assert partition.is_queue
            await asyncio.sleep(0)
        log.deleting.set()
        await turns()
        node.queues.report_hold(topic.id, 0, 2)
        assert partition.retention_hold.needed_offset() == 2
        node.queues.report_hold(topic.id, 0, 1)
        assert partition.retention_hold.needed_offset() == 2, "a late report changes nothing"


class LaggingJobs:
    """Partitions of replicas that are behind their leader."""

    def __init__(self) -> None:
        self.end: int | None = None

    def partitions(self, topic: Topic) -> Any:
        return topic.partitions

    def leader_end(self, partition: Any, since: float) -> int | None:
        return self.end


@in_loop
async def test_a_replica_that_is_behind_is_not_taken_for_a_loss() -> None:
    async with a_node(b"a", b"b") as node:
        node.queues._source = source = LaggingJobs()
        (job, _) = (await node.queues.get("q").claim(max_jobs=2)).jobs
        partition = node.partition_of("q")
        for end, is_kept in ((None, True), (2, True), (1, False)):
            source.end = end
            await node.internal.take(partition, epoch=2)
            counts = node.queues.get("q").counts()
            assert (counts.leased == 2) is is_kept
        with pytest.raises(StaleReceipt):
            await node.queues.get("q").ack([job.receipt])
