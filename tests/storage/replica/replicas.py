"""A leader and its replica on two simulated disks, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from millstream.config.schema import LogConfig
from millstream.records.record import Record
from millstream.storage.log import Log
from millstream.storage.segment.replica_slice import ReplicaSlice
from millstream.storage.store import Store
from millstream.testing import ManualClock, SimulatedFilesystem
from tests.storage.logs import make_store

SMALL = LogConfig(segment_bytes_max=1024, index_interval_bytes=128)
DIRECTORY = "/data/topics/a/0"


async def open_log(
    disk: SimulatedFilesystem, *, config: LogConfig = SMALL, clock: ManualClock | None = None
) -> tuple[Store, Log]:
    store = make_store(disk, config=config, clock=clock)
    return store, await store.log("a")


async def make_leader(epoch: int = 1, config: LogConfig = SMALL) -> Log:
    _, log = await open_log(SimulatedFilesystem(), config=config)
    await log.begin_epoch(epoch)
    return log


async def make_replica(disk: SimulatedFilesystem | None = None, config: LogConfig = SMALL) -> Log:
    _, log = await open_log(disk or SimulatedFilesystem(), config=config)
    await log.replication.become_replica()
    return log


async def append(log: Log, records: Sequence[Record]) -> None:
    """Append records durably. Whether they are committed is up to the high watermark."""
    end = log.next_offset + len(records)
    appended = log.try_append_records(records)
    while not appended.done() and log.replication.durable_offset < end:  # noqa: ASYNC110
        await asyncio.sleep(0)
    if appended.done():
        appended.result()


async def fill(log: Log, count: int, *, name: str = "v", size: int = 100) -> None:
    for number in range(count):
        await append(log, [Record(f"{name}{number}:".encode() + b"x" * size)])


def values(log: Log) -> list[bytes]:
    return [record.value or b"" for record in log.records()]


async def replicate(leader: Log, replica: Log, *, size_max: int = 400) -> list[ReplicaSlice]:
    """Copy everything durable, slice by slice, and return the slices."""
    slices = []
    while True:
        source = leader.replication.read(replica.replication.position.offset, size_max=size_max)
        await replica.replication.append(source)
        if not source.data:
            return slices
        slices.append(source)


def segment_files(log: Log) -> dict[str, bytes]:
    """Return the `.log` files of a log, by name."""
    place = log.log_directory
    names = [name for name in place.filesystem.list(place.directory) if name.endswith(".log")]
    return {name: _read(log, name) for name in names}


def _read(log: Log, name: str) -> bytes:
    place = log.log_directory
    file = place.filesystem.open_readonly(f"{place.directory}/{name}")
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def bases(log: Log) -> Sequence[int]:
    return [segment.base_offset for segment in log.segments]
