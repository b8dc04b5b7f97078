"""Append queue: admission, refused offsets, deadlines, early acknowledgements, watchers."""

from __future__ import annotations

import asyncio
import errno
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.config.schema import Durability, LogConfig, StoreConfig
from millstream.errors import (
    DeadlineExceeded,
    DiskFull,
    InvalidBatch,
    LogClosed,
    LogOffline,
    OutOfOrderSequence,
)
from millstream.records.batch import decode_header
from millstream.storage.append.append_queue import AppendQueue
from millstream.storage.append.byte_budget import ByteBudget
from millstream.storage.append.pending_append import Appended, PendingAppend
from millstream.storage.segment.counters import LogCounters
from millstream.testing import Fault, FaultyFilesystem, SimulatedFilesystem
from tests.in_loop import in_loop
from tests.storage.logs import HeldExecutor, batch_of, make_store, turns

BATCH = batch_of(b"v")
TIGHT = LogConfig(unflushed_bytes_max=len(BATCH))


class Producer:
    """Records the offsets that it is given, and refuses some of them."""

    def __init__(self, *refused: int) -> None:
        self.received: list[int] = []
        self._refused = refused

    def __call__(self, offset: int) -> None:
        self.received.append(offset)
        if offset in self._refused:
            raise OutOfOrderSequence(f"not at {offset}")


class Listener:
    """An append waiter without a future; records the outcome."""

    def __init__(self) -> None:
        self.received: list[Appended | Exception] = []
        self.is_gone = False

    def done(self) -> bool:
        return self.is_gone or bool(self.received)

    def set_result(self, result: Appended, /) -> None:
        self.received.append(result)

    def set_exception(self, exception: Exception, /) -> None:
        self.received.append(exception)

    @property
    def offsets(self) -> list[int]:
        return [received.offset for received in self.received if isinstance(received, Appended)]


# Offsets on admission.


@in_loop
async def test_an_appender_is_told_its_offset_before_anything_is_written():
    disk = SimulatedFilesystem()
    log = await make_store(disk).log("a")
    producer = Producer()
    before = len(disk.trace.events)
    future = log.submit(batch_of(b"a", b"b", b"c"), on_admit=producer)
    assert producer.received == [0]
    assert len(disk.trace.events) == before
    assert (log.next_offset, log.end_offset) == (3, 0)
    assert (await future).offset == 0
    assert (log.next_offset, log.end_offset) == (3, 3)


@in_loop
async def test_appenders_are_told_in_the_order_of_offsets_those_who_waited_too():
    background = HeldExecutor()
    log = await make_store(background=background, config=TIGHT).log("a")
    background.is_held = True
    producer = Producer()
    futures = [log.submit(batch_of(b"v"), on_admit=producer) for _ in range(5)]
    await turns()
    assert producer.received == [0], "the others have no offset yet"
    background.let_go()
    assert [(await future).offset for future in futures] == producer.received == [0, 1, 2, 3, 4]


@in_loop
async def test_an_appender_that_gave_up_before_it_was_admitted_is_told_nothing():
    background = HeldExecutor()
    log = await make_store(background=background, config=TIGHT).log("a")
    background.is_held = True
    first = log.submit(BATCH)
    producer = Producer()
    second = log.submit(BATCH, on_admit=producer)
    second.cancel()
    third = log.submit(BATCH)
    background.let_go()
    assert [(await first).offset, (await third).offset] == [0, 1]
    assert producer.received == []


@in_loop
async def test_a_batch_that_was_admitted_runs_to_its_end_though_no_one_waits():
    log = await make_store().log("a")
    future = log.submit(BATCH)
    future.cancel()
    assert (await log.append(BATCH)).offset == 1
    assert [record.offset for record in log.records()] == [0, 1]


@in_loop
async def test_a_batch_that_is_not_sound_is_refused_at_once_and_no_one_is_told():
    log = await make_store().log("a")
    producer = Producer()
    with pytest.raises(InvalidBatch):
        log.submit(BATCH[:-1], on_admit=producer)
    assert (producer.received, log.next_offset) == ([], 0)


