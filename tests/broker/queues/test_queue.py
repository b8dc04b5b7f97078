"""Queues: leases, receipts, order, dead letters, and restarts."""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker.queues.dead_letter_mover import DELIVERIES_HEADER
from millstream.broker.queues.queues import hold_queue_topics
from millstream.broker.queues.values import QueueChanges, QueueCounts, QueueLimits
from millstream.config.schema import BrokerConfig, LogConfig
from millstream.errors import (
    Busy,
    InvalidConfig,
    InvalidName,
    InvalidRequest,
    LogFull,
    StaleReceipt,
    Stopping,
    UnknownQueue,
)
from millstream.records.compression import Codec
from tests.broker.partitions import append, batch
from tests.in_loop import in_loop

from .queue_node import Node, receipts_of, turns


async def started(**changes: object) -> Node:
    node = Node(**changes)  # type: ignore[arg-type]
    await node.start()
    return node


def offsets(claimed: object) -> list[int]:
    return [job.record.offset for job in claimed.jobs]  # type: ignore[attr-defined]


# Creating and finding queues.


@in_loop
async def test_a_queue_is_made_with_its_topic_and_has_defaults() -> None:
    node = await started()
    queue, is_new = await node.queues.put("mail", QueueChanges())
    assert is_new
    assert node.topics.get("mail").name == "mail"
    config = queue.config
    assert (config.lease_ms, config.deliveries_max, config.claim_window_ms) == (30_000, 5, 0)
    assert config.dead_letter == "mail-dead"
    assert node.queues.get("mail") is queue
    assert node.queues.all() == [queue]
    await node.stop()


@in_loop
async def test_putting_a_queue_again_changes_only_what_is_said() -> None:
    node = await started()
    await node.queue("mail", lease_ms=1000)
    queue, is_new = await node.queues.put("mail", QueueChanges(deliveries_max=2))
    assert not is_new
    assert (queue.config.lease_ms, queue.config.deliveries_max) == (1000, 2)
    await node.restart()
    config = node.queues.get("mail").config
    assert (config.lease_ms, config.deliveries_max) == (1000, 2)
    await node.stop()


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"lease_ms": 99}, "lease_ms must be between 100 and 43200000, got 99"),
        ({"deliveries_max": 0}, "deliveries_max must be between 1 and 1000000, got 0"),
        ({"claim_window_ms": 10_001}, "claim_window_ms must be between 0 and 10000, got 10001"),
        ({"dead_letter": "q"}, "the queue itself"),
        ({"dead_letter": "../x"}, "x"),
    ],
)
@in_loop
async def test_settings_that_are_not_allowed_are_refused(
    changes: dict[str, object], error: str
) -> None:
    node = await started()
    with pytest.raises((InvalidConfig, InvalidName), match=error):
        await node.queues.put("q", QueueChanges(**changes))  # type: ignore[arg-type]
    assert node.queues.all() == []
    await node.stop()


@in_loop
async def test_there_is_no_queue_where_nobody_made_one() -> None:
    node = await started()
    await node.topics.create("plain")
    with pytest.raises(UnknownQueue, match="queue 'plain' does not exist"):
        node.queues.get("plain")
    with pytest.raises(UnknownQueue, match="queue 'plain' does not exist"):
        await node.queues.delete("plain")
    await node.stop()


@in_loop
async def test_jobs_that_were_in_the_topic_before_count_too() -> None:
    node = await started()
    await node.topics.create("q")
    await node.put(b"1", b"2", b"3")
    await node.topics.get("q").partitions[0].delete_before(1)
    queue = await node.queue()
    assert queue.counts() == QueueCounts(2, 2, 0, 0, 0, 0, 0, 0)
    assert offsets(await queue.claim(max_jobs=9)) == [1, 2]
    await node.stop()


