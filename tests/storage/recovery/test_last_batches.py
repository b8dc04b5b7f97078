"""The end of a log that was closed cleanly is checked when it is opened, before anybody reads."""

from __future__ import annotations

import asyncio
import errno
import logging
from itertools import islice

import pytest

from millstream.config.schema import LogConfig
from millstream.errors import DamagedRecords
from millstream.records.batch import split
from millstream.storage.recovery import last_batches
from millstream.testing import SimulatedFilesystem
from millstream.testing.disk.fault import Fault
from millstream.testing.disk.faulty_filesystem import FaultyFilesystem
from tests.in_loop import in_loop
from tests.storage.logs import batch_of, make_store

DIRECTORY = "/data/topics/a/0/"
CONFIG = LogConfig(segment_bytes_max=4096, index_interval_bytes=300)
COUNT = 60


async def closed(count: int = COUNT) -> SimulatedFilesystem:
    """The disk of a store that was closed: a log of several segments, a record in each batch."""
    disk = SimulatedFilesystem()
    store = make_store(disk, config=CONFIG)
    log = await store.log("a")
    for number in range(count):
        await log.append(batch_of(b"%d" % number * 50))
    await store.close()
    return disk


DISK = asyncio.run(closed())
LAST = max(path for path in DISK.contents() if path.endswith(".log"))
LAST_BATCH = max(header.size for header, _ in split(memoryview(DISK.content(LAST))))


def flipped(path: str, position: int) -> SimulatedFilesystem:
    disk = DISK.copy()
    content = bytearray(disk.content(path))
    content[position] ^= 1
    disk.replace_content(path, bytes(content))
    return disk


@pytest.mark.parametrize("position", range(-LAST_BATCH, 0))
def test_every_flipped_bit_of_the_last_batch_is_reported(position: int) -> None:
    store = make_store(flipped(LAST, position), config=CONFIG)
    assert store.opening.damaged_logs == 1
    [(_, [damage])] = store.damage().items()
    assert isinstance(damage, DamagedRecords)
    assert (damage.from_offset, damage.to_offset) == (COUNT - 1, COUNT - 1)
    assert LAST in str(damage)


@in_loop
async def test_what_a_start_found_and_a_reader_meets_is_one_damage_and_the_rest_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR)
    store = make_store(flipped(LAST, -1), config=CONFIG)
    log = await store.log("a")
    assert log.end_offset == COUNT
    with pytest.raises(DamagedRecords):
        list(log.records(COUNT - 1))
    assert [record.offset for record in islice(log.records(COUNT - 5), 4)] == [55, 56, 57, 58]
    assert [len(found) for found in store.damage().values()] == [1]
    assert len(caplog.messages) == 1
    result = await log.append(batch_of(b"goes on"))
    assert result.offset == COUNT


def test_a_valid_log_has_no_damage_and_nothing_is_scanned() -> None:
    store = make_store(DISK.copy(), config=CONFIG)
    assert (store.opening.damaged_logs, store.opening.scanned_bytes) == (0, 0)


@pytest.mark.parametrize("position", [0, 16, -1, -8, -16, -24])
def test_a_damaged_index_is_not_taken_for_a_damaged_log(position: int) -> None:
    store = make_store(flipped(LAST.replace(".log", ".index"), position), config=CONFIG)
    assert store.opening.damaged_logs == 0


def test_a_log_without_its_index_is_opened() -> None:
    disk = DISK.copy()
    disk.remove(LAST.replace(".log", ".index"))
    assert make_store(disk, config=CONFIG).opening.damaged_logs == 0


def test_an_end_that_the_disk_cannot_read_is_reported_and_the_log_opens() -> None:
    fault = Fault(call=1, forever=True, only={"read_at"}, path=LAST, error=errno.EIO)
    store = make_store(FaultyFilesystem(DISK.copy(), fault), config=CONFIG)
    [(_, [damage])] = store.damage().items()
    assert "cannot be read" in str(damage)
    assert not any(store.is_failed(name) for name in store.names())


def test_a_large_last_batch_is_left_to_its_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_batches, "CHECKED_BYTES_MAX", LAST_BATCH - 1)
    assert make_store(flipped(LAST, -1), config=CONFIG).opening.damaged_logs == 0
