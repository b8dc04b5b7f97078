"""Replication of one log, as its storage sees it: leader or replica, never the network.

    leader     begin_epoch -> appends as usual -> `read` hands out slices of what is written
    replica    become_replica -> `append` writes slices as they are -> `durable_offset` is reported

Both    `set_high_watermark` bounds what readers see; `truncate` removes what others do not have

A log that nobody replicates is a leader without a high watermark: readers see all that is durable.

What a replica does not decide: offsets, epochs, where segments begin and end, the start of the log,
and what is deleted. It refuses to, so a mistake of a caller cannot make replicas differ.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from millstream.errors import (
    CorruptFile,
    DamagedRecords,
    MillstreamError,
    OutcomeUnknown,
    RequestError,
    Unavailable,
)
from millstream.storage.append.active_segments import ActiveSegments
from millstream.storage.append.append_queue import AppendQueue
from millstream.storage.append.commit_state import CommitState
from millstream.storage.append.pending_append import Appended, AppendWaiter
from millstream.storage.append.replica_append import ReplicaAppend
from millstream.storage.compaction.cleaner import LogCleaner
from millstream.storage.files.partition_metadata import PartitionMetadata
from millstream.storage.files.watermark import WatermarkFile
from millstream.storage.replica.log_decisions import LogDecisions
from millstream.storage.replica.log_truncation import LogTruncation, TruncateResult
from millstream.storage.replica.replica_read import read_for_replica
from millstream.storage.replica.segment_resync import SegmentResync
from millstream.storage.retention.log_start import LogStart
from millstream.storage.segment.log_context import LogContext
from millstream.storage.segment.replica_slice import (
    ReplicaPosition,
    ReplicaSlice,
    validate_slice,
)

logger = logging.getLogger(__name__)

SLICE_SIZE_MAX = 1024 * 1024
"""Default size limit of a slice, as of a read."""

WATERMARK_SECONDS = 5.0
"""How often the high watermark is stored at most."""


class LogReplication:
    """The replication of one log. Belongs to its event loop; only `read` may be called elsewhere.

    `now_ms` is the retention clock, `monotonic` a clock for intervals. `go_offline` is called when
    it is not known what is on the disk, and `offline` returns why the log is offline, if it is.
    `on_repair` is called with a range of offsets whose damage is gone.
    """

    def __init__(
        self,
        context: LogContext,
        *,
        queue: AppendQueue,
        segments: ActiveSegments,
        commit: CommitState,
        log_start: LogStart,
        cleaner: LogCleaner,
        decisions: LogDecisions,
        now_ms: Callable[[], int],
        monotonic: Callable[[], float],
        go_offline: Callable[[Exception], None],
        offline: Callable[[], Exception | None],
        on_repair: Callable[[int, int], None],
    ) -> None:
        self._context = context
        self._queue = queue
        self._segments = segments
        self._commit = commit
        self._log_start = log_start
        self.decisions = decisions
        """Decisions of the leader in the log: deletions by key, and what is cleaned."""
        self._now_ms = now_ms
        self._monotonic = monotonic
        self._go_offline = go_offline
        self._offline = offline
        self._truncation = LogTruncation(
            context,
            queue=queue,
            segments=segments,
            commit=commit,
            cleaner=cleaner,
            now_ms=now_ms,
            high_watermark=lambda: self.known_high_watermark,
            before_truncation=self._prepare_truncation,
            go_offline=go_offline,
            offline=offline,
            on_repair=on_repair,
        )
        self.resync = SegmentResync(
            context,
            queue=queue,
            segments=segments,
            commit=commit,
            cleaner=cleaner,
            decisions=decisions,
            now_ms=now_ms,
            go_offline=go_offline,
            offline=offline,
            on_repair=on_repair,
        )
        """Repair by whole segments: manifest, parts, quarantine."""
        self.before_truncation: Callable[[int], Awaitable[None]] | None = None
        """Awaited with the new end before the log is truncated; by raising, it prevents that.

        What was derived from the records from there on has to be dropped, durably."""
        log_directory = context.log_directory
        self._watermark = WatermarkFile(log_directory.filesystem, log_directory.directory)
        self._stored_watermark: int | None = None
        """The stored high watermark; `None` until it was read."""
        self._watermark_time = -WATERMARK_SECONDS
        self._watchers: dict[Callable[[], None], None] = {}

    # State.

    @property
    def is_replica(self) -> bool:
        """Whether the batches of the log come from its leader."""
        return self._queue.is_replica

    @property
    def durable_offset(self) -> int:
        """The end of what the durability class of the log protects: what a replica reports."""
        return self._context.state.durable_offset

    @property
    def written_offset(self) -> int:
        """The end of what replicas may fetch: at or after `durable_offset`.

        Replicas need not wait for the sync of the leader: what they have counts for the high
        watermark only as far as the leader has synced too. After a failure nobody knows what is on
        the disk, so nothing more is handed out.
        """
        is_whole = self._offline() is None
        return self._context.state.written_offset if is_whole else self.durable_offset

    @property
    def first_offset(self) -> int:
        """The first offset that is stored: at most the start of the log."""
        snapshot = self._context.state.snapshot
        return snapshot.segments[0].base_offset if snapshot.segments else snapshot.start

    @property
    def position(self) -> ReplicaPosition:
        """Where the next slice belongs, after all that were admitted."""
        tail = self._segments.replica_tail
        return ReplicaPosition(tail.offset, tail.segment, tail.position)

    @property
    def last_epoch(self) -> int | None:
        """The epoch of the last durable batch; `None` if the log has none."""
        snapshot = self._context.state.snapshot
        written = [s for s in snapshot.segments if s.base_offset < snapshot.durable.offset]
        return written[-1].leader_epoch if written else None

    def epoch_end(self, epoch: int) -> tuple[int, int] | None:
        """Return the newest epoch not after `epoch`, and the offset after its last batch.

        `None` if `epoch` is newer than all that are known. Batches that are not durable yet count.
        """
        return self._partition.epoch_end(epoch, self._queue.next_offset)

    @property
    def _partition(self) -> PartitionMetadata:
        return self._context.metadata_file.partition

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each write and each commit, whether readers may see it or not."""
        self._watchers[callback] = None

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Stop calling `callback`. Does nothing if it is not watched."""
        self._watchers.pop(callback, None)

    def note_write(self) -> None:
        """Tell the watchers that the written end has moved. A commit tells them by itself."""
        state = self._context.state
        if self._watchers and state.written_offset > state.durable_offset:
            self.note_commit()

    def note_commit(self) -> None:
        """Tell the watchers that the written or the durable end has moved."""
        for callback in tuple(self._watchers):
            try:
                callback()
            except Exception:  # A watcher must not stop the log.
                logger.exception("%s: a watcher failed", self._context.name)

    # Roles.

    async def begin_epoch(self, number: int) -> None:
        """Lead the log in a newer epoch: all further batches have it. Durable when this returns.

        What a replica has not written yet is refused.
        """
        self._refuse_unwritten(f"{self._context.name} becomes the leader")
        await self._context.metadata_file.run_exclusive(self._begin_epoch(number))

    async def _begin_epoch(self, number: int) -> None:
        segments, pending = self._segments, self._queue.pending
        current = self._partition.leader_epoch
        if number <= current:
            raise RequestError(f"epoch must be greater than {current}, got {number}")
        segments.flush()  # Now: a busy log would always have something pending.
        while pending or segments.is_paused:
            await self._context.tasks.changed()
            self._queue.check_writable()
            segments.flush()
        # What is admitted from here on is written after the epoch is durable, and has it.
        partition = self._partition.with_epoch(number, self._queue.next_offset)
        await segments.pause_until(self._write_partition(partition))
        if (offline := self._offline()) is not None:
            raise offline
        self._set_role(is_replica=False)

    async def become_replica(self) -> None:
        """Take batches from a leader only, from now on. What is not written yet is refused.

        An epoch that was begun and has no batch is forgotten: the leader may send older batches.
        Before a replica serves readers, `decisions.settle` has to be awaited.
        """
        self._set_role(is_replica=True)
        await self.settle_writes()
        await self._context.metadata_file.run_exclusive(self._forget_unused_epochs())
        await self.decisions.begin()
        if (offline := self._offline()) is not None:
            raise offline

    async def settle_writes(self) -> None:
        """Refuse what a replica has not written yet, and wait until the rest is durable."""
        self._refuse_unwritten(f"{self._context.name} becomes a replica")
        await self._wait_until_durable()

    async def _wait_until_durable(self) -> None:
        """Wait until all that is written is durable, or the log fails.

        A replica fetches from its durable end on. Its leader may have what was only written here,
        and would send it once more.
        """
        state = self._context.state
        while state.written_offset > state.durable_offset and not self._commit.is_stopped:
            await self._context.tasks.changed()

    async def _forget_unused_epochs(self) -> None:
        partition, end = self._partition, self._queue.next_offset
        used = tuple(e for e in partition.epochs if e.start_offset < end) or partition.epochs[:1]
        if used != partition.epochs:
            await self._write_partition(replace(partition, epochs=used))

    async def _write_partition(self, partition: PartitionMetadata) -> None:
        try:
            await self._context.metadata_file.write(partition)
        except OSError as error:
            # The file may have either epoch now: no batch may be written until that is known.
            self._go_offline(error)

    def _refuse_unwritten(self, why: str) -> None:
        queue = self._queue
        if queue.is_replica:
            if queue.pending:
                queue.rewind(queue.pending[0].offset)
            queue.refuse_waiting(Unavailable(why))
            queue.refuse_pending(Unavailable(why))

    def _set_role(self, *, is_replica: bool) -> None:
        if self._queue.is_replica != is_replica:
            self._queue.is_replica = self._segments.is_replica = is_replica
            self._log_start.follow(is_replica=is_replica)

    def check_leads(self) -> None:
        """Raise if the log is a replica, which decides nothing."""
        if self._queue.is_replica:
            raise Unavailable(f"{self._context.name} is a replica: its leader decides that")

    # The leader's side.

    def read(
        self,
        offset: int,
        *,
        size_max: int = SLICE_SIZE_MAX,
        is_checked: bool = True,
        is_durable: bool = True,
    ) -> ReplicaSlice:
        """Return durable batches of one segment, from the one that contains `offset` on.

        At least one batch, whatever its size; none at the durable end. May be called from any
        thread. Raises `OffsetOutOfRange` before `first_offset` and beyond the durable end, and
        `DamagedRecords` if the batch is damaged. Without `is_durable`, the end is
        `written_offset`; then the last segment must be read on the event loop of the log.
        """
        return read_for_replica(
            self._context.state,
            offset,
            size_max=size_max,
            is_checked=is_checked,
            is_durable=is_durable or self._offline() is not None,
            is_finished=self._segments.is_finished,
            leader_epoch=self._partition.leader_epoch,
            now_ms=self._now_ms(),
        )

    @property
    def tombstones_removed(self) -> int:
        """Tombstones before this offset may be missing from the log."""
        applied = self.decisions.applied
        return 0 if applied is None else applied.tombstones_removed

    @property
    def cleaned_offset(self) -> int:
        """Offset up to which no key has two records, on the disk."""
        return self._partition.cleaned_offset

    def accepts_replica(self, end_offset: int, tombstones_removed: int) -> bool:
        """Return whether a replica with this end may go on with its files.

        If it ends before tombstones that this log may have removed, it may still have older records
        of their keys, and would keep them forever: it has to copy everything. One that has begun to
        copy a log without these tombstones has no such records.
        """
        removed = self.tombstones_removed
        return end_offset >= removed or tombstones_removed >= removed

    # The replica's side.

    def append(
        self, source: ReplicaSlice, *, is_checked: bool = False, timeout: float | None = None
    ) -> asyncio.Future[Appended]:
        """Append a slice as it is, and return a future of its acknowledgement.

        The future ends when the durability class of the log is met: in class `fsync`, when it is
        synced. It fails with `ReplicaMismatch` if the slice does not continue the log at the same
        position of the same segment. Slices may follow each other without waiting. Backpressure is
        that of other appends: too much unflushed data makes a slice wait, at most `timeout`
        seconds. An empty slice that is the last of its segment finishes the segment.
        """
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self.submit(source, future, is_checked=is_checked, timeout=timeout)
        return future

    def submit(
        self,
        source: ReplicaSlice,
        waiter: AppendWaiter,
        *,
        is_checked: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Append a slice as `append` does; `waiter` receives the outcome without a turn."""
        self._queue.check_writable()
        if not self._queue.is_replica:
            raise RequestError(f"{self._context.name} is no replica: it takes no slices")
        headers = validate_slice(source, is_checked=is_checked)
        append = ReplicaAppend(source, headers, waiter, lambda _: self._place(append))
        if headers:
            self._queue.submit_slice(append, timeout)
        else:
            self._finish_segment(source)
            waiter.set_result(Appended(source.offset, source.offset - 1, None))

    def _place(self, append: ReplicaAppend) -> None:
        """Decide where a slice is written, when it is admitted; raise if it does not belong."""
        tail = self._segments.replica_tail
        append.segment, append.position = tail.place(append.source)
        if append.segment == tail.segment and not self._segments.growing:
            self._check_reopenable(tail.segment)
        self.decisions.add_batches(append.headers, append.source.data)

    def _check_reopenable(self, base_offset: int) -> None:
        """Raise if the last segment is damaged: its seal tells where it ends, so it must stay."""
        for damage in self._context.state.damage:
            if isinstance(damage, DamagedRecords) and damage.to_offset >= base_offset:
                raise CorruptFile(
                    f"{self._context.name}: segment {base_offset} must be repaired before a slice"
                    f" can be added to it: {damage}"
                ) from damage

    def _finish_segment(self, source: ReplicaSlice) -> None:
        """Finish the segment that an empty slice says is complete."""
        tail = self._segments.replica_tail
        if not source.is_last_of_segment or not tail.is_open:
            return
        segment, _ = tail.place(source)
        if segment != tail.segment:
            return  # The segment is finished, and the next one was not started yet.
        pending = self._queue.pending
        if pending:
            last = pending[-1]
            assert isinstance(last, ReplicaAppend), "a replica has no other appends"
            last.source = replace(
                last.source, is_last_of_segment=True, sealed_age_ms=source.sealed_age_ms
            )
        else:
            self._segments.finish_replica_segment(source.sealed_age_ms)

    async def set_start(self, offset: int, *, eviction_floor: int, eviction_reason: str) -> None:
        """Take over the start, the eviction floor and its reason from the leader.

        Durable when this returns. Each call that moves something writes `partition.json`, so
        callers gather moves. Raises `OffsetOutOfRange` beyond the durable end: use `restart_at`.
        """
        if not self._queue.is_replica:
            raise RequestError(f"{self._context.name} is no replica: it decides its own start")
        await self._log_start.set_start(
            offset, eviction_floor=eviction_floor, eviction_reason=eviction_reason
        )

    # Truncation.

    async def truncate(self, offset: int, *, is_forced: bool = False) -> TruncateResult:
        """Remove all batches from `offset` on. Durable when this returns.

        An offset inside a batch removes that batch too: the result has the end of the log. Raises
        `OffsetOutOfRange` before the start of the log and beyond its durable end, and
        `RequestError` below the high watermark, unless `is_forced`: what is removed there was
        acknowledged. Batches that are not written yet are refused. After any other error the log is
        offline, and opening it again finishes the truncation.
        """
        return await self._truncation.truncate(offset, is_forced=is_forced)

    async def restart_at(self, offset: int, *, tombstones_copied: int = 0) -> TruncateResult:
        """Remove everything, and begin and end the log at `offset`. Durable when this returns.

        For a replica whose end is before the start of its leader, or that its leader does not
        accept any more; then `tombstones_copied` is the leader's `tombstones_removed`.
        """
        if not self._queue.is_replica:
            raise RequestError(f"{self._context.name} is no replica: it is not emptied")
        if offset < 0:
            raise RequestError(f"offset must be 0 or more, got {offset}")
        return await self._truncation.restart_at(offset, tombstones_copied=tombstones_copied)

    async def _prepare_truncation(self, end_offset: int) -> None:
        self._stored_watermark = None  # It may be removed with what it covers.
        self.decisions.truncate(end_offset)
        if self.before_truncation is not None:
            await self.before_truncation(end_offset)

    # The high watermark.

    @property
    def high_watermark(self) -> int | None:
        """The offset that readers do not pass; `None` if they see all that is durable."""
        return self._context.state.visible_limit

    @property
    def known_high_watermark(self) -> int:
        """An offset before which everything is known to be on enough replicas; 0 if none is."""
        if self._stored_watermark is None:
            self._stored_watermark = self._watermark.read()
        return max(self._stored_watermark, self.high_watermark or 0)

    def set_high_watermark(self, offset: int | None) -> bool:
        """Let readers see no further than `offset`; return whether they see more now.

        `None` lets them see all that is durable. The first offset may hide what was visible, so it
        is to be set before readers are served; a lower one than before changes nothing. It may be
        beyond the durable end, and is at least the start of the log.
        """
        state = self._context.state
        before = state.end_offset
        state.limit_visible(offset)
        if offset is not None:
            self._store_watermark()
        if state.end_offset == before:
            return False
        if self._log_start.is_capped:
            self._log_start.apply_caps()
        if self._log_start.has_dead_segments:
            self._log_start.remove_dead_segments()
        self._commit.acknowledge_replicated()
        self.decisions.commit()
        self._context.on_change()
        self._context.tasks.notify()
        return state.end_offset > before

    def refuse_unreplicated(self, error: MillstreamError) -> None:
        """Refuse the batches that wait for replicas: this node does not lead the log any more."""
        self._commit.refuse_unreplicated(error)

    def expire_unreplicated(self, seconds: float) -> None:
        """Refuse the batches that have waited for replicas for so long."""
        since = self._monotonic() - seconds
        if not self._commit.has_waited_since(since):
            return
        error = OutcomeUnknown(
            f"{self._context.name}: the batch was not on enough replicas within {seconds:g} s; it"
            " may still be committed"
        )
        self._commit.refuse_unreplicated(error, since=since)

    def _store_watermark(self) -> None:
        now = self._monotonic()
        if now - self._watermark_time >= WATERMARK_SECONDS:
            self._watermark_time = now
            self.store_watermark()

    def store_watermark(self) -> None:
        """Store the high watermark as a lower bound. It only protects, so a failure is no error."""
        if (offset := self.high_watermark) is None:
            return
        try:
            self._watermark.write(min(offset, self.durable_offset))
        except OSError as error:
            logger.debug("%s: high watermark was not stored: %s", self._context.name, error)
