"""Recovery of the log of a partition: which of its bytes count, and which never did.

Torn is not corrupt. Bytes that were never known to be durable may be an unfinished write, and are
cut off at the first invalid batch. Bytes that were synced, as proved by a seal, the checkpoint or a
later sealed segment, must all be there: if one is not, that is data loss, which is reported and
never cut. The valid batches before and behind it stay readable, and the log ends where it ended
before, by its seal or the checkpoint: readers must not take a damaged log for a shorter one.

    sealed            sealed            no seal: scanned
    +---------------+ +---------------+ +-----------------+-----------+~~~~~~~~~
    | trusted       | | trusted       | | synced, by      | valid     | torn
    | by its seal   | | by its seal   | | the checkpoint  |           |
    +---------------+ +---------------+ +-----------------+-----------+~~~~~~~~~
                                         damage here is    kept         cut off
                                         reported

Deleted is not lost. `partition.json` records the start of the log, durably, before a file is
removed: everything before the segment with that offset is removed here, whatever a crash has left
of it. In a log of class `fsync` the start offset proves everything before it, like a checkpoint; if
a log of a weaker class has lost bytes that far back, it continues at its start offset.

Replaced is not lost either. A rewritten segment with its seal has replaced those that it was made
from, and one that never got its seal has not (`generations.py`). Either way one of the two sets is
removed here, once the other was read and is valid; if it is not, both stay.

Truncated is not lost either. `partition.json` says where a log is to end before the first byte is
removed. An interrupted truncation is finished before anything else is looked at
(`segment/truncation.py`).

The end of a log whose last segment is sealed is checked, not scanned (`last_batches.py`).

Bytes that are valid but not proved to be durable may be in the page cache only, after a failed sync
even marked as clean. They are written again and synced before any reader sees them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from millstream.clock import Clock
from millstream.config.schema import Durability
from millstream.errors import CorruptData, CorruptFile, DamagedRecords, UnknownFormat
from millstream.storage.disk.file_cache import map_file
from millstream.storage.disk.filesystem import File, Filesystem, join, write_all
from millstream.storage.files.checkpoint import (
    CHECKPOINT_SIZE,
    NOTHING_SYNCED,
    UNKNOWN_END,
    SyncPoint,
    decode_checkpoint,
)
from millstream.storage.files.cold_marker import ColdMarker
from millstream.storage.files.names import CHECKPOINT_FILE, PARTITION_FILE, SegmentId, segment_file
from millstream.storage.files.partition_metadata import (
    LeaderEpoch,
    PartitionMetadata,
    read_partition_metadata,
    write_partition_metadata,
)
from millstream.storage.files.seal import Seal
from millstream.storage.recovery.generations import choose_generations
from millstream.storage.recovery.inventory import LogInventory, ScannedSegment
from millstream.storage.recovery.last_batches import check_last_batches
from millstream.storage.recovery.orphans import Orphans
from millstream.storage.segment.cold_segment import ColdSegment
from millstream.storage.segment.damage import ANY_TIME, BatchPosition, scan_past_damage
from millstream.storage.segment.segment import (
    GrowingSegment,
    LogDirectory,
    SealedSegment,
    Segment,
    write_seal,
)
from millstream.storage.segment.truncation import cut_log

REWRITE_CHUNK = 4 * 1024 * 1024


@dataclass(slots=True)
class RecoveredLog:
    """Result of recovering a log."""

    partition: PartitionMetadata
    sealed: list[SealedSegment] = field(default_factory=list)
    growing: GrowingSegment | None = None
    is_new: bool = False
    """Whether nothing exists yet, not even its `partition.json`."""
    offline: CorruptData | None = None
    """Why the log can be read but not written: bytes at its end are damaged."""
    lost: CorruptData | None = None
    """The same, if it is not known where the log ended: it may have had more than `end_offset`."""
    end_offset: int = UNKNOWN_END
    """Where the log ended, if that is known and its last segment is lost."""
    damage: list[CorruptData] = field(default_factory=list)
    """Damage in sealed segments: reads of it fail, everything else works."""
    actions: list[str] = field(default_factory=list)
    """What was cut, removed or rebuilt, as messages."""
    scanned_bytes: int = 0
    unwanted: list[ColdMarker] = field(default_factory=list)
    """Segments that are not part of the log, or are stored here, and have objects in a cold
    store."""
    truncated_to: int | None = None
    """The end offset of a truncation that was interrupted, and is finished now."""

    @property
    def segments(self) -> list[Segment]:
        """All segments, in the order of the log."""
        return [*self.sealed, *([self.growing] if self.growing else [])]


def recover(
    log_directory: LogDirectory, clock: Clock, *, now_ms: Callable[[], int] | None = None
) -> RecoveredLog:
    """Recover the log in a directory: repair what a crash left unfinished, and report damage.

    Segments without a date are dated by `now_ms`, or else by the wall clock.
    """
    return _LogRecovery(log_directory, now_ms or clock.wall_ms).run()


class _LogRecovery:
    def __init__(self, log_directory: LogDirectory, now_ms: Callable[[], int]) -> None:
        self._log_directory = log_directory
        self._filesystem: Filesystem = log_directory.filesystem
        self._now_ms = now_ms
        self._result = RecoveredLog(PartitionMetadata())
        self._has_epochs = self._read_partition()
        self._finish_truncation()
        self._inventory = LogInventory(
            log_directory, leader_epoch_at=self._leader_epoch_at, now_ms=now_ms
        )
        self._choice = choose_generations(
            list(self._inventory.candidates.values()),
            start_offset=self._start_offset,
            read_end=self._inventory.read_end,
        )
        self._dead = self._find_dead()
        self._orphans = Orphans(log_directory, self._inventory, self._choice, dead=self._dead)
        dead = set(self._dead)
        self._live = {s.base_offset: s for s in self._choice.live if s not in dead}
        self._bases = list(self._live)
        self._unacknowledged: list[SegmentId] = []
        self._synced = self._read_checkpoint()
        self._outgrown: dict[int, Seal] = {}

    def run(self) -> RecoveredLog:
        """Run all steps."""
        self._check_partition()
        self._check_lost()
        unsealed = self._load_segments(self._seals())
        if not self._result.offline:
            self._check_overlaps(unsealed)
        if not self._result.offline:
            self._check_checkpoint(unsealed)
        if not self._result.offline:
            self._check_start(unsealed)
        if not self._result.offline:
            self._finish(unsealed)
            self._check_end()
        if not self._result.offline:
            # What is here counts, and is relocated again: nothing is known of the other copy.
            relocated = self._inventory.relocated.values()
            self._result.unwanted = [*self._inventory.unwanted, *relocated]
        self._result.actions += self._inventory.actions
        self._result.scanned_bytes = self._inventory.scanned_bytes
        return self._result

    def _load_segments(self, seals: dict[int, Seal]) -> list[ScannedSegment]:
        """Load the segments in order, and return those at the end that have no seal.

        What follows a gap, and is not proved to be durable, was never acknowledged: `_finish`
        removes it.
        """
        last_sealed = max(
            (b for b in self._bases if b in seals or self._is_rewritten(b)), default=-1
        )
        # A seal whose log is lost proves what follows it: it was sealed when that began.
        lost = (self._inventory.candidates[segment].seal for segment in self._choice.lost)
        lost_end = max((seal.next_offset for seal in lost if seal is not None), default=-1)
        unsealed: list[ScannedSegment] = []
        for base in self._bases:
            expected = self._next_offset(unsealed)
            if expected is not None and base != expected:
                is_proved = base <= max(last_sealed, self._synced.base_offset, lost_end)
                if unsealed or not is_proved:
                    self._unacknowledged = [
                        self._live[later] for later in self._bases if later >= base
                    ]
                    break
                self._report_hole(expected, base)
            if base in seals:
                self._add_sealed(seals[base], self._live[base])
            elif base < last_sealed or self._is_rewritten(base):
                self._seal_again(base)
            else:
                self._add_unsealed(base, unsealed)
        return unsealed

    # Finding files.

    def _read_partition(self) -> bool:
        """Read `partition.json`; return whether it exists and is valid."""
        try:
            self._result.partition = read_partition_metadata(
                self._filesystem, self._log_directory.directory
            )
        except FileNotFoundError:
            return False
        except CorruptFile as error:
            self._result.damage.append(error)
            return False
        return True

    def _finish_truncation(self) -> None:
        """Finish a truncation that a crash has interrupted."""
        if (truncation := self._result.partition.truncation) is None:
            return
        cut = cut_log(self._log_directory, truncation, now_ms=self._now_ms())
        self._result.partition = self._result.partition.truncated_to(truncation.end_offset)
        write_partition_metadata(
            self._filesystem, self._log_directory.directory, self._result.partition
        )
        self._result.truncated_to = truncation.end_offset
        self._result.actions += cut.actions

    def _check_partition(self) -> None:
        if self._has_epochs or self._result.damage:
            return
        self._result.is_new = not self._inventory.has_logs
        if not self._result.is_new:
            path = join(self._log_directory.directory, PARTITION_FILE)
            self._result.damage.append(CorruptFile(f"{path}: is missing"))

    @property
    def _start_offset(self) -> int:
        return self._result.partition.start_offset if self._has_epochs else 0

    def _leader_epoch_at(self, base: int) -> int | None:
        return self._result.partition.epoch_at(base) if self._has_epochs else None

    def _find_dead(self) -> list[SegmentId]:
        """Return the deleted segments: all before the one with the start offset."""
        choice, start = self._choice, self._start_offset
        first = max((s.base_offset for s in choice.live if s.base_offset <= start), default=0)
        known = (*choice.live, *choice.lost, *choice.superseded)
        return [segment for segment in known if segment.base_offset < first]

    def _check_lost(self) -> None:
        """Report seals without their logs: a hole in the log, or at its end."""
        for segment in self._choice.lost:
            if segment in self._dead:
                continue
            path = self._path(segment, "seal")
            missing = self._inventory.bad_markers.get(segment) or CorruptFile(
                f"{path}: the log that it seals is missing"
            )
            if self._bases and segment.base_offset < self._bases[-1]:
                self._result.damage.append(missing)
            else:
                seal = self._inventory.candidates[segment].seal
                self._lose_end(missing, seal.next_offset if seal else UNKNOWN_END)

    def _read_checkpoint(self) -> SyncPoint:
        if CHECKPOINT_FILE not in self._inventory.names:
            return NOTHING_SYNCED
        path = join(self._log_directory.directory, CHECKPOINT_FILE)
        file = self._filesystem.open_readonly(path)
        try:
            return decode_checkpoint(file.read_at(0, CHECKPOINT_SIZE))
        except UnknownFormat as error:
            raise UnknownFormat(f"{path}: {error}") from error
        finally:
            file.close()

    def _seals(self) -> dict[int, Seal]:
        """Return the seals of the log that can be trusted, and report those that cannot."""
        seals = {}
        for base, segment in self._live.items():
            candidate = self._inventory.candidates[segment]
            seal, size = candidate.seal, candidate.log_size or 0
            if error := self._inventory.bad_seals.get(segment):
                self._result.actions.append(f"rebuilt: {error}")
            elif seal is None:
                continue
            elif candidate.sealed_end is None:
                self._outgrown[base] = seal
                path = self._path(segment, "seal")
                self._result.actions.append(
                    f"rebuilt: {path}: seals {seal.size} bytes, the log has {size}"
                )
            else:
                seals[base] = seal
                if size != seal.size:
                    what = f"has {size} bytes, its seal says {seal.size}"
                    self._result.damage.append(CorruptFile(f"{self._path(segment)}: {what}"))
        return seals

    # Deciding what counts.

    def _next_offset(self, unsealed: list[ScannedSegment]) -> int | None:
        """Return the offset at which the next segment has to start, if it is known."""
        if unsealed:
            last = unsealed[-1].scan
            return -1 if last.damage else last.stats.next_offset
        if self._result.sealed:
            return self._result.sealed[-1].next_offset
        return (
            min(self._result.partition.start_offset, self._bases[0]) if self._has_epochs else None
        )

    def _attested(self, base: int) -> int:
        """Return how many bytes of a segment are proved durable, by checkpoint or earlier seal.

        A rewritten segment was synced before it got its name.
        """
        if base < self._synced.base_offset or self._is_rewritten(base):
            return self._inventory.size(self._live[base])
        checkpoint = self._synced.size if base == self._synced.base_offset else 0
        outgrown = self._outgrown.get(base)
        return max(checkpoint, outgrown.size if outgrown else 0)

    def _attested_end(self, base: int, attested: int) -> int | None:
        """Return the offset after the attested bytes of a segment, if it is known."""
        ends = [self._synced] if self._synced.base_offset == base else []
        if (seal := self._outgrown.get(base)) is not None:
            ends.append(SyncPoint(base, seal.size, seal.next_offset))
        known = (end.end_offset for end in ends if end.size == attested)
        return next((offset for offset in known if offset != UNKNOWN_END), None)

    def _path(self, segment: SegmentId, suffix: str = "log") -> str:
        return self._inventory.path(segment, suffix)

    def _is_rewritten(self, base: int) -> bool:
        return self._live[base].generation > 0

    def _add_unsealed(self, base: int, unsealed: list[ScannedSegment]) -> None:
        """Scan a segment without a seal, of which some bytes must be valid."""
        scanned, attested = self._inventory.read(self._live[base]), self._attested(base)
        if scanned.scan.stats.size >= attested:
            unsealed.append(scanned)
            return
        self._keep_readable(unsealed)
        unsealed.clear()
        self._add_damaged(scanned, attested)

    def _keep_readable(self, unsealed: list[ScannedSegment]) -> None:
        """Make the valid part of segments readable; nothing on the disk is touched."""
        for scanned in unsealed:
            self._add_sealed(scanned.scan.stats.seal(self._now_ms()), scanned.id)

    def _lose_end(self, error: CorruptData, end_offset: int) -> None:
        """Keep the log from being written: its end is lost."""
        self._result.offline = error
        self._result.end_offset = max(self._result.end_offset, end_offset)
        if end_offset == UNKNOWN_END:
            self._result.lost = error

    def _seal_again(self, base: int) -> None:
        """Rebuild the seal of a segment that must have had one.

        A later sealed segment proves that, or the fact that it was rewritten. If the segment is
        damaged, it gets no seal, and is read up to the damage.
        """
        scanned = self._inventory.read(self._live[base])
        if scanned.scan.damage:
            self._add_damaged(scanned, scanned.file_size)
        elif self._orphans.is_uncertain(scanned.id):
            self._add_sealed(scanned.scan.stats.seal(self._now_ms()), scanned.id)
        else:
            self._seal(scanned)

    def _add_damaged(self, scanned: ScannedSegment, attested: int) -> None:
        """Add a segment of which the first `attested` bytes should be valid, but are not.

        It gets no seal on the disk, and everything valid in it can be read. If it is the last, it
        ends where a seal or the checkpoint says; if they do not say it, the end of the log is not
        known.
        """
        scan, path = scanned.scan, self._path(scanned.id)
        following = next((later for later in self._bases if later > scanned.base_offset), None)
        end_offset = following or self._attested_end(scanned.base_offset, attested)
        seal = scan.stats.seal(0)
        found = scan_past_damage(
            map_file(self._filesystem, path),
            scan,
            end=BatchPosition(attested, end_offset),
            index_interval_bytes=attested,
        )
        end, errors = found.end, list[CorruptData]()
        for damage in found.ranges:
            position = f"byte {damage.start.position}"
            if following is None:
                position = f"valid up to {position}, synced up to byte {attested}"
            reason = f"{position}: {damage.reason}"
            if damage.end.offset is None:
                end = damage.start
                errors.append(CorruptFile(f"{path}: {reason}"))
            else:
                first, last = damage.start.offset or 0, damage.end.offset - 1
                errors.append(DamagedRecords(path, reason, from_offset=first, to_offset=last))
        self._result.damage += errors
        if following is None:
            known = found.end.offset
            self._lose_end(errors[0], UNKNOWN_END if known is None else known)
        seal = replace(seal, next_offset=end.offset or 0, size=end.position, timestamp_max=ANY_TIME)
        self._add_sealed(seal, scanned.id)

    def _add_sealed(self, seal: Seal, segment: SegmentId) -> None:
        if (marker := self._inventory.cold.get(segment)) is not None:
            self._result.sealed.append(ColdSegment(self._log_directory, marker))
            return
        self._result.sealed.append(SealedSegment(self._log_directory, seal, segment.generation))

    def _report_hole(self, expected: int, base: int) -> None:
        if base > expected:
            what = f"offsets {expected} to {base - 1} have no segment"
        else:
            what = f"a segment starts at {base}, the one before it ends at {expected}"
        self._result.damage.append(CorruptFile(f"{self._log_directory.directory}: {what}"))

    def _check_overlaps(self, unsealed: list[ScannedSegment]) -> None:
        """Report a segment that is half inside a rewritten one.

        No crash leaves that, so it is not known which one is right.
        """
        if not self._choice.overlapping:
            return
        segment, other = min(self._choice.overlapping.items())
        overlap = CorruptFile(
            f"{self._path(segment)}: shares offsets with {self._path(other)}, and"
            " neither holds all of the other"
        )
        self._lose_end(overlap, UNKNOWN_END)
        self._keep_readable(unsealed)

    def _check_checkpoint(self, unsealed: list[ScannedSegment]) -> None:
        """Check that the segment in the checkpoint, or a later one, exists.

        It may also have been rewritten into one that has the offset that it started with.
        """
        if self._synced.size == 0:
            return
        sealed_end = self._result.sealed[-1].next_offset if self._result.sealed else -1
        last_base = self._bases[-1] if self._bases else -1
        if max(last_base, sealed_end - 1) < self._synced.base_offset:
            path = self._log_directory.path(self._synced.base_offset, "log")
            missing = CorruptFile(f"{path}: is missing, but was synced")
            self._lose_end(missing, self._synced.end_offset)
            self._keep_readable(unsealed)
        elif unsealed and unsealed[-1].base_offset < self._synced.base_offset:
            last = unsealed[-1]
            path = self._path(last.id)
            missing = CorruptFile(
                f"{path}: ends at offset {last.scan.stats.next_offset}, but the segment"
                f" that starts at {self._synced.base_offset} was synced"
            )
            self._lose_end(missing, self._synced.end_offset)
            self._keep_readable(unsealed)

    def _check_start(self, unsealed: list[ScannedSegment]) -> None:
        """Check that the log reaches its start offset.

        A log of class `fsync` was synced up to that offset before it started there.
        """
        if self._ends_early(unsealed) and self._result.partition.durability is Durability.FSYNC:
            start = self._result.partition.start_offset
            missing = CorruptFile(
                f"{self._log_directory.directory}: ends at offset {self._end(unsealed)}, before its"
                f" start offset {start}: records are lost"
            )
            self._lose_end(missing, UNKNOWN_END)
            self._keep_readable(unsealed)

    def _check_end(self) -> None:
        """Report damage at the end of a log that nobody has scanned, because its seal is there."""
        if self._result.growing or not self._result.sealed:
            return
        last = self._result.sealed[-1]
        if isinstance(last, ColdSegment):
            return
        if self._inventory.size(self._live[last.base_offset]) == last.size:  # Else it is reported.
            damage = check_last_batches(last)
            self._result.damage += [damage] if damage else []

    def _ends_early(self, unsealed: list[ScannedSegment]) -> bool:
        """Return whether the last segment ends before the start offset of the log."""
        end = self._end(unsealed)
        return self._has_epochs and end is not None and end < self._result.partition.start_offset

    def _end(self, unsealed: list[ScannedSegment]) -> int | None:
        """Return the offset after the last valid record; None if there is no segment."""
        if unsealed:
            return unsealed[-1].scan.stats.next_offset
        return self._result.sealed[-1].next_offset if self._result.sealed else None

    # Repairing.

    def _finish(self, unsealed: list[ScannedSegment]) -> None:
        for name in self._inventory.leftovers:
            self._inventory.remove(name)
        self._inventory.drop(self._dead)
        self._inventory.drop(self._unacknowledged)
        self._result.damage += self._orphans.drop()
        if unsealed:
            self._cut(unsealed[-1])
        if self._ends_early(unsealed):
            self._drop_last(self._bases[0])
            self._result.sealed, unsealed = [], []
        elif unsealed and unsealed[-1].scan.stats.size == 0:
            self._drop_last(unsealed.pop().base_offset)
        for scanned in unsealed[:-1]:
            self._seal(scanned)
        if unsealed:
            self._grow(unsealed[-1])
        elif CHECKPOINT_FILE in self._inventory.names:
            self._inventory.remove(CHECKPOINT_FILE)
        if not self._has_epochs and self._bases:
            self._derive_partition()
        self._clamp_partition()

    def _drop_last(self, base: int) -> None:
        """Remove a segment at the end that has nothing which counts.

        If it is the only one, the files that refer to it, or to a deleted one, are removed first: a
        crash in between must not leave a reference to a segment that is gone.
        """
        segment = self._live[base]
        seal = segment_file(base, "seal", segment.generation)
        witnesses = {CHECKPOINT_FILE, seal} & self._inventory.names
        if self._bases[0] == base and witnesses:
            for name in sorted(witnesses):
                self._inventory.remove(name)
            self._filesystem.sync_directory(self._log_directory.directory)
        self._inventory.drop([segment])

    def _cut(self, scanned: ScannedSegment) -> None:
        size = scanned.scan.stats.size
        if size == scanned.file_size:
            return
        path = self._path(scanned.id)
        file = self._filesystem.open(path)
        try:
            file.truncate(size)
            file.sync()
        finally:
            file.close()
        reason = scanned.scan.damage.reason if scanned.scan.damage else "no batch"
        self._result.actions.append(
            f"cut off: {path}: {scanned.file_size - size} bytes after {size}: {reason}"
        )

    def _seal(self, scanned: ScannedSegment) -> None:
        """Seal a segment that was left without a seal because the next one had already started."""
        self._make_durable(scanned)
        seal = scanned.scan.stats.seal(self._now_ms())
        write_seal(self._log_directory, seal, scanned.scan.index, scanned.id.generation)
        self._add_sealed(seal, scanned.id)
        self._result.actions.append(f"sealed: {self._path(scanned.id)}")

    def _grow(self, scanned: ScannedSegment) -> None:
        """Make the last segment the growing one, after making all of it durable."""
        self._make_durable(scanned)
        self._filesystem.sync_directory(self._log_directory.directory)
        scan = scanned.scan
        self._result.growing = GrowingSegment(self._log_directory, scan.stats, scan.index, None)

    def _make_durable(self, scanned: ScannedSegment) -> None:
        file = self._filesystem.open(self._path(scanned.id))
        try:
            self._write_again(file, scanned)
            file.sync()
        finally:
            file.close()

    def _write_again(self, file: File, scanned: ScannedSegment) -> None:
        end = scanned.scan.stats.size
        attested = min(self._attested(scanned.base_offset), end)
        for start in range(attested, end, REWRITE_CHUNK):
            chunk = file.read_at(start, min(REWRITE_CHUNK, end - start))
            write_all(file, start, [chunk])

    def _derive_partition(self) -> None:
        """Rebuild the history of epochs from the segments."""
        epochs: list[LeaderEpoch] = []
        for segment in self._result.segments:
            if not epochs or segment.leader_epoch > epochs[-1].number:
                epochs.append(LeaderEpoch(segment.leader_epoch, segment.base_offset))
        if epochs:
            self._result.partition = PartitionMetadata(
                start_offset=self._result.segments[0].base_offset,
                epochs=tuple(epochs),
                is_rewritten=self._has_rewritten,
            )
            write_partition_metadata(
                self._filesystem, self._log_directory.directory, self._result.partition
            )
            self._result.actions.append(
                f"rebuilt: {self._log_directory.directory}/{PARTITION_FILE}"
            )

    def _clamp_partition(self) -> None:
        """Limit the offsets in `partition.json` to the end of the log.

        If the end was lost, the newest epoch starts at what is left; and offsets that are assigned
        again are not covered by old deletions or an old compaction.
        """
        partition, segments = self._result.partition, self._result.segments
        end = segments[-1].next_offset if segments else partition.start_offset
        clamped = partition.ending_at(end)
        if clamped.epochs[-1].start_offset > end:
            clamped = clamped.with_epoch(clamped.leader_epoch, end)
        if self._has_rewritten:
            clamped = replace(clamped, is_rewritten=True)
        if clamped != partition:
            self._result.partition = clamped
            write_partition_metadata(self._filesystem, self._log_directory.directory, clamped)

    @property
    def _has_rewritten(self) -> bool:
        return any(segment.generation > 0 for segment in self._result.sealed)