@in_loop
async def test_a_deadline_ends_the_waiting_of_a_submitted_batch():
    background = HeldExecutor()
    log = await make_store(background=background, config=TIGHT).log("a")
    background.is_held = True
    admitted = log.submit(BATCH, timeout=0)
    producer = Producer()
    waiting = log.submit(BATCH, on_admit=producer, timeout=0)
    with pytest.raises(DeadlineExceeded, match=r"not admitted within 0 s: .* bytes are unflushed"):
        await waiting
    background.let_go()
    assert (await admitted).offset == 0, "what was admitted has no deadline"
    assert producer.received == []


# Refusing.


@in_loop
async def test_a_refused_batch_takes_no_offset_and_its_future_says_why():
    log = await make_store().log("a")
    refused = log.submit(BATCH, on_admit=Producer(0))
    with pytest.raises(OutOfOrderSequence, match="not at 0"):
        await refused
    assert (log.next_offset, log.unflushed_bytes) == (0, 0)
    assert (await log.append(BATCH)).offset == 0
    assert log.counters.appends == 1


@in_loop
async def test_a_refusal_between_others_leaves_their_offsets_dense():
    log = await make_store().log("a")
    producer = Producer()
    first = log.submit(BATCH, on_admit=producer)
    second = log.submit(BATCH, on_admit=Producer(1))
    third = log.submit(BATCH, on_admit=producer)
    results = await asyncio.gather(first, second, third, return_exceptions=True)
    assert [results[0].offset, results[2].offset] == producer.received == [0, 1]
    assert isinstance(results[1], OutOfOrderSequence)


@in_loop
async def test_those_who_wait_behind_a_refused_batch_are_served():
    background = HeldExecutor()
    config = StoreConfig(unflushed_bytes_max=len(BATCH))
    store = make_store(background=background, store_config=config)
    log, other = await store.log("a"), await store.log("b")
    background.is_held = True
    first = log.submit(BATCH)
    refused = [log.submit(BATCH, on_admit=Producer(1)) for _ in range(3)]
    last = log.submit(BATCH)
    elsewhere = other.submit(BATCH)
    background.let_go()
    results = await asyncio.gather(first, *refused, last, elsewhere, return_exceptions=True)
    assert all(isinstance(result, OutOfOrderSequence) for result in results[1:4])
    assert [result.offset for result in (results[0], *results[4:])] == [0, 1, 0]
    assert (log.unflushed_bytes, other.unflushed_bytes) == (0, 0)


@in_loop
async def test_an_error_of_the_appenders_own_reaches_it_and_stops_no_one_else():
    background = HeldExecutor()
    log = await make_store(background=background, config=TIGHT).log("a")
    background.is_held = True

    def broken(offset: int) -> None:
        raise ZeroDivisionError

    first = log.submit(BATCH)
    second = log.submit(BATCH, on_admit=broken)
    third = log.submit(BATCH)
    background.let_go()
    with pytest.raises(ZeroDivisionError):
        await second
    assert [(await first).offset, (await third).offset] == [0, 1]


# Taking back.


@in_loop
async def test_offsets_of_a_refused_write_are_taken_back_once_and_before_anyone_hears_of_it():
    disk = SimulatedFilesystem()
    log = await make_store(disk).log("a")
    await log.append(batch_of(b"a", b"b"))
    events: list[object] = []
    log.on_rewind = events.append
    disk.bytes_max = disk.bytes_used
    futures = [log.submit(batch_of(b"x" * 100_000)) for _ in range(3)]
    for future in futures:
        future.add_done_callback(lambda _: events.append("received"))
    assert log.next_offset == 5
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(result, DiskFull) for result in results)
    assert events == [2, "received", "received", "received"]
    assert log.next_offset == log.end_offset == 2
    disk.free(1_000_000)
    assert (await log.append(BATCH)).offset == 2
    assert events[0] == 2


@in_loop
async def test_a_log_that_goes_offline_takes_back_all_that_is_not_committed():
    background = HeldExecutor()
    fault = Fault(call=2, only=["sync"], path=".log")
    log = await make_store(
        FaultyFilesystem(SimulatedFilesystem(), fault), background=background
    ).log("a")
    await log.append(BATCH)
    rewinds: list[int] = []
    log.on_rewind = rewinds.append
    background.is_held = True
    written = log.submit(BATCH)
    await turns()
    pending = log.submit(BATCH)
    background.let_go()
    results = await asyncio.gather(written, pending, return_exceptions=True)
    assert all(isinstance(result, LogOffline) for result in results)
    assert rewinds == [1]
    assert log.next_offset == log.end_offset == 1


