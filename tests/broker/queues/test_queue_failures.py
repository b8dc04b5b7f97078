"""Queues on a failing disk, and queues with a damaged log."""

from __future__ import annotations

import asyncio
import errno

import pytest

from millstream.broker.queues.events import (
    FirstDeliveries,
    JobsAcked,
    JobsDelivered,
    NodeBooted,
    PartitionAdded,
    encode_event,
)
from millstream.broker.queues.queues import log_name
from millstream.broker.queues.values import QueueCounts, QueueLimits
from millstream.errors import (
    CorruptData,
    DiskFull,
    MillstreamError,
    StaleReceipt,
    UnknownFormat,
    UnknownQueue,
)
from millstream.records.record import Record
from millstream.testing import Fault, FaultyFilesystem
from tests.in_loop import in_loop

from .queue_node import Node, receipts_of, turns

STATE = "/state/topics/queue-"


def faulty(error: int, *, only: str) -> tuple[Fault, Node]:
    """Return a node whose queue log fails when it is told to."""
    fault = Fault(call=10**9, error=error, only={only}, path=STATE)
    return fault, Node(wrap=lambda disk: FaultyFilesystem(disk, fault))


def strike(fault: Fault, *, forever: bool = False) -> None:
    fault.call = fault._matched + 1
    fault.forever = forever


# The disk is full, or a write fails temporarily.


@in_loop
async def test_a_claim_that_was_refused_gives_nothing_away() -> None:
    fault, node = faulty(errno.ENOSPC, only="write_at")
    await node.start()
    queue = await node.queue()
    await node.put(b"1")
    strike(fault)
    with pytest.raises(DiskFull):
        await queue.claim()
    await node.quiet()
    assert queue.counts() == QueueCounts(1, 1, 0, 0, 0, 0, 0, 0)
    claimed = await queue.claim()
    assert [job.deliveries for job in claimed.jobs] == [1]
    await node.stop()


@in_loop
async def test_an_ack_that_was_refused_did_not_happen() -> None:
    fault, node = faulty(errno.ENOSPC, only="write_at")
    await node.start()
    queue = await node.queue(lease_ms=1000)
    await node.put(b"1", b"2")
    receipts = receipts_of((await queue.claim(max_jobs=2)).jobs)
    strike(fault)
    with pytest.raises(DiskFull):
        await queue.ack(receipts)
    await node.quiet()
    assert queue.counts() == QueueCounts(2, 0, 2, 0, 0, 0, 2, 0)
    assert (await queue.ack(receipts[:1])).count == 1
    await node.advance(1000)
    assert [job.record.offset for job in (await queue.claim(max_jobs=9)).jobs] == [1]
    await node.restart()
    assert node.queues.get("q").counts() == QueueCounts(2, 0, 1, 0, 1, 0, 3, 0)
    await node.stop()


@in_loop
async def test_all_who_wait_for_what_was_refused_are_told_and_no_answer_goes_by_it() -> None:
    """A repeated ack fails, too: the first was never answered."""
    fault, node = faulty(errno.ENOSPC, only="write_at")
    await node.start()
    queue = await node.queue()
    await node.put(b"1", b"2", b"3")
    receipts = receipts_of((await queue.claim(max_jobs=2)).jobs)
    strike(fault)
    asked = [
        asyncio.ensure_future(work)
        for work in (
            queue.ack(receipts[:1]),
            queue.ack(receipts[:1]),
            queue.nack(receipts[1:]),
            queue.claim(),
        )
    ]
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(one) for one in answers] == [DiskFull] * 4
    await node.quiet()
    assert queue.counts() == QueueCounts(3, 1, 2, 0, 0, 0, 2, 0)
    await queue.ack(receipts)
    await node.stop()


@in_loop
async def test_while_the_disk_is_full_each_request_is_told_and_nothing_is_lost() -> None:
    fault, node = faulty(errno.ENOSPC, only="write_at")
    await node.start()
    queue = await node.queue()
    await node.put(b"1", b"2")
    receipts = receipts_of((await queue.claim()).jobs)
    strike(fault, forever=True)
    for _ in range(5):
        with pytest.raises(DiskFull):
            await queue.ack(receipts)
        with pytest.raises(DiskFull):
            await queue.claim(wait_ms=1000)
        with pytest.raises(StaleReceipt):
            await queue.ack(["nobody's"])
    fault.forever = False
    await queue.ack(receipts)
    assert queue.counts() == QueueCounts(2, 1, 0, 0, 1, 0, 1, 0)
    await node.stop()


