"""Dead letters: an exhausted job is moved to another topic, exactly once."""

from __future__ import annotations

import asyncio
import errno

import pytest

from millstream.broker.queues.dead_letter_mover import SEAL_HEADER
from millstream.broker.queues.events import DeadLettersIntended, DeadLettersMoved, group_jobs
from millstream.broker.queues.values import QueueChanges, QueueCounts
from millstream.config.schema import Durability
from millstream.errors import StaleReceipt
from millstream.records.record import Record
from millstream.testing import GROWING, Fault, FaultyFilesystem
from tests.in_loop import in_loop

from .queue_node import Node, receipts_of, turns


async def started(**changes: object) -> Node:
    node = Node(**changes)  # type: ignore[arg-type]
    await node.start()
    return node


@in_loop
async def test_a_job_that_was_handed_out_too_often_becomes_a_dead_letter() -> None:
    node = await started()
    queue = await node.queue(deliveries_max=2, lease_ms=1000)
    topic = node.topics.get("q")
    await node.appends.append(topic, [Record(b"v", b"k", (("h", b"x"),), 123), Record(b"w")])
    jobs = (await queue.claim(max_jobs=2)).jobs
    await queue.nack([jobs[0].receipt])
    await node.advance(1000)
    jobs = (await queue.claim(max_jobs=2)).jobs
    assert [job.deliveries for job in jobs] == [2, 2]
    await queue.nack([jobs[0].receipt])
    await node.advance(1000)
    assert queue.counts() == QueueCounts(2, 0, 0, 0, 0, 2, 4, 0)
    first, second = sorted(await node.records("q-dead"), key=lambda one: one.value or b"")
    assert (first.key, first.value, first.timestamp_ms) == (b"k", b"v", 123)
    said = dict(first.headers)
    assert said.pop(SEAL_HEADER)
    assert said == {
        "h": b"x",
        "millstream-queue": b"q",
        "millstream-partition": b"0",
        "millstream-offset": b"0",
        "millstream-deliveries": b"2",
        "millstream-reason": b"nacked",
    }
    assert dict(second.headers)["millstream-reason"] == b"expired"
    with pytest.raises(StaleReceipt):
        await queue.ack(receipts_of(jobs))
    dead = node.topics.get("q-dead").config
    assert dead.durability is Durability.FSYNC
    assert dead.log_config().retention_ms is None
    await node.stop()


@in_loop
async def test_the_last_worker_may_still_ack_and_then_there_is_no_dead_letter() -> None:
    node = await started()
    queue = await node.queue(deliveries_max=1, lease_ms=1000)
    await node.put(b"1")
    receipts = receipts_of((await queue.claim()).jobs)
    await queue.ack(receipts)
    await node.advance(5000)
    assert queue.counts().dead == 0
    assert node.topics.find("q-dead") is None
    await node.stop()


@in_loop
async def test_many_dead_letters_and_other_partitions_go_the_same_way() -> None:
    node = await started()
    queue = await node.queue(deliveries_max=1, lease_ms=1000, partitions=2)
    await node.topics.create("q-dead", partitions=3)
    for number in range(2):
        values = [b"k%d:%d" % (row, number) for row in range(120)]
        await node.put(*values, partitions=[number] * 120)
    assert len((await queue.claim(max_jobs=1000)).jobs) == 240
    await node.advance(1000)
    for _ in range(20):
        await turns()
    assert queue.counts() == QueueCounts(240, 0, 0, 0, 0, 240, 240, 0)
    found = await node.records("q-dead")
    assert len({one.value for one in found}) == len(found) == 240
    await node.stop()


@in_loop
async def test_a_lower_limit_dooms_jobs_that_came_back_and_a_higher_one_saves_them() -> None:
    node = await started()
    queue = await node.queue(deliveries_max=3)
    await node.put(b"1", b"2")
    for _ in range(2):
        await queue.nack(receipts_of((await queue.claim(max_jobs=2)).jobs))
    await node.queues.put("q", QueueChanges(deliveries_max=2))
    await node.quiet()
    assert queue.counts().dead == 2
    await node.stop()


