"""A queue compared with a model, under workers, clocks and restarts (P18-P21)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from millstream.broker.queues.dead_letter_mover import OFFSET_HEADER, PARTITION_HEADER
from millstream.broker.queues.values import QueueCounts, QueueLimits
from millstream.errors import StaleReceipt

from .queue_node import Node

EXAMPLES = 10_000 if os.environ.get("MILLSTREAM_LONG") else 200
PARTITIONS = 2
LEASE_MS = 1000
DELIVERIES_MAX = 3
ENDED_MAX = 4
KEYS = [b"a", b"b", b"c"]

READY, LEASED, DELAYED, ACKED, DEAD, REMOVED = "ready", "leased", "delayed", "acked", "dead", "gone"
FINISHED = (ACKED, DEAD, REMOVED)

T = TypeVar("T")


@dataclass
class ModelJob:
    """A job in the model."""

    key: bytes
    state: str = READY
    deliveries: int = 0
    due_ms: int = 0
    length_ms: int = 0
    holder: str | None = None
    """The receipt that counts, if any does: also late, as long as nobody else has the job."""
    acked_by: str | None = None
    number: int = 0
    """Number of its newest delivery, with those that were released."""
    receipts: list[str] = field(default_factory=list)

    @property
    def ends(self) -> bool:
        return self.state in FINISHED


@dataclass
class Model:
    """All jobs by partition and offset."""

    now_ms: int = 0
    jobs: dict[tuple[int, int], ModelJob] = field(default_factory=dict)
    delivered: int = 0
    ends_otherwise: int = 0
    """Jobs that did not end by an ack of their first delivery."""

    def pass_time(self, ms: int) -> None:
        self.now_ms += ms
        self.sort_out()

    def sort_out(self) -> None:
        for job in self.jobs.values():
            if job.state in (LEASED, DELAYED) and job.due_ms <= self.now_ms:
                if job.deliveries >= DELIVERIES_MAX:
                    self.end(job, DEAD)
                else:
                    job.state = READY

    def end(self, job: ModelJob, how: str) -> None:
        job.state = how
        job.holder = None
        self.ends_otherwise += not (how == ACKED and job.number == 1)

    def count(self, *states: str) -> int:
        return sum(job.state in states for job in self.jobs.values())


class QueueModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.model = Model()
        self.issued: list[tuple[tuple[int, int], str]] = []
        self.boots = 1

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(work)

    @initialize(seed=st.integers(0, 2**16))
    def start(self, seed: int) -> None:
        limits = QueueLimits(ended_max=ENDED_MAX, events_bytes_min=400)
        self.node = Node(seed=seed, limits=limits)
        self.do(self.node.start())
        self.queue = self.do(
            self.node.queue(partitions=PARTITIONS, lease_ms=LEASE_MS, deliveries_max=DELIVERIES_MAX)
        )

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.do(self.node.stop())
        self.loop.close()

    # Producers and operators.

    @rule(
        partition=st.integers(0, PARTITIONS - 1),
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=5),
    )
    def append(self, partition: int, keys: list[bytes]) -> None:
        values = [key + b":" for key in keys]
        offsets = self.do(self.node.put(*values, partitions=[partition] * len(keys)))
        for offset, key in zip(offsets, keys, strict=True):
            self.model.jobs[partition, offset] = ModelJob(key)
        self.do(self.node.quiet())

    @rule(partition=st.integers(0, PARTITIONS - 1), key=st.sampled_from(KEYS))
    def delete_key(self, partition: int, key: bytes) -> None:
        self.do(self.node.topics.partition("q", partition).delete_keys(key=key))
        self.remove(lambda place, job: place[0] == partition and job.key == key)

    @rule(partition=st.integers(0, PARTITIONS - 1), share=st.floats(0, 1))
    def delete_before(self, partition: int, share: float) -> None:
        found = self.node.topics.partition("q", partition)
        before = round(found.high_watermark * share)
        self.do(found.delete_before(before))
        self.remove(lambda place, _: place[0] == partition and place[1] < before)

    def remove(self, is_gone: Any) -> None:
        for place, job in self.model.jobs.items():
            if not job.ends and is_gone(place, job):
                self.model.end(job, REMOVED)
        self.do(self.node.quiet())

    # Workers.

    @rule(max_jobs=st.integers(1, 6), lease_ms=st.sampled_from([100, LEASE_MS, 5000]))
    def claim(self, max_jobs: int, lease_ms: int) -> None:
        model = self.model
        came_back = [job for job in model.jobs.values() if job.state == READY and job.number]
        dues = sorted(job.due_ms for job in came_back)
        fresh = {
            place: job for place, job in model.jobs.items() if job.state == READY and not job.number
        }
        claimed = self.do(self.queue.claim(max_jobs=max_jobs, lease_ms=lease_ms)).jobs
        assert len(claimed) == min(max_jobs, len(came_back) + len(fresh)), "all there is goes out"
        seen: set[tuple[int, int]] = set()
        for row, handed in enumerate(claimed):
            place = handed.partition, handed.record.offset
            assert place not in seen
            seen.add(place)
            job = model.jobs[place]
            assert job.state == READY, f"{place} is {job.state}: it is not leased (P18)"
            assert handed.deliveries == job.deliveries + 1, "only a release undoes one (P21)"
            assert handed.record.key == job.key
            if row < len(dues):
                assert job.number, "returned jobs come first"
                assert job.due_ms == dues[row], "by when they did"
            else:
                first = min(o for (p, o) in fresh if p == place[0])
                assert place[1] == first, "then the others, by their offsets"
                del fresh[place]
            assert handed.receipt not in job.receipts, "a receipt is for one delivery"
        for handed in claimed:
            job = model.jobs[handed.partition, handed.record.offset]
            job.state, job.deliveries = LEASED, handed.deliveries
            job.number += 1
            job.due_ms, job.length_ms = model.now_ms + lease_ms, lease_ms
            job.holder = handed.receipt
            job.receipts.append(handed.receipt)
            self.issued.append(((handed.partition, handed.record.offset), handed.receipt))
        model.delivered += len(claimed)

    @precondition(lambda self: self.issued)
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        chosen = self.choose(data)
        stale = self.ask(self.queue.ack([receipt for _, receipt in chosen]))
        for place, receipt in chosen:
            job = self.model.jobs[place]
            if job.holder == receipt:
                assert receipt not in stale, "the newest receipt counts, also late"
                job.acked_by = receipt
                self.model.end(job, ACKED)
            elif job.acked_by == receipt:
                is_forgotten = self.model.ends_otherwise > ENDED_MAX
                assert receipt not in stale or is_forgotten, "repeating an ack is fine (P20)"
            else:
                assert receipt in stale, "an old receipt is refused (P20)"

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), delay_ms=st.sampled_from([0, 0, 100, 3000]))
    def nack(self, data: st.DataObject, delay_ms: int) -> None:
        chosen = self.choose(data)
        stale = self.ask(self.queue.nack([one for _, one in chosen], delay_ms=delay_ms))
        for place, receipt in chosen:
            job = self.model.jobs[place]
            assert (receipt in stale) == (job.holder != receipt)
        for place, receipt in chosen:
            job = self.model.jobs[place]
            if job.holder == receipt:
                job.state, job.holder = DELAYED, None
                job.due_ms, job.length_ms = self.model.now_ms + delay_ms, delay_ms
        self.do(self.node.quiet())

    @precondition(lambda self: self.issued)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        chosen = self.choose(data)
        stale = self.ask(self.queue.release([one for _, one in chosen]))
        for place, receipt in chosen:
            job = self.model.jobs[place]
            assert (receipt in stale) == (job.holder != receipt)
        for place, receipt in chosen:
            job = self.model.jobs[place]
            if job.holder == receipt:
                job.state, job.holder = DELAYED, None
                job.deliveries -= 1
                job.due_ms, job.length_ms = self.model.now_ms, 0
        self.do(self.node.quiet())

    @precondition(lambda self: self.issued)
    @rule(data=st.data(), lease_ms=st.sampled_from([100, 2000]))
    def extend(self, data: st.DataObject, lease_ms: int) -> None:
        chosen = self.choose(data)
        stale = self.ask(self.queue.extend([one for _, one in chosen], lease_ms=lease_ms))
        for place, receipt in chosen:
            job = self.model.jobs[place]
            assert (receipt in stale) == (job.holder != receipt)
            if job.holder == receipt:
                job.state = LEASED
                job.due_ms, job.length_ms = self.model.now_ms + lease_ms, lease_ms

    def choose(self, data: st.DataObject) -> list[tuple[tuple[int, int], str]]:
        places = st.integers(0, len(self.issued) - 1)
        rows = data.draw(st.lists(places, min_size=1, max_size=4, unique=True))
        return [self.issued[row] for row in rows]

    def ask(self, work: Coroutine[Any, Any, Any]) -> tuple[str, ...]:
        """Return which receipts are stale."""
        try:
            self.do(work)
        except StaleReceipt as error:
            return error.receipts
        return ()

    # Time and failures.

    @rule(ms=st.sampled_from([1, 99, 100, 500, 1000, 5000]))
    def wait(self, ms: int) -> None:
        self.model.pass_time(ms)
        self.do(self.node.advance(ms))

    @rule(ms=st.sampled_from([-(10**9), 10**9]))
    def jump_the_wall_clock(self, ms: int) -> None:
        self.node.clock.jump_wall(ms)

    @rule()
    def compact(self) -> None:
        async def work() -> None:
            await self.queue.store.wait(self.queue.store.compact())

        self.do(work())

    @rule()
    def restart(self) -> None:
        self.do(self.node.restart())
        self.queue = self.node.queues.get("q")
        self.do(self.node.quiet())

    @rule(seed=st.none() | st.integers(0, 100))
    def cut_the_power(self, seed: int | None) -> None:
        """Everything was answered, so everything is durable. The clock continues."""
        self.do(self.node.queues.close())
        self.node.disk = self.node.disk.crash(seed)
        self.do(self.node.quiet())
        self.do(self.node.start())
        self.queue = self.node.queues.get("q")
        self.do(self.node.quiet())

    @rule()
    def reboot(self) -> None:
        self.do(self.node.stop())
        self.boots += 1
        self.node.clock.reboot(f"boot-{self.boots}")
        self.do(self.node.start())
        self.queue = self.node.queues.get("q")
        self.model.now_ms = 0
        for job in self.model.jobs.values():
            if not job.ends and job.number:
                # Jobs that had expired and were not claimed again start again, too.
                job.state = LEASED if job.holder else DELAYED
                job.due_ms = job.length_ms
        self.do(self.node.quiet())

    # Invariants when nothing is in flight.

    @invariant()
    def every_job_is_in_one_place(self) -> None:
        if not hasattr(self, "queue"):
            return
        model = self.model
        model.sort_out()
        counts = self.do(self.counted())
        assert counts.ready == model.count(READY)
        assert counts.leased == model.count(LEASED)
        assert counts.delayed == model.count(DELAYED)
        assert counts.acked == model.count(ACKED)
        assert counts.dead == model.count(DEAD)
        assert counts.delivered == model.delivered
        assert counts.enqueued == len(model.jobs) - model.count(REMOVED), "conserved (P21)"
        assert counts.removed <= model.count(REMOVED), "the rest is counted when passed over"
        letters = [dict(one.headers) for one in self.do(self.node.records("q-dead"))]
        found = sorted(
            (int(one[PARTITION_HEADER] or b""), int(one[OFFSET_HEADER] or b"")) for one in letters
        )
        dead = sorted(place for place, job in model.jobs.items() if job.state == DEAD)
        assert found == dead, "each dead letter is there once (P21)"

    async def counted(self) -> QueueCounts:
        return self.queue.counts()


TestQueue = QueueModel.TestCase
TestQueue.settings = settings(max_examples=EXAMPLES, stateful_step_count=30, deadline=None)
