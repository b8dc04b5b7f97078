"""Read-only view of a log through its files, while another process may be writing it.

Nothing is locked and nothing is written. It shows what the owner cannot take back:

- Sealed segments, completely. They were synced before they were sealed.
- Unsealed data in a log of class `fsync`: what the checkpoint attests, which the owner writes after
  each commit and before it is acknowledged. After a crash that may be less than what the owner
  finds intact and keeps; that is visible once the next commit, or a seal, attests it.
- Unsealed data in a log of class `disk` or `memory`: what the kernel has, up to the first batch
  that is not intact. Readers of the owner see the same, and a power cut may take it back.
- A log of class `ephemeral` has no files.

The owner may seal, delete and rewrite meanwhile. It removes a file only when another has replaced
it or its records are invisible, and deletion rules only when no file holds their records. So names
that are the same before and after everything else was read belong together; if a file is missing,
everything is read again. Offsets are dense in every generation of a segment, so a reader continues
in another one where it was in the first, without a gap and without duplicates.

**Damage** is reported, never skipped, when a reader reaches it. If it is not known where the log
ended, it is reported to who asks for the end.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from millstream.config.schema import Durability
from millstream.errors import (
    CorruptData,
    CorruptFile,
    InvalidRequest,
    StorageFailed,
    UnknownFormat,
    UnknownLog,
)
from millstream.storage.disk.file_cache import FileCache
from millstream.storage.disk.filesystem import Filesystem, join, parent
from millstream.storage.disk.readonly_filesystem import ReadOnlyFilesystem
from millstream.storage.files.checkpoint import UNKNOWN_END, SyncPoint
from millstream.storage.files.document import DOCUMENT_SIZE_MAX
from millstream.storage.files.index import SegmentIndex
from millstream.storage.files.names import PARTITION_FILE, SegmentId, parse_segment_file
from millstream.storage.files.partition_metadata import NO_CAPS, DeletionRule, PartitionMetadata
from millstream.storage.files.seal import Seal
from millstream.storage.inspect.catalog import (
    FindingKind,
    PartitionFiles,
    SegmentFate,
    SegmentFiles,
    read_file,
    read_segment_seal,
    segment_path,
    survey_partition,
)
from millstream.storage.inspect.unsealed_tail import UnsealedTail
from millstream.storage.replica.log_decisions import (
    FoundDecision,
    find_decisions,
    with_deletions,
)
from millstream.storage.retention.key_deletions import resolve_deleted_offsets
from millstream.storage.retention.size_caps import SizeCaps
from millstream.storage.segment.damage import ANY_TIME, BatchPosition, scan_past_damage
from millstream.storage.segment.log_state import DeletedOffsets, LogPosition, LogState
from millstream.storage.segment.scan import SegmentScan, scan
from millstream.storage.segment.segment import LogDirectory, SealedSegment, Segment

T = TypeVar("T")

INDEX_INTERVAL_BYTES = 4096
"""Distance of index entries in a segment without a seal."""

_MAPS_MAX = 16
"""Number of segments of a log mapped at once: it is read from front to back."""

_TRIES_MAX = 100
"""How often files may change while they are read: far more than can happen."""


class ReadOnlyLog:
    """The log in one directory. Not thread-safe."""

    def __init__(self, filesystem: Filesystem, directory: str) -> None:
        map_cache: FileCache[memoryview] = FileCache(_MAPS_MAX)
        index_cache: FileCache[SegmentIndex] = FileCache(_MAPS_MAX)
        readonly = ReadOnlyFilesystem(filesystem)
        self._log_directory = LogDirectory(
            readonly, directory, map_cache, index_cache, INDEX_INTERVAL_BYTES
        )
        self._sealed: dict[SegmentId, SealedSegment] = {}
        self._tails: dict[int, UnsealedTail] = {}
        self._damaged: dict[SegmentId, SealedSegment] = {}
        self._masks: dict[Segment, DeletedOffsets | None] = {}
        self._rules: Sequence[DeletionRule] = ()
        self._found: tuple[object, int, list[FoundDecision]] = (None, 0, [])
        """Decisions in the log: of which state of it, up to which offset, and which."""
        self._state: LogState | None = None
        self.topic_id: uuid.UUID | None = None
        """Id of the topic, as of the state loaded last; `None` if it is not stored."""
        self._seen_names: list[str] = []
        self._seen_metadata = b""

    @property
    def state(self) -> LogState:
        """The state loaded last; its owner may have more by now. It is immutable."""
        return self._state or self.reload()

    def reload(self) -> LogState:
        """Read the files again, and return the new state.

        If the end is damaged, `lost` says so. Raises `UnknownLog` if the directory does not exist,
        and `CorruptData` if the deleted records cannot be determined.
        """
        for _ in range(_TRIES_MAX):
            try:
                self._state = self._reload()
            except FileNotFoundError as error:
                missing = error  # Sealed, reopened, removed or replaced since it was listed.
            else:
                return self._state
        raise StorageFailed(
            f"{self._log_directory.directory} cannot be read: {missing}"
        ) from missing

    def _reload(self) -> LogState:
        metadata = self._metadata_file()
        files = self._survey()
        if not files.names and not self._exists():
            raise UnknownLog(f"{self._log_directory.directory} does not exist")
        partition = _partition_of(files)
        segments, lost = self._load_segments(files, partition)
        end = _end_of(segments, partition)
        state = LogState(
            self._log_directory.directory,
            segments,
            end,
            start_offset=partition.start_offset,
            eviction_floor=partition.eviction_floor,
            eviction_reason=partition.eviction_reason,
            masks=self._masks_of(segments, self._with_decisions(segments, partition, end), end),
        )
        state.lost = lost or _lost(files, segments, partition)
        if segments and partition.caps != NO_CAPS:
            offset, reason = SizeCaps(partition.caps).first_offset(state.snapshot)
            if offset > state.start_offset:
                state.start_at(offset, eviction_reason=reason)
        self.topic_id = partition.cursor_id
        self._seen_names, self._seen_metadata = _segment_names(files.names), metadata
        return state

    def refresh(self) -> LogState:
        """Return the state loaded last; reload if anything was removed or replaced since.

        Appended data does not count. So this is cheap if nothing happened, and deleted records are
        not visible any more.
        """
        is_current = (
            self._names() == self._seen_names and self._metadata_file() == self._seen_metadata
        )
        return self.state if is_current else self.reload()

    def query(self, question: Callable[[LogState], T]) -> T:
        """Call `question` with the state loaded last; reload and retry if a file was removed."""
        for _ in range(_TRIES_MAX):
            try:
                return question(self.state)
            except (FileNotFoundError, StorageFailed) as error:
                if not isinstance(error.__cause__ or error, FileNotFoundError):
                    raise
                missing = error
                self.reload()
        raise StorageFailed(
            f"{self._log_directory.directory} cannot be read: {missing}"
        ) from missing

    def forget(self) -> None:
        """Unmap the files, as far as no slice of them is in use."""
        for segment in self._sealed.values():
            segment.forget()

    # Files.

    def _survey(self) -> PartitionFiles:
        directory = self._log_directory.directory
        for _ in range(_TRIES_MAX):
            before = self._names()
            survey = survey_partition(self._log_directory.filesystem, directory)
            if before == _segment_names(survey.names) == self._names():
                return survey
        raise StorageFailed(f"{directory}: files changed {_TRIES_MAX} times while being listed")

    def _names(self) -> list[str]:
        return _segment_names(self._log_directory.filesystem.list(self._log_directory.directory))

    def _metadata_file(self) -> bytes:
        """Return the bytes of `partition.json`, to detect changes."""
        path = join(self._log_directory.directory, PARTITION_FILE)
        try:
            return read_file(self._log_directory.filesystem, path, size_max=DOCUMENT_SIZE_MAX)
        except FileNotFoundError:
            return b""

    def _exists(self) -> bool:
        above, _, name = self._log_directory.directory.rpartition("/")
        return name in self._log_directory.filesystem.list(
            above or parent(self._log_directory.directory)
        )

    # Their content.

    def _load_segments(
        self, files: PartitionFiles, partition: PartitionMetadata
    ) -> tuple[list[Segment], CorruptData | None]:
        """Return the readable segments, in order, and the damage that ends them, if any."""
        cold = next((found for found in files.segments if found.is_cold), None)
        if cold is not None:
            raise InvalidRequest(
                f"{cold.path('cold')}: records of this log are in a cold store, and only its node"
                " can read them: read the topic through the node, not in place"
            )
        live = [segment_files for segment_files in files.segments if segment_files.has_log]
        self._drop_stale({segment_files.id for segment_files in live})
        segments: list[Segment] = []
        for number, segment_files in enumerate(live):
            if (
                segments
                and segment_files.base_offset != segments[-1].next_offset
                and not segment_files.is_attested
            ):
                break  # Data after a gap that nothing attests was never acknowledged.
            if segment_files.is_sealed:
                following = live[number + 1].base_offset if number + 1 < len(live) else None
                known = self._sealed.get(segment_files.id)
                if (
                    known
                    and number > 0
                    and following is not None
                    and known.size == segment_files.size
                ):
                    segments.append(known)  # Unchanged: only the last is ever reopened.
                    continue
                try:
                    segments.append(self._sealed_segment(segment_files, following))
                except CorruptData as error:
                    return segments, error
                continue
            tail, damage = self._tail(segment_files, partition)
            if damage is not None:
                following = live[number + 1].base_offset if number + 1 < len(live) else None
                damaged = self._damaged_segment(segment_files, following, files.synced)
                if damaged is not None:
                    segments.append(damaged)
                    continue
            if tail.size:
                segments.append(tail.segment)
            if damage is not None:
                return segments, damage
        return segments, None

    def _drop_stale(self, live: set[SegmentId]) -> None:
        """Drop cached segments that no longer exist."""
        for segment in self._sealed.keys() - live:
            self._sealed.pop(segment).forget()
        bases = {segment.base_offset for segment in live}
        for base in self._tails.keys() - bases:
            del self._tails[base]
        for segment in self._damaged.keys() - live:
            self._damaged.pop(segment).forget()

    def _sealed_segment(self, segment_files: SegmentFiles, following: int | None) -> SealedSegment:
        known = self._sealed.get(segment_files.id)
        seal = self._read_seal(segment_files)
        if known is not None and seal in (known.seal, None):
            return known  # A segment without its seal was scanned before.
        if known is not None:
            known.forget()
        seal = seal or self._derive_seal(segment_files, following)
        self._sealed[segment_files.id] = SealedSegment(
            self._log_directory, seal, segment_files.generation
        )
        self._tails.pop(segment_files.base_offset, None)
        return self._sealed[segment_files.id]

    def _read_seal(self, segment_files: SegmentFiles) -> Seal | None:
        """Return the seal of a segment; `None` if it is lost or damaged."""
        if "seal" not in segment_files.suffixes:
            return None
        try:
            return read_segment_seal(self._log_directory.filesystem, segment_files)
        except CorruptFile:
            return None

    def _derive_seal(self, segment_files: SegmentFiles, following: int | None) -> Seal:
        """Return a seal for a segment that has lost its own.

        If it is damaged and others follow, it extends to the next, and reading reports the damage.
        """
        file = self._log_directory.filesystem.open_readonly(segment_files.path("log"))
        view = file.map(file.size())
        log_scan = self._scan(segment_files, view)
        seal = log_scan.stats.seal(0)
        if log_scan.damage is None:
            return seal
        if following is None:
            path, damage = segment_files.path("log"), log_scan.damage
            raise CorruptFile(f"{path}: byte {damage.position}: {damage.reason}")
        return replace(seal, next_offset=following, size=len(view), timestamp_max=ANY_TIME)

    def _tail(
        self, segment_files: SegmentFiles, partition: PartitionMetadata
    ) -> tuple[UnsealedTail, CorruptData | None]:
        """Read a segment without a seal as far as it counts; return damage before that."""
        file = self._log_directory.filesystem.open_readonly(segment_files.path("log"))
        size = file.size()
        attested = size if segment_files.is_whole else segment_files.synced
        tail = self._tails.get(segment_files.base_offset)
        if tail is None or not tail.continues_in(file):
            epoch = partition.epoch_at(segment_files.base_offset)
            tail = UnsealedTail(
                self._log_directory, base_offset=segment_files.base_offset, leader_epoch=epoch
            )
            self._tails[segment_files.base_offset] = tail
        limit = attested if partition.durability is Durability.FSYNC else max(attested, size)
        damage = tail.read_on(file, limit=limit)
        if damage is None or damage.position >= attested:
            return tail, None
        return tail, CorruptFile(
            f"{segment_files.path('log')}: valid up to byte {damage.position},"
            f" synced up to byte {attested}: {damage.reason}"
        )

    def _damaged_segment(
        self, segment_files: SegmentFiles, following: int | None, synced: SyncPoint
    ) -> SealedSegment | None:
        """Return a segment with damage in synced bytes; `None` if it is not known where it ended.

        As in recovery: everything valid in it can be read, and reading the rest fails. Nobody
        writes to such a log, so the file can be mapped.
        """
        attested = segment_files.size if segment_files.is_whole else segment_files.synced
        known = self._damaged.get(segment_files.id)
        if known is not None and known.size >= attested:
            return known
        is_last = following is None and synced.base_offset == segment_files.base_offset
        end_offset = synced.end_offset if is_last else following
        if end_offset in (None, UNKNOWN_END):
            return None
        file = self._log_directory.filesystem.open_readonly(segment_files.path("log"))
        view = file.map(file.size())
        log_scan = self._scan(segment_files, view)
        found = scan_past_damage(
            view,
            log_scan,
            end=BatchPosition(attested, end_offset),
            index_interval_bytes=len(view) + 1,
        )
        assert found.end.offset is not None, "the end is known"
        seal = replace(
            log_scan.stats.seal(0),
            next_offset=found.end.offset,
            size=found.end.position,
            timestamp_max=ANY_TIME,
        )
        self._damaged[segment_files.id] = SealedSegment(self._log_directory, seal)
        return self._damaged[segment_files.id]

    def _scan(self, segment_files: SegmentFiles, view: memoryview) -> SegmentScan:
        return scan(
            view,
            base_offset=segment_files.base_offset,
            created_ms=0,
            index_interval_bytes=len(view) + 1,
            leader_epoch=segment_files.leader_epoch,
        )

    def _with_decisions(
        self, segments: Sequence[Segment], partition: PartitionMetadata, end: LogPosition
    ) -> PartitionMetadata:
        """Return metadata with the deletions of a cluster that are only in the log so far."""
        if partition.decisions is None:
            return partition
        start = max(partition.decisions.offset, partition.start_offset)
        key, scanned_end, found = self._found
        if key != (start, partition.epochs) or scanned_end > end.offset:
            key, scanned_end, found = (start, partition.epochs), start, []
        name = self._log_directory.directory
        found += find_decisions(segments, start=scanned_end, end=end.offset, name=name)
        self._found = key, end.offset, found
        return with_deletions(partition, found, 0)

    def _masks_of(
        self, segments: Sequence[Segment], partition: PartitionMetadata, end: LogPosition
    ) -> dict[int, DeletedOffsets]:
        """Return the records deleted by key; cached for segments in which they are final."""
        rules = partition.deletions
        known = self._masks if rules == self._rules else {}
        self._rules, self._masks = rules, {}
        before = max((rule.before for rule in rules), default=0)
        masks: dict[int, DeletedOffsets] = {}
        for segment in segments if rules else ():
            if segment in known:
                mask = known[segment]
            else:
                mask = resolve_deleted_offsets([segment], partition, end.offset).get(
                    segment.base_offset
                )
            if isinstance(segment, SealedSegment) or segment.next_offset >= before:
                self._masks[segment] = mask
            if mask is not None:
                masks[segment.base_offset] = mask
        return masks


def _segment_names(names: Sequence[str]) -> list[str]:
    return [name for name in names if parse_segment_file(name)]


def _partition_of(files: PartitionFiles) -> PartitionMetadata:
    """Return the content of `partition.json`, without which nothing can be shown."""
    for finding in files.findings:
        if finding.is_damage:
            error = UnknownFormat if finding.kind is FindingKind.UNKNOWN else CorruptFile
            raise error(f"{finding.path}: {finding.message}")
    return files.partition or PartitionMetadata()


def _end_of(segments: Sequence[Segment], partition: PartitionMetadata) -> LogPosition:
    start = partition.start_offset
    last = segments[-1] if segments else None
    if last is None or last.next_offset < start:
        return LogPosition(start, -1, 0)
    return LogPosition(last.next_offset, last.base_offset, last.size)


def _lost(
    files: PartitionFiles, segments: Sequence[Segment], partition: PartitionMetadata
) -> CorruptData | None:
    """Return what is missing at the end of the log, by the rules of recovery."""
    last = segments[-1] if segments else None
    for segment_files in files.segments:
        if segment_files.fate is SegmentFate.OVERLAPPING:
            return CorruptFile(
                f"{segment_files.path('log')}: shares offsets with another segment, and neither"
                " contains the other"
            )
        is_seal_alone = segment_files.is_live and segment_files.suffixes & {"log", "seal"} == {
            "seal"
        }
        if is_seal_alone and (last is None or segment_files.base_offset >= last.next_offset):
            return CorruptFile(f"{segment_files.path('seal')}: the log that it seals is missing")
    has_tail = any(
        segment_files.has_log and not segment_files.is_sealed for segment_files in files.segments
    )
    base, size, _ = files.synced
    last_offset = max((s.next_offset - 1 for s in segments), default=-1)
    if size > 0 and not has_tail and last_offset < base:
        path = segment_path(files.directory, SegmentId(base, 0), "log")
        return CorruptFile(f"{path}: is missing, but was synced")
    start = partition.start_offset
    is_early = last is not None and last.next_offset < start and not has_tail
    if is_early and partition.durability is Durability.FSYNC:
        return CorruptFile(
            f"{files.directory}: ends at offset {last_offset + 1}, before its start offset"
            f" {start}: records are lost"
        )
    return None
