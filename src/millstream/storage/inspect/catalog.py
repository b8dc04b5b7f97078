"""Catalog of the files in a data directory, without changes to it.

`segments list`, `dump`, `verify` and `reindex` all start here. Nothing is created, removed,
written or locked, so a running node may own the directory at the same time. The checkpoint is read
before the names and the epochs after them: then every segment that the checkpoint names is listed,
and every epoch of a listed segment is known.

If there are several generations of a segment, each has the fate that recovery would give it.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from millstream.config.schema import Durability
from millstream.errors import CorruptFile, MillstreamError, StorageFailed, UnknownFormat
from millstream.storage.disk.filesystem import Filesystem, join
from millstream.storage.files.checkpoint import (
    CHECKPOINT_SIZE,
    NOTHING_SYNCED,
    SyncPoint,
    decode_checkpoint,
)
from millstream.storage.files.cold_marker import ColdMarker, read_cold_marker
from millstream.storage.files.names import (
    CHECKPOINT_FILE,
    COLD_SUFFIX,
    LOCK_FILE,
    NODE_FILE,
    PARTITION_FILE,
    STATE_DIRECTORY,
    TEMPORARY_SUFFIX,
    TOPICS_DIRECTORY,
    LogName,
    SegmentId,
    is_topic,
    parse_cold_file,
    parse_partition,
    parse_segment_file,
    segment_file,
)
from millstream.storage.files.partition_metadata import (
    DeletionRule,
    PartitionMetadata,
    read_partition_metadata,
)
from millstream.storage.files.seal import SEAL_SIZE, Seal, decode_seal
from millstream.storage.recovery.generations import (
    GenerationCandidate,
    GenerationChoice,
    choose_generations,
)
from millstream.storage.segment.scan import SegmentScan, scan
from millstream.storage.segment.truncation import is_truncated

UNSEALED_MAX = 2
"""Rule of the writer: a third segment is not started before the first is sealed."""


class FindingKind(enum.Enum):
    """Severity of a finding."""

    DAMAGED = "damaged"
    """Data or metadata is lost."""

    UNKNOWN = "unknown format"
    """Written by another version: it can be neither checked nor used."""

    UNFINISHED = "unfinished"
    """Left by a crash, or foreign: the next start repairs or ignores it."""

    ABSENT = "absent"
    """Offsets without records; a node does not know whether a deletion explains it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a file."""

    path: str
    position: int | None
    """Byte where it starts; `None` if it concerns the whole file."""
    message: str
    kind: FindingKind = FindingKind.DAMAGED

    @property
    def is_damage(self) -> bool:
        """Whether it makes the data directory count as damaged."""
        return self.kind in (FindingKind.DAMAGED, FindingKind.UNKNOWN)


class SegmentFate(enum.Enum):
    """What recovery would do with the files of a segment."""

    LIVE = "live"
    """They are part of the log, or should be."""

    ORPHANED = "orphaned"
    """Their log is gone, and they only describe it: they are removed."""

    DELETED = "deleted"
    """They precede the segment with the start offset: they are removed."""

    SUPERSEDED = "superseded"
    """A rewritten segment replaced them: they are removed, if that one is intact."""

    UNFINISHED = "unfinished"
    """They belong to an unfinished rewrite: they are removed, if its inputs are intact."""

    OVERLAPPING = "overlapping"
    """They share offsets with a rewritten segment that lacks some of theirs: nothing is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFiles:
    """The files of one generation of a segment, and what must hold for its log."""

    directory: str
    base_offset: int
    generation: int = 0
    suffixes: frozenset[str]
    size: int
    """Bytes of the log when it was listed."""
    leader_epoch: int | None
    """Leader epoch of its batches by `partition.json`; `None` if that cannot be read."""
    is_whole: bool
    """Whether all of it was synced, so that no bad byte can be an unfinished write."""
    synced: int
    """If not `is_whole`: number of its bytes that were synced."""
    is_sealed: bool
    """Whether it has a seal, or must have had one."""
    is_attested: bool
    """Whether everything before it is known to have been synced, and its name too."""
    cold: ColdMarker | None = None
    """Its marker, if it has a valid one."""
    fate: SegmentFate = SegmentFate.LIVE
    rivals: tuple[SegmentId, ...] = ()
    """Segments with the same offsets, for fates that depend on others."""

    @property
    def id(self) -> SegmentId:
        """Base offset and generation."""
        return SegmentId(self.base_offset, self.generation)

    @property
    def is_live(self) -> bool:
        """Whether it is part of the log, or should be."""
        return self.fate is SegmentFate.LIVE

    @property
    def has_log(self) -> bool:
        """Whether it is a part of the log that can be read."""
        return self.is_live and "log" in self.suffixes

    @property
    def is_cold(self) -> bool:
        """Whether it is part of the log, and its `.log` is in a cold store only."""
        return self.is_live and self.cold is not None and "log" not in self.suffixes

    def path(self, suffix: str) -> str:
        """Return the path of one of the files."""
        return segment_path(self.directory, self.id, suffix)

    def may_be_torn(self, position: int) -> bool:
        """Whether a bad byte at `position` can be the result of an unfinished write."""
        return not self.is_whole and position >= self.synced


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFiles:
    """The directory of one partition."""

    directory: str
    names: Sequence[str]
    segments: Sequence[SegmentFiles]
    """In log order, including those that are not, or no longer, part of the log."""
    synced: SyncPoint
    partition: PartitionMetadata | None
    """Content of `partition.json`; `None` if it is missing or unreadable."""
    start_offset: int | None
    """The start offset, which the first segment contains; `None` if it cannot be read."""
    is_start_attested: bool
    """Whether everything before the start offset was synced: the log has class `fsync`."""
    deletions: Sequence[DeletionRule]
    """Rules of deletions by key, whose records may still be in the files."""
    findings: Sequence[Finding]
    """Problems of `partition.json` and the checkpoint."""


