"""Power cuts: acked jobs stay finished, only a release lowers a count, dead letters are moved once.

Workers claim, ack, return and release jobs and let leases run out; exhausted jobs become dead
letters; the log of the queue is compacted often. Then the power is cut at any moment, everything is
opened again from the disk, and workers continue until nothing is left to do.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import dataclass

import pytest

from millstream.broker.queues.dead_letter_mover import OFFSET_HEADER, PARTITION_HEADER
from millstream.broker.queues.queue import WorkQueue
from millstream.broker.queues.values import QueueLimits
from millstream.errors import StaleReceipt
from millstream.testing import CrashState, ManualClock, SimulatedFilesystem, sample_crash_states
from tests.in_loop import in_loop

from .queue_node import Node, Rows, receipts_of

STATES = 5_000 if os.environ.get("MILLSTREAM_LONG") else 150
LIMITS = QueueLimits(events_bytes_min=300)
Position = tuple[int, int]


@dataclass(frozen=True)
class JobPut:
    """Adding a job was answered."""

    position: Position


@dataclass(frozen=True)
class JobDelivered:
    """A claim was answered with the job."""

    position: Position
    deliveries: int
    receipt: str


@dataclass(frozen=True)
class JobAcked:
    """An ack was answered."""

    position: Position
    receipt: str


@dataclass(frozen=True)
class JobReleased:
    """A release was answered, or is about to be sent: then its delivery may count or not."""

    position: Position
    receipt: str
    is_answered: bool


@dataclass(frozen=True)
class DeadCounted:
    """The counts showed this many dead jobs."""

    count: int


async def put(node: Node, count: int) -> None:
    offsets = await node.put(*[b"k%d:" % number for number in range(count)], partitions=[0] * count)
    for offset in offsets:
        node.disk.note(JobPut((0, offset)))


async def claim(node: Node, queue: WorkQueue, count: int) -> list[JobDelivered]:
    claimed = await queue.claim(max_jobs=count, lease_ms=1000)
    deliveries = [
        JobDelivered((job.partition, job.record.offset), job.deliveries, job.receipt)
        for job in claimed.jobs
    ]
    for delivery in deliveries:
        node.disk.note(delivery)
    return deliveries


async def ack(node: Node, queue: WorkQueue, delivered: list[JobDelivered]) -> None:
    if delivered:
        await queue.ack([job.receipt for job in delivered])
    for job in delivered:
        node.disk.note(JobAcked(job.position, job.receipt))


async def release(node: Node, queue: WorkQueue, delivered: list[JobDelivered]) -> None:
    for job in delivered:
        node.disk.note(JobReleased(job.position, job.receipt, is_answered=False))
        await queue.release([job.receipt])
        node.disk.note(JobReleased(job.position, job.receipt, is_answered=True))


async def workload(node: Node, rng: random.Random) -> None:
    queue = await node.queue(lease_ms=1000, deliveries_max=2)
    for _ in range(5):
        await put(node, rng.randrange(3, 7))
        delivered = await claim(node, queue, 6)
        rng.shuffle(delivered)
        await ack(node, queue, delivered[:2])
        if delivered[2:4]:
            await queue.nack([job.receipt for job in delivered[2:4]])
        await release(node, queue, delivered[4:5])
        await node.advance(1000)
        node.disk.note(DeadCounted(queue.counts().dead))


def seen(state: CrashState) -> tuple[set[Position], dict[Position, int], dict[Position, str], int]:
    """Return what was answered before the cut: jobs, deliveries, acks, and dead jobs."""
    jobs = {note.position for note in state.notes if isinstance(note, JobPut)}
    deliveries: dict[Position, int] = {}
    for note in state.notes:
        if isinstance(note, JobDelivered):
            deliveries[note.position] = note.deliveries
        elif isinstance(note, JobReleased) and not note.is_answered:
            deliveries[note.position] -= 1
    acked = {note.position: note.receipt for note in state.notes if isinstance(note, JobAcked)}
    dead = max((note.count for note in state.notes if isinstance(note, DeadCounted)), default=0)
    return jobs, deliveries, acked, dead


@pytest.mark.parametrize("seed", [1, 2])
@in_loop
async def test_every_power_cut_leaves_each_job_done_once_or_to_be_done(seed: int) -> None:
    disk, metadata = SimulatedFilesystem(), Rows()
    node = Node(disk, metadata, seed=seed, limits=LIMITS)
    await node.start()
    await workload(node, random.Random(seed))
    assert node.queues.get("q").store.snapshots > 0, "compaction is part of it"
    assert node.queues.get("q").counts().dead > 0, "so are dead letters"
    await node.stop()
    open_intents = 0
    for number, state in enumerate(sample_crash_states(disk.trace, STATES, seed=seed)):
        after = Node(
            state.filesystem(),
            metadata.copy(),
            seed=number,
            clock=ManualClock(boot_id="boot-2"),
            limits=LIMITS,
        )
        await after.start()
        if state.notes:
            open_intents += after.queues.get("q").store.state.intent is not None
            await check(after, state)
        await after.stop()
    assert open_intents > 0, "some cuts fall between the intent and its end"


async def check(node: Node, state: CrashState) -> None:
    jobs, deliveries, acked, dead = seen(state)
    queue = node.queues.get("q")
    await node.quiet()
    assert queue.counts().dead >= dead, f"{state}: a dead letter came back"
    done: Counter[Position] = Counter()
    for _ in range(4):
        claimed = (await queue.claim(max_jobs=1000)).jobs
        for job in claimed:
            position = job.partition, job.record.offset
            assert position not in acked, f"{state}: {position} was acked and came back (P19)"
            assert job.deliveries > deliveries.get(position, 0), (
                f"{state}: {position}: the count fell"
            )
            done[position] += 1
        for note in state.notes:
            if isinstance(note, JobReleased) and note.is_answered:
                with pytest.raises(StaleReceipt):
                    await queue.ack([note.receipt])
        if claimed:
            await queue.ack(receipts_of(claimed))
        await node.advance(5000)
    if acked:
        assert (await queue.ack(list(acked.values()))).count == len(acked), "repeating is fine"
    letters = [dict(record.headers) for record in await node.records("q-dead")]
    dead_letters = Counter(
        (int(letter[PARTITION_HEADER] or b""), int(letter[OFFSET_HEADER] or b""))
        for letter in letters
    )
    assert set(dead_letters.values()) <= {1}, f"{state}: a dead letter is there twice"
    counts = queue.counts()
    assert (counts.ready, counts.leased, counts.delayed) == (0, 0, 0)
    assert counts.dead == len(dead_letters), f"{state}: {counts}"
    assert not dead_letters.keys() & done.keys(), "a dead letter is not delivered"
    assert not dead_letters.keys() & acked.keys()
    assert counts.acked + counts.dead == counts.enqueued >= len(jobs), f"{state}: a job is lost"
    lost = jobs - acked.keys() - done.keys() - dead_letters.keys()
    assert len(lost) <= counts.acked - len(done) - len(acked), f"{state}: {lost} is nowhere"


@pytest.mark.parametrize("durability", ["disk", "memory"])
@in_loop
async def test_a_class_that_may_lose_its_end_loses_no_job_to_come(durability: str) -> None:
    """After a power cut, offsets are used again: their jobs are new, and old receipts are stale."""
    disk, metadata = SimulatedFilesystem(), Rows()
    node = Node(disk, metadata)
    await node.start()
    queue = await node.queue(configs={"millstream.durability": durability})
    await node.put(*[b"old"] * 10)
    delivered = (await queue.claim(max_jobs=10)).jobs
    await queue.ack(receipts_of(delivered[:5]))
    await node.quiet()
    ends = set()
    for number, state in enumerate(sample_crash_states(disk.trace, 60, seed=3)):
        clock = ManualClock(boot_id="boot-2")
        after = Node(state.filesystem(), metadata.copy(), clock=clock, seed=number)
        await after.start()
        queue = after.queues.get("q")
        end = after.topics.get("q").partitions[0].high_watermark
        ends.add(end)
        [first, *_] = await after.put(*[b"new"] * 12)
        assert first == end
        await after.advance(100_000)
        found = (await queue.claim(max_jobs=100)).jobs
        fresh = [job for job in found if job.record.value == b"new"]
        assert len(fresh) == 12, f"{state}: jobs were taken for done"
        old = {job.record.offset: job.receipt for job in delivered}
        for job in fresh:
            if (receipt := old.get(job.record.offset)) is not None:
                with pytest.raises(StaleReceipt):
                    await queue.ack([receipt])
        await after.stop()
    await node.stop()
    assert len(ends) > 1, "some cuts take the end of the topic"
