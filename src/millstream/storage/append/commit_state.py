"""Commit of one log: what is written and not yet committed.

A batch counts only when everything before it is durable, so a commit of class `fsync` syncs every
segment with unsynced bytes, and the directory if it has a new name. What is written while a commit
is in flight belongs to the next one. The checkpoint is written after a commit, so it is true
whenever it reaches the disk.

The other durability classes commit when a batch is written. The same sync then runs in the
background, at most `flush_ms` after the first write that it covers, so that a power cut costs no
more than what was written within that time:

    write   write  write        write
      |-------- flush_ms ------->|
      timer is set               sync of all four starts; acknowledgements never wait for it
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from millstream.clock import Clock, Timer, Timers
from millstream.config.schema import Durability, LogConfig
from millstream.errors import MillstreamError
from millstream.storage.append.append_queue import AppendQueue
from millstream.storage.append.group_committer import GroupCommitter
from millstream.storage.append.pending_append import PendingAppend
from millstream.storage.disk.filesystem import File
from millstream.storage.files.checkpoint import Checkpoint, SyncPoint
from millstream.storage.retention.log_start import LogStart
from millstream.storage.segment.lifecycle import open_checkpoint
from millstream.storage.segment.log_context import LogContext
from millstream.storage.segment.log_state import LogPosition
from millstream.storage.segment.segment import GrowingSegment

logger = logging.getLogger(__name__)


class CommitState:
    """The written and uncommitted batches of one log, and its unsynced segments.

    `written_position` returns how far the log is written. `go_offline` is called when a sync
    failed; after that nothing is acknowledged. `timers` are those of the running event loop if none
    are given.
    """

    def __init__(
        self,
        context: LogContext,
        *,
        config: LogConfig,
        clock: Clock,
        timers: Timers | None,
        committer: GroupCommitter,
        queue: AppendQueue,
        log_start: LogStart,
        written_position: Callable[[], LogPosition],
        go_offline: Callable[[Exception], None],
    ) -> None:
        self._context = context
        self._clock = clock
        self._timers = timers
        self._timer: Timer | None = None
        """Starts the next background sync."""
        self._committer = committer
        self._queue = queue
        self._log_start = log_start
        self._written_position = written_position
        self._go_offline = go_offline
        self._config = config
        self._synced_offset = context.state.durable_offset
        """End of the synced records, in a class other than `fsync`."""
        self.totals = committer.totals
        self._unreplicated: deque[tuple[PendingAppend, float]] = deque()
        """Durable batches that the high watermark has not passed, and since when they wait."""
        self.written: deque[PendingAppend] = deque()
        """Written batches that are not committed yet, in the order of their offsets."""
        self.is_stopped = False
        self.is_directory_dirty = False
        """Whether the directory has a name that may not be durable."""
        self.checkpoint: Checkpoint | None = None
        self._unsynced: list[GrowingSegment] = []
        self._is_more_synced = False
        """Whether a segment was synced by sealing it, and no commit has covered that yet."""

        # The commit in flight: the position it will reach, its start and its number of files.
        self._syncing: LogPosition | None = None
        self._syncing_segments: list[GrowingSegment] = []
        self._sync_started = 0.0
        self._file_count = 0

        # When the first batch of the next commit, and of the one in flight, was written.
        self._waiting_since = 0.0
        self._written_at = 0.0

    def apply_config(self, config: LogConfig) -> None:
        """Use other settings from the next batch on. If the class changes, nothing is in flight."""
        if self._config.durability is Durability.FSYNC:
            self._synced_offset = self._context.state.durable_offset
        self._config = config
        self.cancel_background_sync()
        if self._unsynced and config.durability is not Durability.FSYNC:
            self._schedule_background_sync()

    @property
    def synced_offset(self) -> int:
        """The end of the records that a power cut leaves in place."""
        is_synced = self._config.durability is Durability.FSYNC
        return self._context.state.durable_offset if is_synced else self._synced_offset

    @property
    def has_unsynced(self) -> bool:
        """Whether a segment has written bytes that no sync has covered yet."""
        return bool(self._unsynced) or self.is_in_flight

    @property
    def is_in_flight(self) -> bool:
        """Whether a commit was requested that has not ended."""
        return self._syncing is not None

    async def wait_until_committed(self) -> None:
        """Wait until everything written is committed, or the log is stopped."""
        while (self.written or self.is_in_flight) and not self.is_stopped:
            await self._context.tasks.changed()

    async def leave_to_seal(self, segment: GrowingSegment) -> None:
        """Return once no commit syncs a segment any more, so that sealing can, or when stopped.

        Of two syncs of a file, only one is told that bytes are lost. If that is a commit, the other
        must not lead to a seal.
        """
        # In the other classes a commit may be far away. It must sync the segment all the same: what
        # it says to be synced includes it, whether sealing is faster or not.
        is_fsync = self._config.durability is Durability.FSYNC
        while segment in self._syncing_segments or (is_fsync and segment in self._unsynced):
            if self.is_stopped:
                return
            await self._context.tasks.changed()

    def stop(self, error: MillstreamError) -> None:
        """Refuse everything uncommitted, start no commit and ignore the one in flight."""
        self.is_stopped = True
        self.cancel_background_sync()
        self._queue.refuse_all(self.written, error)
        self.refuse_unreplicated(error)

    # Written batches.

    def add(self, segment: GrowingSegment, appends: list[PendingAppend]) -> None:
        """Commit batches that were just written to `segment`."""
        self.written.extend(appends)
        if self._config.durability is not Durability.FSYNC:
            self._commit(LogPosition(segment.next_offset, segment.base_offset, segment.size))
            if self._config.durability is not Durability.EPHEMERAL:
                self._sync_later(segment)
            return
        is_any_acknowledged = False
        for append in appends:
            if append.is_early:
                append.acknowledge()
                is_any_acknowledged = True
        if is_any_acknowledged:
            # The responses are sent before the sync is started: it costs system calls.
            asyncio.get_running_loop().call_soon(self._sync_soon, segment)
        else:
            self._sync_soon(segment)

    def _sync_soon(self, segment: GrowingSegment) -> None:
        """Sync a segment with the next commit, which starts now unless one is in flight."""
        self._add_unsynced(segment)
        self._request()

    def _add_unsynced(self, segment: GrowingSegment) -> None:
        if not self._unsynced:
            self._waiting_since = self._clock.monotonic()
        if segment not in self._unsynced:
            self._unsynced.append(segment)

    def discard(self, segment: GrowingSegment) -> None:
        """Take a segment out of the next commit, because sealing has synced it.

        If it waited for a commit of class `fsync`, another one is in flight; when that ends, it
        also commits what the sealed segment holds.
        """
        if segment in self._unsynced:
            self._unsynced.remove(segment)
            self._is_more_synced = True
        # All segments before it are sealed.
        self._synced_offset = max(self._synced_offset, segment.next_offset)

    # Background sync of the classes other than `fsync`.

    def _sync_later(self, segment: GrowingSegment) -> None:
        """Sync a segment that was just written within `flush_ms`, or when enough is unsynced."""
        self._add_unsynced(segment)
        if segment.next_offset - self._synced_offset >= self._config.flush_records:
            self.sync_now()
        elif self._timer is None and self._syncing is None:
            self._schedule_background_sync()

    def _schedule_background_sync(self) -> None:
        """Set the timer so that nothing written stays unsynced for longer than `flush_ms`."""
        passed = self._clock.monotonic() - self._waiting_since
        timers = self._timers or asyncio.get_running_loop()
        self._timer = timers.call_later(
            max(0.0, self._config.flush_ms / 1000 - passed), self.sync_now
        )

    def sync_now(self) -> None:
        """Start a sync of everything written, unless one is in flight or nothing is unsynced."""
        self.cancel_background_sync()
        if self._unsynced:
            self._request()

    def forget_unsynced(self) -> None:
        """Note that everything written was synced by other means."""
        self._unsynced = []

    def restart(self, end_offset: int) -> None:
        """Begin again after a truncation: everything that is left is durable."""
        self.cancel_background_sync()
        self._unsynced = []
        self._is_more_synced = False
        self.is_directory_dirty = False
        self._synced_offset = end_offset

    def cancel_background_sync(self) -> None:
        """Cancel the timer of the background sync."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _request(self) -> None:
        if self._syncing is None and not self.is_stopped:
            self._syncing = self._written_position()
            self._committer.request(self)

    def _commit(self, position: LogPosition) -> None:
        """Publish and acknowledge everything before `position`."""
        context, written = self._context, self.written
        context.state.commit(position)
        if self._log_start.is_capped:
            self._log_start.apply_caps()
        committed_bytes = 0
        is_held = context.state.visible_limit is not None and not self._queue.is_replica
        while written and written[0].offset < position.offset:
            append = written.popleft()
            committed_bytes += append.size
            if is_held and append.next_offset > context.state.end_offset:
                append.batch = b""  # It is on the disk; only its waiter is needed.
                self._unreplicated.append((append, self._clock.monotonic()))
            else:
                append.acknowledge()
        if self._log_start.has_dead_segments:
            self._log_start.remove_dead_segments()
        if committed_bytes:
            context.on_commit()
        self._queue.release(committed_bytes)

    # Batches that wait for replicas.

    def acknowledge_replicated(self) -> None:
        """Acknowledge the batches that the high watermark has passed."""
        end_offset, waiting = self._context.state.end_offset, self._unreplicated
        while waiting and waiting[0][0].next_offset <= end_offset:
            waiting.popleft()[0].acknowledge()

    def has_waited_since(self, moment: float) -> bool:
        """Return whether a batch has waited for replicas since then, or longer."""
        return bool(self._unreplicated) and self._unreplicated[0][1] <= moment

    def refuse_unreplicated(self, error: MillstreamError, *, since: float | None = None) -> None:
        """Refuse the batches that wait for replicas: all, or those that wait since then or longer.

        They are in the log, so nobody knows what will become of them: `error` has to say so.
        "All" includes those that are being synced. They would wait for replicas next, and a log
        that becomes a replica would acknowledge them instead, though no other replica has them.
        """
        waiting = self._unreplicated
        while waiting and (since is None or waiting[0][1] <= since):
            waiting.popleft()[0].refuse(error)
        for append in self.written if since is None else ():
            append.refuse(error)

    # Called by the committer.

    @property
    def is_plain(self) -> bool:
        """Whether the next commit only has to sync files."""
        return not self.is_directory_dirty and self.checkpoint is not None

    def begin_plain_sync(self) -> list[File]:
        """Start a commit of what is written by now, and return the files to sync."""
        self._syncing = self._written_position()
        self._is_more_synced = False
        self._sync_started = self._clock.monotonic()
        self._written_at = self._waiting_since if self._unsynced else self._sync_started
        files = [segment.open() for segment in self._unsynced]
        self._syncing_segments, self._unsynced = self._unsynced, []
        self._file_count = len(files)
        return files

    def begin_sync(self) -> Callable[[], None]:
        """Start a commit of what is written by now, and return its blocking work."""
        files = self.begin_plain_sync()
        is_directory_dirty, self.is_directory_dirty = self.is_directory_dirty, False
        log_directory = self._context.log_directory

        def work() -> None:
            for file in files:
                file.sync()
            if self._ensure_checkpoint() or is_directory_dirty:
                log_directory.filesystem.sync_directory(log_directory.directory)

        return work

    def end_sync(self, error: Exception | None) -> None:
        """End a commit: acknowledge, or go offline; start the next one if something waits."""
        position, self._syncing = self._syncing, None
        self._syncing_segments = []
        assert position is not None, "a commit that ended was started"
        self._context.tasks.notify()
        if self.is_stopped:
            return
        if error is not None:
            # The kernel may have dropped the dirty pages: a second sync could succeed without
            # them. So nothing is retried.
            self._go_offline(error)
            return
        self._count_sync()
        self._write_checkpoint(position)
        if self._config.durability is not Durability.FSYNC:
            self._end_background_sync(position)
            return
        self._commit(position)
        if self._unsynced:
            self._request()
        elif self._is_more_synced:
            self._is_more_synced = False
            self._commit(self._written_position())

    def _end_background_sync(self, position: LogPosition) -> None:
        """Note how far the log is synced, and schedule a sync of what was written meanwhile."""
        self._synced_offset = max(self._synced_offset, position.offset)
        self._is_more_synced = False
        if self._unsynced and self._timer is None:
            self._schedule_background_sync()

    def _count_sync(self) -> None:
        now, counters = self._clock.monotonic(), self._context.counters
        seconds = now - self._sync_started
        counters.syncs += self._file_count
        counters.sync_seconds += seconds
        counters.last_sync_seconds = seconds
        self.totals.syncs.observe(seconds)
        if self._config.durability is Durability.FSYNC:  # Nobody waited for the others.
            self.totals.commits.observe(now - self._written_at)

    # The checkpoint.

    def _ensure_checkpoint(self) -> bool:
        """Open the checkpoint file; return whether it is new, so that its name must be synced."""
        is_new = False
        try:
            if self.checkpoint is None:
                self.checkpoint, is_new = open_checkpoint(self._context.log_directory)
        except OSError as error:
            logger.warning("%s: checkpoint cannot be opened: %s", self._context.name, error)
        return is_new

    def _write_checkpoint(self, position: LogPosition) -> None:
        """Write the checkpoint. It only makes recovery more precise, so it may fail."""
        if self.checkpoint is None or position.position == 0:
            return  # An empty segment may be removed again, so nothing may refer to it.
        try:
            offset, base_offset, size = position
            self.checkpoint.write(SyncPoint(base_offset, size, offset))
        except OSError as error:
            logger.warning("%s: checkpoint cannot be written: %s", self._context.name, error)
            self.checkpoint = None
