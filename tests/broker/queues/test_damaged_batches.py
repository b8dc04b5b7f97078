"""Batches that cannot be decoded: refused by queues, and skipped if they are there already."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest

from millstream.broker.partition.results import FetchResult
from millstream.broker.queues import claims
from millstream.broker.queues.dead_letter_mover import (
    DAMAGED,
    DELIVERIES_HEADER,
    ERROR_HEADER,
    LAST_OFFSET_HEADER,
    OFFSET_HEADER,
    PARTITION_HEADER,
    QUEUE_HEADER,
    REASON_HEADER,
)
from millstream.broker.queues.events import DeadLettersIntended
from millstream.broker.queues.job_browser import browse_jobs
from millstream.broker.queues.queue import WorkQueue
from millstream.broker.queues.values import QueueCounts, QueueLimits
from millstream.errors import DamagedRecords, InvalidRecord
from millstream.records.batch import decode_header, seal
from millstream.records.compression import Codec
from millstream.testing import ManualClock, SimulatedFilesystem, sample_crash_states
from tests.broker.junk_batches import JUNK, RECORDS
from tests.broker.partitions import append, batch
from tests.in_loop import in_loop

from .queue_node import Node, Rows, receipts_of


async def started(**changes: object) -> Node:
    node = Node(**changes)  # type: ignore[arg-type]
    await node.start()
    return node


async def filled(node: Node, *junk: bytes) -> WorkQueue:
    """Make a queue of a topic that has the junk between two jobs."""
    await node.topics.create("q")
    await node.put(b"before")
    await store(node, *junk)
    await node.put(b"after")
    return await node.queue()


async def store(node: Node, *junk: bytes, name: str = "q") -> None:
    partition = node.topics.get(name).partitions[0]
    await partition.open()
    for stored in junk:
        await append(partition, stored)


async def moved(queue: WorkQueue, count: int) -> None:
    """Return when so many dead letters were moved: compressed batches are read in threads."""
    while queue.counts().dead != count:  # noqa: ASYNC110 - Nobody is told when one is moved.
        await asyncio.sleep(0)


def values(claimed: object) -> list[bytes]:
    return [job.record.value for job in claimed.jobs]  # type: ignore[attr-defined]


# Producing.


@pytest.mark.parametrize("kind", JUNK)
@in_loop
async def test_a_queue_refuses_a_batch_that_cannot_be_decoded(kind: str) -> None:
    node = await started()
    queue = await node.queue()
    partition = node.topics.get("q").partitions[0]
    with pytest.raises(InvalidRecord, match="cannot read the records"):
        await append(partition, JUNK[kind]())
    await append(partition, batch(b"1", codec=Codec.GZIP))
    assert partition.high_watermark == 1
    assert values(await queue.claim(max_jobs=9)) == [b"1"]
    await node.stop()


@in_loop
async def test_a_queue_looks_into_batches_for_as_long_as_it_exists() -> None:
    """After a restart, with more partitions and other settings, until it is deleted."""
    node = await started()
    await node.queue()
    await node.restart()
    await node.topics.add_partitions("q", 2)
    await node.topics.alter("q", {"max.message.bytes": "5000"})
    await node.quiet()
    for partition in node.topics.get("q").partitions:
        with pytest.raises(InvalidRecord, match="cannot read the records"):
            await append(partition, JUNK["gzip"]())
    await node.queues.delete("q")
    for partition in node.topics.get("q").partitions:
        await append(partition, JUNK["gzip"]())
    await node.stop()


# What is there already.


@pytest.mark.parametrize("kind", JUNK)
@in_loop
async def test_a_damaged_batch_becomes_one_dead_letter_and_the_rest_flows(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    node = await started()
    junk = JUNK[kind]()
    queue = await filled(node, junk)
    with caplog.at_level(logging.ERROR):
        assert values(await queue.claim(max_jobs=9)) == [b"before"]
        assert values(await queue.claim(max_jobs=9)) == [b"after"]
    assert "records of partition 0 cannot be delivered" in caplog.text
    await moved(queue, 1)
    assert queue.counts() == QueueCounts(3, 0, 2, 0, 0, 1, 2, 0, damaged=1)
    [letter] = await node.records("q-dead")
    headers = dict(letter.headers)
    assert headers[ERROR_HEADER]
    assert [
        headers[name]
        for name in (
            QUEUE_HEADER,
            PARTITION_HEADER,
            OFFSET_HEADER,
            LAST_OFFSET_HEADER,
            DELIVERIES_HEADER,
            REASON_HEADER,
        )
    ] == [b"q", b"0", b"1", b"%d" % RECORDS, b"0", DAMAGED.encode()]
    assert letter.value is not None
    assert decode_header(letter.value).base_offset == 1
    assert letter.value[21:] == junk[21:], "the value is the batch, as it is stored"
    await node.restart()
    queue = node.queues.get("q")
    assert queue.counts() == QueueCounts(3, 0, 2, 0, 0, 1, 2, 0, damaged=1)
    await node.stop()


@in_loop
async def test_a_claim_finds_the_job_behind_any_number_of_damaged_batches() -> None:
    node = await started()
    await node.topics.create("q")
    await store(node, *[make() for make in JUNK.values()])
    await node.put(b"job")
    queue = await node.queue()
    assert values(await queue.claim(max_jobs=9)) == [b"job"]
    count = len(JUNK)
    await moved(queue, count)
    assert queue.counts() == QueueCounts(count + 1, 0, 1, 0, 0, count, 1, 0, damaged=count)
    assert len(await node.records("q-dead")) == count
    await node.stop()


@in_loop
async def test_a_queue_of_nothing_but_damage_is_empty_in_the_end() -> None:
    node = await started()
    await node.topics.create("q")
    await store(node, JUNK["zstd"]())
    queue = await node.queue()
    assert queue.counts().ready == RECORDS, "nobody has looked yet"
    assert values(await queue.claim()) == []
    await moved(queue, 1)
    assert queue.counts() == QueueCounts(1, 0, 0, 0, 0, 1, 0, 0, damaged=1)
    await node.stop()


@in_loop
async def test_damage_waits_while_too_many_jobs_are_not_finished() -> None:
    node = await started(limits=QueueLimits(unfinished_max=1))
    queue = await filled(node, JUNK["gzip"]())
    [job] = (await queue.claim(max_jobs=9)).jobs
    assert values(await queue.claim(max_jobs=9)) == []
    assert queue.counts().damaged == 0
    await queue.ack([job.receipt])
    assert values(await queue.claim(max_jobs=9)) == []
    await moved(queue, 1)
    assert values(await queue.claim(max_jobs=9)) == [b"after"]
    await node.stop()


@in_loop
async def test_a_batch_that_the_dead_letter_topic_refuses_is_a_letter_without_it() -> None:
    node = await started()
    await node.topics.create("q-dead", configs={"max.message.bytes": "1000"})
    await node.topics.create("q")
    large = batch(b"x" * 2_000, b"y")
    await store(node, JUNK["gzip"](), seal(decode_header(large), b"\xff" * 2_000))
    queue = await node.queue()
    await queue.claim()
    await moved(queue, 2)
    letters = {
        dict(letter.headers)[OFFSET_HEADER]: letter for letter in await node.records("q-dead")
    }
    assert letters[b"0"].value is not None
    without = letters[b"%d" % RECORDS]
    assert (without.value, dict(without.headers)[LAST_OFFSET_HEADER]) == (None, b"4")
    await node.stop()


@in_loop
async def test_damage_in_the_dead_letter_topic_holds_up_nobody() -> None:
    """After a restart the queue looks for its letters there, and finds what others wrote."""
    node = await started()
    await node.topics.create("q-dead")
    queue = await node.queue(deliveries_max=1)
    await node.put(b"1")
    await queue.claim()
    await store(node, *[make() for make in JUNK.values()], name="q-dead")
    event = DeadLettersIntended(node.topics.get("q-dead").id.bytes, [0], [(0, [0])], [])
    await queue.store.wait(queue.store.commit(event))
    await node.restart()
    queue = node.queues.get("q")
    await moved(queue, 1)
    await node.stop()


@in_loop
async def test_browsing_shows_the_jobs_around_damage() -> None:
    node = await started()
    queue = await filled(node, JUNK["gzip"]())
    page = await browse_jobs(queue, state=None, after=None, limit=9)
    assert [job.record.value for job in page.jobs] == [b"before", b"after"]
    await node.stop()


@in_loop
async def test_a_damaged_batch_is_kept_from_retention_until_it_is_a_dead_letter() -> None:
    node = await started()
    await filled(node, JUNK["gzip"]())
    partition = node.topics.get("q").partitions[0]
    assert partition.retention_hold is not None
    queue = node.queues.get("q")
    await queue.ack(receipts_of((await queue.claim(max_jobs=9)).jobs))
    assert partition.retention_hold.needed_offset() == 1
    await queue.ack(receipts_of((await queue.claim(max_jobs=9)).jobs))
    await moved(queue, 1)
    assert partition.retention_hold.needed_offset() == 2 + RECORDS
    await node.stop()


@pytest.mark.parametrize("seed", range(20))
@in_loop
async def test_each_job_is_done_once_and_each_damaged_batch_is_one_letter(seed: int) -> None:
    """Jobs and damage in any order, and workers that ack, return and release what they claim."""
    rng = random.Random(seed)
    node = await started(seed=seed, limits=QueueLimits(events_bytes_min=300))
    await node.topics.create("q", partitions=2)
    jobs, junk = 0, set()
    for _ in range(rng.randrange(5, 25)):
        partition = node.topics.get("q").partitions[rng.randrange(2)]
        await partition.open()
        if rng.random() < 0.5:
            junk.add((partition.index, partition.high_watermark))
            await append(partition, rng.choice(list(JUNK.values()))())
        else:
            count = rng.randrange(1, 4)
            await node.put(*[b"job"] * count, partitions=[partition.index] * count)
            jobs += count
    queue = await node.queue(deliveries_max=1_000)
    done: set[tuple[int, int]] = set()
    while len(done) < jobs or queue.counts().dead < len(junk):
        claimed = (await queue.claim(max_jobs=rng.randrange(1, 6))).jobs
        if claimed and rng.random() < 0.3:
            await rng.choice([queue.nack, queue.release])(receipts_of(claimed))
        elif claimed:
            await queue.ack(receipts_of(claimed))
            positions = {(job.partition, job.record.offset) for job in claimed}
            assert not positions & done
            done |= positions
        counts = queue.counts()
        assert counts.acked == len(done)
        assert counts.dead <= counts.damaged <= len(junk)
    counts = queue.counts()
    enqueued = jobs + len(junk)
    assert counts == QueueCounts(
        enqueued, 0, 0, 0, jobs, len(junk), counts.delivered, 0, damaged=len(junk)
    )
    headers = [dict(letter.headers) for letter in await node.records("q-dead")]
    assert sorted(
        (int(letter[PARTITION_HEADER] or b""), int(letter[OFFSET_HEADER] or b""))
        for letter in headers
    ) == sorted(junk), "each is there once"
    await node.stop()


# Crashes.


@in_loop
async def test_every_power_cut_leaves_one_dead_letter_of_a_damaged_batch() -> None:
    disk, metadata = SimulatedFilesystem(), Rows()
    node = Node(disk, metadata, limits=QueueLimits(events_bytes_min=200))
    await node.start()
    queue = await filled(node, JUNK["gzip"](), JUNK["malformed record"]())
    disk.note("ready")
    for _ in range(3):
        claimed = (await queue.claim(max_jobs=9)).jobs
        if claimed:
            await queue.ack(receipts_of(claimed))
    await moved(queue, 2)
    await node.stop()
    intents = 0
    for number, state in enumerate(sample_crash_states(disk.trace, 80, seed=1)):
        if not state.notes:
            continue
        clock = ManualClock(boot_id="boot-2")
        after = Node(state.filesystem(), metadata.copy(), seed=number, clock=clock)
        await after.start()
        queue = after.queues.get("q")
        intents += queue.store.state.intent is not None
        for _ in range(3):
            await after.advance(60_000)
            if claimed := (await queue.claim(max_jobs=9)).jobs:
                await queue.ack(receipts_of(claimed))
        await moved(queue, 2)
        counts = queue.counts()
        assert counts == QueueCounts(4, 0, 0, 0, 2, 2, counts.delivered, 0, damaged=2), f"{state}"
        letters = [dict(letter.headers)[OFFSET_HEADER] for letter in await after.records("q-dead")]
        assert sorted(letters, key=str) == [b"1", b"%d" % (1 + RECORDS)], f"{state}"
        await after.stop()
    assert intents, "some cuts fall between the intent and its end"


# Claims that count on jobs which disappear.


@in_loop
async def test_a_claim_that_does_not_wait_gets_the_next_job_if_the_first_was_deleted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = await started()
    queue = await node.queue()
    await node.put(b"a:1", b"b:2", b"c:3")
    await queue.nack(receipts_of((await queue.claim(max_jobs=2)).jobs))
    partition = node.topics.get("q").partitions[0]
    read = claims.read_offsets
    keys = [b"a", b"b"]

    async def delete_and_read(*arguments: object, **options: object) -> object:
        if keys:
            await partition.delete_keys(key=keys.pop(0))
        return await read(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(claims, "read_offsets", delete_and_read)
    assert values(await queue.claim(max_jobs=1)) == [b"c:3"]
    await node.stop()


# Damage that the log reports, such as a wrong checksum.


def damage_offsets(node: Node, first: int, last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reads of these offsets fail; others return one batch at a time."""
    reader = node.topics.get("q").partitions[0].reader
    read = reader.read

    def fail_or_read(offset: int, *, size_max: int, **options: bool) -> FetchResult:
        if first <= offset <= last:
            raise DamagedRecords("file", "wrong checksum", from_offset=first, to_offset=last)
        return read(offset, size_max=min(size_max, 1), **options)

    monkeypatch.setattr(reader, "read", fail_or_read)


