r"""Resynchronization of a replica by whole segments.

    leader     manifest: base offset, generation, size, digest of each finished segment
    replica    keeps what is equal; fetches the others into `.part` files, which survive a restart
               install: verify against the digest -> name of the segment -> seal -> readers see it

A part becomes a segment by the steps of a rewrite (`compaction/segment_swap.py`): the seal is the
commit point, and recovery understands every state between. If the replica holds other segments in
its range, the new one has a greater generation than all of them and replaces them together. So its
range must begin and end where segments of the replica do.

A damaged segment is quarantined until it is replaced: its `.log` gets the suffix `.bad`, its seal
stays and tells which offsets are missing, and readers of these get `DamagedRecords`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from millstream.errors import (
    Busy,
    CorruptFile,
    InvalidAddress,
    MillstreamError,
    ReplicaMismatch,
    RequestError,
    StorageFailed,
    Unavailable,
)
from millstream.records.batch import Bytes
from millstream.storage.append.active_segments import ActiveSegments
from millstream.storage.append.append_queue import AppendQueue
from millstream.storage.append.commit_state import CommitState
from millstream.storage.compaction.cleaner import LogCleaner
from millstream.storage.disk.errors import transient_error
from millstream.storage.disk.file_cache import map_file
from millstream.storage.disk.filesystem import join, write_all
from millstream.storage.files.names import (
    PART_SUFFIX,
    QUARANTINE_SUFFIX,
    SEGMENT_SUFFIXES,
    SegmentId,
    parse_segment_file,
    segment_file,
)
from millstream.storage.files.seal import Seal
from millstream.storage.replica.log_decisions import (
    FoundDecision,
    LogDecisions,
    find_decisions,
    with_deletions,
)
from millstream.storage.retention.eviction import sealed_since
from millstream.storage.retention.key_deletions import resolve_deleted_offsets
from millstream.storage.segment.log_context import LogContext
from millstream.storage.segment.replica_slice import ReplicaPosition
from millstream.storage.segment.scan import SegmentScan, scan
from millstream.storage.segment.segment import (
    LogDirectory,
    SealedSegment,
    Segment,
    read_seal,
    write_seal,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestSegment:
    """A finished segment of a leader, as replicas compare and fetch it."""

    base_offset: int
    generation: int
    next_offset: int
    size: int
    digest: bytes
    leader_epoch: int
    created_age_ms: int
    """How long ago it was started, and `sealed_age_ms` finished, by the leader's clock."""
    sealed_age_ms: int

    @property
    def id(self) -> SegmentId:
        return SegmentId(self.base_offset, self.generation)

    def is_equal(self, seal: Seal) -> bool:
        """Return whether a segment with this seal has the same bytes."""
        return (self.base_offset, self.next_offset, self.size, self.digest) == (
            seal.base_offset,
            seal.next_offset,
            seal.size,
            seal.digest,
        )


