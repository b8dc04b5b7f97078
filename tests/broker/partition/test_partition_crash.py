"""A producer that retries has each record stored once, after any crash.

The clients behave as Kafka's do: up to five batches in flight, and when one fails, it and all
later ones are sent again in order, with the same sequence numbers.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import Counter
from collections.abc import Awaitable, Callable

import pytest

from millstream.broker.partition.partition import Partition
from millstream.config.schema import LogConfig
from millstream.errors import LogOffline, MillstreamError
from millstream.testing import (
    Fault,
    FaultyFilesystem,
    SimulatedFilesystem,
    sample_crash_states,
    sweep,
)
from tests.broker.partitions import DIRECTORY, SNAPSHOT, Bench, Config, append, batch, values
from tests.storage.logs import turns

SEGMENTS = Config(log=LogConfig(segment_bytes_max=1024))
STATES = 5_000 if os.environ.get("MILLSTREAM_LONG") else 200
ROUNDS_MAX = 50
IN_FLIGHT_MAX = 5
WRITING = ("create", "write_at", "reserve", "rename")

Note = Callable[[object], None]


class Client:
    """An idempotent producer. It only knows which batches were acknowledged."""

    def __init__(self, producer_id: int, count: int, *, acknowledged: int = 0) -> None:
        self.producer_id = producer_id
        self.count = count
        self.acknowledged = acknowledged

    def batch(self, sequence: int) -> bytes:
        value = b"%d-%d-" % (self.producer_id, sequence) + b"x" * 60
        return batch(value, producer_id=self.producer_id, sequence=sequence)

    @property
    def is_done(self) -> bool:
        return self.acknowledged == self.count

    async def send(self, partition: Partition, note: Note = lambda _: None) -> None:
        """Send the next five batches, and count the leading ones that were acknowledged."""
        first = self.acknowledged
        last = min(self.count, first + IN_FLIGHT_MAX)
        futures = []
        for sequence in range(first, last):
            try:
                futures.append(append(partition, self.batch(sequence)))
            except MillstreamError:
                break
        for result in await asyncio.gather(*futures, return_exceptions=True):
            if isinstance(result, BaseException):
                assert isinstance(result, MillstreamError), result
                return
            self.acknowledged += 1
            note((self.producer_id, self.acknowledged))


async def deliver(partition: Partition, clients: list[Client], note: Note = lambda _: None) -> None:
    for _ in range(ROUNDS_MAX):
        if isinstance(partition.appender.offline, LogOffline):
            await partition.reopen()
        await asyncio.gather(*(c.send(partition, note) for c in clients if not c.is_done))
        await turns()
        if all(client.is_done for client in clients):
            return
    raise AssertionError(f"not delivered: {[c.acknowledged for c in clients]}")


def check_stored_once(partition: Partition, clients: list[Client]) -> None:
    stored = [tuple(map(int, value.split(b"-")[:2])) for value in values(partition)]
    for client in clients:
        of_client = [
            sequence for producer_id, sequence in stored if producer_id == client.producer_id
        ]
        assert of_client == list(range(client.count)), client.producer_id


def run(scenario: Awaitable[None]) -> None:
    asyncio.run(scenario)  # type: ignore[arg-type]


def test_every_power_cut_leaves_each_record_stored_once():
    async def scenario() -> None:
        disk = SimulatedFilesystem()
        bench = Bench(disk, config=SEGMENTS)
        await bench.partition.open()
        await deliver(bench.partition, [Client(1, 20), Client(2, 13)], disk.note)
        assert len(bench.store.get("t").segments) > 3
        await bench.close()
        seen: Counter[bool] = Counter()
        for number, state in enumerate(sample_crash_states(disk.trace, STATES, seed=1)):
            known = dict(state.notes)
            clients = [
                Client(1, 20, acknowledged=known.get(1, 0)),
                Client(2, 13, acknowledged=known.get(2, 0)),
            ]
            after = Bench(state.filesystem(), config=SEGMENTS)
            seen[SNAPSHOT in after.filesystem.paths()] += 1
            await after.partition.open()
            for client in clients:  # Send once before the next power cut.
                if not client.is_done:
                    await client.send(after.partition)
            again = await after.again(seed=number)
            await deliver(again.partition, clients)
            check_stored_once(again.partition, clients)
        assert min(seen[True], seen[False]) > STATES / 20, "both kinds of opening were tried"

    run(scenario())


@pytest.mark.parametrize("is_forever", [False, True])
def test_every_moment_at_which_the_disk_can_be_full_leaves_each_record_stored_once(is_forever):
    async def scenario(fault: Fault) -> None:
        disk = FaultyFilesystem(SimulatedFilesystem(), fault)
        clients = [Client(1, 20), Client(2, 13)]
        bench = Bench(disk, config=SEGMENTS)
        await bench.partition.open()
        for client in clients:
            await client.send(bench.partition)
        for client in clients:
            await client.send(bench.partition)
        fault.forever = False  # The disk has free space again.
        await turns()
        await deliver(bench.partition, clients)
        check_stored_once(bench.partition, clients)

    for fault in sweep(error=errno.ENOSPC, forever=is_forever, only=WRITING, path=f"{DIRECTORY}/0"):
        run(scenario(fault))


def test_every_failed_sync_leaves_each_record_stored_once():
    async def scenario(fault: Fault) -> None:
        disk = FaultyFilesystem(SimulatedFilesystem(), fault)
        clients = [Client(1, 20), Client(2, 13)]
        bench = Bench(disk, config=SEGMENTS)
        await bench.partition.open()
        await deliver(bench.partition, clients)
        check_stored_once(bench.partition, clients)

    for fault in sweep(error=errno.EIO, only=("sync",), path=f"{DIRECTORY}/0"):
        run(scenario(fault))


class Coordinator:
    """Writes transactions; after a crash, ends the open ones as the coordinator's log says."""

    def __init__(self) -> None:
        self.decided: dict[int, bool] = {}

    async def run(self, partition: Partition, note: Note) -> None:
        for number in range(8):
            for sequence in range(2):
                value = b"%d-%d-" % (number, sequence) + b"x" * 60
                await append(
                    partition,
                    batch(
                        value,
                        producer_id=number % 3,
                        epoch=number // 3,
                        sequence=sequence,
                        is_transactional=True,
                    ),
                )
            note(("decided", number))
            await self.end(partition, number)
            note(("ended", number))

    @staticmethod
    async def end(partition: Partition, number: int, *, is_commit: bool | None = None) -> None:
        await partition.appender.append_marker(
            number % 3,
            number // 3 + 1,
            is_commit=number % 2 == 0 if is_commit is None else is_commit,
            coordinator_epoch=0,
        )


def test_every_power_cut_leaves_transactions_whole():
    async def scenario() -> None:
        disk = SimulatedFilesystem()
        bench = Bench(disk, config=SEGMENTS)
        await bench.partition.open()
        await Coordinator().run(bench.partition, disk.note)
        await bench.close()
        for state in sample_crash_states(disk.trace, STATES // 2, seed=2):
            after = Bench(state.filesystem(), config=SEGMENTS)
            partition = after.partition
            await partition.open()
            decided = {number for what, number in state.notes if what == "decided"}
            ended = {number for what, number in state.notes if what == "ended"}
            before = values(partition, is_committed_only=True)
            for number in sorted(decided - ended):
                await Coordinator.end(partition, number)
            if (begun := len(decided)) < 8:  # No decision was logged: abort.
                await Coordinator.end(partition, begun, is_commit=False)
            assert partition.last_stable_offset == partition.high_watermark
            seen = values(partition, is_committed_only=True)
            expected = [
                b"%d-%d" % (number, sequence)
                for number in range(8)
                if number % 2 == 0 and number in decided
                for sequence in range(2)
            ]
            assert [value[:3] for value in seen] == expected, state
            assert seen[: len(before)] == before, "what was read stays read"

    run(scenario())
