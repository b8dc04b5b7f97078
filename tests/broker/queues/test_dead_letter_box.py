"""Dead letters are listed, moved back to their queue, or deleted, and none is lost."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from millstream.broker.queues.dead_letter_box import DeadLetterBox
from millstream.broker.queues.dead_letter_mover import REASON_HEADER
from millstream.broker.queues.job_browser import RecordPosition
from millstream.broker.queues.queue import WorkQueue
from millstream.broker.topics.configs.topic_config import AlterConfigOperation, ConfigChange
from millstream.errors import BatchTooLarge, InvalidRequest, StorageFailed
from millstream.records.record import Record
from millstream.testing import ManualClock, SimulatedFilesystem, sample_crash_states
from tests.in_loop import in_loop

from .queue_node import Node, Rows, receipts_of


async def started(*args: object, **changes: object) -> Node:
    node = Node(*args, **changes)  # type: ignore[arg-type]
    await node.start()
    return node


def box_of(node: Node) -> DeadLetterBox:
    return DeadLetterBox(topics=node.topics, queues=node.queues, appends=node.appends)


async def bury(node: Node, queue: WorkQueue) -> None:
    """Deliver all jobs once too often."""
    while jobs := (await queue.claim(max_jobs=1000)).jobs:
        await queue.nack(receipts_of(jobs))
        await node.quiet()
    await node.advance(1000)


async def claimed_values(queue: WorkQueue) -> list[bytes | None]:
    return sorted(job.record.value for job in (await queue.claim(max_jobs=1000)).jobs)  # type: ignore[type-var]


@in_loop
async def test_redriven_letters_are_new_jobs_with_what_the_first_job_had() -> None:
    node = await started()
    queue = await node.queue(deliveries_max=1)
    topic = node.topics.get("q")
    await node.appends.append(topic, [Record(b"v", b"k", (("h", b"x"),), 123), Record(b"w")])
    await bury(node, queue)
    assert queue.counts().dead == 2
    assert await box_of(node).redrive(queue) == (2, 0)
    jobs = sorted((await queue.claim(max_jobs=10)).jobs, key=lambda job: job.record.value or b"")
    assert [(job.record.key, job.record.value, job.record.headers) for job in jobs] == [
        (b"k", b"v", (("h", b"x"),)),
        (None, b"w", ()),
    ]
    assert [job.deliveries for job in jobs] == [1, 1]
    assert await box_of(node).redrive(queue) == (0, 0)
    assert (await box_of(node).page(queue, after=None, limit=10)).letters == []
    counts = queue.counts()
    assert (counts.enqueued, counts.dead, counts.leased) == (4, 2, 2)
    await node.stop()


@in_loop
async def test_a_redrive_moves_as_many_as_it_is_asked_for_and_tells_what_is_left() -> None:
    node = await started()
    queue = await node.queue(deliveries_max=1, partitions=2)
    await node.topics.create("q-dead", partitions=3)
    await node.put(*[b"k%d:" % number for number in range(250)])
    await bury(node, queue)
    box = box_of(node)
    assert await box.redrive(queue, 120) == (120, 130)
    assert await box.redrive(queue) == (130, 0)
    assert len(await claimed_values(queue)) == 250
    await node.stop()


@in_loop
async def test_letters_are_listed_page_by_page() -> None:
    node = await started()
    queue = await node.queue(deliveries_max=1)
    await node.topics.create("q-dead", partitions=2)
    await node.put(*[b"k%d:" % number for number in range(25)])
    await bury(node, queue)
    box = box_of(node)
    found = []
    after: RecordPosition | None = None
    while True:
        page = await box.page(queue, after=after, limit=7)
        assert page.size == 25
        assert len(page.letters) <= 7
        found += [(letter.partition, letter.record.offset) for letter in page.letters]
        if page.next is None:
            break
        after = page.next
    assert len(found) == 25
    assert found == sorted(set(found))
    await node.stop()


@in_loop
async def test_two_redrives_at_once_move_each_letter_once() -> None:
    node = await started()
    queue = await node.queue(deliveries_max=1)
    await node.put(*[b"%d" % number for number in range(30)])
    await bury(node, queue)
    box = box_of(node)
    results = await asyncio.gather(*(box.redrive(queue) for _ in range(3)))
    assert sum(result.moved for result in results) == 30
    assert len(await claimed_values(queue)) == 30
    await node.stop()


@in_loop
async def test_letters_that_the_queue_refuses_stay() -> None:
    node = await started()
    queue = await node.queue(deliveries_max=1)
    await node.put(b"x" * 2_000)
    await bury(node, queue)
    change = ConfigChange("max.message.bytes", AlterConfigOperation.SET, "1000")
    await node.topics.put("q", partitions=None, changes=[change])
    with pytest.raises(BatchTooLarge):
        await box_of(node).redrive(queue)
    assert [letter.value for letter in await node.records("q-dead")] == [b"x" * 2_000]
    await node.stop()


@in_loop
async def test_records_that_are_no_letters_of_the_queue_are_neither_moved_nor_deleted() -> None:
    node = await started()
    queue = await node.queue(deliveries_max=1)
    await node.put(b"a")
    await bury(node, queue)
    await node.put(b"stranger", name="q-dead")
    box = box_of(node)
    assert await box.redrive(queue) == (1, 1)  # What is before it.
    for change in (box.redrive, box.purge):
        with pytest.raises(InvalidRequest, match="record 1 of q-dead/0 is not a dead letter of"):
            await change(queue)
    assert [letter.value for letter in await node.records("q-dead")][-1] == b"stranger"
    await node.stop()


@in_loop
async def test_letters_of_damaged_batches_stay_and_let_the_others_through() -> None:
    node = await started()
    queue = await node.queue(deliveries_max=1)
    await node.put(b"a")
    await bury(node, queue)
    [letter] = await node.records("q-dead")
    headers = tuple(
        (name, b"damaged" if name == REASON_HEADER else value) for name, value in letter.headers
    )
    damaged = Record(b"stored bytes", None, headers, 123)
    await node.appends.append(node.topics.get("q-dead"), [damaged])
    await node.put(b"b")
    assert await box_of(node).redrive(queue) == (1, 1)
    [kept] = [one for one in await node.records("q-dead") if one.offset == 2]
    assert (kept.value, kept.headers, kept.timestamp_ms) == (b"stored bytes", headers, 123)
    assert await box_of(node).redrive(queue) == (0, 1)
    assert await claimed_values(queue) == [b"a", b"b"]
    assert await box_of(node).purge(queue) == (1, 0)
    await node.stop()


@in_loop
async def test_letters_that_are_jobs_of_another_queue_are_left_to_its_workers() -> None:
    node = await started()
    queue = await node.queue(deliveries_max=1)
    await node.put(b"a")
    await bury(node, queue)
    await node.queue("q-dead")
    with pytest.raises(InvalidRequest, match="are jobs of queue q-dead: claim them there"):
        await box_of(node).redrive(queue)
    await node.stop()


@in_loop
async def test_a_purge_deletes_the_letters_for_good() -> None:
    node = await started()
    queue = await node.queue(deliveries_max=1)
    await node.put(b"a", b"b")
    box = box_of(node)
    assert await box.purge(queue) == (0, 0)  # There is no topic yet.
    await bury(node, queue)
    assert await box.purge(queue) == (2, 0)
    await node.restart()
    queue = node.queues.get("q")
    assert (await box_of(node).page(queue, after=None, limit=10)).letters == []
    assert queue.counts().dead == 2
    assert await claimed_values(queue) == []
    await node.stop()


@in_loop
async def test_letters_of_an_unfinished_move_stay_for_the_mover_to_find() -> None:
    """Without them, the mover would move the job once more after a crash."""
    node = await started()
    queue = await node.queue(deliveries_max=1)
    await node.put(b"a")
    await bury(node, queue)
    await node.put(b"b")
    store, commits = queue.store, queue.store.commit

    def fail(event: object) -> object:
        if type(event).__name__ == "DeadLettersMoved":
            raise StorageFailed("the disk is full")
        return commits(event)  # type: ignore[arg-type]

    store.commit = fail  # type: ignore[method-assign, assignment]
    await bury(node, queue)
    assert store.state.intent is not None
    assert len(await node.records("q-dead")) == 2
    assert await box_of(node).redrive(queue) == (1, 1)
    store.commit = commits  # type: ignore[method-assign]
    await node.advance(60_000)
    assert store.state.intent is None
    assert await box_of(node).redrive(queue) == (1, 0)
    assert Counter(await claimed_values(queue)) == {b"a": 1, b"b": 1}
    await node.stop()


@in_loop
async def test_no_power_cut_during_a_redrive_loses_a_letter() -> None:
    disk, metadata = SimulatedFilesystem(), Rows()
    node = await started(disk, metadata)
    queue = await node.queue(deliveries_max=1)
    values = [b"%d" % number for number in range(12)]
    await node.put(*values)
    await bury(node, queue)
    disk.note("buried")
    await box_of(node).redrive(queue)
    disk.note("redriven")
    await node.stop()
    again = 0
    for number, state in enumerate(sample_crash_states(disk.trace, 150, seed=5)):
        if "buried" not in state.notes:
            continue
        clock = ManualClock(boot_id="boot-2")
        after = await started(state.filesystem(), metadata.copy(), clock=clock, seed=number)
        queue = after.queues.get("q")
        if "redriven" not in state.notes:
            await box_of(after).redrive(queue)
        else:
            assert (await box_of(after).page(queue, after=None, limit=10)).letters == []
        jobs = Counter(await claimed_values(queue))
        assert set(jobs) == set(values), f"{state}: a letter is lost"
        if "redriven" in state.notes:
            assert set(jobs.values()) == {1}, f"{state}: a job is there twice"
        again += max(jobs.values()) > 1
        await after.stop()
    assert again > 0, "some cuts fall between the append and the deletion"
