"""One partition: a log, and the rules of Kafka over it.

The high watermark is the committed end of the log: a batch is read once nothing takes it back. It
is decided in one place, `Partition.high_watermark`, and with one node the log decides it. Readers
of committed records see nothing past the last stable offset, which never passes it.

One event loop owns a partition; only the work handed to `Executor` runs elsewhere.
"""

from __future__ import annotations

import asyncio
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from millstream.broker.loop_threads import LoopThreads
from millstream.broker.partition.batch_reader import read_batches
from millstream.broker.partition.batch_validator import BatchValidator, PartitionConfig
from millstream.broker.partition.producers.appender import ProducerAppender
from millstream.broker.partition.producers.recovery import recover_producers
from millstream.broker.partition.producers.snapshot_saver import ProducerSnapshotSaver
from millstream.broker.partition.producers.states import ProducerStates
from millstream.broker.partition.removal_hooks import PartitionRemovalHooks, RetentionHold
from millstream.broker.partition.results import (
    Appended,
    FetchResult,
    OffsetAndTimestamp,
    PartitionDescription,
    ProducerDescription,
)
from millstream.clock import Clock
from millstream.config.schema import DAY_MS, Durability
from millstream.errors import (
    FencedLeaderEpoch,
    LogClosed,
    MillstreamError,
    OffsetOutOfRange,
    Stopping,
    UnknownLeaderEpoch,
    UnknownTopic,
)
from millstream.records.batch import NO_TIMESTAMP, Bytes
from millstream.records.control import Marker
from millstream.records.record import Gap
from millstream.storage.append.pending_append import AppendWaiter, OnAdmit
from millstream.storage.disk.executor import Executor
from millstream.storage.log import Log
from millstream.storage.prefetch import ColdRange
from millstream.storage.segment.reader import TimestampedOffset as FoundRecord
from millstream.storage.store import Store

__all__ = ["Partition", "PartitionConfig"]

NO_EPOCH = -1
"""Says that there is no such leader epoch, or that the caller knows of none."""

NO_OFFSET = -1
"""Says that there is no such offset."""

HIGH_WATERMARK = -1
"""As an offset to delete before: all that can be deleted."""


class _OpenPartition(NamedTuple):
    """What a partition has once it is open."""

    log: Log
    states: ProducerStates
    appends: ProducerAppender
    saving: ProducerSnapshotSaver
    known_offset: int | None
    """Past this it is unknown who wrote what, because the log is damaged."""