def check_directory(filesystem: Filesystem, path: str) -> None:
    """Raise `StorageFailed` unless `path` is a data directory, damaged or not."""
    try:
        names = set(filesystem.list(path))
    except NotADirectoryError:
        raise StorageFailed(f"{path} is not a directory") from None
    known = {NODE_FILE, NODE_FILE + TEMPORARY_SUFFIX, TOPICS_DIRECTORY, LOCK_FILE}
    if not names & known:
        reason = f"it has no {NODE_FILE}" if names else "it does not exist or is empty"
        raise StorageFailed(f"{path} is not a data directory: {reason}")


def store_paths(filesystem: Filesystem, path: str) -> list[str]:
    """Return the stores of a data directory: itself, and the internal state of a node in it."""
    state = join(path, STATE_DIRECTORY)
    return [path, state] if NODE_FILE in filesystem.list(state) else [path]


def log_directory(path: str, name: LogName) -> str:
    """Return the directory of a log."""
    return join(path, TOPICS_DIRECTORY, name.topic, str(name.partition))


def log_names(filesystem: Filesystem, path: str) -> list[LogName]:
    """Return the names of all logs, sorted."""
    topics = join(path, TOPICS_DIRECTORY)
    names = []
    for topic in filter(is_topic, filesystem.list(topics)):
        try:
            partitions = map(parse_partition, filesystem.list(join(topics, topic)))
        except NotADirectoryError:
            continue
        names += [LogName(topic, number) for number in partitions if number is not None]
    return sorted(names)


def segment_path(directory: str, segment: SegmentId, suffix: str) -> str:
    """Return the path of one file of a segment."""
    return join(directory, segment_file(segment.base_offset, suffix, segment.generation))


def survey_partition(filesystem: Filesystem, directory: str) -> PartitionFiles:
    """Read the directory of a partition: its names and its small files.

    Logs are read only if there are several generations of a segment and one has no valid seal.
    """
    synced, checkpoint_findings = _read_checkpoint(filesystem, join(directory, CHECKPOINT_FILE))
    names = filesystem.list(directory)
    suffixes: dict[SegmentId, set[str]] = {}
    for file in filter(None, map(parse_segment_file, names)):
        suffixes.setdefault(file.id, set()).add(file.suffix)
    for segment in filter(None, map(parse_cold_file, names)):
        suffixes.setdefault(segment, set()).add(COLD_SUFFIX)
    partition, partition_findings = _read_partition(filesystem, directory, has_data=bool(suffixes))
    if partition is not None and (truncation := partition.truncation) is not None:
        # The owner has begun to remove what is behind, or will when it opens the log again.
        suffixes = {s: v for s, v in suffixes.items() if not is_truncated(s, truncation)}
        synced = min(synced, SyncPoint(truncation.segment, 0))
    markers = {
        segment: marker
        for segment, found in suffixes.items()
        if COLD_SUFFIX in found
        if (marker := _read_marker(filesystem, directory, segment)) is not None
    }
    survey = _PartitionSurvey(filesystem, directory, suffixes, markers, partition, synced)
    return PartitionFiles(
        directory=directory,
        names=names,
        segments=list(survey.segments()),
        synced=synced,
        partition=partition,
        start_offset=partition.start_offset if partition else None,
        is_start_attested=partition is not None and partition.durability is Durability.FSYNC,
        deletions=partition.deletions if partition else (),
        findings=[*partition_findings, *checkpoint_findings],
    )


