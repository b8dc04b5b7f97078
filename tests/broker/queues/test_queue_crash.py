"""Whatever a power cut leaves: what was acked stays done, counts never fall, dead letters are once.

Workers claim, ack, give back and let leases run out; jobs that were handed out too often are
buried; the log of the queue is compacted again and again. Then the power is cut at any moment,
everything is opened again from what the disk has, and workers go on until nothing is left to do.
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

from .queue_node import Node, Rows, in_loop, receipts_of

STATES = 5_000 if os.environ.get("MILLSTREAM_LONG") else 150
LIMITS = QueueLimits(events_bytes_min=300)
Place = tuple[int, int]


@dataclass(frozen=True)
class Put:
    """A job was put in, and that was answered."""

    place: Place


@dataclass(frozen=True)
class Handed:
    """A job was handed out, and its worker was told."""

    place: Place
    deliveries: int
    receipt: str


@dataclass(frozen=True)
class Acked:
    """An ack was answered."""

    place: Place
    receipt: str


@dataclass(frozen=True)
class Buried:
    """Someone saw that a job counts as dead."""

    count: int


async def put(node: Node, count: int) -> None:
    offsets = await node.put(*[b"k%d:" % number for number in range(count)], partitions=[0] * count)
    for offset in offsets:
        node.disk.note(Put((0, offset)))


async def claim(node: Node, queue: WorkQueue, count: int) -> list[Handed]:
    claimed = await queue.claim(max_jobs=count, lease_ms=1000)
    told = [
        Handed((job.partition, job.record.offset), job.deliveries, job.receipt)
        for job in claimed.jobs
    ]
    for one in told:
        node.disk.note(one)
    return told


async def ack(node: Node, queue: WorkQueue, handed: list[Handed]) -> None:
    if handed:
        await queue.ack([one.receipt for one in handed])
    for one in handed:
        node.disk.note(Acked(one.place, one.receipt))


async def workload(node: Node, chance: random.Random) -> None:
    queue = await node.queue(lease_ms=1000, deliveries_max=2)
    for _ in range(5):
        await put(node, chance.randrange(3, 7))
        handed = await claim(node, queue, 6)
        chance.shuffle(handed)
        await ack(node, queue, handed[:2])
        if handed[2:4]:
            await queue.nack([one.receipt for one in handed[2:4]])
        await node.advance(1000)
        node.disk.note(Buried(queue.counts().dead))


def seen(state: CrashState) -> tuple[set[Place], dict[Place, int], dict[Place, str], int]:
    """Return what was told before the cut: jobs, their deliveries, acks, and how many were dead."""
    jobs = {note.place for note in state.notes if isinstance(note, Put)}
    deliveries: dict[Place, int] = {}
    for note in state.notes:
        if isinstance(note, Handed):
            deliveries[note.place] = note.deliveries
    acked = {note.place: note.receipt for note in state.notes if isinstance(note, Acked)}
    dead = max((note.count for note in state.notes if isinstance(note, Buried)), default=0)
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
    done: Counter[Place] = Counter()
    for _ in range(4):
        claimed = (await queue.claim(max_jobs=1000)).jobs
        for job in claimed:
            place = job.partition, job.record.offset
            assert place not in acked, f"{state}: {place} was acked and came back (P19)"
            assert job.deliveries > deliveries.get(place, 0), f"{state}: {place}: the count fell"
            done[place] += 1
        if claimed:
            await queue.ack(receipts_of(claimed))
        await node.advance(5000)
    if acked:
        assert (await queue.ack(list(acked.values()))).count == len(acked), "repeating is fine"
    letters = [dict(one.headers) for one in await node.records("q-dead")]
    buried = Counter(
        (int(one[PARTITION_HEADER] or b""), int(one[OFFSET_HEADER] or b"")) for one in letters
    )
    assert set(buried.values()) <= {1}, f"{state}: a dead letter is there twice"
    counts = queue.counts()
    assert (counts.ready, counts.leased, counts.delayed) == (0, 0, 0)
    assert counts.dead == len(buried), f"{state}: {counts}"
    assert not buried.keys() & done.keys(), "what is dead goes to nobody"
    assert not buried.keys() & acked.keys()
    assert counts.acked + counts.dead == counts.enqueued >= len(jobs), f"{state}: a job is lost"
    lost = jobs - acked.keys() - done.keys() - buried.keys()
    assert len(lost) <= counts.acked - len(done) - len(acked), f"{state}: {lost} is nowhere"


@pytest.mark.parametrize("durability", ["disk", "memory"])
@in_loop
async def test_a_class_that_may_lose_its_end_loses_no_job_to_come(durability: str) -> None:
    """After a power cut, offsets are given again: jobs are new there, and old receipts stale."""
    disk, metadata = SimulatedFilesystem(), Rows()
    node = Node(disk, metadata)
    await node.start()
    queue = await node.queue(configs={"millstream.durability": durability})
    await node.put(*[b"old"] * 10)
    handed = (await queue.claim(max_jobs=10)).jobs
    await queue.ack(receipts_of(handed[:5]))
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
        old = {job.record.offset: job.receipt for job in handed}
        for job in fresh:
            if (receipt := old.get(job.record.offset)) is not None:
                with pytest.raises(StaleReceipt):
                    await queue.ack([receipt])
        await after.stop()
    await node.stop()
    assert len(ends) > 1, "some cuts take the end of the topic"