class Partition:
    """One partition of a topic.

    It is opened when it is first used: until then it costs no file and no memory to speak of.
    Except where something else is said, it has to be open.
    """

    def __init__(
        self,
        topic: str,
        index: int,
        *,
        topic_id: uuid.UUID,
        store: Store,
        config: PartitionConfig,
        clock: Clock,
        producer_id_expiration_ms: int = DAY_MS,
        background: Executor | None = None,
    ) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.config = config
        self._store = store
        self._clock = clock
        self._expiration_ms = producer_id_expiration_ms
        self._background = background or LoopThreads()
        self._watchers: dict[Callable[[], None], None] = {}
        self.keeper: RetentionHold | None = None
        """Who still needs records here, whatever retention says."""
        self.on_rewind: Callable[[int], None] | None = None
        """Told, before anything else is appended, from which offset on records were taken back."""
        self.before_removal: Callable[[], Awaitable[None]] | None = None
        """Asked before records go that it may be the last to have read."""
        self._opened: _OpenPartition | None = None
        self._opening: asyncio.Task[None] | None = None
        self._refusal: MillstreamError | None = None
        """Why the partition cannot be used any more, once it cannot."""

    def __str__(self) -> str:
        return f"{self.topic}/{self.index}"

    # Opening and closing.

    @property
    def is_open(self) -> bool:
        """Whether it can be used now."""
        return self._opened is not None and self._refusal is None

    async def open(self) -> None:
        """Open the log and find out about its producers. Whoever comes meanwhile waits too.

        Nothing happens where it is open. An opening that failed can be tried again.
        """
        if self._refusal is not None:
            raise self._refusal
        if self._opened is not None:
            return
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
            self._opening.add_done_callback(self._end_opening)
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        config = self.config.log_config()
        log = await self._store.log(self.topic, self.index, config=config)
        if log.config != config and log.offline is None:
            await log.reconfigure(config)
        place = log.place
        found = await self._background.run(
            partial(
                recover_producers,
                log,
                place.filesystem,
                place.directory,
                expiration_ms=self._expiration_ms,
                now_ms=self._now_ms(),
            )
        )
        if self._refusal is not None:
            raise self._refusal
        appends = ProducerAppender(
            log,
            found.states,
            BatchValidator(self.config),
            clock=self._clock,
            background=self._background,
        )
        appends.refusal = found.damage
        saving = ProducerSnapshotSaver(
            log,
            found.states,
            filesystem=place.filesystem,
            directory=place.directory,
            saved_offset=found.snapshot_offset,
            is_known=found.damage is None,
            clock=self._clock,
            background=self._background,
        )
        known_offset = found.known_offset if found.damage else None
        self._opened = _OpenPartition(log, found.states, appends, saving, known_offset)
        log.guard = PartitionRemovalHooks(
            stable_offset=lambda: self.last_stable_offset,
            states=found.states,
            save=self._save_before_removal,
            keeper=lambda: self.keeper,
        )
        log.on_rewind = self._rewind
        log.watch(self._note_change)

    def _end_opening(self, opening: asyncio.Task[None]) -> None:
        self._opening = None
        if not opening.cancelled():
            opening.exception()  # Whoever waited has it; where nobody did, nobody minds.

    async def reopen(self) -> None:
        """Have the log checked and opened anew: the way back from offline."""
        self._detach(Stopping(f"{self} is being opened again"))
        self._opened = None
        await self._store.reopen(self.topic, self.index)
        await self.open()

    async def close(self) -> None:
        """Take nothing more, and write the snapshot. The log itself is the store's to close."""
        if self._refusal is not None:
            return
        self._retire(Stopping(f"{self} is closed"))
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._opened is not None:
            await self._opened.saving.save()

    def delete(self) -> None:
        """Take note that the topic is gone: who waits is woken, what comes is refused."""
        self._retire(UnknownTopic(f"{self} was deleted"))

    def _retire(self, refusal: MillstreamError) -> None:
        self._refusal = refusal
        self._detach(refusal)
        self.wake_watchers()

    def _detach(self, refusal: MillstreamError) -> None:
        if self._opened is not None:
            self._opened.appends.close(refusal)
            self._opened.log.on_rewind = None
            self._opened.log.unwatch(self._note_change)

    async def reconfigure(self, config: PartitionConfig) -> None:
        """Take other settings from now on. It need not be open.

        Where the log cannot take them now, that raises; it is opened with them the next time.
        """
        self.config = config
        if self._opening is not None:
            await asyncio.wait([self._opening])
        if self._opened is not None and self._refusal is None:
            self._opened.appends.rules = BatchValidator(config)
            await self._opened.log.reconfigure(config.log_config())

    def _usable(self) -> _OpenPartition:
        """Return what there is, or raise why it cannot be used."""
        if self._refusal is not None:
            raise self._refusal
        return self._known()

    def _known(self) -> _OpenPartition:
        """Return what there is, or was when the partition was closed."""
        if self._opened is None:
            raise self._refusal or LogClosed(f"{self} is not open")
        return self._opened

    # What it is. These keep their last value when it is closed.

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._known().log.start_offset

    @property
    def high_watermark(self) -> int:
        """The end of what nothing takes back: here, of what the log has committed."""
        return self._known().log.end_offset

    @property
    def last_stable_offset(self) -> int:
        """The end of what readers of committed records may see."""
        log, states, *_, known_offset = self._known()
        first_unstable = states.first_unstable_offset
        if first_unstable is None and known_offset is None:
            return self.high_watermark
        ends = [offset for offset in (first_unstable, known_offset) if offset is not None]
        return min(self.high_watermark, max(log.start_offset, min(ends)))

    @property
    def shape(self) -> tuple[int, object]:
        """What changes, the first by its value and the second by identity, when records go."""
        log = self._known().log
        return log.start_offset, log.masks

    def deleted_between(self, first: int, end: int) -> int:
        """Return how many records from `first` to before `end` are deleted by key, and there."""
        masks = self._known().log.masks
        return sum(
            bisect_left(mask.offsets, end) - bisect_left(mask.offsets, first)
            for mask in masks.values()
        )

    def deleted_among(self, offsets: Iterable[int]) -> list[int]:
        """Return those whose records were deleted, as far as that can be told without reading."""
        log = self._known().log
        start_offset, masks = log.start_offset, log.masks
        bases = sorted(masks)

        def is_deleted(offset: int) -> bool:
            at = bisect_right(bases, offset) - 1
            if offset < start_offset or at < 0:
                return offset < start_offset
            masked = masks[bases[at]].offsets
            place = bisect_left(masked, offset)
            return place < len(masked) and masked[place] == offset

        return [offset for offset in offsets if is_deleted(offset)]

    @property
    def end_offset(self) -> int:
        """The offset that the next batch gets."""
        return self._known().log.next_offset

    @property
    def waits_for_disk(self) -> bool:
        """Whether an append is acknowledged only once the disk has it."""
        return self._known().log.config.durability is Durability.FSYNC

    @property
    def last_sync_seconds(self) -> float:
        """How long the disk took for what was acknowledged last."""
        return self._known().log.counters.last_sync_seconds

    @property
    def leader_epoch(self) -> int:
        """The newest leader epoch."""
        return self._known().log.partition.leader_epoch

    @property
    def offline(self) -> MillstreamError | None:
        """Why nothing can be appended, if it cannot."""
        opened = self._known()
        return opened.log.offline or opened.appends.refusal

    def check_leader_epoch(self, epoch: int) -> None:
        """Raise unless the caller knows the same leader; -1 says that it knows of none."""
        current = self._usable().log.partition.leader_epoch
        if epoch in (NO_EPOCH, current):
            return
        error = FencedLeaderEpoch if epoch < current else UnknownLeaderEpoch
        raise error(f"leader epoch is {epoch}, newest is {current}")

    # Appending.

    def append(
        self,
        batch: Bytes,
        *,
        timeout_ms: int | None = None,
        is_early: bool = False,
        guard: int | None = None,
        on_admit: OnAdmit | None = None,
    ) -> asyncio.Future[Appended]:
        """Append one batch of a client.

        Raises what is wrong with it, or has the future end with that. The future ends well once
        the durability class of the topic is met; for a batch that was appended before, with the
        offsets that it got then. `batch` must not change before that. Where too much waits for
        the disk already, it waits for its turn, at most `timeout_ms`; `DeadlineExceeded` then
        means that nothing was written. Where `is_early`, the future ends once the batch is
        written, though a power cut may still undo that; readers see it no earlier.

        `guard` is what `transaction_guard` said before the coordinator was asked about the
        batch's transaction; if that was ended since, the batch is refused. `on_admit` is told the
        offset at the moment that the batch gets it.
        """
        return self._usable().appends.append(
            batch, timeout_ms=timeout_ms, is_early=is_early, guard=guard, on_admit=on_admit
        )

    def append_for(
        self,
        waiter: AppendWaiter,
        batch: Bytes,
        *,
        timeout_ms: int | None = None,
        is_early: bool = False,
    ) -> None:
        """Append one batch as `append` does, and tell `waiter`.

        It raises, or tells, what is wrong. For the many batches that have no producer id, of
        topics that ask for nothing to be looked at or changed, no turn of the loop comes between.
        """
        self._usable().appends.append_for(waiter, batch, timeout_ms=timeout_ms, is_early=is_early)

    def transaction_guard(self, producer_id: int) -> int:
        """Return a number that changes whenever a transaction of the producer is ended here."""
        entry = self._usable().states.get(producer_id)
        return NO_OFFSET if entry is None else entry.marker_offset

    async def append_marker(
        self, producer_id: int, producer_epoch: int, *, is_commit: bool, coordinator_epoch: int
    ) -> int:
        """End a producer's transaction; return the marker's offset once it is safe.

        It is written even where no transaction is open: the coordinator may not know whether it
        came so far before a crash, and a marker fences what an older epoch still has on its way.
        """
        marker = Marker(is_commit, coordinator_epoch)
        appends = self._usable().appends
        return (await appends.append_marker(producer_id, producer_epoch, marker)).offset

    def producers(self) -> list[ProducerDescription]:
        """Return what is remembered of the producers, by rising id."""
        return [
            ProducerDescription(
                producer_id,
                entry.epoch,
                entry.last_sequence,
                entry.timestamp_ms,
                entry.coordinator_epoch,
                entry.first_offset,
            )
            for producer_id, entry in sorted(self._usable().states.all().items())
        ]

    @property
    def producer_count(self) -> int:
        """How many producers are remembered. It need not be open."""
        return len(self._opened.states) if self._opened is not None else 0

    def expire_producers(self) -> None:
        """Forget producers that were idle for too long. It need not be open."""
        if self._opened is not None:
            self._opened.states.expire(self._now_ms())

    def _now_ms(self) -> int:
        """The time by which producers are forgotten, which setting the wall clock cannot touch."""
        return int(self._clock.monotonic() * 1000)

    # Reading.

    def cold(self, offset: int, *, size_max: int) -> list[ColdRange]:
        """Return what such a read would have to wait for, since it is old and not in memory.

        Whoever reads on the loop has it brought in first. At a partition that is not open, nothing.
        """
        if self._opened is None:
            return []
        log = self._opened.log
        return self._store.warming.cold(log.segments, max(offset, log.start_offset), size_max)

    async def bring_in(self, stretches: Sequence[ColdRange]) -> None:
        """Have old data brought into memory, without anybody else waiting for it."""
        await self._store.warming.bring_in(stretches)

    def read(
        self, offset: int, *, size_max: int, is_committed_only: bool = False, is_first: bool = True
    ) -> FetchResult:
        """Return whole batches from the one that holds `offset` on, `size_max` bytes at the most.

        Where `is_first`, one batch comes back even if it alone is larger, so that a reader with a
        small limit still moves. Nothing comes back at the end, which for readers of committed
        records is the last stable offset, nor between there and where the next batch goes: a
        producer may know of records, by `is_early`, that readers do not see yet.

        Who asks for something that retention took is told so, by `OffsetOutOfRange`. What was
        deleted is passed over in silence: someone wanted nobody to see it.
        """
        log, states, *_ = self._usable()
        if not log.eviction_floor <= offset <= log.next_offset:
            raise OffsetOutOfRange(offset, start=log.start_offset, end=self.high_watermark)
        got = read_batches(
            log,
            offset,
            end_offset=self.last_stable_offset if is_committed_only else self.high_watermark,
            size_max=size_max,
            is_first=is_first,
        )
        if is_committed_only and got.parts:
            return got._replace(aborted=states.aborted.between(offset, got.next_offset))
        return got

    def deletions(self) -> tuple[int, object]:
        """Return a value that equals the one of before, unless records were deleted since."""
        log = self._usable().log
        start_offset = log.start_offset
        return start_offset if start_offset > log.eviction_floor else 0, log.masks

    def watch(self, callback: Callable[[], None]) -> None:
        """Call `callback` whenever more or less can be read, or when nothing can any more.

        It runs in the middle of a commit, so it should only take note and return. The partition
        need not be open.
        """
        self._watchers[callback] = None

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Call it no more. Harmless where it is not called."""
        self._watchers.pop(callback, None)

    def _rewind(self, offset: int) -> None:
        """Forget what the log has taken back."""
        if self._opened is not None:
            self._opened.appends.rewind(offset)
        if self.on_rewind is not None:
            self.on_rewind(offset)

    async def _save_before_removal(self) -> None:
        """Write down what records that are about to go may be the last to tell."""
        await self._known().saving.save()
        if self.before_removal is not None:
            await self.before_removal()

    def _note_change(self) -> None:
        """Take note of a commit, of a new start or of the end of the log."""
        if self._opened is not None:
            log, states, appends, saving, _ = self._opened
            appends.note_commit()
            if len(states.aborted):
                states.trim(log.start_offset)
            saving.note_commit()
        self.wake_watchers()

    def wake_watchers(self) -> None:
        """Have all who watch look again."""
        for callback in tuple(self._watchers):
            callback()

    # Looking up offsets.

    async def settle(self) -> None:
        """Return when readers see all that has its offset by now, or will never see it.

        A producer may have been told of its records, by `is_early`, before readers see them. Who
        asks where the partition ends has to wait for those: else it would miss what it wrote.
        """
        end_offset = self._usable().log.next_offset
        while self.high_watermark < min(end_offset, self.end_offset) and self.offline is None:
            moved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def wake(moved: asyncio.Future[None] = moved) -> None:
                if not moved.done():
                    moved.set_result(None)

            self.watch(wake)
            try:
                await moved
            finally:
                self.unwatch(wake)

    def earliest(self) -> OffsetAndTimestamp:
        """Return the first offset."""
        log = self._usable().log
        start_offset = log.start_offset
        return OffsetAndTimestamp(start_offset, NO_TIMESTAMP, log.partition.epoch_at(start_offset))

    def latest(self, *, is_committed_only: bool = False) -> OffsetAndTimestamp:
        """Return the offset after the last that can be read."""
        leader_epoch = self._usable().log.partition.leader_epoch
        return OffsetAndTimestamp(self._end(is_committed_only), NO_TIMESTAMP, leader_epoch)

    async def offset_for(
        self, timestamp_ms: int, *, is_committed_only: bool = False
    ) -> OffsetAndTimestamp | None:
        """Return the first record, by offset, that is as late as `timestamp_ms` or later.

        Exact per record, so batches may have to be unpacked: that is done in a thread.
        """
        find = partial(self._usable().log.find_timestamp, timestamp_ms)
        return await self._find(find, self._end(is_committed_only))

    async def max_timestamp(self, *, is_committed_only: bool = False) -> OffsetAndTimestamp | None:
        """Return the first of the records with the greatest timestamp."""
        return await self._find(self._usable().log.find_latest, self._end(is_committed_only))

    def _end(self, is_committed_only: bool) -> int:  # noqa: FBT001 - named as it is passed on.
        return self.last_stable_offset if is_committed_only else self.high_watermark

    async def _find(
        self, find: Callable[[], FoundRecord | None], end_offset: int
    ) -> OffsetAndTimestamp | None:
        found = await self._background.run(find)
        if found is None or found.offset >= end_offset:
            return None
        epoch = self._known().log.partition.epoch_at(found.offset)
        return OffsetAndTimestamp(found.offset, found.timestamp_ms, epoch)

    def epoch_end(self, epoch: int) -> tuple[int, int]:
        """Return the newest leader epoch not after `epoch`, and the offset after its last record.

        Both are -1 where `epoch` is newer than all that are known.
        """
        log = self._usable().log
        epochs = log.partition.epochs
        if epoch == epochs[-1].number:
            return epoch, self.high_watermark
        after = next((item for item in epochs if item.number > epoch), None)
        if epoch < 0 or after is None:
            return NO_EPOCH, NO_OFFSET
        before = [item.number for item in epochs if item.number <= epoch]
        return before[-1] if before else epoch, after.start_offset

    # Deleting.

    async def delete_before(self, offset: int) -> int:
        """Let what lies before `offset` go, -1 for all that can; return the new first offset.

        Durable when this returns. An offset before the first is no error, one past the high
        watermark is.
        """
        opened = self._usable()
        log = opened.log
        if offset == HIGH_WATERMARK:
            offset = self.high_watermark
        if not 0 <= offset <= self.high_watermark:
            raise OffsetOutOfRange(offset, start=log.start_offset, end=self.high_watermark)
        if offset > max(log.start_offset, opened.saving.saved_offset):
            await self._save_before_removal()  # It may be all that the log knows of a producer.
        await log.delete_before(offset)
        return log.start_offset

    async def delete_keys(
        self, *, key: bytes | None = None, prefix: bytes | None = None, before: int | None = None
    ) -> int:
        """Delete the records with this key, or whose key begins so; return how many that were.

        Exactly one of the two is needed. Only records before the offset `before` go, where it is
        given, and never ones that are appended later. When this returns they are gone for good,
        and nobody sees them; their bytes leave the disk when the log is cleaned.
        """
        return await self._usable().log.delete_keys(key=key, prefix=prefix, before=before)

    def gap_at(self, offset: int) -> Gap | None:
        """Return what retention took before a reader came that wants to read from `offset` on."""
        return self._usable().log.gap_at(offset)

    def describe(self) -> PartitionDescription:
        """Return what the partition holds, and what went from it."""
        log = self._usable().log
        gap = log.gap_at(0)
        return PartitionDescription(
            start_offset=log.start_offset,
            eviction_floor=log.eviction_floor,
            high_watermark=self.high_watermark,
            leader_epoch=log.partition.leader_epoch,
            cleaned_offset=log.partition.cleaned_offset,
            segments=len(log.segments),
            bytes=log.size_bytes,
            records=log.record_count - log.deleted_records,
            deleted_records=log.deleted_records,
            reclaimable_bytes=log.reclaimable_bytes,
            gaps=() if gap is None else (gap,),
        )