@in_loop
async def test_deleting_a_queue_leaves_its_topic_and_a_new_one_starts_again() -> None:
    node = await started()
    queue = await node.queue()
    await node.put(b"1", b"2")
    claimed = await queue.claim(max_jobs=2)
    await queue.ack([claimed.jobs[0].receipt])
    await node.queues.delete("q")
    with pytest.raises(UnknownQueue):
        await queue.ack([claimed.jobs[1].receipt])
    assert [one.value for one in await node.records("q")] == [b"1", b"2"]
    assert [name.topic for name in node.state.names()] == []
    queue = await node.queue()
    assert queue.counts().ready == 2
    with pytest.raises(StaleReceipt):
        await queue.ack(receipts_of(claimed.jobs))
    await node.stop()


@in_loop
async def test_deleting_the_topic_deletes_its_queue_and_a_new_topic_is_none() -> None:
    node = await started()
    queue = await node.queue()
    waiting = asyncio.ensure_future(queue.claim(wait_ms=60_000))
    await turns()
    await node.topics.delete("q")
    with pytest.raises(UnknownQueue):
        node.queues.get("q")
    with pytest.raises(UnknownQueue, match="was deleted"):
        await waiting
    await node.quiet()
    assert [key for key in node.metadata.rows if key.startswith("queues/")] == []
    await node.topics.create("q")
    with pytest.raises(UnknownQueue):
        node.queues.get("q")
    await node.restart()
    assert node.queues.all() == []
    await node.stop()


@in_loop
async def test_a_row_and_a_log_that_a_crash_left_of_a_deleted_topic_go_at_the_next_start() -> None:
    node = await started()
    await node.queue()
    row = dict(node.metadata.rows)
    await node.topics.delete("q")
    await node.quiet()
    node.metadata.rows.update({k: v for k, v in row.items() if k.startswith("queues/")})
    await node.restart()
    assert node.queues.all() == []
    assert node.metadata.rows == {}
    await node.stop()


@in_loop
async def test_a_compacted_topic_is_no_queue_and_the_topic_of_a_queue_is_not_compacted() -> None:
    node = await started()
    await node.topics.create("c", configs={"cleanup.policy": "compact"})
    with pytest.raises(InvalidConfig, match="a job would replace an earlier one"):
        await node.queues.put("c", QueueChanges())
    await node.queue()
    with pytest.raises(InvalidConfig, match="a job would replace an earlier one"):
        await node.topics.alter("q", {"cleanup.policy": "compact"})
    await node.topics.alter("c", {"cleanup.policy": "delete"})
    await node.queues.put("c", QueueChanges())
    await node.stop()


@in_loop
async def test_a_queue_of_an_ephemeral_topic_is_created_again_with_it() -> None:
    node = await started()
    configs = {"millstream.durability": "ephemeral"}
    queue = await node.queue(configs=configs, lease_ms=1000)
    await node.put(b"1")
    claimed = await queue.claim()
    await node.restart()
    queue = node.queues.get("q")
    assert queue.config.lease_ms == 1000
    assert queue.counts() == QueueCounts(0, 0, 0, 0, 0, 0, 0, 0)
    await node.put(b"2")
    await queue.claim()
    with pytest.raises(StaleReceipt):
        await queue.ack(receipts_of(claimed.jobs))
    await node.stop()


# Claiming.


@in_loop
async def test_jobs_go_out_by_offset_with_what_their_records_hold() -> None:
    node = await started()
    queue = await node.queue()
    await node.put(b"k:1", b"2", b"3")
    claimed = await queue.claim(max_jobs=2, lease_ms=500)
    assert offsets(claimed) == [0, 1]
    first = claimed.jobs[0]
    assert (first.record.key, first.record.value) == (b"k", b"k:1")
    assert (first.partition, first.deliveries, first.deadline_ms) == (0, 1, 500)
    assert queue.counts() == QueueCounts(3, 1, 2, 0, 0, 0, 2, 0)
    assert offsets(await queue.claim(max_jobs=2)) == [2]
    assert (await queue.claim(max_jobs=2)).jobs == []
    await node.stop()