@in_loop
async def test_a_sync_that_failed_takes_the_queue_offline_until_it_is_opened_again() -> None:
    fault, node = faulty(errno.EIO, only="sync")
    await node.start()
    queue, other = await node.queue(), await node.queue("other")
    await node.put(b"1")
    await node.put(b"1", name="other")
    receipts = receipts_of((await queue.claim()).jobs)
    strike(fault)
    with pytest.raises(MillstreamError):
        await queue.ack(receipts)
    await node.quiet()
    with pytest.raises(MillstreamError, match="offline"):
        node.queues.get("q")
    assert [text.partition(":")[0] for text in node.queues.problems()] == ["queue q"]
    assert (await other.claim()).jobs
    await asyncio.gather(node.restart(), return_exceptions=True)
    queue = node.queues.get("q")
    counts = queue.counts()
    assert (counts.leased, counts.acked) in ((1, 0), (0, 1)), "neither was answered"
    assert (await queue.ack(receipts)).count == 1
    await node.stop()


@in_loop
async def test_every_answer_waits_for_the_disk() -> None:
    """Nothing is answered before the sync is done."""
    node = Node()
    await node.start()
    queue = await node.queue()
    await node.put(b"1")
    log = queue.store.log
    claiming = asyncio.ensure_future(queue.claim())
    while not claiming.done():
        before = log.end_offset
        await asyncio.sleep(0)
    assert log.end_offset == log.next_offset >= before
    receipts = receipts_of(claiming.result().jobs)
    synced = log.counters.syncs
    first, again = (asyncio.ensure_future(queue.ack(receipts)) for _ in range(2))
    await asyncio.sleep(0)
    assert queue.store.state.acked == 1, "decided"
    await asyncio.wait([first, again], return_when=asyncio.FIRST_COMPLETED)
    assert log.counters.syncs > synced
    assert log.end_offset == log.next_offset, "durable"
    await asyncio.gather(first, again)
    await node.stop()


# Snapshots.


@in_loop
async def test_the_log_stays_in_proportion_to_what_is_not_done() -> None:
    limits = QueueLimits(events_bytes_min=2000)
    node = Node(limits=limits)
    await node.start()
    queue = await node.queue()
    for _ in range(100):
        await node.put(*[b"x"] * 10)
        await queue.ack(receipts_of((await queue.claim(max_jobs=10)).jobs))
    await node.quiet()
    assert queue.store.snapshots > 3
    assert queue.store.log.size_bytes < 20_000
    assert queue.store.log.start_offset > 0
    await node.restart()
    assert node.queues.get("q").counts() == QueueCounts(1000, 0, 0, 0, 1000, 0, 1000, 0)
    await node.stop()


@in_loop
async def test_a_snapshot_holds_all_that_counts() -> None:
    node = Node()
    await node.start()
    queue = await node.queue(lease_ms=1000, deliveries_max=2, partitions=2)
    await node.put(*[b"k:x"] * 12, partitions=[0, 1] * 6)
    jobs = (await queue.claim(max_jobs=8)).jobs
    await queue.ack([jobs[0].receipt])
    await queue.nack([jobs[1].receipt], delay_ms=5000)
    await queue.nack([jobs[2].receipt])
    [again] = (await queue.claim()).jobs
    await queue.ack([again.receipt])
    await queue.extend([jobs[3].receipt], lease_ms=9000)
    await node.advance(1000)
    counts = queue.counts()
    await queue.store.wait(queue.store.compact())
    await node.quiet()
    assert queue.store.log.start_offset == queue.store.log.end_offset - 1
    await node.restart()
    queue = node.queues.get("q")
    assert queue.counts() == counts
    assert (await queue.ack([jobs[0].receipt, again.receipt])).count == 2
    with pytest.raises(StaleReceipt):
        await queue.ack([jobs[2].receipt])
    await node.stop()


# Damage.


async def with_events(node: Node, *events: bytes | None) -> None:
    """Stop a node that has queues q and other, and append these events to the log of q."""
    await node.start()
    queue = await node.queue()
    await node.queue("other")
    await node.put(b"1")
    await node.put(b"1", name="other")
    name = log_name(queue.topic.id)
    await node.queues.close()
    await node.state.get(name).append_records([Record(event) for event in events])
    await node.topics.close()
    await node.state.close()
    await node.store.close()


