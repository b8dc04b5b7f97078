"""Class `disk`: a power cut costs at most what was written within the last `flush_ms`."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import pytest

from millstream.config.schema import Durability, LogConfig, StoreConfig
from millstream.records.record import Record
from millstream.storage.store import Store
from millstream.testing import ManualClock, SimulatedFilesystem, sample_crash_states
from millstream.testing.clocks.manual_timers import ManualTimers
from millstream.testing.clocks.seeded_background import SeededBackground
from millstream.testing.disk.seeded_syncer import SeededSyncer
from tests.crash.workload import damage_found
from tests.storage.logs import turns

FLUSH_MS = 200
CONFIG = LogConfig(
    durability=Durability.DISK, flush_ms=FLUSH_MS, segment_bytes_max=1024, index_interval_bytes=128
)


@dataclass(frozen=True)
class Written:
    """A record was acknowledged at this time of the clock."""

    at_ms: int
    value: bytes


@dataclass(frozen=True)
class Settled:
    """The clock shows this time, and everything that was due has run."""

    at_ms: int


@dataclass(frozen=True)
class Flushed:
    """`flush` returned: these records survive from now on."""

    count: int


def open_store(disk: SimulatedFilesystem, clock: ManualClock, timers: ManualTimers) -> Store:
    store = Store(
        "/data",
        config=StoreConfig(writers_open_max=1),
        log_config=CONFIG,
        filesystem=disk,
        clock=clock,
        background=SeededBackground(1),
        syncer=SeededSyncer(1),
        timers=timers,
    )
    store.open()
    return store


async def live(disk: SimulatedFilesystem, seed: int) -> None:
    chance = random.Random(seed)
    clock = ManualClock()
    timers = ManualTimers(clock)
    store = open_store(disk, clock, timers)
    log = await store.log("a")
    now_ms = 0
    for number in range(14):
        value = b"%d:" % number + b"x" * chance.choice((0, 5, 300, 600))
        await log.append_records([Record(value)])
        disk.note(Written(now_ms, value))
        if chance.random() < 0.15:
            await log.flush()
            disk.note(Flushed(log.end_offset))
        step = chance.choice((0, 20, 90, 250))
        timers.advance(step / 1000)
        await turns(60)
        now_ms += step
        disk.note(Settled(now_ms))


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_costs_at_most_what_was_written_within_flush_ms(seed: int) -> None:
    asyncio.run(_check_states(seed))


async def _check_states(seed: int) -> None:
    disk = SimulatedFilesystem()
    await live(disk, seed)
    for state in sample_crash_states(disk.trace, 150, seed):
        after = state.filesystem()
        assert not damage_found(after), str(state)
        clock = ManualClock()
        store = open_store(after, clock, ManualTimers(clock))
        assert store.damage() == {}, str(state)
        found = [record.value for record in (await store.log("a")).records()]
        written = [note for note in state.notes if isinstance(note, Written)]
        now_ms = max((n.at_ms for n in state.notes if isinstance(n, Settled)), default=0)
        flushed = max((n.count for n in state.notes if isinstance(n, Flushed)), default=0)
        old = sum(note.at_ms <= now_ms - FLUSH_MS for note in written)
        assert len(found) >= max(old, flushed), f"{state}: lost at {now_ms} ms"
        values = [note.value for note in written]
        assert found[: len(values)] == values[: len(found)], f"{state}: not a prefix"
        await store.close()