@pytest.mark.parametrize(
    "asked",
    [
        {"max_jobs": 0},
        {"max_jobs": 1001},
        {"lease_ms": 99},
        {"lease_ms": 43_200_001},
        {"wait_ms": -1},
        {"wait_ms": 600_001},
    ],
)
@in_loop
async def test_a_claim_beyond_the_limits_is_refused(asked: dict[str, int]) -> None:
    node = await started()
    queue = await node.queue()
    with pytest.raises(InvalidRequest, match="must be between"):
        await queue.claim(**asked)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="receipts must be between 1 and 1000, got 1001"):
        await queue.ack(["x"] * 1001)
    with pytest.raises(InvalidRequest, match="delay_ms must be between 0 and 604800000, got -1"):
        await queue.nack(["x"], delay_ms=-1)
    await node.stop()


@in_loop
async def test_who_waits_gets_the_next_job_and_in_the_order_in_which_they_came() -> None:
    node = await started()
    queue = await node.queue()
    waiting = [asyncio.ensure_future(queue.claim(wait_ms=1000)) for _ in range(3)]
    await turns()
    await node.put(b"1", b"2")
    await turns()
    assert [task.done() for task in waiting] == [True, True, False]
    assert [offsets(task.result()) for task in waiting[:2]] == [[0], [1]]
    await node.advance(1000)
    assert waiting[2].result().jobs == []
    await node.stop()


@in_loop
async def test_a_job_that_comes_back_wakes_who_waits() -> None:
    node = await started()
    queue = await node.queue()
    await node.put(b"1")
    claimed = await queue.claim(lease_ms=1000)
    waiting = asyncio.ensure_future(queue.claim(wait_ms=5000, lease_ms=1000))
    await turns()
    await queue.nack(receipts_of(claimed.jobs))
    await turns()
    assert waiting.result().jobs[0].deliveries == 2
    waiting = asyncio.ensure_future(queue.claim(wait_ms=5000))
    await node.advance(1000)
    assert waiting.result().jobs[0].deliveries == 3
    await node.stop()


@in_loop
async def test_a_claimer_that_went_away_gets_nothing() -> None:
    node = await started()
    queue = await node.queue()
    gone = asyncio.ensure_future(queue.claim(wait_ms=60_000))
    await turns()
    gone.cancel()
    await turns()
    await node.put(b"1")
    await turns()
    assert queue.counts().ready == 1
    assert node.timers.pending == 0
    await node.stop()


@in_loop
async def test_the_line_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.broker.queues.claims.CLAIMERS_MAX", 2)
    node = await started()
    queue = await node.queue()
    waiting = [asyncio.ensure_future(queue.claim(wait_ms=1000)) for _ in range(2)]
    await turns()
    with pytest.raises(Busy, match="queue q has 2 waiting claims"):
        await queue.claim(wait_ms=1000)
    await node.stop()
    for task in waiting:
        with pytest.raises(Stopping):
            task.result()


@in_loop
async def test_claimers_that_are_gathered_are_served_evenly() -> None:
    node = await started()
    queue = await node.queue(claim_window_ms=50)
    await node.put(*[b"x"] * 7)
    tasks = [asyncio.ensure_future(queue.claim(max_jobs=wanted)) for wanted in (5, 1, 5)]
    await turns()
    assert not any(task.done() for task in tasks)
    await node.advance(50)
    assert [offsets(task.result()) for task in tasks] == [[0, 1, 2], [3], [4, 5, 6]]
    await node.stop()


@in_loop
async def test_nobody_gets_new_jobs_while_too_many_are_not_done() -> None:
    node = await started(limits=QueueLimits(unfinished_max=2))
    queue = await node.queue()
    await node.put(*[b"x"] * 4)
    claimed = await queue.claim(max_jobs=4)
    assert offsets(claimed) == [0, 1]
    waiting = asyncio.ensure_future(queue.claim(max_jobs=4, wait_ms=1000))
    await turns()
    assert not waiting.done()
    await queue.ack(receipts_of(claimed.jobs[:1]))
    await turns()
    assert offsets(waiting.result()) == [2]
    await node.stop()


