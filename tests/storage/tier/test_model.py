"""Random lives of a tiered log, beside a list of values: nothing is lost, doubled or changed."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from millstream.records.record import Record, StoredRecord
from millstream.storage.log import Log
from millstream.storage.segment.cold_segment import ColdMiss
from millstream.storage.tier.cold_store import DirectoryStore
from millstream.testing import ManualClock, SimulatedFilesystem
from tests.crash.workload import damage_found
from tests.in_loop import in_loop

from .stores import TIERED, BadStore, make_store, values

STEPS = 60


class Model:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.disk = SimulatedFilesystem()
        self.clock = ManualClock()
        self.bad = BadStore(DirectoryStore("/cold", self.disk))
        self.store = None
        self.log: Log | None = None
        self.values: list[bytes] = []
        self.start = 0
        self.config = TIERED

    async def open(self) -> None:
        hot = self.random.choice([2, 3])
        self.store = make_store(
            self.disk, config=self.config, clock=self.clock, cold=self.bad, hot_segments=hot
        )
        self.store.open()
        self.log = await self.store.log("t")

    async def step(self) -> None:
        kinds = [self.append, self.relocate, self.evict, self.reopen, self.read, self.change]
        weights = [8, 4, 1, 1, 4, 1]
        await self.random.choices(kinds, weights)[0]()

    async def append(self) -> None:
        for _ in range(self.random.randrange(1, 8)):
            value = b"%d" % len(self.values) + b"x" * 200
            await self.log.append_records([Record(value, timestamp_ms=len(self.values))])
            self.values.append(b"%d" % len(self.values))

    async def relocate(self) -> None:
        if self.random.random() < 0.3:
            fails = self.random.choice(["put", "delete", "list"])
            if fails == "put":
                self.bad.on_put = lambda _key, pieces: [p[:-1] for p in pieces]
            elif fails == "delete":
                self.bad.on_delete = _fail
            else:
                self.bad.on_list = lambda keys: keys[::2]
        self.clock.advance(self.random.choice([0, 100, 4000, 90_000]))
        await self.store.relocator.run_once()
        self.bad.on_put = lambda _key, pieces: pieces
        self.bad.on_delete = lambda _key: None
        self.bad.on_list = lambda keys: keys

    async def evict(self) -> None:
        if self.start < len(self.values):
            self.start = self.random.randrange(self.start, len(self.values))
            await self.log.evict_before(self.start)

    async def reopen(self) -> None:
        await self.store.close()
        assert not damage_found(self.disk)
        await self.open()

    async def change(self) -> None:
        is_tiered = not self.config.is_tiered
        self.config = replace(self.config, is_tiered=is_tiered)
        await self.log.reconfigure(self.config)

    async def read(self) -> None:
        if self.start == len(self.values):
            return
        offset = self.random.randrange(self.start, len(self.values))
        for _ in range(20):
            try:
                found = self.log.find_timestamp(offset)
                first = next(iter(self.log.records(offset)))
            except ColdMiss:
                continue
            assert isinstance(first, StoredRecord)
            assert found.offset == offset == first.offset
            return
        raise AssertionError("never fetched")

    def check(self) -> None:
        assert (self.log.start_offset, self.log.end_offset) == (self.start, len(self.values))
        assert values(self.log) == self.values[self.start :]


def _fail(_key: str) -> None:
    raise OSError("no")


@pytest.mark.parametrize("seed", range(12))
@in_loop
async def test_a_tiered_log_is_the_list_of_what_was_appended(seed: int) -> None:
    model = Model(seed)
    await model.open()
    for _ in range(STEPS):
        await model.step()
        model.check()
        assert not model.store.damage()
    await model.reopen()
    model.check()
    await model.store.close()
