"""The segments of a log that have no seal: which one takes the next batch.

    sealed             being sealed         growing
    +---------------+  +---------------+    +----------- - -
    |               |  |               |    |             <- batches
    +---------------+  +---------------+    +----------- - -
     may be opened      in the background
     again if it has
     room and is last

A segment that is full, too old or of an older epoch is sealed while the next one grows. At most two
have no seal, because that is what a start after a crash has to scan. A third is not begun: what
belongs there waits.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import Protocol

from millstream.config.schema import LogConfig
from millstream.records.batch import BatchHeader
from millstream.storage.append.commit_state import CommitState
from millstream.storage.files.index import SegmentIndex
from millstream.storage.files.seal import Seal, SegmentStats, stats_from_seal
from millstream.storage.recovery.log_recovery import RecoveredLog
from millstream.storage.retention.eviction import segment_age_ms_max
from millstream.storage.segment.lifecycle import (
    SegmentSyncFailed,
    remove_checkpoint,
    seal_segment,
    unseal_segment,
)
from millstream.storage.segment.log_context import LogContext
from millstream.storage.segment.segment import GrowingSegment, LogDirectory, SealedSegment


class ActiveSegmentsOwner(Protocol):
    """Whoever has batches to write: what it is told, and what it is asked for."""

    def refuse_pending(self, error: OSError) -> None:
        """Hear that no segment could be had for what is not written yet."""
        ...

    def go_offline(self, cause: Exception) -> None:
        """Hear that it is in doubt what is on the disk."""
        ...

    def hold_until(self, work: Coroutine[None, None, None]) -> object:
        """Write nothing until `work` is done, and do it."""
        ...

    def note_open(self) -> None:
        """Hear that a descriptor for writing was opened."""
        ...

    def note_sealed(self) -> None:
        """Hear that a segment was sealed, so that another may be begun."""
        ...


class ActiveSegments:
    """The unsealed segments of one log. `steady` is the time by which data ages."""

    def __init__(
        self,
        parts: LogContext,
        owner: ActiveSegmentsOwner,
        *,
        config: LogConfig,
        steady: Callable[[], int],
        unsynced: CommitState,
        recovered: RecoveredLog,
    ) -> None:
        self._parts = parts
        self._owner = owner
        self._config = config
        self._age_ms_max = segment_age_ms_max(config)
        self._place = parts.place
        self._steady = steady
        self._unsynced = unsynced
        self.growing = None if recovered.offline else recovered.growing
        self.sealing: GrowingSegment | None = None
        self.seal_error: OSError | None = None
        """Why the segment that is to be sealed could not be. On a full disk that can wait."""
        self._can_reopen = not recovered.damage
        self._reopening = -1
        self._retired = -1
        """Base offset up to which no sealed segment is opened again, whatever room it has."""

    @property
    def unsealed(self) -> list[GrowingSegment]:
        """The segments without a seal, in the order of the log."""
        return [segment for segment in (self.sealing, self.growing) if segment]

    @property
    def is_stalled(self) -> bool:
        """Whether no other segment can be begun now."""
        return self.sealing is not None and self.growing is not None

    @property
    def is_sealing(self) -> bool:
        """Whether a segment is about to get its seal, and nothing has kept it from that."""
        return self.sealing is not None and self.seal_error is None

    def go_by(self, config: LogConfig, place: LogDirectory) -> None:
        """Go by other settings from the next batch on."""
        self._config = config
        self._age_ms_max = segment_age_ms_max(config)
        self._place = place

    # The next batch.

    def segment_for(self, header: BatchHeader, offset: int) -> GrowingSegment | None:
        """Return the segment that takes a batch; nothing where it has to wait for one."""
        growing = self.growing
        if growing is None and (sealed := self._reopenable(header)):
            self._reopening = sealed.base_offset
            self._owner.hold_until(self._reopen(sealed))
            return None
        if growing and growing.size == 0:
            growing.tally.leader_epoch = self._parts.description.partition.leader_epoch
        if growing and self._fits(growing.tally, header):
            return growing
        return self._begin(offset)

    def _fits(self, tally: SegmentStats, header: BatchHeader) -> bool:
        """Whether a batch may go into a segment."""
        if tally.leader_epoch != self._parts.description.partition.leader_epoch:
            return False
        if tally.size == 0:
            return True
        config = self._config
        return (
            tally.size + header.size <= config.segment_bytes_max
            and tally.record_count + header.record_count <= config.segment_records_max
            and self._steady() - tally.created_ms <= self._age_ms_max
        )

    def _begin(self, base_offset: int) -> GrowingSegment | None:
        """Begin a segment, and have the one before sealed in the background."""
        if self.is_stalled:
            self.seal_again()
            return None
        parts = self._parts
        try:
            file = self._place.filesystem.create(self._place.path(base_offset, "log"))
        except OSError as error:
            self._owner.refuse_pending(error)
            return None
        self._unsynced.is_directory_dirty = True
        epoch = parts.description.partition.leader_epoch
        tally = SegmentStats(base_offset, leader_epoch=epoch, created_ms=self._steady())
        full, self.growing = self.growing, GrowingSegment(self._place, tally, SegmentIndex(), file)
        parts.contents.replace_segments([*parts.contents.state.segments, self.growing])
        parts.counters.rolls += 1
        self._owner.note_open()
        if full:
            self._start_sealing(full)
        return self.growing

    # Sealing.

    def detach(self) -> None:
        """Have the growing segment sealed, and let the next batch begin another.

        All of it must be committed. Nothing happens where it is empty, or one is being sealed.
        """
        growing = self.growing
        last = self._parts.contents.state.segments[-1:]
        if growing is None:
            self._retired = max([self._retired, *(segment.base_offset for segment in last)])
        elif growing.size > 0 and self.sealing is None:
            self._retired = growing.base_offset
            self.growing = None
            self._start_sealing(growing)

    def retire(self, segment: SealedSegment) -> bool:
        """Promise not to open a sealed segment again; returns whether that could be promised."""
        if segment.base_offset == self._reopening:
            return False
        self._retired = max(self._retired, segment.base_offset)
        return True

    def seal_again(self) -> None:
        """Try once more to seal a segment that could not be."""
        if self.sealing and self.seal_error:
            self._start_sealing(self.sealing)

    def _start_sealing(self, segment: GrowingSegment) -> None:
        self.sealing = segment
        self.seal_error = None
        self._parts.tasks.start(self._seal(segment))

    async def _seal(self, segment: GrowingSegment) -> None:
        work = partial(seal_segment, segment, now_ms=self._steady())
        try:
            seal = await self._parts.background.run(work)
        except SegmentSyncFailed as failed:
            self._owner.go_offline(failed.cause)
            return
        except OSError as error:
            # The next append that needs it tries again.
            self.seal_error = error
            self._owner.refuse_pending(error)
            return
        self._publish(segment, seal)
        self.sealing = None
        self._unsynced.discard(segment)
        self._owner.note_sealed()

    def _publish(self, segment: GrowingSegment, seal: Seal) -> None:
        contents = self._parts.contents
        sealed = SealedSegment(self._place, seal)
        contents.replace_segments([sealed if s is segment else s for s in contents.state.segments])
        segment.file = None
        self._parts.counters.seals += 1

    # Opening again.

    def _reopenable(self, header: BatchHeader) -> SealedSegment | None:
        """Return the last segment if it is sealed, whole, and has room for a batch.

        One that was rewritten is never written again: its seal is what makes it part of the log.
        """
        segments = self._parts.contents.state.segments
        last = segments[-1] if segments else None
        if not self._can_reopen or not isinstance(last, SealedSegment):
            return None
        if last.generation > 0 or last.base_offset <= self._retired:
            return None
        return last if self._fits(stats_from_seal(last.seal), header) else None

    async def _reopen(self, sealed: SealedSegment) -> None:
        parts = self._parts
        try:
            file, index, self._unsynced.checkpoint = await parts.background.run(
                partial(unseal_segment, self._place, sealed)
            )
        except OSError as error:
            self._owner.refuse_pending(error)
            return
        except Exception as error:  # noqa: BLE001 - else the same is tried again for ever.
            self._owner.go_offline(error)
            return
        finally:
            self._reopening = -1
        sealed.forget()
        self.growing = GrowingSegment(self._place, stats_from_seal(sealed.seal), index, file)
        segments = parts.contents.state.segments
        parts.contents.replace_segments([*segments[:-1], self.growing])
        self._owner.note_open()

    # Closing.

    def let_go(self) -> list[GrowingSegment]:
        """Write nothing any more, and return the segments without a seal."""
        unsealed = self.unsealed
        self.growing = self.sealing = self._unsynced.checkpoint = None
        return unsealed

    async def seal_rest(self, unsealed: list[GrowingSegment]) -> None:
        """Seal what has no seal: with that, the next start has nothing to scan."""
        background = self._parts.background
        for segment in unsealed:
            if segment.size == 0:
                self._place.filesystem.remove(segment.path)
                continue
            work = partial(seal_segment, segment, now_ms=self._steady())
            self._publish(segment, await background.run(work))
        await background.run(partial(remove_checkpoint, self._place))