@in_loop
async def test_a_deleted_job_is_no_dead_letter() -> None:
    node = await started()
    queue = await node.queue(deliveries_max=1, lease_ms=1000)
    await node.put(b"a:1", b"b:2")
    await queue.claim(max_jobs=2)
    await node.topics.get("q").partitions[0].delete_keys(key=b"a")
    await node.advance(1000)
    assert [one.value for one in await node.records("q-dead")] == [b"b:2"]
    assert queue.counts() == QueueCounts(1, 0, 0, 0, 0, 1, 2, 1)
    await node.stop()


@in_loop
async def test_nobody_can_write_what_passes_for_a_dead_letter() -> None:
    """Knowing the headers, but not the secret, is not enough to make a job disappear."""
    node = await started()
    queue = await node.queue(deliveries_max=1, lease_ms=1000)
    await node.put(b"1")
    job = (await queue.claim()).jobs[0]
    await node.topics.create("q-dead")
    forged = Record(b"!", None, ((SEAL_HEADER, job.receipt.encode()), ("millstream-offset", b"0")))
    store = queue.store
    await node.advance(999)
    await store.wait(
        store.commit(
            DeadLettersIntended(node.topics.get("q-dead").id.bytes, [0], group_jobs([(0, 0)]), [])
        )
    )
    await node.appends.append(node.topics.get("q-dead"), [forged])
    await node.restart()
    await node.quiet()
    assert [one.value for one in await node.records("q-dead")] == [b"!", b"1"]
    await node.stop()


@in_loop
async def test_a_clock_that_was_set_back_delays_no_dead_letter() -> None:
    node = await started()
    queue = await node.queue(deliveries_max=1)
    await node.put(b"1", b"2")
    jobs = (await queue.claim(max_jobs=2)).jobs
    node.clock.jump_wall(-(10**9))
    await queue.nack(receipts_of(jobs))
    await node.quiet()
    assert queue.counts().dead == 2
    first, _ = await node.records("q-dead")
    assert first.timestamp_ms == node.clock.wall_ms()
    assert dict(first.headers)["millstream-timestamp"] == b"%d" % jobs[0].record.timestamp_ms
    await node.stop()


@in_loop
async def test_a_job_that_the_topic_does_not_take_rests_and_holds_up_nobody() -> None:
    node = await started()
    await node.topics.create("q-dead", configs={"max.message.bytes": "2000"})
    queue = await node.queue(deliveries_max=1)
    await node.put(b"small", b"x" * 5000, b"tiny")
    await queue.nack(receipts_of((await queue.claim(max_jobs=3)).jobs))
    await node.quiet()
    assert queue.counts() == QueueCounts(3, 0, 0, 1, 0, 2, 3, 0)
    assert sorted(one.value or b"" for one in await node.records("q-dead")) == [b"small", b"tiny"]
    await node.topics.alter("q-dead", {"max.message.bytes": "20000"})
    await node.advance(60_000)
    assert queue.counts() == QueueCounts(3, 0, 0, 0, 0, 3, 3, 0)
    assert len(await node.records("q-dead")) == 3
    await node.restart()
    assert node.queues.get("q").counts().dead == 3
    await node.stop()


# After a crash or an error.


@pytest.mark.parametrize("appended", [0, 1, 2])
@in_loop
async def test_an_open_intent_is_fulfilled_and_nothing_is_appended_twice(appended: int) -> None:
    node = await started()
    queue = await node.queue(deliveries_max=1, lease_ms=1000)
    await node.put(b"1", b"2")
    await queue.claim(max_jobs=2)
    topic = await node.topics.create("q-dead")
    await node.put(b"before", name="q-dead")
    burial = queue._dead_letters  # The steps of a move, up to the crash.
    store = queue.store
    places = [(0, 0), (0, 1)]
    await store.wait(store.commit(DeadLettersIntended(topic.id.bytes, [1], group_jobs(places), [])))
    [*found] = await node.records("q")
    letters = [burial._letter(0, record, "expired") for record in found[:appended]]
    if letters:
        await node.appends.append(topic, letters)
    assert queue.counts() == QueueCounts(2, 2, 0, 0, 0, 0, 2, 0), "they count where they were"
    await node.restart()
    await node.quiet()
    assert node.queues.get("q").counts() == QueueCounts(2, 0, 0, 0, 0, 2, 2, 0)
    values = sorted(one.value or b"" for one in await node.records("q-dead"))
    assert values == [b"1", b"2", b"before"]
    await node.stop()


