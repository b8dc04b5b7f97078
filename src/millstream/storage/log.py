"""Log of one partition: append batches, read them, wait for more.

    append -> waiting -> pending --------> written ------------> acknowledged
              no         one write for     one sync for all
              capacity   all batches of    that was written
              yet        one turn          before it began
              [AppendQueue       ] [ActiveSegments] [CommitState, GroupCommitter]

Rules of the append path:

1. A batch gets its offset when it is admitted. The offset is taken back only if no byte of the
   batch was kept.
2. Readers see a batch when the durability class of the log is met, not before.
3. A batch in a segment counts only when everything before it is durable too: a commit syncs every
   segment with unsynced bytes, and the directory if it has a new name.
4. After a failed sync nothing more is acknowledged. The log is offline until it is opened again.
5. At most two segments have no seal (see `active_segments.py`). Appends that need a third wait.
6. `partition.json` is durable before anything depends on it: an epoch before a batch has it, a
   first offset before a segment below it is removed. The last segment with a committed batch stays,
   deleted or not, so the end of the log is in a file for as long as there is one.

One event loop owns a log and does all appending; only the work given to `Executor` runs in threads.
Reading needs no loop and no lock: `read` and the methods like it may be called from any thread.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from millstream.clock import Clock, Timers
from millstream.config.schema import Durability, LogConfig
from millstream.errors import (
    CorruptData,
    CorruptFile,
    DamagedRecords,
    InvalidConfig,
    InvalidRequest,
    LogClosed,
    LogOffline,
    MillstreamError,
    OffsetOutOfRange,
    RequestError,
    StorageFailed,
    Unavailable,
    again,
)
from millstream.records.batch import BatchHeader, Bytes, split
from millstream.records.build import build_batch
from millstream.records.compression import Codec
from millstream.records.cursor import CursorPosition, decode_cursor, encode_cursor
from millstream.records.decision import DeletionDecision
from millstream.records.iterate import read_all
from millstream.records.record import RECREATED, RETENTION, Gap, Record, StoredRecord
from millstream.storage.append.active_segments import ActiveSegments
from millstream.storage.append.append_queue import AppendQueue
from millstream.storage.append.byte_budget import ByteBudget
from millstream.storage.append.commit_state import CommitState
from millstream.storage.append.group_committer import GroupCommitter
from millstream.storage.append.pending_append import (
    Appended,
    AppendWaiter,
    OnAdmit,
    PendingAppend,
    validate_batch,
)
from millstream.storage.compaction.cleaner import CleanerResult, LogCleaner
from millstream.storage.disk.background_tasks import BackgroundTasks
from millstream.storage.disk.errors import transient_error
from millstream.storage.disk.executor import Executor
from millstream.storage.disk.io_throttle import IoThrottle
from millstream.storage.files.cold_marker import ColdMarker
from millstream.storage.files.partition_metadata import AgeMark, PartitionMetadata
from millstream.storage.recovery.log_recovery import RecoveredLog
from millstream.storage.replica.log_decisions import LogDecisions, find_decisions
from millstream.storage.replica.log_replication import LogReplication
from millstream.storage.retention.eviction import Eviction, next_age_mark, plan_eviction
from millstream.storage.retention.key_deletions import (
    DELETIONS_MAX,
    KeyDeletions,
    match_for,
    resolve_deleted_offsets,
)
from millstream.storage.retention.log_start import LogStart
from millstream.storage.retention.removal_hooks import RemovalHooks
from millstream.storage.retention.size_caps import caps_of, record_count
from millstream.storage.segment.cold_segment import ColdSegment
from millstream.storage.segment.counters import LogCounters
from millstream.storage.segment.lifecycle import SegmentSyncFailed, sync_all
from millstream.storage.segment.log_context import LogContext
from millstream.storage.segment.log_state import DeletedOffsets, LogPosition, LogSnapshot, LogState
from millstream.storage.segment.metadata_file import MetadataFile
from millstream.storage.segment.reader import Address, Slice, TimestampedOffset
from millstream.storage.segment.segment import (
    GrowingSegment,
    LogDirectory,
    SealedSegment,
    Segment,
)
from millstream.storage.tier.relocation import SegmentRelocation

logger = logging.getLogger(__name__)

READ_SIZE_MAX = 1024 * 1024
"""Default size limit of a read; Kafka's consumers use the same."""


