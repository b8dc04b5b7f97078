"""Leader epochs: where each ended, as replicas and consumers ask (KIP-101, KIP-279, KIP-320)."""

from __future__ import annotations

import pytest

from millstream.storage.files.partition_metadata import LeaderEpoch, PartitionMetadata
from millstream.testing import SimulatedFilesystem
from tests.in_loop import in_loop
from tests.storage.replica.replicas import fill, open_log

EPOCHS = PartitionMetadata(epochs=(LeaderEpoch(2, 10), LeaderEpoch(4, 20), LeaderEpoch(7, 35)))


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (7, (7, 50)),  # The newest ends with the log.
        (4, (4, 35)),
        (2, (2, 20)),
        (5, (4, 35)),  # Nobody led it here: the newest before it.
        (6, (4, 35)),
        (3, (2, 20)),
        (1, (1, 10)),  # Older than all: nothing of it is left.
        (0, (0, 10)),
        (8, None),  # Newer than all.
        (-1, None),
    ],
)
def test_the_end_of_an_epoch(epoch: int, expected: tuple[int, int] | None) -> None:
    assert EPOCHS.epoch_end(epoch, 50) == expected


@in_loop
async def test_an_epoch_that_was_begun_again_without_a_batch_is_replaced() -> None:
    _, log = await open_log(SimulatedFilesystem())
    await fill(log, 2)
    await log.begin_epoch(3)
    await log.begin_epoch(5)
    await fill(log, 1)
    replication = log.replication
    assert (replication.epoch_end(0), replication.epoch_end(3)) == ((0, 2), (0, 2))
    assert (replication.epoch_end(5), replication.epoch_end(6)) == ((5, 3), None)


@in_loop
async def test_a_restart_begins_no_epoch() -> None:
    disk = SimulatedFilesystem()
    store, log = await open_log(disk)
    await log.begin_epoch(2)
    await fill(log, 1)
    await store.close()
    for after in (disk.copy(), disk.crash()):
        _, log = await open_log(after)
        assert log.partition.epochs == (LeaderEpoch(2, 0),)
        await fill(log, 1)
        assert len(log.segments) == 1


@in_loop
async def test_a_segment_of_an_older_epoch_is_the_last_of_its_segment_at_once() -> None:
    _, log = await open_log(SimulatedFilesystem())
    await fill(log, 2)
    assert not log.replication.read(0).is_last_of_segment
    await log.begin_epoch(1)
    assert log.replication.read(0).is_last_of_segment
    assert log.replication.read(2).is_last_of_segment