@in_loop
async def test_partitions_take_turns_and_new_ones_belong_to_the_queue() -> None:
    node = await started()
    queue = await node.queue(partitions=2)
    await node.put(b"a", b"b", partitions=[0, 1])
    await node.topics.add_partitions("q", 3)
    await node.put(b"c", b"d", partitions=[2, 2])
    await node.quiet()
    assert queue.counts().ready == 4
    first = (await queue.claim(max_jobs=1)).jobs
    second = (await queue.claim(max_jobs=1)).jobs
    assert first[0].partition != second[0].partition
    rest = (await queue.claim(max_jobs=9)).jobs
    found = sorted(job.record.value or b"" for job in [*first, *second, *rest])
    assert found == [b"a", b"b", b"c", b"d"]
    await queue.ack(receipts_of([*first, *second, *rest]))
    assert queue.counts().acked == 4
    await node.stop()


@in_loop
async def test_a_claim_ends_when_much_was_read_for_it_and_the_next_goes_on() -> None:
    node = await started(log_config=LogConfig())
    queue = await node.queue()
    for _ in range(7):
        await node.put(b"x" * 900_000)
    first = await queue.claim(max_jobs=100)
    assert 1 <= len(first.jobs) < 7
    await queue.nack(receipts_of(first.jobs))
    seen = []
    for _ in range(4):
        seen += offsets(await queue.claim(max_jobs=100))
    assert sorted(seen) == list(range(7))
    await node.stop()


@in_loop
async def test_jobs_of_packed_batches_are_read_like_others() -> None:
    node = await started()
    queue = await node.queue()
    partition = node.topics.get("q").partitions[0]
    await append(partition, batch(b"1", b"2", b"3", codec=Codec.GZIP))
    jobs = (await queue.claim(max_jobs=2)).jobs
    await queue.nack([jobs[0].receipt])
    jobs = (await queue.claim(max_jobs=9)).jobs
    assert [job.record.value for job in jobs] == [b"1", b"3"]
    await node.stop()


# Receipts.


@in_loop
async def test_an_ack_is_final_and_may_be_repeated_for_ever() -> None:
    node = await started()
    queue = await node.queue()
    await node.put(b"1", b"2")
    receipts = receipts_of((await queue.claim(max_jobs=2)).jobs)
    assert (await queue.ack(receipts)).count == 2
    assert (await queue.ack(receipts + receipts)).count == 4
    await node.restart()
    queue = node.queues.get("q")
    assert (await queue.ack(receipts)).count == 2
    await node.advance(100_000)
    assert (await queue.claim()).jobs == []
    assert queue.counts() == QueueCounts(2, 0, 0, 0, 2, 0, 2, 0)
    for call in (queue.nack, queue.extend):
        with pytest.raises(StaleReceipt):
            await call(receipts)
    await node.stop()


@in_loop
async def test_only_the_newest_receipt_counts_once_another_worker_has_the_job() -> None:
    node = await started()
    queue = await node.queue(lease_ms=1000)
    await node.put(b"1")
    old = receipts_of((await queue.claim()).jobs)
    await node.advance(1000)
    new = receipts_of((await queue.claim()).jobs)
    for call in (queue.ack, queue.nack, queue.extend):
        with pytest.raises(StaleReceipt) as raised:
            await call(old)
        assert raised.value.receipts == tuple(old)
    assert (await queue.ack(new)).count == 1
    assert (await queue.ack(new)).count == 1
    with pytest.raises(StaleReceipt):
        await queue.ack(old)
    await node.stop()


@in_loop
async def test_a_receipt_counts_late_as_long_as_nobody_else_has_the_job() -> None:
    node = await started()
    queue = await node.queue(lease_ms=1000)
    await node.put(b"1", b"2", b"3")
    one, two, three = receipts_of((await queue.claim(max_jobs=3)).jobs)
    await node.advance(5000)
    assert queue.counts().ready == 3
    await queue.ack([one])
    await queue.extend([two], lease_ms=1000)
    await queue.nack([three], delay_ms=1000)
    assert queue.counts() == QueueCounts(3, 0, 1, 1, 1, 0, 3, 0)
    await node.advance(999)
    assert (await queue.claim()).jobs == []
    await node.advance(1)
    assert offsets(await queue.claim(max_jobs=9)) == [1, 2]
    await node.stop()