@in_loop
async def test_an_intent_outlives_the_topic_that_it_was_for() -> None:
    node = await started()
    queue = await node.queue(deliveries_max=1, lease_ms=1000)
    await node.put(b"1")
    await queue.claim()
    topic = await node.topics.create("q-dead")
    store = queue.store
    await store.wait(
        store.commit(DeadLettersIntended(topic.id.bytes, [7], group_jobs([(0, 0)]), []))
    )
    await node.topics.delete("q-dead")
    await node.restart()
    await node.quiet()
    assert [one.value for one in await node.records("q-dead")] == [b"1"]
    await node.stop()


@in_loop
async def test_a_full_disk_keeps_dead_letters_waiting_and_nobody_else_than_it_has_to() -> None:
    fault = Fault(
        call=1, error=errno.ENOSPC, forever=True, only=GROWING, path="/data/topics/q-dead"
    )
    node = await started(wrap=lambda disk: FaultyFilesystem(disk, fault))
    queue = await node.queue(deliveries_max=1, lease_ms=1000)
    await node.put(b"1", b"2", b"3")
    await queue.claim()
    await node.advance(1000)
    assert fault.hits
    assert queue.counts() == QueueCounts(3, 3, 0, 0, 0, 0, 1, 0)
    claimed = await queue.claim(max_jobs=9)
    assert [job.record.value for job in claimed.jobs] == [b"2", b"3"]
    assert (await queue.ack(receipts_of(claimed.jobs))).count == 2
    fault.forever = False
    for _ in range(8):
        await node.advance(60_000)
    assert queue.counts() == QueueCounts(3, 0, 0, 0, 2, 1, 3, 0)
    assert [one.value for one in await node.records("q-dead")] == [b"1"]
    await node.stop()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
@in_loop
async def test_each_call_of_a_move_may_fail_once_and_it_happens_once(error: int) -> None:
    for call in range(1, 40):
        fault = Fault(call=10**9, error=error, only=GROWING)
        node = await started(wrap=lambda disk, fault=fault: FaultyFilesystem(disk, fault))
        queue = await node.queue(deliveries_max=1, lease_ms=1000)
        await node.put(b"1", b"2")
        await queue.claim(max_jobs=2)
        fault.call = fault._matched + call
        await node.advance(1000)
        for _ in range(4):
            await node.advance(60_000)
        if queue.store.refusal or any(log.offline for log in node.store.open_logs):
            await asyncio.gather(node.restart(), return_exceptions=True)  # As an operator would.
            await node.advance(60_000)
            queue = node.queues.get("q")
        counts = queue.counts()
        assert counts == QueueCounts(2, 0, 0, 0, 0, 2, 2, 0), f"call {call}: {counts}"
        values = sorted(one.value or b"" for one in await node.records("q-dead"))
        assert values == [b"1", b"2"], f"call {call}"
        was_hit = bool(fault.hits)
        await asyncio.gather(node.stop(), return_exceptions=True)
        if not was_hit:
            break
    else:
        raise AssertionError("the sweep is longer than what it goes over")


@in_loop
async def test_an_intent_that_was_refused_leaves_the_jobs_as_they_were() -> None:
    fault = Fault(call=10**9, error=errno.ENOSPC, only={"write_at"}, path="/state/topics/queue-")
    node = await started(wrap=lambda disk: FaultyFilesystem(disk, fault))
    queue = await node.queue(deliveries_max=1, lease_ms=1000)
    await node.topics.create("q-dead")
    await node.put(b"1")
    receipts = receipts_of((await queue.claim()).jobs)
    await node.put(b"x", name="q-dead")
    fault.call = fault._matched + 1
    await node.advance(1000)
    assert fault.hits
    assert queue.store.state.intent is None
    assert (await queue.ack(receipts)).count == 1
    await node.advance(60_000)
    assert [one.value for one in await node.records("q-dead")] == [b"x"]
    await node.stop()


def test_a_move_brings_each_job_to_one_of_two_ends() -> None:
    event = DeadLettersMoved(group_jobs([(0, 1)]), group_jobs([(0, 2), (1, 1)]))
    assert event.dead == [(0, [1])]
    assert event.removed == [(0, [2]), (1, [1])]
