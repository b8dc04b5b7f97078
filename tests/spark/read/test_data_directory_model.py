"""Model test: the files of a partition show the same records as its own readers see."""

from __future__ import annotations

import asyncio

import pytest

from millstream.clients.partition import OffsetBounds
from millstream.records.topic_partition import TopicPartition
from millstream.spark.read import data_directory as directory_module
from millstream.spark.read.data_directory import DataDirectory
from tests.broker.partition.test_compaction_model import Run

from .directories import ALL, COMMITTED, records

WHERE = TopicPartition("t", 0)


class Watched(Run):
    """The model of compaction, with readers of the files after each step.

    One reader is new each time; the other one stays open, and has to notice changes.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.staying: DataDirectory | None = None
        self.is_late = False

    async def append(self) -> None:
        await super().append()
        self.is_late = False

    async def end(self) -> None:
        await super().end()
        self.is_late = False

    async def restart(self) -> None:
        await super().restart()
        self.staying = None  # The disk is another one.
        self.is_late = True

    def check(self) -> None:
        disk = self.bench.filesystem
        if WHERE.topic not in disk.list("/data/topics"):
            return
        if self.staying is None:
            self.staying = DataDirectory("/data", filesystem=disk)
        for directory in (DataDirectory("/data", filesystem=disk), self.staying):
            self.check_directory(directory)

    def check_directory(self, directory: DataDirectory) -> None:
        partition = self.bench.partition
        start = partition.log_start_offset
        for isolation in (ALL, COMMITTED):
            is_committed_only = isolation is COMMITTED
            end = partition.last_stable_offset if is_committed_only else partition.high_watermark
            bounds = directory.bounds([WHERE], isolation=isolation)[WHERE]
            assert bounds == OffsetBounds(start, end) or (self.is_late and bounds.end <= end)
            expected = [
                (offset, value)
                for offset, (_, value) in self.read(is_committed_only=is_committed_only)
                if offset < bounds.end
            ]
            assert records(directory, WHERE, isolation=isolation) == expected
            if bounds.end > start:
                middle = self.chance.randrange(start, bounds.end)
                tail = [pair for pair in expected if pair[0] >= middle]
                assert records(directory, WHERE, start=middle, isolation=isolation) == tail


@pytest.mark.parametrize("seed", range(3))
def test_the_files_show_what_readers_of_the_partition_see(seed, monkeypatch):
    monkeypatch.setattr(directory_module, "CHUNK_BYTES", 1024)
    asyncio.run(Watched(seed).go())