@in_loop
async def test_a_job_that_was_given_back_has_no_receipt_that_counts() -> None:
    node = await started()
    queue = await node.queue()
    await node.put(b"1")
    receipts = receipts_of((await queue.claim()).jobs)
    await queue.nack(receipts)
    for call in (queue.ack, queue.nack, queue.extend):
        with pytest.raises(StaleReceipt):
            await call(receipts)
    assert queue.counts().ready == 1
    await node.stop()


@in_loop
async def test_a_released_job_was_not_delivered_and_its_receipt_is_never_valid_again() -> None:
    node = await started()
    queue = await node.queue(deliveries_max=2)
    await node.put(b"1")
    old: list[str] = []
    for _ in range(5):
        [job] = (await queue.claim()).jobs
        assert job.deliveries == 1, "a delivery that was released does not count"
        assert (await queue.release([job.receipt])).count == 1
        old.append(job.receipt)
        await node.restart()
        queue = node.queues.get("q")
    assert len(set(old)) == 5
    [job] = (await queue.claim()).jobs
    for receipt in old:
        for settle in (queue.ack, queue.nack, queue.release, queue.extend):
            with pytest.raises(StaleReceipt):
                await settle([receipt])
    await queue.nack([job.receipt])
    [job] = (await queue.claim()).jobs
    assert job.deliveries == 2
    await queue.nack([job.receipt])
    await node.quiet()
    [letter] = await node.records("q-dead")
    assert dict(letter.headers)[DELIVERIES_HEADER] == b"2"
    assert queue.counts() == QueueCounts(1, 0, 0, 0, 0, 1, 7, 0)
    assert queue.counters.released == 0, "it counts from when the queue was opened"
    await node.stop()


@in_loop
async def test_a_late_release_saves_a_job_that_would_be_a_dead_letter() -> None:
    """The lease of the last permitted delivery has ended, and nothing was moved yet."""
    node = await started()
    queue = await node.queue(deliveries_max=1, lease_ms=1_000)
    await node.put(b"1")
    [job] = (await queue.claim()).jobs
    node.clock.advance(2.0)
    await queue.release([job.receipt])
    await node.quiet()
    assert queue.counts() == QueueCounts(1, 1, 0, 0, 0, 0, 1, 0)
    [job] = (await queue.claim()).jobs
    assert job.deliveries == 1
    await node.stop()


@in_loop
async def test_a_claim_that_is_cancelled_after_jobs_were_chosen_delivers_nothing() -> None:
    """The jobs are chosen and the disk has not answered yet when the claimer leaves."""
    node = await started()
    queue = await node.queue(deliveries_max=1)
    await node.put(b"1")
    for _ in range(3):
        claiming = asyncio.ensure_future(queue.claim())
        while not queue.counts().leased:  # noqa: ASYNC110 - Nobody is told when jobs are chosen.
            await asyncio.sleep(0)
        claiming.cancel()
        await node.quiet()
        assert (queue.counts().ready, queue.counts().dead) == (1, 0)
    [job] = (await queue.claim()).jobs
    assert job.deliveries == 1
    await node.stop()


@in_loop
async def test_what_is_not_stale_takes_effect_all_the_same() -> None:
    node = await started()
    queue = await node.queue()
    await node.put(b"1", b"2")
    one, two = receipts_of((await queue.claim(max_jobs=2)).jobs)
    await queue.nack([one])
    with pytest.raises(StaleReceipt) as raised:
        await queue.ack([one, two, "?"])
    assert raised.value.receipts == (one, "?")
    assert raised.value.done == 1
    assert queue.counts().acked == 1
    assert queue.counters.stale == 2
    await node.stop()


@in_loop
async def test_a_receipt_of_another_queue_or_a_guessed_one_is_stale() -> None:
    node = await started()
    queue, other = await node.queue("q"), await node.queue("r")
    await node.put(b"1", name="q")
    await node.put(b"1", name="r")
    await queue.claim()
    [receipt] = receipts_of((await other.claim()).jobs)
    guesses = [receipt, receipt[:-1] + "A", receipt[:-1], "", "\u00e9" * 44, "=" * 44, "A" * 44]
    for guess in guesses:
        with pytest.raises(StaleReceipt):
            await queue.ack([guess])
    assert queue.counts().leased == 1
    await node.stop()


