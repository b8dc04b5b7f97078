"""Offset lookup in one partition: by position, timestamp or leader epoch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from millstream.broker.partition.batch_opener import BatchOpener
from millstream.broker.partition.reader import PartitionReader
from millstream.broker.partition.results import OffsetAndTimestamp
from millstream.errors import (
    DamagedRecords,
    FencedLeaderEpoch,
    StorageFailed,
    UnknownLeaderEpoch,
)
from millstream.records.batch import NO_TIMESTAMP
from millstream.storage.log import Log
from millstream.storage.segment.reader import TimestampedOffset

NO_EPOCH = -1
"""Means that there is no such leader epoch, or that the caller knows none."""

NO_OFFSET = -1
"""Means that there is no such offset."""


class OffsetLookup:
    """Finds offsets in one partition."""

    def __init__(self, log: Log, reader: PartitionReader, opener: BatchOpener) -> None:
        self._log = log
        self._reader = reader
        self._opener = opener

    @property
    def leader_epoch(self) -> int:
        """The newest leader epoch."""
        return self._log.partition.leader_epoch

    def check_leader_epoch(self, epoch: int) -> None:
        """Raise unless the caller knows the newest leader epoch; -1 means that it knows none."""
        newest = self.leader_epoch
        if epoch in (NO_EPOCH, newest):
            return
        error = FencedLeaderEpoch if epoch < newest else UnknownLeaderEpoch
        raise error(f"leader epoch is {newest}, got {epoch}")

    def earliest(self) -> OffsetAndTimestamp:
        """Return the first offset."""
        start_offset = self._log.start_offset
        leader_epoch = self._log.partition.epoch_at(start_offset)
        return OffsetAndTimestamp(start_offset, NO_TIMESTAMP, leader_epoch)

    def earliest_local(self) -> OffsetAndTimestamp:
        """Return the first offset on the local disk."""
        offset = self._reader.local_start_offset
        return OffsetAndTimestamp(offset, NO_TIMESTAMP, self._log.partition.epoch_at(offset))

    def earliest_not_tiered(self) -> OffsetAndTimestamp | None:
        """Return the first offset that may still be moved to a cold store."""
        return self.earliest_local() if self._log.config.is_tiered else None

    def latest_tiered(self) -> OffsetAndTimestamp | None:
        """Return the last offset that is in a cold store only; None if there is none."""
        offset = self._reader.local_start_offset - 1
        if not self._reader.has_cold_segments or offset < self._log.start_offset:
            return None
        return OffsetAndTimestamp(offset, NO_TIMESTAMP, self._log.partition.epoch_at(offset))

    def latest(self, *, is_committed_only: bool = False) -> OffsetAndTimestamp:
        """Return the offset after the last that can be read."""
        end_offset = self._reader.end_offset(is_committed_only=is_committed_only)
        return OffsetAndTimestamp(end_offset, NO_TIMESTAMP, self.leader_epoch)

    async def at_timestamp(
        self, timestamp_ms: int, *, is_committed_only: bool = False
    ) -> OffsetAndTimestamp | None:
        """Return the first record, by offset, with a timestamp of at least `timestamp_ms`.

        This is exact to the record, so batches may have to be decompressed: a thread does that.
        """
        find = partial(self._log.find_timestamp, timestamp_ms)
        return await self._find(find, is_committed_only=is_committed_only)

    async def max_timestamp(self, *, is_committed_only: bool = False) -> OffsetAndTimestamp | None:
        """Return the first of the records with the greatest timestamp."""
        return await self._find(self._log.find_latest, is_committed_only=is_committed_only)

    async def _find(
        self, find: Callable[[], TimestampedOffset | None], *, is_committed_only: bool
    ) -> OffsetAndTimestamp | None:
        end_offset = self._reader.end_offset(is_committed_only=is_committed_only)
        try:
            record = await self._reader.with_cold(lambda: self._opener.run_large(find))
        except (DamagedRecords, StorageFailed) as error:
            self._reader.check_repair(error)
            raise
        if record is None or record.offset >= end_offset:
            return None
        leader_epoch = self._log.partition.epoch_at(record.offset)
        return OffsetAndTimestamp(record.offset, record.timestamp_ms, leader_epoch)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return the newest leader epoch not after `epoch`, and the offset after its last record.

        Both are -1 if `epoch` is newer than all that are known. Records that are not committed yet
        count, as in Kafka: a consumer whose position is past the end concludes that records were
        lost, and it may know its position from a producer.
        """
        return self._log.replication.epoch_end(epoch) or (NO_EPOCH, NO_OFFSET)