@in_loop
async def test_nothing_is_taken_back_where_nothing_was_given():
    disk = SimulatedFilesystem()
    background = HeldExecutor()
    fault = Fault(call=1, only=["write_at"], path=".log", error=errno.EIO)
    store = make_store(FaultyFilesystem(disk, fault), background=background, config=TIGHT)
    log = await store.log("a")
    rewinds: list[int] = []
    log.on_rewind = rewinds.append
    futures = [log.submit(BATCH) for _ in range(3)]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(result, LogOffline) for result in results)
    assert rewinds == [0], "those who waited for admission had no offset"


@in_loop
async def test_class_memory_takes_back_what_it_had_acknowledged():
    disk = SimulatedFilesystem()
    log = await make_store(disk, config=LogConfig(durability=Durability.MEMORY)).log("a")
    rewinds: list[int] = []
    log.on_rewind = rewinds.append
    disk.bytes_max = disk.bytes_used
    assert (await log.append(batch_of(b"x" * 100_000))).offset == 0
    await turns()
    assert rewinds == [0]
    assert log.next_offset == 0


# Being acknowledged early.


@in_loop
async def test_an_early_batch_is_acknowledged_once_it_is_written_and_seen_once_it_is_committed():
    background = HeldExecutor()
    disk = SimulatedFilesystem()
    log = await make_store(disk, background=background).log("a")
    background.is_held = True
    early, late = log.submit(BATCH, is_early=True), log.submit(BATCH)
    assert not early.done(), "it is not written yet"
    await turns()
    assert early.done()
    assert not late.done()
    assert (log.next_offset, log.end_offset) == (2, 0)
    assert list(log.records()) == []
    killed = await make_store(disk.copy()).log("a")
    assert [record.offset for record in killed.records()] == [0, 1], "it survives its process"
    background.let_go()
    assert [(await early).offset, (await late).offset] == [0, 1]
    assert [record.offset for record in log.records()] == [0, 1]


@in_loop
async def test_an_early_batch_that_cannot_be_written_is_refused_as_any_other():
    disk = SimulatedFilesystem()
    log = await make_store(disk).log("a")
    disk.bytes_max = disk.bytes_used
    with pytest.raises(DiskFull):
        await log.submit(batch_of(b"x" * 100_000), is_early=True)
    assert log.next_offset == 0


@in_loop
async def test_an_early_batch_waits_for_admission_as_any_other():
    background = HeldExecutor()
    log = await make_store(background=background, config=TIGHT).log("a")
    background.is_held = True
    first, second = (log.submit(BATCH, is_early=True) for _ in range(2))
    await turns()
    assert first.done(), "it is written"
    assert not second.done(), "the bytes of the first are not on the disk yet"
    background.let_go()
    assert (await second).offset == 1


@in_loop
async def test_an_early_batch_whose_sync_fails_is_taken_back_and_told_once():
    background = HeldExecutor()
    fault = Fault(call=1, only=["sync"], path=".log")
    log = await make_store(
        FaultyFilesystem(SimulatedFilesystem(), fault), background=background
    ).log("a")
    rewinds: list[int] = []
    log.on_rewind = rewinds.append
    background.is_held = True
    waiter = Listener()
    log.submit_for(waiter, BATCH, decode_header(BATCH), is_early=True)
    await turns()
    background.let_go()
    await turns()
    assert (waiter.offsets, len(waiter.received), rewinds) == ([0], 1, [0])
    assert isinstance(log.offline, LogOffline)


# Waiters without a future.


@in_loop
async def test_a_waiter_is_told_of_the_commit_and_not_before():
    background = HeldExecutor()
    log = await make_store(background=background).log("a")
    background.is_held = True
    batch, waiter = batch_of(b"a", b"b"), Listener()
    log.submit_for(waiter, batch, decode_header(batch))
    await turns()
    assert waiter.received == []
    background.let_go()
    await turns()
    (appended,) = waiter.received
    assert isinstance(appended, Appended)
    assert (appended.offset, appended.last_offset) == (0, 1)
    assert appended.address is not None