# Leases and time.


@in_loop
async def test_leases_go_by_the_monotonic_clock_and_not_by_the_wall() -> None:
    node = await started()
    queue = await node.queue(lease_ms=1000)
    await node.put(b"1")
    await queue.claim()
    for jump in (10**9, -(10**10)):
        node.clock.jump_wall(jump)
        assert (await queue.claim()).jobs == []
        assert queue.counts().leased == 1
    await node.advance(999)
    assert (await queue.claim()).jobs == []
    await node.advance(1)
    assert offsets(await queue.claim()) == [0]
    await node.stop()


@in_loop
async def test_a_lease_goes_on_over_a_restart_of_the_process() -> None:
    node = await started()
    queue = await node.queue(lease_ms=1000)
    await node.put(b"1", b"2")
    one, two = receipts_of((await queue.claim(max_jobs=2)).jobs)
    await queue.nack([two], delay_ms=2000)
    await node.advance(600)
    node.clock.jump_wall(10**9)
    await node.restart()
    queue = node.queues.get("q")
    assert queue.counts() == QueueCounts(2, 0, 1, 1, 0, 0, 2, 0)
    await node.advance(399)
    assert queue.counts().leased == 1
    await node.advance(1)
    assert queue.counts() == QueueCounts(2, 1, 0, 1, 0, 0, 2, 0)
    await queue.ack([one])
    await node.advance(1000)
    assert queue.counts() == QueueCounts(2, 1, 0, 0, 1, 0, 2, 0)
    await node.stop()


@in_loop
async def test_a_lease_starts_again_after_a_reboot() -> None:
    node = await started()
    queue = await node.queue(lease_ms=1000)
    await node.put(b"1", b"2")
    _, two = receipts_of((await queue.claim(max_jobs=2)).jobs)
    await queue.nack([two], delay_ms=2000)
    await node.advance(900)
    await node.stop()
    node.clock.reboot("boot-2")
    await node.start()
    queue = node.queues.get("q")
    await node.advance(999)
    assert queue.counts() == QueueCounts(2, 0, 1, 1, 0, 0, 2, 0)
    await node.advance(1)
    assert queue.counts() == QueueCounts(2, 1, 0, 1, 0, 0, 2, 0)
    await node.advance(1000)
    assert queue.counts().ready == 2
    await node.stop()


@in_loop
async def test_jobs_that_came_back_go_first_by_when_they_did() -> None:
    node = await started()
    queue = await node.queue()
    await node.put(*[b"x"] * 5)
    jobs = (await queue.claim(max_jobs=3, lease_ms=5000)).jobs
    await queue.nack([jobs[2].receipt], delay_ms=1000)
    await queue.nack([jobs[1].receipt], delay_ms=2000)
    await node.advance(6000)
    claimed = await queue.claim(max_jobs=9)
    assert offsets(claimed) == [2, 1, 0, 3, 4]
    assert [job.deliveries for job in claimed.jobs] == [2, 2, 2, 1, 1]
    await node.stop()


@in_loop
async def test_a_job_that_comes_back_twice_in_a_moment_is_there_once() -> None:
    node = await started()
    queue = await node.queue()
    await node.put(b"1", b"2")
    for number in range(1, 4):
        [job] = (await queue.claim()).jobs
        assert (job.record.offset, job.deliveries) == (0, number)
        await queue.nack([job.receipt])
    assert offsets(await queue.claim(max_jobs=2)) == [0, 1]
    await node.stop()


@in_loop
async def test_extending_keeps_a_job_and_says_from_when() -> None:
    node = await started()
    queue = await node.queue(lease_ms=1000)
    await node.put(b"1")
    receipts = receipts_of((await queue.claim()).jobs)
    for _ in range(5):
        await node.advance(900)
        await queue.extend(receipts)
    await node.advance(999)
    assert queue.counts().leased == 1
    await queue.extend(receipts, lease_ms=100)
    await node.advance(100)
    assert queue.counts().ready == 1
    await node.stop()


