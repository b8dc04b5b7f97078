"""Classes without a sync before the acknowledgement are synced soon after, by a timer."""

from __future__ import annotations

import asyncio
import errno

import pytest

from millstream.config.schema import Durability, LogConfig
from millstream.errors import LogOffline, RequestError, Unavailable
from millstream.storage.log import Log
from millstream.storage.store import Store
from millstream.testing import FaultyFilesystem, ManualClock, SimulatedFilesystem
from millstream.testing.clocks.manual_timers import ManualTimers
from millstream.testing.disk.disk_state import DiskState
from millstream.testing.disk.fault import Fault
from tests.in_loop import in_loop
from tests.storage.logs import HeldSyncer, batch_of, make_store, turns

DISK = LogConfig(durability=Durability.DISK)
WEAK = [Durability.DISK, Durability.MEMORY]


class Timed:
    """A store on a simulated disk and a clock that the test moves."""

    def __init__(
        self, disk: SimulatedFilesystem | None = None, syncer: HeldSyncer | None = None
    ) -> None:
        self.disk = disk or SimulatedFilesystem()
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.store: Store = make_store(
            self.disk, clock=self.clock, timers=self.timers, syncer=syncer
        )

    async def log(self, config: LogConfig = DISK) -> Log:
        return await self.store.log("a", config=config)

    async def pass_ms(self, milliseconds: int) -> None:
        self.timers.advance(milliseconds / 1000)
        await turns()

    async def after_power_cut(self) -> list[bytes | None]:
        """What a power cut now would leave; the store goes on."""
        disk = DiskState(self.disk.trace.start)
        for event in self.disk.trace.events:
            disk.take(event)
        return await values_on(SimulatedFilesystem(disk.certain.contents()))


async def values_on(disk: SimulatedFilesystem) -> list[bytes | None]:
    log = await make_store(disk).log("a")
    return [record.value for record in log.records()]


@pytest.mark.parametrize("durability", WEAK)
@in_loop
async def test_a_record_survives_a_power_cut_once_flush_ms_have_passed(
    durability: Durability,
) -> None:
    timed = Timed()
    log = await timed.log(LogConfig(durability=durability))
    await log.append(batch_of(b"v"))
    await turns()  # Class `memory` acknowledges first and writes then.
    await timed.pass_ms(199)
    assert await timed.after_power_cut() == []
    await timed.pass_ms(1)
    assert await timed.after_power_cut() == [b"v"]
    assert log.synced_offset == log.end_offset == 1


@in_loop
async def test_the_time_counts_from_the_first_write_that_is_not_synced() -> None:
    timed = Timed()
    log = await timed.log()
    for number in range(4):
        await log.append(batch_of(b"%d" % number))
        await timed.pass_ms(50)
    assert await timed.after_power_cut() == [b"0", b"1", b"2", b"3"]
    await log.append(batch_of(b"4"))
    await timed.pass_ms(199)
    assert len(await timed.after_power_cut()) == 4
    await timed.pass_ms(1)
    assert len(await timed.after_power_cut()) == 5


@in_loop
async def test_what_is_written_during_a_sync_is_synced_in_its_own_time() -> None:
    syncer = HeldSyncer()
    timed = Timed(syncer=syncer)
    log = await timed.log()
    await log.append(batch_of(b"1"))
    await log.flush()  # By a thread: the name of the file is synced too.
    await log.append(batch_of(b"2"))
    await timed.pass_ms(200)
    syncer.sync_now()
    await log.append(batch_of(b"3"))
    await timed.pass_ms(150)
    syncer.tell()
    await timed.pass_ms(49)
    assert await timed.after_power_cut() == [b"1", b"2"]
    await timed.pass_ms(1)
    syncer.sync_now()
    syncer.tell()
    assert await timed.after_power_cut() == [b"1", b"2", b"3"]


@in_loop
async def test_an_idle_log_sets_no_timer_and_syncs_nothing() -> None:
    timed = Timed()
    log = await timed.log()
    await log.append(batch_of(b"v"))
    await timed.pass_ms(200)
    assert timed.timers.pending == 0
    assert log.counters.syncs == 1
    await timed.pass_ms(10_000)
    assert log.counters.syncs == 1


@in_loop
async def test_flush_ms_is_a_setting_of_the_log() -> None:
    timed = Timed()
    log = await timed.log(LogConfig(durability=Durability.DISK, flush_ms=5000))
    await log.append(batch_of(b"v"))
    await timed.pass_ms(4999)
    assert await timed.after_power_cut() == []
    await log.reconfigure(LogConfig(durability=Durability.DISK, flush_ms=5001))
    await timed.pass_ms(1)
    assert await timed.after_power_cut() == []
    await timed.pass_ms(1)
    assert await timed.after_power_cut() == [b"v"]


@in_loop
async def test_a_log_with_enough_unsynced_records_does_not_wait_for_the_timer() -> None:
    timed = Timed()
    log = await timed.log(LogConfig(durability=Durability.DISK, flush_records=3))
    await log.append(batch_of(b"1", b"2"))
    await turns()
    assert await timed.after_power_cut() == []
    await log.append(batch_of(b"3"))
    await turns()
    assert await timed.after_power_cut() == [b"1", b"2", b"3"]