@in_loop
async def test_waiters_and_futures_share_one_order():
    log = await make_store().log("a")
    waiters = [Listener() for _ in range(3)]
    futures = []
    for waiter in waiters:
        log.submit_for(waiter, BATCH, decode_header(BATCH))
        futures.append(log.submit(BATCH))
    assert [(await future).offset for future in futures] == [1, 3, 5]
    assert [waiter.offsets for waiter in waiters] == [[0], [2], [4]]


@in_loop
async def test_a_waiter_that_is_gone_is_not_told_and_its_batch_stays():
    log = await make_store().log("a")
    waiter = Listener()
    log.submit_for(waiter, BATCH, decode_header(BATCH))
    waiter.is_gone = True
    assert (await log.append(BATCH)).offset == 1
    assert waiter.received == []


@in_loop
async def test_a_waiter_is_told_why_its_batch_was_refused():
    disk = SimulatedFilesystem()
    log = await make_store(disk).log("a")
    disk.bytes_max = disk.bytes_used
    batch, waiter = batch_of(b"x" * 100_000), Listener()
    log.submit_for(waiter, batch, decode_header(batch))
    await turns()
    (refusal,) = waiter.received
    assert isinstance(refusal, DiskFull)
    await log.close()
    with pytest.raises(LogClosed):
        log.submit_for(waiter, batch, decode_header(batch))


@in_loop
async def test_a_deadline_ends_the_waiting_of_a_waiter_and_only_before_admission():
    background = HeldExecutor()
    log = await make_store(background=background, config=TIGHT).log("a")
    background.is_held = True
    admitted, waiting = Listener(), Listener()
    for waiter in (admitted, waiting):
        log.submit_for(waiter, BATCH, decode_header(BATCH), timeout=0)
    await asyncio.sleep(0.001)
    (refusal,) = waiting.received
    assert isinstance(refusal, DeadlineExceeded)
    background.let_go()
    await turns()
    assert (admitted.offsets, log.next_offset) == ([0], 1)
    assert sum(log.counters.refusals.values()) == 1


# Counters.


@pytest.mark.parametrize(
    ("limits", "waits"),
    [
        ({"unflushed_bytes_max": 10}, (1, 0, 0)),
        ({"budget": 10}, (0, 1, 0)),
        ({"is_stalled": True}, (0, 0, 1)),
        ({}, (0, 0, 0)),
    ],
)
@in_loop
async def test_what_a_batch_waits_for_is_counted(limits, waits):
    queue, counters = make_queue(**limits)
    for size in (8, 8):
        queue.submit(fake_append(size), None)
    assert tuple(counters.waits[kind] for kind in ("log", "store", "sealing")) == waits


@in_loop
async def test_a_batch_behind_others_waits_for_the_log():
    queue, counters = make_queue(unflushed_bytes_max=10)
    for size in (8, 8, 1):
        queue.submit(fake_append(size), None)
    assert tuple(counters.waits[kind] for kind in ("log", "store", "sealing")) == (2, 0, 0)


def make_queue(
    *, budget: int = 100, unflushed_bytes_max: int = 100, is_stalled: bool = False
) -> tuple[AppendQueue, LogCounters]:
    counters = LogCounters()
    context: Any = SimpleNamespace(
        name="a", counters=counters, state=SimpleNamespace(durable_offset=0)
    )
    queue = AppendQueue(
        context,
        config=LogConfig(unflushed_bytes_max=unflushed_bytes_max),
        budget=ByteBudget(budget),
        flush=lambda: None,
        is_stalled=lambda: is_stalled,
        on_rewind=lambda _: None,
    )
    return queue, counters


def fake_append(size: int) -> PendingAppend:
    append = PendingAppend(decode_header(BATCH), BATCH, Listener())
    append.size = size
    return append


# Repeated errors.


@in_loop
async def test_appends_to_a_closed_log_leave_nothing_behind_in_its_error():
    log = await make_store().log("a")
    await log.close()
    for _ in range(10):
        with pytest.raises(LogClosed) as caught:
            log.submit(BATCH)
    frames = len(list(caught.traceback))
    with pytest.raises(LogClosed) as caught:
        log.submit(BATCH)
    assert len(list(caught.traceback)) == frames