@in_loop
async def test_watchers_hear_of_jobs_and_of_leases_that_ended() -> None:
    node = await started()
    queue = await node.queue(lease_ms=1000)
    heard: list[str] = []
    note = lambda: heard.append("!")  # noqa: E731
    queue.watch(note)
    await node.put(b"1")
    await turns()
    assert heard
    receipts = receipts_of((await queue.claim()).jobs)
    heard.clear()
    await queue.nack(receipts)
    assert heard
    await queue.claim()
    heard.clear()
    await node.advance(1000)
    assert heard
    queue.unwatch(note)
    heard.clear()
    await node.put(b"2")
    await turns()
    assert not heard
    await node.stop()


# Deleting records.


@in_loop
async def test_a_deleted_job_is_gone_at_once_for_every_worker() -> None:
    node = await started()
    queue = await node.queue()
    await node.put(b"a:1", b"b:2", b"a:3", b"b:4", b"a:5", b"b:6")
    jobs = (await queue.claim(max_jobs=3)).jobs
    await queue.nack([jobs[1].receipt], delay_ms=1000)
    partition = node.topics.get("q").partitions[0]
    assert await partition.delete_keys(key=b"a") == 3
    assert queue.counts() == QueueCounts(3, 2, 0, 1, 0, 0, 3, 2)
    with pytest.raises(StaleReceipt):
        await queue.ack([jobs[0].receipt])
    assert offsets(await queue.claim(max_jobs=9)) == [3, 5]
    assert queue.counts() == QueueCounts(3, 0, 2, 1, 0, 0, 5, 3)
    await node.advance(1000)
    assert await partition.delete_before(6) == 6
    assert queue.counts() == QueueCounts(0, 0, 0, 0, 0, 0, 5, 6)
    assert (await queue.claim(max_jobs=9)).jobs == []
    await node.restart()
    assert node.queues.get("q").counts() == QueueCounts(0, 0, 0, 0, 0, 0, 5, 6)
    await node.stop()


@in_loop
async def test_jobs_that_were_read_ahead_and_deleted_since_go_to_nobody() -> None:
    node = await started()
    queue = await node.queue()
    await node.put(b"a:1", b"b:2", b"a:3", b"b:4")
    await queue.claim()
    await node.topics.get("q").partitions[0].delete_keys(key=b"a")
    assert offsets(await queue.claim(max_jobs=9)) == [1, 3]
    await node.stop()


@in_loop
async def test_a_deleted_job_is_counted_once_when_it_is_passed_over() -> None:
    node = await started()
    queue = await node.queue()
    partition = node.topics.get("q").partitions[0]
    for removed in range(1, 4):
        await node.put(b"a:1")
        await partition.delete_keys(key=b"a")
        assert (await queue.claim()).jobs == []
        assert queue.counts().removed == removed
        await node.put(b"b:1")
        assert len((await queue.claim(max_jobs=9)).jobs) == 1
        assert queue.counts().removed == removed
    await node.stop()


# Retention.


@in_loop
async def test_retention_never_takes_a_job_that_is_not_done() -> None:
    node = await started()
    configs = {"retention.ms": "1000", "segment.bytes": "1024"}
    queue = await node.queue(configs=configs)
    for _ in range(6):
        await node.put(b"x" * 600)
    jobs = (await queue.claim(max_jobs=4)).jobs
    await queue.ack(receipts_of([jobs[0], jobs[1], jobs[3]]))
    await node.advance(100_000)
    await node.store.maintenance.run_once()
    log = node.store.get("q")
    assert log.start_offset == 2
    assert queue.counts() == QueueCounts(6, 3, 0, 0, 3, 0, 4, 0)
    jobs = (await queue.claim(max_jobs=9)).jobs
    assert sorted(job.record.offset for job in jobs) == [2, 4, 5]
    await queue.ack(receipts_of(jobs))
    await node.advance(100_000)
    await node.store.maintenance.run_once()
    assert log.start_offset == 6
    assert queue.counts().removed == 0
    await node.stop()