class SegmentResync:
    """Resynchronization of one log. Belongs to its event loop."""

    def __init__(
        self,
        context: LogContext,
        *,
        queue: AppendQueue,
        segments: ActiveSegments,
        commit: CommitState,
        cleaner: LogCleaner,
        decisions: LogDecisions,
        now_ms: Callable[[], int],
        go_offline: Callable[[Exception], None],
        offline: Callable[[], Exception | None],
        on_repair: Callable[[int, int], None],
    ) -> None:
        self._context = context
        self._queue = queue
        self._segments = segments
        self._commit = commit
        self._cleaner = cleaner
        self._decisions = decisions
        self._now_ms = now_ms
        self._go_offline = go_offline
        self._offline = offline
        self._on_repair = on_repair

    @property
    def _log_directory(self) -> LogDirectory:
        return self._context.log_directory

    # The leader's side.

    def manifest(self) -> list[ManifestSegment]:
        """Return the finished segments that are sealed, oldest first."""
        now_ms = self._now_ms()
        return [
            ManifestSegment(
                base_offset=segment.base_offset,
                generation=segment.generation,
                next_offset=segment.next_offset,
                size=segment.size,
                digest=segment.seal.digest,
                leader_epoch=segment.leader_epoch,
                created_age_ms=max(0, now_ms - segment.seal.created_ms),
                sealed_age_ms=max(0, now_ms - sealed_since(segment.seal)),
            )
            for segment in self._context.state.snapshot.segments
            if isinstance(segment, SealedSegment) and self._segments.is_finished(segment)
        ]

    def read_bytes(self, segment: SegmentId, position: int, size_max: int) -> memoryview:
        """Return bytes of a sealed segment; raise `InvalidAddress` if it is not there any more.

        May be called from any thread. They are not checked: who fetches a segment verifies it.
        """
        for sealed in self._context.state.snapshot.segments:
            is_wanted = isinstance(sealed, SealedSegment) and sealed.generation == segment[1]
            if is_wanted and sealed.base_offset == segment.base_offset:
                if not 0 <= position <= sealed.size:
                    raise InvalidAddress(
                        f"position must be between 0 and {sealed.size}, got {position}"
                    )
                try:
                    return sealed.view(position, min(sealed.size, position + size_max))
                except OSError as error:
                    raise StorageFailed(f"{sealed.path} cannot be read: {error}") from error
        raise InvalidAddress(f"{self._context.name}: there is no sealed segment {segment}")

    def is_intact(self, wanted: ManifestSegment) -> bool:
        """Read the own segment that should be equal to a wanted one; return whether it is.

        A seal alone proves nothing of a file that somebody has copied. May be called from any
        thread.
        """
        for own in self._context.state.snapshot.segments:
            if isinstance(own, SealedSegment) and wanted.is_equal(own.seal):
                try:
                    scanned = scan(
                        map_file(self._log_directory.filesystem, own.path),
                        base_offset=own.base_offset,
                        created_ms=own.seal.created_ms,
                        index_interval_bytes=self._log_directory.index_interval_bytes,
                        leader_epoch=own.leader_epoch,
                    )
                except OSError:
                    return False
                return scanned.damage is None and wanted.is_equal(scanned.stats.seal(0))
        return False

    # Parts.

    def part_size(self, wanted: ManifestSegment) -> int:
        """Return how many bytes of a segment were fetched so far, also before a restart."""
        try:
            return self._log_directory.filesystem.size(self._part_path(wanted))
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise StorageFailed(
                f"{self._context.name}: the part cannot be read: {error}"
            ) from error

    async def write_part(self, wanted: ManifestSegment, position: int, data: Bytes) -> int:
        """Add fetched bytes to a part, and return its size. Not durable before it is installed."""
        work = partial(_write_part, self._log_directory, self._part_path(wanted), position, data)
        return await self._run(work, "the part was not written")

    async def discard_parts(self) -> None:
        """Remove all parts, and what was quarantined: the resynchronization is over."""
        await self._run(partial(_discard, self._log_directory), "parts were not removed")

    def _part_path(self, wanted: ManifestSegment) -> str:
        name = segment_file(wanted.base_offset, "log", wanted.generation)
        return join(self._log_directory.directory, name + PART_SUFFIX)

    async def _run(self, work: Callable[[], T], what: str) -> T:
        try:
            return await self._context.background.run(work)
        except OSError as error:
            failed = StorageFailed(f"{self._context.name}: {what}: {error}")
            raise transient_error(self._context.name, error) or failed from error

    # Quarantine.

    async def quarantine(self, base_offset: int) -> None:
        """Move the file of a damaged sealed segment aside. Durable when this returns.

        Readers of its offsets get `DamagedRecords` until it is replaced. Raises `RequestError` for
        the last segment, which tells where the log ends: truncate the log instead.
        """
        async with self._cleaner.interrupted():
            await self._context.metadata_file.run_exclusive(self._quarantine(base_offset))

    async def _quarantine(self, base_offset: int) -> None:
        state, name = self._context.state, self._context.name
        segments = state.snapshot.segments
        segment = next((s for s in segments[:-1] if s.base_offset == base_offset), None)
        if not isinstance(segment, SealedSegment):
            raise RequestError(
                f"{name}: only a sealed segment before the last one can be quarantined, got"
                f" {base_offset}"
            )
        state.replace_segments([s for s in segments if s is not segment])
        try:
            await self._run(partial(_move_aside, segment), "the segment was not moved aside")
        except MillstreamError:
            state.replace_segments(segments)
            raise
        self._context.on_change()

    # Installation.

    async def install(self, wanted: ManifestSegment) -> None:
        """Make a complete part a segment of the log. Durable and readable when this returns.

        It continues the log, or replaces what the log has, or has lost, in its range. Raises
        `CorruptFile` if it is not what the manifest says, and then removes the part, and
        `ReplicaMismatch` if it does not fit between the segments of the log. If the disk fails, the
        log is offline, and why is raised.
        """
        scanned = await self._run(partial(self._verify, wanted), "the part cannot be read")
        async with self._cleaner.interrupted():
            await self._context.metadata_file.run_exclusive(self._install(wanted, scanned))

    def _verify(self, wanted: ManifestSegment) -> SegmentScan:
        """Read a part completely, and sync it; remove it if it is not the segment."""
        path, filesystem = self._part_path(wanted), self._log_directory.filesystem
        try:
            scanned = scan(
                map_file(filesystem, path),
                base_offset=wanted.base_offset,
                created_ms=self._now_ms() - wanted.created_age_ms,
                index_interval_bytes=self._log_directory.index_interval_bytes,
                leader_epoch=wanted.leader_epoch,
            )
        except FileNotFoundError:
            raise RequestError(f"{path} does not exist: fetch the segment first") from None
        seal = scanned.stats.seal(self._now_ms() - wanted.sealed_age_ms)
        if scanned.damage is not None or not wanted.is_equal(seal):
            filesystem.remove(path)
            reason = scanned.damage.reason if scanned.damage else "its digest differs"
            raise CorruptFile(f"{path}: is not the segment in the manifest: {reason}")
        file = filesystem.open(path)
        try:
            file.sync()
        finally:
            file.close()
        return scanned

    async def _install(self, wanted: ManifestSegment, scanned: SegmentScan) -> None:
        await self._segments.wait_until_resumed()
        if self._queue.pending:
            raise Busy(f"{self._context.name}: slices are pending")
        await self._segments.pause_until(self._put(wanted, scanned))
        # Whether it is part of the log is not known then: who asked must not count on it.
        if (offline := self._offline()) is not None:
            raise offline

    async def _put(self, wanted: ManifestSegment, scanned: SegmentScan) -> None:
        context = self._context
        await self._commit.wait_until_committed()
        is_tail = wanted.base_offset == context.state.durable_offset
        if is_tail and not self._queue.is_replica:
            raise RequestError(f"{context.name} is no replica: its end is its own")
        if is_tail:
            await self._finish_last()
        if self._commit.is_stopped:
            raise self._offline() or Unavailable(f"{context.name} is being closed")
        self._check_fit(wanted, is_tail=is_tail)
        on_disk, generation = await self._run(
            partial(self._plan, wanted, is_tail=is_tail), "files cannot be read"
        )
        partition = context.metadata_file.partition
        if is_tail and wanted.leader_epoch > partition.leader_epoch:
            partition = partition.with_epoch(wanted.leader_epoch, wanted.base_offset)
        if generation > 0:
            partition = replace(partition, is_rewritten=True)
        if not is_tail:
            # The leader may have cleaned less of it: what was decided since counts once more.
            partition = partition.with_unclean(wanted.base_offset)
        seal = scanned.stats.seal(self._now_ms() - wanted.sealed_age_ms)
        segment = SealedSegment(self._log_directory, seal, generation)
        others = [other for other in on_disk if other != SegmentId(*wanted.id[:1], generation)]
        try:
            if partition != context.metadata_file.partition:
                await context.metadata_file.write(partition)
            # Readers of the file that it replaces keep that one.
            work = partial(_name_and_seal, segment, scanned, self._part_path(wanted))
            await context.background.run(work)
            found = await context.background.run(partial(self._find_decisions, segment))
            decided = partition if is_tail else with_deletions(partition, found, self._now_ms())
            masks = await context.background.run(
                partial(resolve_deleted_offsets, [segment], decided, segment.next_offset)
            )
            if masks and decided != partition:
                await context.metadata_file.write(decided)
        except OSError as error:
            self._go_offline(error)  # It may be part of the log by now, or not.
            return
        if is_tail:
            self._decisions.add_found(found)
        self._publish(segment, is_tail=is_tail)
        context.state.mask_deleted(masks)
        self._on_repair(segment.base_offset, segment.next_offset)
        context.on_change()
        await context.background.run(partial(_remove_all, self._log_directory, others))

    def _find_decisions(self, segment: SealedSegment) -> list[FoundDecision]:
        """Return the decisions in a segment, and the committed ones after it. Blocks."""
        snapshot, end = self._context.state.snapshot, segment.next_offset
        later = [s for s in snapshot.segments if s.base_offset >= end]
        return find_decisions(
            [segment, *later],
            start=segment.base_offset,
            end=max(end, snapshot.committed.offset),
            name=self._context.name,
        )

    async def _finish_last(self) -> None:
        """Seal the growing segment, because another follows it; drop it if it is empty."""
        self._segments.finish_replica_segment(0)
        while self._segments.is_sealing and not self._commit.is_stopped:
            await self._context.tasks.changed()

    def _check_fit(self, wanted: ManifestSegment, *, is_tail: bool) -> None:
        """Raise unless a segment begins and ends where segments of the log do."""
        snapshot, partition = self._context.state.snapshot, self._context.metadata_file.partition
        first, end = wanted.base_offset, wanted.next_offset
        if is_tail:
            if self._segments.growing is not None and self._segments.growing.size > 0:
                raise Busy(f"{self._context.name}: the last segment could not be sealed")
            if wanted.leader_epoch < partition.leader_epoch and snapshot.segments:
                raise self._mismatch("the segment has an older epoch", wanted)
            return
        if end > snapshot.durable.offset or any(
            s.base_offset < first < s.next_offset or s.base_offset < end < s.next_offset
            for s in snapshot.segments
        ):
            raise self._mismatch("segments begin and end elsewhere", wanted)
        if any(not isinstance(s, SealedSegment) for s in self._own(wanted)):
            raise self._mismatch("a segment in its range is growing", wanted)
        if partition.epoch_at(first) != wanted.leader_epoch:
            raise self._mismatch(f"the epoch at {first} is {partition.epoch_at(first)}", wanted)

    def _own(self, wanted: ManifestSegment) -> Sequence[Segment]:
        """Return the segments of the log in the range of a wanted one."""
        return [
            s
            for s in self._context.state.snapshot.segments
            if wanted.base_offset <= s.base_offset < wanted.next_offset
        ]

    def _mismatch(self, what: str, wanted: ManifestSegment) -> ReplicaMismatch:
        offset, segment, position = self._context.state.snapshot.durable
        given = ReplicaPosition(wanted.base_offset, wanted.base_offset, 0)
        return ReplicaMismatch(what, own=(offset, segment, position), given=given)

    def _plan(self, wanted: ManifestSegment, *, is_tail: bool) -> tuple[list[SegmentId], int]:
        """Return the segments with files in a range, complete or not, and the new generation."""
        listed = self._log_directory.filesystem.list(self._log_directory.directory)
        ids = {name.id for name in map(parse_segment_file, listed) if name is not None}
        on_disk = [s for s in ids if wanted.base_offset <= s.base_offset < wanted.next_offset]
        return on_disk, wanted.generation if is_tail else self._generation(wanted, on_disk)

    def _generation(self, wanted: ManifestSegment, on_disk: Sequence[SegmentId]) -> int:
        """Return the generation of the segment here: above all that it replaces.

        A damaged file whose seal is that of the wanted segment is replaced under its own name.
        """
        if not on_disk:
            return wanted.generation
        if len(on_disk) == 1 and on_disk[0].base_offset == wanted.base_offset:
            with contextlib.suppress(FileNotFoundError, CorruptFile):
                if wanted.is_equal(read_seal(self._log_directory, *on_disk[0])):
                    return on_disk[0].generation
        return 1 + max(segment.generation for segment in on_disk)

    def _publish(self, segment: SealedSegment, *, is_tail: bool) -> None:
        context = self._context
        for old in context.state.snapshot.segments:
            is_old = segment.base_offset <= old.base_offset < segment.next_offset
            if is_old and isinstance(old, SealedSegment):
                old.forget()
        segment.forget()
        context.state.install(segment)
        if is_tail:
            self._commit.restart(segment.next_offset)
            self._queue.next_offset = segment.next_offset
        self._segments.retire(segment)