@pytest.mark.parametrize("durability", [*WEAK, Durability.FSYNC])
@in_loop
async def test_flush_waits_until_records_survive_a_power_cut(durability: Durability) -> None:
    timed = Timed()
    log = await timed.log(LogConfig(durability=durability))
    log.try_append(batch_of(b"1"))
    log.try_append(batch_of(b"2"))
    await log.flush(until=2)
    assert await timed.after_power_cut() == [b"1", b"2"]
    assert log.synced_offset == 2
    await log.flush()  # Nothing is left to do.
    assert timed.timers.pending == 0


@in_loop
async def test_callers_of_flush_share_a_sync() -> None:
    timed = Timed()
    log = await timed.log()
    await log.append(batch_of(b"1"))
    await log.append(batch_of(b"2"))
    await asyncio.gather(log.flush(until=1), log.flush(until=2), log.flush())
    assert log.counters.syncs == 1


@pytest.mark.parametrize("until", [-1, 2])
@in_loop
async def test_flush_refuses_an_offset_that_was_not_given(until: int) -> None:
    log = await Timed().log()
    await log.append(batch_of(b"v"))
    with pytest.raises(RequestError, match=f"until must be between 0 and 1, got {until}"):
        await log.flush(until=until)


@in_loop
async def test_memory_cannot_be_flushed() -> None:
    log = await Timed().log(LogConfig(durability=Durability.EPHEMERAL))
    with pytest.raises(RequestError, match="memory cannot be flushed"):
        await log.flush()


@in_loop
async def test_flush_fails_if_the_records_were_refused_meanwhile() -> None:
    fault = Fault(call=1, error=errno.ENOSPC, forever=True, only=["write_at"], path=".log")
    faulty = FaultyFilesystem(SimulatedFilesystem(), fault)
    log = await make_store(faulty).log("a", config=LogConfig(durability=Durability.MEMORY))
    log.try_append(batch_of(b"v"))
    with pytest.raises(Unavailable, match="were refused"):
        await log.flush()


@in_loop
async def test_a_failed_background_sync_takes_the_log_offline() -> None:
    timed = Timed()
    faulty = FaultyFilesystem(SimulatedFilesystem(), Fault(call=1, only=["sync"], path=".log"))
    store = make_store(faulty, clock=timed.clock, timers=timed.timers)
    log = await store.log("b", config=DISK)
    await log.append(batch_of(b"v"))
    await timed.pass_ms(200)
    with pytest.raises(LogOffline):
        await log.append(batch_of(b"w"))
    with pytest.raises(LogOffline):
        await log.flush()
    assert timed.timers.pending == 0


@in_loop
async def test_a_sync_covers_a_segment_that_is_full_and_the_next_one() -> None:
    timed = Timed()
    log = await timed.log(LogConfig(durability=Durability.DISK, segment_records_max=2))
    for number in range(7):
        await log.append(batch_of(b"%d" % number))
    await timed.pass_ms(200)
    assert len(await timed.after_power_cut()) == 7
    await log.roll()
    assert log.synced_offset == 7
    assert timed.timers.pending == 0


@in_loop
async def test_what_a_crash_of_the_process_left_is_durable_after_the_next_start() -> None:
    timed = Timed()
    log = await timed.log()
    await log.append(batch_of(b"v"))
    again = Timed(timed.disk.copy())  # The process died; the kernel still has the record.
    assert (await again.log()).synced_offset == 1
    assert await again.after_power_cut() == [b"v"]


@in_loop
async def test_a_log_that_becomes_fsync_and_back_keeps_its_promises() -> None:
    timed = Timed()
    log = await timed.log()
    await log.append(batch_of(b"1"))
    await log.reconfigure(LogConfig())
    assert await timed.after_power_cut() == [b"1"]
    assert timed.timers.pending == 0
    await log.append(batch_of(b"2"))
    await log.reconfigure(DISK)
    await log.append(batch_of(b"3"))
    assert log.synced_offset == 2
    await timed.pass_ms(200)
    assert await timed.after_power_cut() == [b"1", b"2", b"3"]


@in_loop
async def test_a_log_that_is_closed_during_a_sync_leaves_no_timer() -> None:
    """What was written meanwhile is synced by the seal, and not by a timer after the end."""
    syncer = HeldSyncer()
    timed = Timed(syncer=syncer)
    log = await timed.log()
    await log.append(batch_of(b"1"))
    await log.flush()
    await log.append(batch_of(b"2"))
    await timed.pass_ms(200)
    await log.append(batch_of(b"3"))
    closing = asyncio.create_task(timed.store.close())
    await turns()
    syncer.tell()
    await closing
    assert timed.timers.pending == 0
    assert await timed.after_power_cut() == [b"1", b"2", b"3"]


@in_loop
async def test_a_closed_log_leaves_no_timer() -> None:
    timed = Timed()
    log = await timed.log()
    await log.append(batch_of(b"v"))
    await timed.store.close()
    assert timed.timers.pending == 0
    assert await timed.after_power_cut() == [b"v"]