@in_loop
async def test_a_limit_hides_no_job_that_is_not_done() -> None:
    node = await started()
    queue = await node.queue(configs={"millstream.retention.records": "2"})
    for number in range(5):
        await node.put(b"%d" % number)
    log = node.store.get("q")
    assert log.start_offset == 0
    jobs = (await queue.claim(max_jobs=5)).jobs
    assert [job.record.offset for job in jobs] == [0, 1, 2, 3, 4]
    await queue.ack(receipts_of(jobs[:4]))
    await node.put(b"5")
    assert log.start_offset == 4
    await node.stop()


@in_loop
async def test_jobs_are_kept_before_their_queue_is_open() -> None:
    """A transaction that a crash left unfinished may open the topic before."""
    node = await started()
    await node.queue()
    partition = node.topics.get("q").partitions[0]
    partition.retention_hold = None
    await hold_queue_topics(node.metadata, node.topics)  # type: ignore[arg-type]
    assert partition.retention_hold is not None
    assert partition.retention_hold.needed_offset() == 0
    await node.stop()


@in_loop
async def test_retention_waits_until_it_is_durable_that_a_job_is_done() -> None:
    node = await started()
    queue = await node.queue(configs={"retention.ms": "1000", "segment.bytes": "1024"})
    for _ in range(3):
        await node.put(b"x" * 600)
    receipts = receipts_of((await queue.claim(max_jobs=3)).jobs)
    await node.advance(10_000)
    await node.store.get("q").roll()
    await node.advance(10_000)
    node.disk.bytes_max = node.disk.bytes_used
    acking = asyncio.ensure_future(queue.ack(receipts))
    await asyncio.sleep(0)
    assert queue.store.state.partitions[0].needed_offset == 3
    await node.store.maintenance.run_once()
    assert (await asyncio.gather(acking, return_exceptions=True))[0] is not None
    assert node.store.get("q").start_offset == 0
    node.disk.bytes_max = 2**40
    await node.stop()


@in_loop
async def test_a_full_queue_refuses_jobs() -> None:
    node = await started()
    configs = {"millstream.retention.records": "2", "millstream.discard": "reject"}
    queue = await node.queue(configs=configs)
    await node.put(b"1", b"2")
    with pytest.raises(LogFull):
        await node.put(b"3")
    assert offsets(await queue.claim(max_jobs=9)) == [0, 1]
    await node.stop()


def test_the_node_of_these_tests_is_real() -> None:
    """Check the test setup: the defaults here are those of a node."""
    assert BrokerConfig().num_partitions >= 1
    assert LogConfig().durability.value == "fsync"


# Transactions.


@in_loop
async def test_jobs_of_transactions_count_once_they_are_committed_and_never_if_aborted() -> None:
    node = await started()
    queue = await node.queue()
    partition = node.topics.get("q").partitions[0]

    async def begin(producer_id: int, *values: bytes) -> None:
        data = batch(*values, producer_id=producer_id, epoch=0, sequence=0, is_transactional=True)
        await append(partition, data)

    async def end(producer_id: int, *, is_commit: bool) -> None:
        await partition.appender.append_marker(
            producer_id, 0, is_commit=is_commit, coordinator_epoch=0
        )

    await begin(1, b"no", b"no")
    await begin(2, b"yes", b"yes")
    waiting = asyncio.ensure_future(queue.claim(max_jobs=9, wait_ms=1000))
    await node.put(b"plain")
    await end(2, is_commit=True)
    await turns()
    assert not waiting.done(), "the first transaction is open, and blocks all after it"
    assert queue.counts().ready == 0
    await end(1, is_commit=False)
    await turns()
    jobs = waiting.result().jobs
    assert [job.record.value for job in jobs] == [b"yes", b"yes", b"plain"]
    assert queue.counts() == QueueCounts(3, 0, 3, 0, 0, 0, 3, 0), "marks are passed over"
    await begin(3, b"no")
    await end(3, is_commit=False)
    assert (await queue.claim()).jobs == []
    assert queue.counts().enqueued == 3
    await node.restart()
    assert node.queues.get("q").counts() == QueueCounts(3, 0, 3, 0, 0, 0, 3, 0)
    await node.stop()