# Reusing the buffer.


@pytest.mark.parametrize("durability", [Durability.EPHEMERAL, Durability.MEMORY])
@pytest.mark.parametrize("is_future", [True, False])
@in_loop
async def test_memory_that_was_acknowledged_at_once_is_the_callers_again(durability, is_future):
    config = LogConfig(durability=durability)
    log = await make_store(config=config).log("a")
    memory = bytearray(batch_of(b"mine"))
    waiter = Listener()
    if is_future:
        log.submit(memory).add_done_callback(lambda done: waiter.set_result(done.result()))
    else:
        log.submit_for(waiter, memory, decode_header(memory))
    while not waiter.received:
        await turns(1)
    memory[:] = bytes(len(memory))
    await turns()
    assert [record.value for record in log.records()] == [b"mine"]


@in_loop
async def test_memory_is_the_callers_again_as_soon_as_it_is_acknowledged_though_unwritten():
    log = await make_store(config=LogConfig(durability=Durability.MEMORY)).log("a")
    memory = bytearray(batch_of(b"mine"))
    future = log.submit(memory)
    assert future.done(), "acknowledged by the time that it has an offset"
    memory[:] = bytes(len(memory))
    await turns()
    assert [record.value for record in log.records()] == [b"mine"]


# Watching.


@in_loop
async def test_a_watcher_is_called_after_every_commit_and_finds_the_log_moved():
    log = await make_store().log("a")
    seen: list[int] = []
    log.watch(watch := lambda: seen.append(log.end_offset))
    log.watch(watch)
    for _ in range(3):
        await log.append(BATCH)
    assert seen == [1, 2, 3]
    log.unwatch(watch)
    log.unwatch(watch)
    await log.append(BATCH)
    assert seen == [1, 2, 3]


@in_loop
async def test_a_watcher_is_called_when_records_are_deleted_and_finds_them_gone():
    log = await make_store().log("a")
    await log.append(batch_of(b"a", b"b", b"c"))
    seen: list[int] = []
    log.watch(lambda: seen.append(log.start_offset))
    await log.delete_before(2)
    assert seen == [2]
    await log.delete_before(1)
    assert seen == [2], "nothing changed"


@in_loop
async def test_a_watcher_is_called_when_the_log_goes_offline_and_when_it_is_closed():
    fault = Fault(call=1, only=["sync"], path=".log")
    store = make_store(FaultyFilesystem(SimulatedFilesystem(), fault))
    log = await store.log("a")
    seen: list[str] = []
    log.watch(lambda: seen.append("offline" if log.offline else "open"))
    with pytest.raises(LogOffline):
        await log.append(BATCH)
    assert seen == ["offline"]
    await log.close()
    assert seen == ["offline", "offline"]
    await log.close()
    assert len(seen) == 2, "it was closed already"
    with pytest.raises(LogClosed):
        await log.wait_for(1)


@in_loop
async def test_a_watcher_may_take_itself_and_others_off_while_it_is_called():
    log = await make_store().log("a")
    calls: list[str] = []

    def first() -> None:
        calls.append("first")
        log.unwatch(first)
        log.unwatch(second)
        log.watch(third)

    def second() -> None:
        calls.append("second")

    def third() -> None:
        calls.append("third")

    log.watch(first)
    log.watch(second)
    await log.append(BATCH)
    assert calls == ["first"]
    await log.append(BATCH)
    assert calls == ["first", "third"]


@in_loop
async def test_a_watcher_that_fails_harms_neither_the_log_nor_the_others(caplog):
    log = await make_store().log("a")
    calls: list[int] = []

    def broken() -> None:
        raise ZeroDivisionError

    log.watch(broken)
    log.watch(lambda: calls.append(1))
    await log.append(BATCH)
    await log.append(BATCH)
    assert len(calls) == 2
    assert "a/0: a watcher failed" in caplog.text


@in_loop
async def test_a_watcher_may_append():
    log = await make_store().log("a")
    futures: list[asyncio.Future[object]] = []

    def answer() -> None:
        if log.end_offset < 3:
            futures.append(log.submit(BATCH))

    log.watch(answer)
    await log.append(BATCH)
    await turns(100)
    assert [future.result().offset for future in futures] == [1, 2]