@dataclass(frozen=True, slots=True)
class _PartitionSurvey:
    """The segments of a partition, with what seals and checkpoint attest of each."""

    filesystem: Filesystem
    directory: str
    suffixes: Mapping[SegmentId, Collection[str]]
    markers: Mapping[SegmentId, ColdMarker]
    partition: PartitionMetadata | None
    synced: SyncPoint

    def segments(self) -> Iterator[SegmentFiles]:
        """Yield the segments in log order.

        They are sealed in log order. So a segment without a seal before a sealed one, or before the
        last two without a seal, has lost it; and so has a rewritten one.
        """
        choice = self._choose()
        fates = _fates(self.suffixes, choice, self._start_offset)
        live = sorted([*choice.live, *choice.lost])
        sealed = [
            s for s in live if {"seal", COLD_SUFFIX} & set(self.suffixes[s]) or s.generation > 0
        ]
        growing = [s for s in live if not sealed or s > sealed[-1]][-UNSEALED_MAX:]
        for segment, suffixes in sorted(self.suffixes.items()):
            base, generation = segment
            is_sealed = fates[segment] is SegmentFate.LIVE and segment not in growing
            yield SegmentFiles(
                directory=self.directory,
                base_offset=base,
                generation=generation,
                suffixes=frozenset(suffixes),
                size=_size(self.filesystem, self._path(segment, "log")),
                leader_epoch=self._leader_epoch(segment),
                is_whole=is_sealed or generation > 0 or base < self.synced.base_offset,
                synced=self.synced.size if segment == (self.synced.base_offset, 0) else 0,
                is_sealed=is_sealed,
                is_attested=is_sealed or base <= self.synced.base_offset,
                cold=self.markers.get(segment),
                fate=fates[segment],
                rivals=_rivals(choice, segment),
            )

    def _choose(self) -> GenerationChoice:
        has_rewritten = any(segment.generation > 0 for segment in self.suffixes)
        candidates = [
            self._candidate(segment, suffixes, is_seal_read=has_rewritten)
            for segment, suffixes in self.suffixes.items()
            if "log" in suffixes or "seal" in suffixes or segment in self.markers
        ]
        return choose_generations(
            candidates, start_offset=self._start_offset, read_end=self._read_end
        )

    def _candidate(
        self, segment: SegmentId, suffixes: Collection[str], *, is_seal_read: bool
    ) -> GenerationCandidate:
        """Return a segment to choose from; without a choice, seals are not needed."""
        log = self._path(segment, "log")
        if "log" not in suffixes and (marker := self.markers.get(segment)) is not None:
            return GenerationCandidate(
                id=segment, log_size=marker.seal.size, has_seal=True, seal=marker.seal
            )
        return GenerationCandidate(
            id=segment,
            log_size=_size(self.filesystem, log) if "log" in suffixes else None,
            has_seal="seal" in suffixes,
            seal=self._read_seal(segment) if is_seal_read and "seal" in suffixes else None,
        )

    def _read_seal(self, segment: SegmentId) -> Seal | None:
        path = self._path(segment, "seal")
        try:
            return _decode_seal(self.filesystem, path, segment.base_offset)
        except (MillstreamError, OSError):
            return None  # The check of the seal reports what is wrong.

    def _read_end(self, segment: SegmentId) -> int:
        base = segment.base_offset
        try:
            view = _read_log(self.filesystem, self._path(segment, "log"))
        except OSError:
            return base
        epoch = self._leader_epoch(segment)
        return _scan_all(view, base_offset=base, leader_epoch=epoch).stats.next_offset

    def _leader_epoch(self, segment: SegmentId) -> int | None:
        return self.partition.epoch_at(segment.base_offset) if self.partition else None

    @property
    def _start_offset(self) -> int:
        return self.partition.start_offset if self.partition else 0

    def _path(self, segment: SegmentId, suffix: str) -> str:
        return segment_path(self.directory, segment, suffix)


def _fates(
    segments: Iterable[SegmentId], choice: GenerationChoice, start_offset: int
) -> dict[SegmentId, SegmentFate]:
    first = max((s.base_offset for s in choice.live if s.base_offset <= start_offset), default=0)
    chosen = {
        **dict.fromkeys((*choice.live, *choice.lost), SegmentFate.LIVE),
        **dict.fromkeys(choice.superseded, SegmentFate.SUPERSEDED),
    }
    fates = {
        s: SegmentFate.DELETED if s.base_offset < first else chosen.get(s, SegmentFate.ORPHANED)
        for s in segments
    }
    fates.update(dict.fromkeys(choice.unfinished, SegmentFate.UNFINISHED))
    fates.update(dict.fromkeys(choice.overlapping, SegmentFate.OVERLAPPING))
    return fates


def _rivals(choice: GenerationChoice, segment: SegmentId) -> tuple[SegmentId, ...]:
    if sources := choice.unfinished.get(segment):
        return tuple(sources)
    rival = choice.superseded.get(segment) or choice.overlapping.get(segment)
    return (rival,) if rival else ()