@in_loop
async def test_jobs_that_were_delivered_and_are_lost_since_are_dead_letters_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = await started()
    queue = await node.queue()
    for value in (b"0", b"1", b"2", b"3", b"4", b"5"):
        await node.put(value)
    await queue.nack(receipts_of((await queue.claim(max_jobs=4)).jobs))
    await node.restart()
    queue = node.queues.get("q")
    damage_offsets(node, 1, 4, monkeypatch)
    jobs = []
    for _ in range(3):
        jobs += values(await queue.claim(max_jobs=9))
    assert jobs == [b"0", b"5"], "offsets 1 to 3 were delivered before, and 4 was not"
    await moved(queue, 4)
    assert queue.counts() == QueueCounts(6, 0, 2, 0, 0, 4, 6, 0, damaged=1)
    letters = [dict(letter.headers) for letter in await node.records("q-dead")]
    assert sorted(
        (letter[OFFSET_HEADER], letter[LAST_OFFSET_HEADER], letter[DELIVERIES_HEADER])
        for letter in letters
    ) == [(b"1", b"1", b"1"), (b"2", b"2", b"1"), (b"3", b"3", b"1"), (b"4", b"4", b"0")]
    assert {letter[ERROR_HEADER] for letter in letters} == {b"wrong checksum"}
    await node.stop()