class Log:
    """The log of one partition.

    Created in a thread, because that can take a while: if deletions by key are not reclaimed yet,
    the records that they match are looked up.
    """

    def __init__(
        self,
        *,
        name: str,
        log_directory: LogDirectory,
        config: LogConfig,
        clock: Clock,
        background: Executor,
        committer: GroupCommitter,
        budget: ByteBudget,
        recovered: RecoveredLog,
        timers: Timers | None = None,
        retention_now_ms: Callable[[], int] | None = None,
        deletions_max: int = DELETIONS_MAX,
        on_open: Callable[[Log], None] = lambda _: None,
        on_unhealthy: Callable[[Log], None] = lambda _: None,
        on_damage: Callable[[Log], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.log_directory = log_directory
        """Its files; other components may store theirs beside them."""
        self.config = config
        self.recovered = recovered
        self.removal_hooks: RemovalHooks | None = None
        """Consulted before records are removed; set once, by the owner of the log."""
        self.counters = LogCounters(recovered_bytes=recovered.scanned_bytes)
        self.offline: MillstreamError | None = None
        """Why the log accepts no appends, if it does not."""
        self.on_rewind: Callable[[int], None] | None = None
        """Called with an offset when the offsets from it on, which had been given, are taken back.

        That happens when a write is refused, when the log goes offline and when it is deleted; once
        each time, before the appenders are told. It must not raise."""
        self._clock = clock
        self._retention_now_ms = retention_now_ms or clock.wall_ms
        self._on_unhealthy = partial(on_unhealthy, self)
        self._on_damage = partial(on_damage, self)
        self._new_records: asyncio.Future[None] | None = None
        self._watchers: dict[Callable[[], None], None] = {}
        self._is_closing = False
        self._is_closed = False
        self._has_begun_retention = False
        self._notified_offset = 0
        partition, end = recovered.partition, _end_of(recovered)
        self._state = LogState(
            log_directory.directory,
            recovered.segments,
            end,
            start_offset=partition.start_offset,
            eviction_floor=partition.eviction_floor,
            eviction_reason=partition.eviction_reason,
            masks=resolve_deleted_offsets(recovered.segments, partition, end.offset),
        )
        self._state.lost = recovered.lost
        self._keep_recovered_damage()
        self._state.on_damage = self._note_damage
        self._context = context = self._make_context(background, partition)
        self._queue = AppendQueue(
            context,
            config=config,
            budget=budget,
            flush=self._flush,
            is_stalled=lambda: self._segments.is_stalled,
            on_rewind=self._rewind,
        )
        self._start = LogStart(context, removal_hooks=lambda: self.removal_hooks)
        self._commit = CommitState(
            context,
            config=config,
            clock=clock,
            timers=timers,
            committer=committer,
            queue=self._queue,
            log_start=self._start,
            written_position=lambda: self._segments.written_position,
            go_offline=self._go_offline,
        )
        self._segments = ActiveSegments(
            context,
            config=config,
            recovered=recovered,
            queue=self._queue,
            commit=self._commit,
            log_start=self._start,
            retention_now_ms=self._retention_now_ms,
            go_offline=self._go_offline,
            on_open=partial(on_open, self),
            on_disk_full=self._on_unhealthy,
        )
        self._deletions = KeyDeletions(
            context,
            now_ms=self._retention_now_ms,
            deletions_max=deletions_max,
            roll=self._segments.roll_soon,
        )
        self._cleaner = LogCleaner(
            context,
            removal_hooks=lambda: self.removal_hooks,
            now_ms=self._retention_now_ms,
            monotonic=clock.monotonic,
            retire=self._segments.retire,
        )
        self._relocation = SegmentRelocation(context)
        found = []
        if partition.decisions is not None:
            found = find_decisions(
                recovered.segments,
                start=max(partition.decisions.offset, partition.start_offset),
                end=end.offset,
                name=name,
            )
        self.replication = LogReplication(
            context,
            queue=self._queue,
            segments=self._segments,
            commit=self._commit,
            log_start=self._start,
            cleaner=self._cleaner,
            decisions=LogDecisions(
                context,
                found=found,
                queue=self._queue,
                deletions=self._deletions,
                now_ms=self._retention_now_ms,
                wall_ms=clock.wall_ms,
                config=lambda: self.config,
            ),
            now_ms=self._retention_now_ms,
            monotonic=clock.monotonic,
            go_offline=self._go_offline,
            offline=lambda: self.offline,
            on_repair=self._note_repair,
        )
        """Leader or replica: slices, truncation and the high watermark."""
        if recovered.offline:
            self._go_offline(recovered.offline)

    def _make_context(self, background: Executor, partition: PartitionMetadata) -> LogContext:
        tasks = BackgroundTasks()
        return LogContext(
            name=self.name,
            log_directory=self.log_directory,
            background=background,
            tasks=tasks,
            state=self._state,
            metadata_file=MetadataFile(
                partition,
                log_directory=self.log_directory,
                background=background,
                tasks=tasks,
                check=self._check_writable,
            ),
            counters=self.counters,
            on_change=self._notify_watchers,
            on_commit=self._note_commit,
        )

    # State.

    @property
    def start_offset(self) -> int:
        return self._state.start_offset

    @property
    def end_offset(self) -> int:
        """The offset after the last committed record: the next one that a reader will see.

        In a log with replicas, readers do not pass the high watermark; see `replication`.
        """
        return self._state.end_offset

    @property
    def next_offset(self) -> int:
        """The offset of the next admitted batch: at or after `end_offset`."""
        return self._queue.next_offset

    @property
    def eviction_floor(self) -> int:
        """Records before this offset were evicted by retention; at most `start_offset`."""
        return self._state.eviction_floor

    @property
    def eviction_reason(self) -> str:
        """Why the eviction floor was moved last."""
        return self._state.snapshot.eviction_reason

    def gap_at(self, offset: int) -> Gap | None:
        """Return the evicted records from `offset` on, which a reader there misses."""
        return _gap(offset, self._state.snapshot)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments, oldest first."""
        return self._state.snapshot.segments

    @property
    def sealed(self) -> list[SealedSegment]:
        """The sealed segments, oldest first."""
        return [segment for segment in self.segments if isinstance(segment, SealedSegment)]

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments, including deleted records that are not reclaimed yet."""
        return sum(segment.size for segment in self.segments)

    @property
    def cold_bytes(self) -> int:
        """Bytes of the segments that are in a cold store only."""
        return sum(s.size for s in self.segments if isinstance(s, ColdSegment))

    @property
    def record_count(self) -> int:
        """Records of all segments, including deleted ones that are not reclaimed yet."""
        return sum(map(record_count, self.segments))

    @property
    def masks(self) -> Mapping[int, DeletedOffsets]:
        """Records deleted by key and not reclaimed yet, by base offset of the segment."""
        return self._state.snapshot.masks

    @property
    def reclaimable_bytes(self) -> int:
        """About how many bytes a rewrite would reclaim from records deleted by key."""
        return sum(mask.bytes for mask in self.masks.values())

    @property
    def deleted_records(self) -> int:
        """Records that were deleted by key and are not reclaimed yet."""
        return sum(len(mask.offsets) for mask in self.masks.values())

    @property
    def unflushed_bytes(self) -> int:
        """Bytes that were admitted and are not committed yet."""
        return self._queue.unflushed_bytes

    @property
    def disk_full(self) -> Unavailable | None:
        """The error of the last write, if the disk had no space for it; None once one succeeds."""
        return self._segments.disk_full

    def clear_disk_full(self) -> None:
        """Assume that the disk has space again: the maintenance of the store found some."""
        self._segments.disk_full = None

    @property
    def partition(self) -> PartitionMetadata:
        """The content of `partition.json`: leader epochs, floors and deletions."""
        return self._context.metadata_file.partition

    # Cursors.

    @property
    def topic_id(self) -> uuid.UUID | None:
        """The id of its topic; in an embedded store, an id of its own. `None` if it has none."""
        return self.partition.cursor_id

    def cursor_at(self, offset: int) -> str:
        """Return the cursor of a position in this log, and not in another one of its name."""
        topic, _, index = self.name.rpartition("/")
        return encode_cursor({(topic, int(index)): CursorPosition(offset, self.topic_id)})

    def start_of(self, start: int | str | None) -> tuple[int, Gap | None]:
        """Return the offset at which a reader starts, and the gap that it has to be told.

        `start` is an offset, a cursor, or `None` for the first record. There is a gap if the cursor
        is of another log of this name, which was deleted.
        """
        if start is None:
            return self.start_offset, None
        if isinstance(start, int):
            return start, None
        topic, _, index = self.name.rpartition("/")
        position = decode_cursor(start).get((topic, int(index)))
        if position is None:
            raise InvalidRequest(f"cursor must be one of {self.name}, got {start[:100]!r}")
        if position.is_foreign(self.topic_id):
            return 0, Gap(position.offset, position.offset, RECREATED)
        return position.offset, None

    # Appending.

    async def append(
        self, batch: Bytes, *, is_checked: bool = False, timeout: float | None = None
    ) -> Appended:
        """Append one batch, and return once the durability class of the log is met.

        If too much is unflushed already, the batch waits for its turn, at most `timeout` seconds;
        `DeadlineExceeded` then means that nothing was written. An admitted batch is always written.
        `batch` must not change before this returns. Its checksum is verified unless `is_checked`
        says that the caller did.
        """
        return await self.submit(batch, is_checked=is_checked, timeout=timeout)

    def try_append(self, batch: Bytes, *, is_checked: bool = False) -> asyncio.Future[Appended]:
        """Append one batch if it can be admitted now; else raise `WouldBlock` with the reason.

        The future ends when the durability class of the log is met.
        """
        self._check_writable()
        header = validate_batch(batch, size_max=self._queue.batch_size_max, is_checked=is_checked)
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._queue.submit_now(PendingAppend(header, batch, future))
        return future

    def try_append_records(
        self, records: Sequence[Record], *, codec: Codec = Codec.NONE
    ) -> asyncio.Future[Appended]:
        """Append records as one batch if it can be admitted now; see `try_append`."""
        batch = build_batch(records, now_ms=self._clock.wall_ms(), codec=codec)
        return self.try_append(batch, is_checked=True)

    def submit(
        self,
        batch: Bytes,
        *,
        is_checked: bool = False,
        on_admit: OnAdmit | None = None,
        timeout: float | None = None,
        is_early: bool = False,
        header: BatchHeader | None = None,
    ) -> asyncio.Future[Appended]:
        """Append one batch, and return a future that ends with its acknowledgement.

        Cancelling the future withdraws a batch that waits for admission; an admitted one is
        written all the same. A caller that passes the `header` has checked the batch as
        `validate_batch` does: checksum, size and count. See `submit_for` for the rest.
        """
        if header is None:
            self._check_writable()
            header = validate_batch(
                batch, size_max=self._queue.batch_size_max, is_checked=is_checked
            )
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._queue.submit(
            PendingAppend(header, batch, future, on_admit, is_early=is_early), timeout
        )
        return future

    def submit_for(
        self,
        waiter: AppendWaiter,
        batch: Bytes,
        header: BatchHeader,
        *,
        on_admit: OnAdmit | None = None,
        timeout: float | None = None,
        is_early: bool = False,
    ) -> None:
        """Append one batch that passed `validate_batch`, and give its outcome to `waiter`.

        A waiter is called at once, where a future needs a turn of the loop. `on_admit` is called
        with the batch's offset when it is assigned, in the order of offsets, and may refuse it by
        raising: the batch then gets no offset, and the append fails with what was raised. It must
        not append or wait. `is_early` acknowledges the batch once it is written, even if the class
        of the log asks for more: it then survives the death of the process, and readers see it no
        earlier than they would otherwise.
        """
        self._queue.submit(
            PendingAppend(header, batch, waiter, on_admit, is_early=is_early), timeout
        )

    async def append_records(
        self,
        records: Sequence[Record],
        *,
        codec: Codec = Codec.NONE,
        timeout: float | None = None,
    ) -> Appended:
        """Append records as one batch: all or none.

        Records without a timestamp get the current time.
        """
        batch = build_batch(records, now_ms=self._clock.wall_ms(), codec=codec)
        return await self.append(batch, is_checked=True, timeout=timeout)

    @property
    def synced_offset(self) -> int:
        """The end of the records that survive a power cut; at most `next_offset`.

        In a log of class `fsync` it is `end_offset`. In one of class `disk` or `memory` it follows
        within `flush_ms`.
        """
        return self._commit.synced_offset

    async def flush(self, until: int | None = None) -> None:
        """Return once the records before `until`, or all admitted ones, survive a power cut.

        Syncs now instead of after `flush_ms`; callers at the same time share a sync. `Unavailable`
        means that records before `until` were refused after this was called.
        """
        if self.config.durability is Durability.EPHEMERAL:
            raise RequestError(f"{self.name} is ephemeral: memory cannot be flushed")
        queue = self._queue
        if until is None:
            until = queue.next_offset
        if not 0 <= until <= queue.next_offset:
            raise RequestError(f"until must be between 0 and {queue.next_offset}, got {until}")
        while self.synced_offset < until:
            self._check_writable()
            if queue.next_offset < until:
                raise Unavailable(f"{self.name}: records from {queue.next_offset} on were refused")
            self._commit.sync_now()
            await self._context.tasks.changed()

    # Changes.

    async def begin_epoch(self, number: int) -> None:
        """Write all further batches with a newer leader epoch. Durable when this returns."""
        await self.replication.begin_epoch(number)

    async def record_topic_id(self, topic_id: uuid.UUID) -> None:
        """Record the topic of the log in `partition.json`; raise `CorruptFile` if it has another.

        A log that is offline is not changed, and on a full disk the next opening records it.
        """
        if self.partition.topic_id is None and self.offline is None:
            await self._context.metadata_file.run_exclusive(self._record_topic_id(topic_id))
        elif self.partition.topic_id not in (None, topic_id):
            raise CorruptFile(
                f"{self.log_directory.directory} belongs to the topic with id"
                f" {self.partition.topic_id}, but the metadata has id {topic_id}"
            )

    async def _record_topic_id(self, topic_id: uuid.UUID) -> None:
        try:
            await self._context.metadata_file.write(replace(self.partition, topic_id=topic_id))
        except OSError as error:
            if refusal := transient_error(self.name, error):
                logger.warning("the topic id is not recorded: %s", refusal)
            else:
                self._go_offline(error)

    async def delete_before(self, offset: int) -> None:
        """Delete all records before `offset`. Durable when this returns.

        Raises `OffsetOutOfRange` beyond `end_offset`, and does nothing before `start_offset`. Files
        without live records are removed afterwards, except the last one with a record, which is
        removed when another follows it. Slices that were read stay valid. Readers continue at the
        new start, without a gap.
        """
        self.replication.check_leads()
        await self._start.delete_before(offset)

    async def evict_before(self, offset: int, reason: str = RETENTION) -> None:
        """Delete all records before `offset` because of retention. Durable when this returns.

        Like `delete_before`, except that readers below `offset` get a gap with this reason, and
        that the removal hooks are consulted first. What stays is synced before files are removed,
        in every class: a power cut must not leave less than the limits allow.
        """
        self.replication.check_leads()
        if self.config.durability is not Durability.EPHEMERAL:
            await self.flush(until=self.end_offset)
        await self._start.evict_before(offset, reason)

    def plan_eviction(self) -> Eviction | None:
        """Return what retention would delete now. Nothing is deleted."""
        if self.replication.is_replica:
            return None
        snapshot = self._state.snapshot
        return plan_eviction(
            snapshot.segments,
            start=self.partition.start_offset,
            committed=snapshot.committed.offset,
            config=self.config,
            now_ms=self._retention_now_ms(),
            needed_offset=self.needed_offset,
            age_marks=self.partition.age_marks,
        )

    def would_evict(self, needed_offset: int) -> bool:
        """Whether retention would delete records from `needed_offset` on, if it might."""
        if self.replication.is_replica:
            return False
        snapshot = self._state.snapshot
        eviction = plan_eviction(
            snapshot.segments,
            start=self.partition.start_offset,
            committed=snapshot.committed.offset,
            config=self.config,
            now_ms=self._retention_now_ms(),
            age_marks=self.partition.age_marks,
        )
        ends = (0 if eviction is None else eviction.before_offset, self._start.capped_offset())
        return max(ends) > needed_offset

    def apply_caps(self) -> None:
        """Move the start as far as the limits of bytes and records require, if there are any."""
        if self._start.is_capped:
            self._start.apply_caps()
            self._context.on_change()

    async def begin_retention(self) -> None:
        """Let readers see no more than the limits of bytes and records allow, from now on.

        Called once, after the removal hooks are set, if the log has any: they may need records
        that the limits leave out. What the log showed with other limits does not come back.
        """
        self._has_begun_retention = True
        is_writable = self.offline is None
        if is_writable:
            await self.replication.decisions.settle()
        await self._start.begin_caps(caps_of(self.config), is_writable=is_writable)

    def next_age_mark(self) -> AgeMark | None:
        """Return how old the records are that the log has now, if it is time to note that."""
        if self.end_offset <= self.start_offset or self.offline is not None:
            return None
        return next_age_mark(
            self.partition.age_marks,
            committed=self.end_offset,
            config=self.config,
            now_ms=self._retention_now_ms(),
        )

    async def add_age_mark(self, mark: AgeMark) -> None:
        """Note how old records are. Durable when this returns; if it fails, they live longer."""
        await self._start.add_age_mark(mark)

    @property
    def needed_offset(self) -> int | None:
        """The first offset that the removal hooks still need, if any."""
        return None if self.removal_hooks is None else self.removal_hooks.needed_offset()

    async def delete_keys(
        self,
        *,
        key: bytes | None = None,
        prefix: bytes | None = None,
        before: int | None = None,
    ) -> int:
        """Delete all records with this key, or whose key has this prefix; return how many.

        Only records before the offset `before`, or all that were admitted when this was called.
        Durable and invisible when this returns, and decided for all replicas if there are any; the
        bytes are reclaimed later, and slices that were read stay valid. The key may be appended
        again at once. `Unavailable` means that too many deletions are not reclaimed yet. After
        `StorageFailed` or `DiskFull` it is not known whether the records are deleted, until the log
        is opened again or they are deleted once more.
        """
        match = match_for(key=key, prefix=prefix)
        self._check_writable()
        self.replication.check_leads()
        if (decisions := self.replication.decisions).applied is not None:
            decision = DeletionDecision(match, before)
            decisions.check_deletion(decision)
            return await decisions.decide(decision)
        queue = self._queue
        admitted = queue.next_offset
        if before is None:
            # A batch may be acknowledged before it can be read (class `memory`, early batches). Its
            # appender must not find it again, so wait until all that was admitted is committed.
            # Offsets may be taken back meanwhile.
            while self.end_offset < min(admitted, queue.next_offset):
                await self._context.tasks.changed()
                self._check_writable()
            before = min(admitted, queue.next_offset)
        return await self._deletions.delete(match, before=before)

    async def roll(self) -> None:
        """Seal the growing segment, if it has a record. The next append starts another."""
        self.replication.check_leads()
        await self._segments.roll()
        if self.offline:
            raise again(self.offline)

    async def clean(
        self,
        *,
        background: Executor,
        throttle: IoThrottle,
        memory_bytes_max: int,
        seed: int,
        is_forced: bool = False,
    ) -> CleanerResult | None:
        """Compact, reclaim and merge segments if that is worth it; see `LogCleaner.clean`.

        In a cluster the leader decides first what is compacted, and every replica does that.
        """
        is_replica, decisions = self.replication.is_replica, self.replication.decisions
        if decisions.applied is not None:
            await decisions.settle()
            if not is_replica and self.config.is_compacted:
                await self._decide_cleaning(is_forced=is_forced)
        is_capped = self._start.is_capped and not is_replica
        if is_capped and self.start_offset > self.partition.start_offset:
            if self.config.durability is not Durability.EPHEMERAL:
                await self.flush(until=self.end_offset)
            await self._start.store_start()
        return await self._cleaner.clean(
            self.config,
            background=background,
            throttle=throttle,
            memory_bytes_max=memory_bytes_max,
            seed=seed,
            is_forced=is_forced,
            is_replica=is_replica,
        )

    async def relocate(self, segment: SealedSegment, marker: ColdMarker) -> bool:
        """Use the object in the cold store in place of a segment; return whether that was possible.

        The object was verified. Durable when this returns; the local `.log` is removed afterwards.
        A run of the cleaner ends first.
        """
        if self.partition.decisions is not None:
            raise InvalidRequest(f"{self.name}: a log of a cluster has no cold store")
        if self.removal_hooks is not None:
            await self.removal_hooks.before_removal()
        async with self._cleaner.interrupted():
            return await self._relocation.switch(segment, marker)

    async def _decide_cleaning(self, *, is_forced: bool) -> None:
        decisions = self.replication.decisions
        decision = self._cleaner.next_decision(
            self.config, cleaned_elsewhere=decisions.cleaned_elsewhere, is_forced=is_forced
        )
        if decision is None:
            return
        try:
            decisions.check()
        except MillstreamError as error:  # The next run tries again.
            logger.debug("%s: nothing is decided about cleaning: %s", self.name, error)
            return
        await decisions.decide(decision)

    async def reconfigure(self, config: LogConfig) -> None:
        """Use other settings from now on; admitted batches may still use the old ones.

        The durability class may change among `memory`, `disk` and `fsync`; that is durable when
        this returns. The first acknowledgement of class `fsync` promises that everything before it
        is durable too.
        """
        self._check_class(config)
        if self._has_begun_retention:
            await self._start.change_caps(caps_of(config))
        await self._context.metadata_file.run_exclusive(self._reconfigure(config))

    def _check_class(self, config: LogConfig) -> None:
        before, after = self.config.durability, config.durability
        if before is not after and Durability.EPHEMERAL in (before, after):
            raise InvalidConfig(
                f"{self.name} is {before.value} and cannot become {after.value} while it is open"
            )

    async def _reconfigure(self, config: LogConfig) -> None:
        before, after = self.config.durability, config.durability
        if before is after:
            self._apply_config(config)
            return
        await self._segments.wait_until_resumed()
        await self._segments.pause_until(self._change_durability(config))
        if self.offline:
            raise again(self.offline)

    async def _change_durability(self, config: LogConfig) -> None:
        """Change the class between two batches: each is acknowledged by the class it was sent to.

        What a weaker class wrote is synced before the log is of class `fsync`: an acknowledgement
        of that class says that everything before it is durable too.
        """
        context = self._context
        await self._commit.wait_until_committed()
        if self.offline:
            return
        partition = replace(self.partition, durability=config.durability)
        try:
            if config.durability is Durability.FSYNC:
                files = [self._segments.open_file(s) for s in self._segments.unsealed]
                await context.background.run(partial(sync_all, self.log_directory, files))
                self._commit.is_directory_dirty = False
                self._commit.forget_unsynced()
            await context.metadata_file.write(partition)
        except SegmentSyncFailed as failed:
            self._go_offline(failed.cause)
        except OSError as error:
            if refusal := transient_error(self.name, error):
                raise refusal from error
            self._go_offline(error)
        else:
            self._apply_config(config)

    def _apply_config(self, config: LogConfig) -> None:
        self.config = config
        self._commit.apply_config(config)
        self._segments.apply_config(config)
        self._queue.apply_config(config)  # Last: it admits batches that waited.

    # Reading.

    def read(
        self,
        offset: int,
        *,
        size_max: int = READ_SIZE_MAX,
        records_max: int | None = None,
        is_checked: bool = True,
    ) -> Slice:
        """Return committed batches of one segment, from the one that contains `offset` on.

        Returns at least one batch, whatever its size, or none at the end of the log. Checksums are
        verified unless `is_checked` is off, for callers whose readers verify them.
        """
        return self._state.read(
            offset, size_max=size_max, records_max=records_max, is_checked=is_checked
        )

    def read_at(self, address: Address) -> Slice:
        """Return the batch at a physical address, without an index."""
        return self._state.read_at(address)

    def records(
        self, offset: int | str | None = None, *, until: int | None = None
    ) -> Iterator[StoredRecord | Gap]:
        """Iterate over the committed records from `offset`, or from the start, up to `until`.

        A cursor may take the place of the offset. If it is one of a log that was deleted, a `Gap`
        with the reason `recreated` comes first, and then this log from its start. Ends at the end
        of the log as of the last read. Transaction markers are left out. If records that it has not
        reached are evicted, a `Gap` stands for them; deleted records are left out silently.
        """
        position, gap = self.start_of(offset)
        if gap is not None:
            yield gap
        end = self.end_offset if until is None else until
        while position < end:
            try:
                batches = self.read(position)
            except OffsetOutOfRange:
                gap, position = self.overtaken(position)
                if gap is not None:
                    yield gap._replace(to_offset=min(gap.to_offset, end - 1))
                continue
            if not batches.data:
                return
            for record in read_all(batches.data):
                if position <= record.offset < end:
                    yield record
            position = batches.next_offset

    def overtaken(self, offset: int) -> tuple[Gap | None, int]:
        """Return the gap at `offset`, if any, and the offset at which a reader can continue.

        For use after `read` raised `OffsetOutOfRange`; raises the same if nothing was deleted or
        evicted there. Without a gap, everything before that offset was deleted.
        """
        snapshot = self._state.snapshot
        if not 0 <= offset < snapshot.start:
            raise OffsetOutOfRange(offset, start=snapshot.start, end=snapshot.committed.offset)
        return _gap(offset, snapshot), snapshot.start

    def headers(
        self, offset: int, *, until: int | None = None
    ) -> Iterator[tuple[BatchHeader, memoryview]]:
        """Iterate over the committed batches from the one that contains `offset`, up to `until`.

        Each is checked, and comes with its header. Ends at the end of the log as of the last read.
        """
        end = self.end_offset if until is None else until
        while offset < end:
            batches = self.read(offset)
            if not batches.data:
                return
            for header, batch in split(batches.data):
                if header.base_offset >= end:
                    return
                yield header, batch
            offset = batches.next_offset

    def find_latest(self) -> TimestampedOffset | None:
        """Return the record with the greatest timestamp; of several, the first. Exact."""
        return self._state.find_latest()

    def find_timestamp(self, timestamp_ms: int) -> TimestampedOffset | None:
        """Return the first record, by offset, whose timestamp is `timestamp_ms` or later.

        Exact per record, even if timestamps are not in order.
        """
        return self._state.find_timestamp(timestamp_ms)

    def records_between(self, first_ms: int, last_ms: int) -> Iterator[StoredRecord]:
        """Iterate over the records with `first_ms` <= timestamp < `last_ms`, in log order.

        Misses none: timestamps may be out of order, so every batch that is late enough is read.
        """
        start = self.start_offset
        for batch in self._state.batches_since(first_ms):
            for record in read_all(batch):
                if first_ms <= record.timestamp_ms < last_ms and record.offset >= start:
                    yield record

    # Following.

    async def wait_for(self, offset: int) -> None:
        """Return once the record at `offset` can be read. Does not poll: a commit wakes it."""
        while self.end_offset <= offset:
            if self._is_closed:
                raise LogClosed(f"{self.name} is closed")
            if self.offline:
                raise again(self.offline)
            if self._new_records is None:
                self._new_records = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._new_records)

    async def follow(self, offset: int, *, size_max: int = READ_SIZE_MAX) -> AsyncIterator[Slice]:
        """Yield batches from `offset` on, forever, as they are committed.

        Ends with `OffsetOutOfRange` if records are removed before it has reached them; `gap_at`
        says whether they were evicted.
        """
        if offset > self.end_offset:
            raise OffsetOutOfRange(offset, start=self.start_offset, end=self.end_offset)
        while True:
            await self.wait_for(offset)
            batches = self.read(offset, size_max=size_max)
            yield batches
            offset = batches.next_offset

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` after every change of what can be read.

        Watching twice has no further effect.

        That is after a commit that moved `end_offset`, after records were deleted or evicted, when
        the log goes offline and when it is closed. It runs on the event loop, so it should only set
        a flag.
        """
        self._watchers[callback] = None

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Stop calling `callback`. Does nothing if it is not watched."""
        self._watchers.pop(callback, None)

    def _note_commit(self) -> None:
        """Wake those that wait for a commit, and readers if they see more."""
        self.replication.note_commit()
        if self._state.visible_limit is None or self.end_offset > self._notified_offset:
            self._notify_watchers()

    def _notify_watchers(self) -> None:
        """Wake all that wait for a change."""
        self._notified_offset = self.end_offset
        if self._new_records is not None:
            waiting, self._new_records = self._new_records, None
            waiting.set_result(None)
        for callback in tuple(self._watchers):
            if callback in self._watchers:  # A callback before it may have removed it.
                try:
                    callback()
                except Exception:  # A watcher must not stop the log.
                    logger.exception("%s: a watcher failed", self.name)

    # Failure.

    @property
    def damage(self) -> list[CorruptData]:
        """The damage that recovery found, and what readers have met since."""
        found = {(d.from_offset, d.to_offset): d for d in self._state.damage}
        known = [d for d in self.recovered.damage if not self._is_deleted(d)]
        for damage in known:
            if isinstance(damage, DamagedRecords):
                found.pop((damage.from_offset, damage.to_offset), None)
        return [*known, *found.values()]

    @property
    def truncations(self) -> int:
        """How often files of the log were cut or replaced: what was read before may not count."""
        return self._state.snapshot.truncations

    def report_damage(self, damage: DamagedRecords) -> None:
        """Treat a damaged range that a scrub has found as if a reader had met it."""
        self._state.note_damage(damage)

    @property
    def lost(self) -> MillstreamError | None:
        """Why there may have been records behind the end of the log, if that is so."""
        return self._state.lost

    def _is_deleted(self, damage: CorruptData) -> bool:
        return isinstance(damage, DamagedRecords) and damage.to_offset < self.start_offset

    def _note_repair(self, first: int, end: int) -> None:
        """Forget the damage between two offsets: the segment was replaced."""
        files = self.log_directory.path(first, "").removesuffix(".")
        hole = f"{self.log_directory.directory}: offsets {first} to {end - 1} have no segment"
        self.recovered.damage = [
            damage
            for damage in self.recovered.damage
            if not (isinstance(damage, DamagedRecords) and first <= damage.from_offset < end)
            and not str(damage).startswith((files, hole))
        ]

    def _keep_recovered_damage(self) -> None:
        """Treat damaged records that recovery found as if a reader had met them.

        They are forgotten when the log is truncated or the segment replaced. A log that is offline
        is neither, and keeps why it is.
        """
        if self.recovered.offline:
            return
        found = [d for d in self.recovered.damage if isinstance(d, DamagedRecords)]
        for damage in found:
            self._state.note_damage(damage)
        self.recovered.damage = [d for d in self.recovered.damage if d not in found]

    def _note_damage(self, damage: DamagedRecords) -> None:
        """Report damage when a reader first meets it, in the thread of that reader."""
        logger.error("%s: damaged: %s", self.name, damage)
        self._on_damage()

    def _check_writable(self) -> None:
        self._queue.check_writable()

    def _flush(self) -> None:
        self._segments.flush()
        self.replication.note_write()

    def _rewind(self, offset: int) -> None:
        self.replication.decisions.truncate(offset)
        if self.on_rewind is not None:
            self.on_rewind(offset)

    def _go_offline(self, cause: Exception) -> None:
        """Accept nothing more, because it is not known what is on the disk."""
        if self.offline:
            return
        logger.error("%s is offline: %s", self.name, cause)
        offline = LogOffline(f"{self.name} is offline until it is opened again: {cause}")
        offline.__cause__ = cause
        self.counters.offline = 1
        self._refuse_all(offline)
        self._on_unhealthy()

    def _refuse_all(self, error: MillstreamError) -> None:
        """Accept nothing more, and refuse everything that is not committed."""
        self.offline = error
        queue = self._queue
        queue.refusal = queue.refusal or error
        # In this order: the offsets are taken back before any appender is told, and nothing may
        # wait when the other two give back their capacity, or it would be admitted.
        queue.rewind(self._state.durable_offset)
        queue.refuse_waiting(error)
        self._commit.stop(error)
        queue.refuse_pending(error)
        self._notify_watchers()
        self._context.tasks.notify()

    # Closing.

    def close_idle(self) -> bool:
        """Close the file for writing if the log is idle; return whether it was closed."""
        return self._segments.close_idle()

    @property
    def is_open_for_writing(self) -> bool:
        """Whether a file is open for writing."""
        return self._segments.is_open

    async def close(self) -> None:
        """Commit what was admitted, seal the log and close its files."""
        try:
            if not self._is_closing:
                await self._commit_and_seal()
        finally:
            self._end()

    async def _commit_and_seal(self) -> None:
        closed = self._stop_accepting()
        self._queue.refuse_waiting(closed)
        while (self._queue.pending or self._commit.written) and not self.offline:
            await self._context.tasks.changed()
        self.replication.store_watermark()
        unsealed = await self._release()
        if self.offline or self.config.durability is Durability.EPHEMERAL:
            return
        await self._store_decided_offset()
        try:
            await self._segments.seal_remaining(unsealed)
        except (OSError, SegmentSyncFailed) as error:
            self._go_offline(error)
            raise StorageFailed(f"{self.name} was not closed cleanly: {error}") from error

    async def _store_decided_offset(self) -> None:
        try:
            await self.replication.decisions.store_offset(is_closing=True)
        except MillstreamError as error:  # It only saves work when the log is opened.
            logger.debug("%s: %s", self.name, error)

    async def discard(self) -> None:
        """Close the log without a commit or a seal, because its files are about to be removed.

        What is not committed is refused.
        """
        try:
            closed = self._stop_accepting()
            if not self.offline:
                self._refuse_all(closed)
            await self._release()
        finally:
            self._state.close(LogClosed(f"{self.name} is closed"))
            self._end()

    def _stop_accepting(self) -> LogClosed:
        """Refuse new batches, and stop the cleaner; its run is one of the tasks to wait for."""
        self._is_closing = True
        self._queue.refusal = closed = LogClosed(f"{self.name} is closed")
        self._cleaner.stop()
        return closed

    async def _release(self) -> list[GrowingSegment]:
        """Wait for what is in flight, and return the segments without a seal."""
        while self._commit.is_in_flight or not self._context.tasks.is_idle:
            await self._context.tasks.changed()
        self._commit.cancel_background_sync()  # Not before: a sync that ends sets the next timer.
        return self._segments.release()

    def _end(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._notify_watchers()


def _end_of(recovered: RecoveredLog) -> LogPosition:
    """Return the end of what recovery found: all of it is durable."""
    start = recovered.partition.start_offset
    last = recovered.segments[-1] if recovered.segments else None
    if last is None or last.next_offset < start:
        return LogPosition(max(start, recovered.end_offset), -1, 0)
    end_offset = max(last.next_offset, recovered.end_offset)
    return LogPosition(end_offset, last.base_offset, last.size)


def _gap(offset: int, snapshot: LogSnapshot) -> Gap | None:
    """Return the gap of evicted records from `offset` on."""
    if not 0 <= offset < snapshot.eviction_floor:
        return None
    return Gap(offset, snapshot.eviction_floor - 1, snapshot.eviction_reason)