def _read_marker(filesystem: Filesystem, directory: str, segment: SegmentId) -> ColdMarker | None:
    try:
        return read_cold_marker(filesystem, directory, segment)
    except (MillstreamError, OSError):
        return None  # The check of the segment reports what is wrong.


def _size(filesystem: Filesystem, path: str) -> int:
    try:
        return filesystem.size(path)
    except OSError:
        return 0  # Opening it reports what is wrong.


def _read_partition(
    filesystem: Filesystem, directory: str, *, has_data: bool
) -> tuple[PartitionMetadata | None, list[Finding]]:
    path = join(directory, PARTITION_FILE)
    try:
        partition = read_partition_metadata(filesystem, directory)
    except FileNotFoundError:
        return None, [Finding(path, None, "is missing")] if has_data else []
    except (MillstreamError, OSError) as error:
        return None, [unusable_file_finding(path, error)]
    for before, after in pairwise(partition.epochs):
        if before.number >= after.number or before.start_offset > after.start_offset:
            return None, [Finding(path, 0, f"epoch {after} follows {before}")]
    return partition, []


def _read_checkpoint(filesystem: Filesystem, path: str) -> tuple[SyncPoint, list[Finding]]:
    """Return how far the log was synced. Slots that were never written are blank, not damaged."""
    try:
        data = read_file(filesystem, path, size_max=CHECKPOINT_SIZE)
        synced = decode_checkpoint(data)
    except FileNotFoundError:
        return NOTHING_SYNCED, []
    except (MillstreamError, OSError) as error:
        return NOTHING_SYNCED, [unusable_file_finding(path, error)]
    if synced != NOTHING_SYNCED or not any(data):
        return synced, []
    # It is never synced by itself, so a power cut may tear both of its records.
    message = "none of its records is intact; the next commit writes it again"
    return synced, [Finding(path, 0, message, FindingKind.UNFINISHED)]


def unusable_file_finding(path: str, error: Exception) -> Finding:
    """Return the finding that a file cannot be used."""
    if isinstance(error, OSError):
        return Finding(path, 0, f"cannot be read: {error.strerror}")
    kind = FindingKind.UNKNOWN if isinstance(error, UnknownFormat) else FindingKind.DAMAGED
    return Finding(path, 0, str(error).removeprefix(f"{path}: "), kind)


def read_file(filesystem: Filesystem, path: str, *, size_max: int) -> bytes:
    """Return the content of a small file."""
    file = filesystem.open_readonly(path)
    try:
        data = file.read_at(0, size_max + 1)
    finally:
        file.close()
    if len(data) > size_max:
        raise CorruptFile(f"{path}: has more than {size_max} bytes")
    return data


def read_segment_seal(filesystem: Filesystem, files: SegmentFiles) -> Seal:
    """Read the seal of a segment, and check that it belongs to it."""
    return _decode_seal(filesystem, files.path("seal"), files.base_offset)


def _decode_seal(filesystem: Filesystem, path: str, base_offset: int) -> Seal:
    seal = decode_seal(read_file(filesystem, path, size_max=SEAL_SIZE))
    if seal.base_offset != base_offset:
        raise CorruptFile(
            f"{path}: seal has base offset {seal.base_offset}, expected {base_offset}"
        )
    return seal


def read_unsealed_log(filesystem: Filesystem, files: SegmentFiles) -> memoryview:
    """Return a copy of a log that may be written meanwhile, which must not be mapped."""
    return _read_log(filesystem, files.path("log"))


def _read_log(filesystem: Filesystem, path: str) -> memoryview:
    file = filesystem.open_readonly(path)
    try:
        return memoryview(file.read_at(0, file.size()))
    finally:
        file.close()


def summarize_segment(filesystem: Filesystem, files: SegmentFiles) -> Seal:
    """Return the statistics of a segment, from its seal or else from its intact batches."""
    if files.is_cold and files.cold is not None:
        return files.cold.seal
    if "seal" in files.suffixes:
        try:
            return read_segment_seal(filesystem, files)
        except (MillstreamError, FileNotFoundError):
            pass  # Damaged, or removed because the segment was reopened.
    view = read_unsealed_log(filesystem, files)
    log_scan = _scan_all(view, base_offset=files.base_offset, leader_epoch=files.leader_epoch)
    return log_scan.stats.seal(sealed_ms=0)


def _scan_all(view: memoryview, *, base_offset: int, leader_epoch: int | None) -> SegmentScan:
    """Scan a log, without index and dates."""
    return scan(
        view,
        base_offset=base_offset,
        created_ms=0,
        index_interval_bytes=len(view) + 1,
        leader_epoch=leader_epoch,
    )
