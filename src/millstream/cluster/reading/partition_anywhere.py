"""A partition for readers: the replica of this node if it is in sync, or else the leader's.

It is the same object for as long as the topic exists, wherever its replicas are moved. A reader
that watches it is woken when the source changes.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable

from millstream.broker.partition.batch_opener import BatchOpener
from millstream.broker.partition.partition import Partition
from millstream.broker.partition.readable_partition import ReadablePartition, RecordReader
from millstream.cluster.reading.remote_partition import RemotePartition
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.cluster.replication.replica_fetcher import PeerCalls
from millstream.errors import LeaderNotAvailable, NotLeader, OffsetNotAvailable

TAKE_OVER_SECONDS_MAX = 1.0
TAKE_OVER_POLL_SECONDS = 0.02
"""How long a reader waits for a leader that was elected a moment ago, and how often it looks."""


class PartitionAnywhere:
    """Implements `ReadablePartition` of the broker. Used on one event loop."""

    def __init__(self, partition: Partition, replica: LocalReplica, peers: PeerCalls) -> None:
        self.partition = partition
        self.remote = RemotePartition(partition, replica, peers)
        self._replica = replica
        self._watchers: dict[Callable[[], None], None] = {}
        self._is_remote_watched = False
        self._was_here = False
        """Whether the replica of this node was the source when it was last looked at."""

    def __str__(self) -> str:
        return str(self.partition)

    @property
    def is_here(self) -> bool:
        """Whether the replica of this node is read."""
        return self._replica.is_in_sync

    @property
    def source(self) -> ReadablePartition:
        """The partition to read now. It may be another one after each wait."""
        if self._replica.is_in_sync:
            self._was_here = True
            return self.partition
        if self._was_here:
            # What is known of the leader is as old as the time when this node was last out of sync.
            # Readers have seen more, and must not be told that the partition ends before that.
            self._was_here = False
            self.remote.forget()
        return self.remote

    # What is the same everywhere.

    @property
    def topic(self) -> str:
        return self.partition.topic

    @property
    def index(self) -> int:
        return self.partition.index

    @property
    def topic_id(self) -> uuid.UUID:
        return self.partition.topic_id

    @property
    def opener(self) -> BatchOpener:
        return self.partition.opener

    # What the source knows.

    @property
    def is_open(self) -> bool:
        return self.source.is_open

    async def open(self) -> None:
        await self.source.open()

    @property
    def reader(self) -> RecordReader:
        return self.source.reader

    @property
    def log_start_offset(self) -> int:
        return self.source.log_start_offset

    @property
    def high_watermark(self) -> int:
        return self.source.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.source.last_stable_offset

    async def settle(self, offset: int | None = None) -> None:
        while True:
            source = self.source
            await source.open()
            await source.settle(offset)
            if self.source is source:  # Or else the end that the caller looks at is another's.
                return

    async def find_timestamp(self, timestamp_ms: int) -> int | None:
        return await self.source.find_timestamp(timestamp_ms)

    async def catch_up(self) -> None:
        """Return when readers see here everything that was acknowledged before the call.

        A leader knows; any other node asks it, and a replica waits until it has as much. One that
        does not get it, because its leader fails at that moment, says so as if there were none: it
        is not the caller who named an offset that this replica does not have.
        """
        if self._replica.leader is None:
            ends = await self.remote.ask()
            if self._replica.leader is None:
                if self._replica.is_in_sync:
                    await self._catch_up_with(ends.high_watermark)
                return
        # It may have been elected while the former leader was asked, and show less than that one
        # until it has taken over.
        await self._take_over()

    async def _catch_up_with(self, offset: int) -> None:
        try:
            await self.partition.settle(offset)
        except OffsetNotAvailable as error:
            raise LeaderNotAvailable(str(error)) from error

    async def _take_over(self) -> None:
        """Wait until this node, which leads, shows what its predecessor has shown."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + TAKE_OVER_SECONDS_MAX
        while True:
            try:
                self._replica.check_end()
            except LeaderNotAvailable:
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(TAKE_OVER_POLL_SECONDS)
            else:
                return

    async def delete_before(self, offset: int) -> int:
        """Delete the records before an offset at the leader, durably; return the new start.

        When this returns, readers do not see them here either.
        """
        try:
            return await self.partition.delete_before(offset)
        except NotLeader:
            return await self.remote.delete_before(offset)

    # Watching.

    def watch(self, callback: Callable[[], None]) -> None:
        if not self._watchers:
            self.partition.watch(self._note)
        self._watchers[callback] = None
        self._choose_watched()

    def unwatch(self, callback: Callable[[], None]) -> None:
        self._watchers.pop(callback, None)
        if not self._watchers:
            self.partition.unwatch(self._note)
        self._choose_watched()

    def _note(self) -> None:
        """React to a change of the replica here: it may also have come or gone."""
        self._choose_watched()
        self._wake()

    def _wake(self) -> None:
        for callback in tuple(self._watchers):
            callback()

    def _choose_watched(self) -> None:
        """Follow the leader while somebody watches and this node has no replica in sync."""
        is_wanted = bool(self._watchers) and not self._replica.is_in_sync
        if is_wanted == self._is_remote_watched:
            return
        self._is_remote_watched = is_wanted
        if is_wanted:
            self.remote.watch(self._wake)
        else:
            self.remote.unwatch(self._wake)