def _write_part(log_directory: LogDirectory, path: str, position: int, data: Bytes) -> int:
    filesystem = log_directory.filesystem
    try:
        file = filesystem.open(path)
    except FileNotFoundError:
        file = filesystem.create(path)
    try:
        if (size := file.size()) != position:
            raise RequestError(f"{path}: has {size} bytes, cannot add at {position}")
        return write_all(file, position, [data])
    finally:
        file.close()


def _discard(log_directory: LogDirectory) -> None:
    for name in log_directory.filesystem.list(log_directory.directory):
        if name.endswith((PART_SUFFIX, QUARANTINE_SUFFIX)):
            log_directory.filesystem.remove(join(log_directory.directory, name))


def _move_aside(segment: SealedSegment) -> None:
    """Rename the `.log` of a segment, and remove its index and keys; its seal stays."""
    filesystem, directory = segment.log_directory.filesystem, segment.log_directory.directory
    filesystem.rename(segment.path, segment.path + QUARANTINE_SUFFIX)
    for path in (segment.index_path, segment.keys_path):
        with contextlib.suppress(FileNotFoundError):
            filesystem.remove(path)
    segment.forget()
    filesystem.sync_directory(directory)


def _name_and_seal(segment: SealedSegment, scanned: SegmentScan, part: str) -> None:
    """Give a part the name of its segment, and seal it. Durable when this returns."""
    filesystem = segment.log_directory.filesystem
    with contextlib.suppress(FileNotFoundError):
        filesystem.remove(segment.keys_path)
    filesystem.rename(part, segment.path)
    write_seal(segment.log_directory, segment.seal, scanned.index, segment.generation)


def _remove_all(log_directory: LogDirectory, segments: Sequence[SegmentId]) -> None:
    """Remove the files of replaced segments; what cannot be removed is when the log is opened."""
    for base_offset, generation in segments:
        for suffix in SEGMENT_SUFFIXES:
            with contextlib.suppress(OSError):
                log_directory.filesystem.remove(log_directory.path(base_offset, suffix, generation))