@pytest.mark.parametrize(
    ("event", "error", "match"),
    [
        (b"", UnknownFormat, "version none, expected 1 to 2"),
        (b"\x03\x91\x00", UnknownFormat, "version 3, expected 1 to 2"),
        (b"\x01\xff", CorruptData, "invalid queue event"),
        (b"\x01\x92\x03\xa1x", CorruptData, "invalid queue event"),
        (None, CorruptData, "expected"),
        (encode_event(JobsAcked([(0, [0])])), CorruptData, "JobsAcked is impossible"),
        (encode_event(JobsAcked([(7, [0])])), CorruptData, "JobsAcked is impossible"),
        (encode_event(PartitionAdded(0, 0)), CorruptData, "PartitionAdded is impossible"),
        (
            encode_event(JobsDelivered(1, 1, [FirstDeliveries(0, [], -1, 0)], [])),
            CorruptData,
            "JobsDelivered is impossible",
        ),
    ],
)
@in_loop
async def test_a_damaged_log_refuses_its_queue_and_nothing_else(
    event: bytes | None, error: type[Exception], match: str
) -> None:
    node = Node()
    await with_events(node, event)
    await node.start()
    with pytest.raises(error, match=match):
        node.queues.get("q")
    assert [queue.name for queue in node.queues.all()] == ["other"]
    assert (await node.queues.get("other").claim()).jobs
    assert len(node.queues.problems()) == 1
    [keeper] = [partition.retention_hold for partition in node.topics.get("q").partitions]
    assert keeper is not None
    assert keeper.needed_offset() == 0, "it is not known which jobs are finished"
    await node.queues.delete("q")
    with pytest.raises(UnknownQueue):
        node.queues.get("q")
    assert (await node.queue()).counts().ready == 1
    await node.stop()


@in_loop
async def test_a_log_whose_beginning_is_gone_is_refused() -> None:
    node = Node()
    await node.start()
    queue = await node.queue()
    await node.put(b"1", b"2")
    await queue.claim(max_jobs=2)
    await queue.store.log.delete_before(queue.store.log.end_offset - 1)
    await node.restart()
    with pytest.raises(CorruptData, match="without a snapshot"):
        node.queues.get("q")
    await node.stop()


@in_loop
async def test_a_flipped_bit_in_the_log_refuses_the_queue() -> None:
    node = Node()
    await node.start()
    queue = await node.queue()
    await node.put(b"1", b"2")
    await queue.claim(max_jobs=2)
    name = log_name(queue.topic.id)
    await node.stop()
    path = next(p for p in node.disk.paths() if name in p and p.endswith(".log"))
    node.disk.flip_bit(path, 8 * 80)
    await node.start()
    with pytest.raises(MillstreamError):
        node.queues.get("q")
    assert node.queues.all() == []
    await node.stop()


@in_loop
async def test_a_queue_without_a_known_boot_gives_leases_their_full_length_at_each_start() -> None:
    node = Node()
    node.clock.reboot("")
    await node.start()
    queue = await node.queue(lease_ms=1000)
    await node.put(b"1")
    await queue.claim()
    await node.advance(900)
    await node.restart()
    queue = node.queues.get("q")
    await node.advance(999)
    assert queue.counts().leased == 1
    await node.advance(1)
    assert queue.counts().ready == 1
    assert NodeBooted("", 0).boot_id == ""
    await turns()
    await node.stop()


@in_loop
async def test_a_weak_queue_whose_row_cannot_be_marked_is_refused_until_it_can_be() -> None:
    """If it were served, a crash could make receipts of this run valid in the next."""
    node = Node()
    await node.start()
    await node.queue(configs={"millstream.durability": "disk"})
    await node.stop()
    node.metadata.error = None
    was = node.metadata.transact

    async def refuse(**changes: object) -> int | None:
        raise DiskFull("no room")

    node.metadata.transact = refuse  # type: ignore[assignment, method-assign]
    await node.start()
    with pytest.raises(DiskFull, match="no room"):
        node.queues.get("q")
    node.metadata.transact = was  # type: ignore[method-assign]
    await node.restart()
    assert node.queues.get("q").counts().ready == 0
    await node.stop()


@in_loop
async def test_receipts_of_a_weak_queue_outlive_a_clean_restart_and_no_crash() -> None:
    node = Node()
    await node.start()
    queue = await node.queue(configs={"millstream.durability": "disk"})
    await node.put(b"1", b"2")
    one, two = receipts_of((await queue.claim(max_jobs=2)).jobs)
    await node.restart()
    assert (await node.queues.get("q").ack([one])).count == 1
    await node.queues.get("q").store.settle()
    rows = node.metadata.copy()
    await node.stop()
    node.metadata = rows  # As after a crash: the queue was not marked as clean.
    await node.start()
    with pytest.raises(StaleReceipt):
        await node.queues.get("q").ack([two])
    await node.stop()
