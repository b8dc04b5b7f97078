"""Decisions of a log's leader: how they get into the log, and how each replica applies them.

    leader    decide ──► control batch in the log ─► high watermark passes it ─► applied ─► answer
    replica   append a slice, or open the log ─────► high watermark passes it ─► applied

`records/decision.py` has the format. Rules:

1. A decision is applied when its batch is committed, never before: until then the batch may be
   truncated, and what was deleted by it would be missing from this replica alone.
2. Decisions are applied in the order of the log, each completely before the next.
3. `partition.json` says up to which offset they are applied. What follows there is read again when
   the log is opened; to apply a decision twice has no effect. So a crash at any step is harmless.
4. A log that is about to lead has applied all that is committed before it serves anyone.

To apply a deletion means to hide its records, as on a lone node. To apply a cleaning decision means
to note it: the cleaner of each node carries it out in its own time (`compaction/cleaner.py`).

Tombstones. A leader decides to remove those before an offset only if

- a decision up to that offset or beyond was applied here `tombstone_ms` ago or earlier, by the
  clock of this node. Each node notes for itself when it applied one, so a leader after a fail-over
  waits at least as long;
- every replica has compacted its log up to that offset. So no replica has an older record of a key
  whose tombstone is removed, and nobody can copy one from a replica.

A replica with older files, of a time before that, must not go on with them: it would never see the
tombstones. `tombstones_removed` tells (see `LogReplication.accepts_replica`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

from millstream.config.schema import LogConfig
from millstream.errors import (
    CorruptBatch,
    CorruptData,
    MillstreamError,
    StorageFailed,
    Unavailable,
)
from millstream.records.batch import BatchHeader, Bytes
from millstream.records.decision import (
    CleaningDecision,
    DeletionDecision,
    LogDecision,
    build_decision,
    read_decision,
)
from millstream.storage.append.append_queue import AppendQueue
from millstream.storage.append.pending_append import Appended, PendingAppend, validate_batch
from millstream.storage.compaction.plan import OFFSET_INFINITY
from millstream.storage.disk.errors import transient_error
from millstream.storage.files.partition_metadata import (
    AppliedDecisions,
    CleaningMark,
    DeletionRule,
    PartitionMetadata,
)
from millstream.storage.retention.key_deletions import KeyDeletions, with_deletion
from millstream.storage.segment.log_context import LogContext
from millstream.storage.segment.reader import control_batches
from millstream.storage.segment.segment import Segment

logger = logging.getLogger(__name__)

MARKS_PER_TOMBSTONE_MS = 16
"""Tombstones may stay longer than they have to, by this part of `tombstone_ms`."""


class FoundDecision(NamedTuple):
    """A decision, and the offset of its batch."""

    offset: int
    decision: LogDecision


class DecisionHooks(Protocol):
    """What a leader has to know of its replicas before it decides something."""

    def check_decision(self) -> None:
        """Raise if nothing can be decided now: this node does not lead, or too few are in sync."""
        ...

    def cleaned_offset(self) -> int:
        """Return the offset up to which every other replica has compacted its log."""
        ...


def find_decisions(
    segments: Sequence[Segment], *, start: int, end: int, name: str
) -> list[FoundDecision]:
    """Return the decisions in batches from offset `start` up to before `end`. Blocks.

    What is damaged is passed over: the segment has to be repaired, and is looked through again
    then.
    """
    found: list[FoundDecision] = []
    for segment in segments:
        if segment.next_offset <= start or segment.base_offset >= end:
            continue
        try:
            for header, batch in control_batches(segment, start=start, limit=segment.size):
                if header.base_offset >= end:
                    break
                _add(found, header, batch)
        except CorruptData as error:
            logger.warning("%s: decisions in %s cannot be read: %s", name, segment.path, error)
    return found


def _add(found: list[FoundDecision], header: BatchHeader, batch: Bytes) -> None:
    try:
        decision = read_decision(batch)
    except CorruptBatch as error:
        logger.warning("decision at offset %d cannot be read: %s", header.base_offset, error)
        return
    if decision is not None:
        found.append(FoundDecision(header.base_offset, decision))


def with_deletions(
    partition: PartitionMetadata, found: Sequence[FoundDecision], now_ms: int
) -> PartitionMetadata:
    """Return metadata with the rules of deletions in the log."""
    for offset, decision in found:
        if isinstance(decision, DeletionDecision):
            before = offset if decision.before is None else min(decision.before, offset)
            partition = with_deletion(partition, DeletionRule(decision.match, before, now_ms))
    return partition


class LogDecisions:
    """The decisions of one log. Belongs to its event loop.

    `found` are those that the log has and `partition.json` does not. `now_ms` is the retention
    clock, `wall_ms` the time of day, `config` returns the settings of the log.
    """

    def __init__(
        self,
        context: LogContext,
        *,
        found: Sequence[FoundDecision],
        queue: AppendQueue,
        deletions: KeyDeletions,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        config: Callable[[], LogConfig],
    ) -> None:
        self._context = context
        self._queue = queue
        self._deletions = deletions
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._config = config
        self.hooks: DecisionHooks | None = None
        """Set while this node leads the log, if there are replicas."""
        self._pending: deque[FoundDecision] = deque(found)
        self._counts: dict[int, asyncio.Future[int]] = {}
        """By offset of a decision: who waits for it, and gets the number of deleted records."""
        self._applying: asyncio.Task[None] | None = None
        self._last_error = ""

    @property
    def applied(self) -> AppliedDecisions | None:
        """How far decisions are applied; `None` for a log that was never part of a cluster."""
        return self._context.metadata_file.partition.decisions

    @property
    def pending_count(self) -> int:
        """Number of decisions that are in the log and not applied: most are not committed yet."""
        return len(self._pending)

    # Finding decisions.

    async def begin(self) -> None:
        """Note that the log is part of a cluster from now on, and so may have decisions."""
        if self.applied is None:
            await self._context.metadata_file.run_exclusive(self._begin())

    async def _begin(self) -> None:
        if self.applied is not None:
            return
        snapshot = self._context.state.snapshot
        found = await self._context.background.run(
            partial(
                find_decisions,
                snapshot.segments,
                start=snapshot.start,
                end=snapshot.durable.offset,
                name=self._context.name,
            )
        )
        self._pending = deque(found)
        await self._write(replace(self._partition, decisions=AppliedDecisions(snapshot.start)))

    def add_batches(self, headers: Sequence[BatchHeader], data: Bytes) -> None:
        """Look for decisions in batches that are about to be appended to a replica."""
        if not any(header.is_control and not header.is_transactional for header in headers):
            return
        view, position, found = memoryview(data), 0, list[FoundDecision]()
        for header in headers:
            if header.is_control and not header.is_transactional:
                _add(found, header, view[position : position + header.size])
            position += header.size
        self.add_found(found)

    def add_found(self, found: Sequence[FoundDecision]) -> None:
        """Add decisions at the end of the log."""
        last = self._pending[-1].offset if self._pending else -1
        self._pending.extend(item for item in found if item.offset > last)

    def truncate(self, offset: int) -> None:
        """Forget the decisions from `offset` on: their batches are removed from the log."""
        while self._pending and self._pending[-1].offset >= offset:
            dropped = self._pending.pop()
            waiting = self._counts.pop(dropped.offset, None)
            if waiting is not None and not waiting.done():
                waiting.set_exception(
                    Unavailable(f"{self._context.name}: the decision was removed from the log")
                )

    # Deciding.

    def check(self) -> None:
        """Raise if nothing can be decided now."""
        if self.hooks is not None:
            self.hooks.check_decision()

    @property
    def cleaned_elsewhere(self) -> int:
        """Offset up to which all other replicas have compacted the log."""
        if self.hooks is not None:
            return self.hooks.cleaned_offset()
        is_alone = self._context.state.visible_limit is None
        return OFFSET_INFINITY if is_alone else 0  # Nothing is known of others.

    def check_deletion(self, decision: DeletionDecision) -> None:
        """Raise if a deletion cannot be decided now."""
        self.check()
        self._deletions.check(decision.match, decision.before)

    async def decide(self, decision: LogDecision) -> int:
        """Append a decision, and return once it is committed and applied here.

        Returns the number of records that a deletion has hidden. `OutcomeUnknown` means that the
        decision is in the log, and may be committed or not.
        """
        loop = asyncio.get_running_loop()
        batch = build_decision(decision, now_ms=self._wall_ms())
        header = validate_batch(batch, size_max=len(batch), is_checked=True)
        count: asyncio.Future[int] = loop.create_future()
        acknowledged: asyncio.Future[Appended] = loop.create_future()

        def on_admit(offset: int) -> None:
            self.add_found([FoundDecision(offset, decision)])
            self._counts[offset] = count

        self._queue.submit(PendingAppend(header, batch, acknowledged, on_admit), None)
        try:
            appended = await acknowledged
        finally:
            if not acknowledged.done() or acknowledged.cancelled() or acknowledged.exception():
                count.cancel()
        self.commit()
        self._context.counters.decisions += 1
        logger.debug("%s: decided at offset %d: %s", self._context.name, appended[0], decision)
        return await count

    # Applying.

    def commit(self) -> None:
        """Start to apply what is committed by now."""
        if self._applying is None and (self._has_committed or self._is_offset_due):
            self._applying = self._context.tasks.start(self._apply_committed())
            self._applying.add_done_callback(self._end_applying)

    def _end_applying(self, _: asyncio.Task[None]) -> None:
        self._applying = None
        # Something may have been committed after the task had looked for the last time: `commit`
        # found it still running. After a failure, the next commit tries again.
        if self._has_committed and not self._last_error:
            self.commit()

    async def settle(self) -> None:
        """Return when everything that is committed by now is applied; raise if that fails."""
        while self._has_committed:
            if self._applying is None:
                self._last_error = ""
                self.commit()
            assert self._applying is not None
            await asyncio.wait([self._applying])
            if self._last_error:
                raise Unavailable(
                    f"{self._context.name}: a decision of its leader could not be applied:"
                    f" {self._last_error}"
                )

    @property
    def _has_committed(self) -> bool:
        return bool(self._pending) and self._pending[0].offset < self._context.state.end_offset

    @property
    def _partition(self) -> PartitionMetadata:
        return self._context.metadata_file.partition

    async def _apply_committed(self) -> None:
        """Apply decisions until none is left. After a failure, the next commit tries again."""
        while self._has_committed:
            found = self._pending[0]
            try:
                count = await self._context.metadata_file.run_exclusive(self._apply(found))
            except Exception as error:  # noqa: BLE001 - it is logged, and told to who waits.
                self._fail(found, error)
                return
            self._last_error = ""
            if self._pending and self._pending[0] is found:
                self._pending.popleft()
            waiting = self._counts.pop(found.offset, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(count)
        if self._is_offset_due:
            with contextlib.suppress(MillstreamError):  # It only saves work.
                await self.store_offset()

    def _fail(self, found: FoundDecision, error: Exception) -> None:
        if self._last_error != str(error):
            logger.error(
                "%s: the decision at offset %d could not be applied: %s",
                *(self._context.name, found.offset, error),
                exc_info=None if isinstance(error, (MillstreamError, OSError)) else error,
            )
        self._last_error = str(error) or type(error).__name__
        self._context.counters.decision_failures += 1
        waiting = self._counts.pop(found.offset, None)
        if waiting is not None and not waiting.done():
            failed = StorageFailed(
                f"{self._context.name}: the deletion is decided and is carried out later, because"
                f" of an error: {error}"
            )
            waiting.set_exception(error if isinstance(error, MillstreamError) else failed)

    async def _apply(self, found: FoundDecision) -> int:
        offset, decision = found
        if not self._pending or self._pending[0] is not found:
            return 0  # It was truncated while this waited for its turn.
        count = 0
        if isinstance(decision, DeletionDecision):
            before = offset if decision.before is None else min(decision.before, offset)
            count = await self._deletions.apply(decision.match, before, decided_offset=offset + 1)
            if not count:
                return 0  # Nothing to remember: if it is read again, it has no effect again.
        else:
            await self._note_cleaning(decision, offset + 1)
        self._context.counters.decisions_applied += 1
        return count

    async def _note_cleaning(self, decision: CleaningDecision, decided_offset: int) -> None:
        applied = self.applied or AppliedDecisions()
        before = applied.cleaning
        cleaning = CleaningDecision(
            max(before.upto, decision.upto),
            max(before.tombstones_before, decision.tombstones_before),
        )
        if cleaning == before:
            return
        marks = applied.marks
        if cleaning.upto > before.upto:
            marks = add_mark(
                marks,
                CleaningMark(cleaning.upto, self._now_ms()),
                spacing_ms=self._config().tombstone_ms // MARKS_PER_TOMBSTONE_MS,
                used=cleaning.tombstones_before,
            )
        offset = max(applied.offset, decided_offset)
        noted = replace(applied, offset=offset, cleaning=cleaning, marks=marks)
        await self._write(replace(self._partition, decisions=noted))

    # The offset in `partition.json`.

    @property
    def _is_offset_due(self) -> bool:
        """Whether a segment was begun since the applied offset was stored.

        Storing it then bounds what is read when the log is opened after a crash.
        """
        applied, snapshot = self.applied, self._context.state.snapshot
        if applied is None or not snapshot.segments or self._has_committed:
            return False
        return applied.offset < snapshot.segments[-1].base_offset <= snapshot.committed.offset

    async def store_offset(self, *, is_closing: bool = False) -> None:
        """Store how far decisions are applied, if that has moved.

        A log that is closing refuses other changes of the file, and has none in progress.
        """
        if self.applied is not None:
            work = self._store_offset()
            await (work if is_closing else self._context.metadata_file.run_exclusive(work))

    async def _store_offset(self) -> None:
        applied, end = self.applied, self._context.state.end_offset
        if applied is None:
            return
        offset = min(end, self._pending[0].offset) if self._pending else end
        if offset > applied.offset:
            await self._write(replace(self._partition, decisions=replace(applied, offset=offset)))

    async def _write(self, partition: PartitionMetadata) -> None:
        try:
            await self._context.metadata_file.write(partition)
        except OSError as error:
            name = self._context.name
            failed = StorageFailed(f"{name}: partition.json was not written: {error}")
            raise transient_error(name, error) or failed from error


def add_mark(
    marks: Sequence[CleaningMark], mark: CleaningMark, *, spacing_ms: int, used: int
) -> tuple[CleaningMark, ...]:
    """Return marks with one more, without those that are not needed.

    Those up to offset `used` have done their work. Of the others there are few, because the last
    one is replaced if it is close to the one before it: the tombstones between them wait a little
    longer. The first one after another is never replaced, so marks do get old.
    """
    kept = [known for known in marks if known.upto > used]
    if len(kept) >= 2 and kept[-1].ms - kept[-2].ms < spacing_ms:
        kept.pop()
    return (*kept, mark)
