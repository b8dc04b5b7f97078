"""Compaction removes only records that no reader may see, and keeps all producer state."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from millstream.config.schema import LogConfig
from millstream.records.batch import split
from millstream.records.iterate import read_all
from tests.broker.partitions import SNAPSHOT, Bench, Config, append, batch

COMPACTED = Config(
    cleanup_policy=frozenset({"compact"}),
    log=LogConfig(segment_bytes_max=1024, is_compacted=True, dirty_ratio_min=0.0),
)
KEYS = [b"k%d" % number for number in range(6)]
STEPS = 120
OPEN, COMMITTED, ABORTED = "open", "committed", "aborted"


@dataclass
class Kept:
    """A record in the model."""

    key: bytes
    value: bytes
    transaction: Transaction | None
    is_deleted: bool = False

    @property
    def state(self) -> str:
        return COMMITTED if self.transaction is None else self.transaction.state


@dataclass
class Transaction:
    first_offset: int
    state: str = OPEN


@dataclass
class Producer:
    epoch: int = 0
    sequence: int = 0
    coordinator_epoch: int = -1
    transaction: Transaction | None = None


@dataclass
class Model:
    """Everything that was appended to a partition, and the state of each record."""

    chance: random.Random
    records: dict[int, Kept] = field(default_factory=dict)
    producers: dict[int, Producer] = field(default_factory=dict)
    end: int = 0

    @property
    def last_stable_offset(self) -> int:
        firsts = [p.transaction.first_offset for p in self.producers.values() if p.transaction]
        return min(firsts, default=self.end)

    def latest(self) -> dict[bytes, int]:
        """Return the offset of the last record of each key that read-committed readers see.

        If that record was deleted, the records that it replaced may be deleted too.
        """
        found: dict[bytes, int] = {}
        for offset, kept in self.records.items():
            if kept.state == COMMITTED and offset < self.last_stable_offset:
                found[kept.key] = offset
        return {key: at for key, at in found.items() if not self.records[at].is_deleted}


class Run:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.model = Model(self.chance)
        self.bench = Bench(config=COMPACTED, seed=seed)

    async def go(self) -> None:
        await self.bench.partition.open()
        steps = {
            self.append: 12,
            self.end: 5,
            self.bump: 1,
            self.roll: 2,
            self.compact: 2,
            self.delete_key: 1,
            self.restart: 1,
        }
        for _ in range(STEPS):
            await self.chance.choices(list(steps), list(steps.values()))[0]()
            self.check()
        await self.compact()
        await self.restart()
        self.check()
        await self.bench.close()

    # Rules.

    async def append(self) -> None:
        producer_id = self.chance.choice([-1, 1, 2, 3, 4])
        keys = self.chance.choices(KEYS, k=self.chance.choice([1, 1, 2, 5]))
        values = [
            b"%d" % (self.model.end + n) * self.chance.choice([1, 40]) for n in range(len(keys))
        ]
        producer = None if producer_id < 0 else self.producer(producer_id)
        is_transactional = producer_id >= 3
        appended = await append(
            self.bench.partition,
            batch(
                *values,
                keys=keys,
                producer_id=producer_id,
                epoch=producer.epoch if producer else 0,
                sequence=producer.sequence if producer else 0,
                is_transactional=is_transactional,
            ),
        )
        assert appended.offset == self.model.end
        if producer is not None:
            producer.sequence += len(keys)
            if is_transactional and producer.transaction is None:
                producer.transaction = Transaction(appended.offset)
        transaction = producer.transaction if producer else None
        for key, value in zip(keys, values, strict=True):
            self.model.records[self.model.end] = Kept(key, value, transaction)
            self.model.end += 1

    async def end(self) -> None:
        producer_id = self.chance.choice([3, 4])
        producer = self.producer(producer_id)
        is_commit = self.chance.random() < 0.6
        producer.coordinator_epoch += self.chance.choice([0, 1]) or producer.coordinator_epoch < 0
        await self.bench.partition.appender.append_marker(
            producer_id,
            producer.epoch,
            is_commit=is_commit,
            coordinator_epoch=producer.coordinator_epoch,
        )
        self.model.end += 1
        if producer.transaction is not None:
            producer.transaction.state = COMMITTED if is_commit else ABORTED
            producer.transaction = None

    async def bump(self) -> None:
        producer = self.model.producers.get(self.chance.choice([1, 2]))
        if producer is not None:
            producer.epoch += 1
            producer.sequence = 0

    async def roll(self) -> None:
        await self.bench.store.get("t").roll()

    async def compact(self) -> None:
        await self.bench.upkeep(is_forced=self.chance.random() < 0.5)

    async def delete_key(self) -> None:
        key = self.chance.choice(KEYS)
        await self.bench.partition.delete_keys(key=key)
        for kept in self.model.records.values():
            kept.is_deleted |= kept.key == key

    async def restart(self) -> None:
        is_clean = self.chance.random() < 0.5
        disk = self.bench.filesystem
        if is_clean:
            await self.bench.close()
            disk = disk.copy()
        else:
            disk = disk.crash(self.chance.randrange(1000))
        if self.chance.random() < 0.5 and SNAPSHOT in disk.paths():
            disk.remove(SNAPSHOT)
        self.bench = Bench(disk, config=COMPACTED, clock=self.bench.clock)
        await self.bench.partition.open()

    def producer(self, producer_id: int) -> Producer:
        return self.model.producers.setdefault(producer_id, Producer())

    # Invariants.

    def check(self) -> None:
        model, partition = self.model, self.bench.partition
        assert partition.high_watermark == model.end
        assert partition.last_stable_offset == model.last_stable_offset
        self.check_producers()
        everything = dict(self.read(is_committed_only=False))
        committed = dict(self.read(is_committed_only=True))
        for offset, found in (everything | committed).items():
            kept = model.records[offset]
            assert found == (kept.key, kept.value)
            assert not kept.is_deleted
        assert all(model.records[offset].state == COMMITTED for offset in committed)
        assert set(model.latest().values()) <= set(committed)
        unsettled = {o for o in model.records if o >= model.last_stable_offset}
        assert {o for o in unsettled if not model.records[o].is_deleted} <= set(everything)

    def check_producers(self) -> None:
        found = {view.producer_id: view for view in self.bench.partition.appender.producers()}
        for producer_id, producer in self.model.producers.items():
            view = found.pop(producer_id, None)
            if view is None:
                assert producer.sequence == 0
                assert producer.coordinator_epoch == -1
                continue
            if producer.sequence:
                assert view.producer_epoch == producer.epoch
                assert view.last_sequence == producer.sequence - 1
            assert view.coordinator_epoch == producer.coordinator_epoch
            assert (view.transaction_first_offset >= 0) == (producer.transaction is not None)
        assert not found

    def read(self, *, is_committed_only: bool) -> Iterator[tuple[int, tuple[bytes | None, bytes]]]:
        """Return the records that a consumer sees, filtered as Kafka's clients do."""
        partition, offset = self.bench.partition, 0
        size_max = self.chance.choice([1, 500, 1 << 20])
        while True:
            got = partition.reader.read(
                offset, size_max=size_max, is_committed_only=is_committed_only
            )
            if not got.parts:
                return
            waiting = sorted(got.aborted, key=lambda one: one.first_offset)
            aborted: set[int] = set()
            for header, data in split(b"".join(got.parts)):
                while waiting and waiting[0].first_offset <= header.last_offset:
                    aborted.add(waiting.pop(0).producer_id)
                if header.is_control:
                    aborted.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in aborted):
                    for record in read_all(data):
                        if record.offset >= offset:
                            yield record.offset, (record.key, record.value)
            assert got.next_offset > offset
            offset = got.next_offset


@pytest.mark.parametrize("seed", range(8))
def test_compaction_takes_only_what_nobody_is_to_see(seed):
    asyncio.run(Run(seed).go())
