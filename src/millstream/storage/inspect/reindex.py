"""Reindexing: derives indexes and seals from the logs, while no node runs.

An index is written for every sealed segment whose own is missing or wrong. A key index is written
only if it is wrong: it is built on demand, so it may be missing. A seal is written for a segment
that has lost its own or has an outdated one, by the rule of recovery: only if a later segment
continues where it ends, and only if every byte is intact. A damaged log is reported and never
touched, and so are files of another version. The end of the log belongs to recovery: a segment
that no other follows, or that waits for its first seal, is left to the next start. So are files
that a rewrite has replaced or not finished.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from millstream.clock import Clock, SystemClock
from millstream.config.schema import LogConfig
from millstream.errors import CorruptFile, StorageFailed
from millstream.storage.disk.file_cache import FileCache, map_file
from millstream.storage.disk.filesystem import Filesystem, join
from millstream.storage.files.document import read_document, replace_file
from millstream.storage.files.names import (
    LOCK_FILE,
    NODE_FILE,
    STORE_KIND,
    STORE_VERSION,
    segment_file,
)
from millstream.storage.inspect.catalog import (
    Finding,
    FindingKind,
    PartitionFiles,
    SegmentFiles,
    check_directory,
    log_directory,
    log_names,
    read_segment_seal,
    survey_partition,
)
from millstream.storage.inspect.verify_segment import SegmentResult, verify_segment
from millstream.storage.inspect.verify_store import VerifyProgress
from millstream.storage.segment.keys.builder import build_key_index
from millstream.storage.segment.scan import SegmentScan, scan
from millstream.storage.segment.segment import LogDirectory, write_index, write_seal


@dataclass(frozen=True, slots=True)
class ReindexResult:
    """Files written, and remaining damage."""

    written: list[str] = field(default_factory=list)
    """Paths of the indexes and seals that were written."""
    findings: list[Finding] = field(default_factory=list)
    """Remaining damage."""


@dataclass(frozen=True, slots=True)
class ReindexCandidate:
    """A segment to check, and the one that follows it."""

    files: SegmentFiles
    following: SegmentFiles | None
    """The next segment of the log."""


ReindexRunner = Callable[[Sequence[ReindexCandidate]], Iterator[ReindexResult]]
"""Calls `reindex_segment` for each segment, possibly in other processes, and keeps their order."""


def reindex_store(
    filesystem: Filesystem,
    path: str,
    *,
    is_all: bool = False,
    progress: VerifyProgress = lambda _done, _total: None,
    clock: Clock | None = None,
    index_interval_bytes: int = LogConfig().index_interval_bytes,
    repairs: ReindexRunner | None = None,
) -> ReindexResult:
    """Derive missing and wrong files, or with `is_all` every index; durable when this returns.

    Raises `StoreLocked` if a node owns the directory, and changes nothing in one of another
    version. If `repairs` is given, it processes the segments, with the lock held here.
    """
    check_directory(filesystem, path)
    try:
        read_document(filesystem, join(path, NODE_FILE), STORE_KIND, STORE_VERSION)
    except FileNotFoundError:
        raise StorageFailed(f"{path} has no {NODE_FILE}: start a node first") from None
    lock = filesystem.lock(join(path, LOCK_FILE))
    try:
        directories = [log_directory(path, name) for name in log_names(filesystem, path)]
        partitions = [survey_partition(filesystem, directory) for directory in directories]
        here = partial(
            reindex_segment,
            filesystem,
            is_all=is_all,
            clock=clock,
            index_interval_bytes=index_interval_bytes,
        )
        return _reindex(partitions, repairs or partial(map, here), progress)
    finally:
        lock.release()


def _reindex(
    partitions: Sequence[PartitionFiles], repairs: ReindexRunner, progress: VerifyProgress
) -> ReindexResult:
    """Process all segments that a node of this version wrote."""
    done = ReindexResult()
    candidates: list[ReindexCandidate] = []
    for partition in partitions:
        done.findings.extend(finding for finding in partition.findings if finding.is_damage)
        if not any(finding.kind is FindingKind.UNKNOWN for finding in partition.findings):
            segments = [files for files in partition.segments if files.is_live]
            candidates += map(ReindexCandidate, segments, [*segments[1:], None])
    total, size = sum(candidate.files.size for candidate in candidates), 0
    for candidate, result in zip(candidates, repairs(candidates), strict=True):
        done.written.extend(result.written)
        done.findings.extend(result.findings)
        size += candidate.files.size
        progress(size, total)
    return done


def reindex_segment(
    filesystem: Filesystem,
    candidate: ReindexCandidate,
    *,
    is_all: bool = False,
    clock: Clock | None = None,
    index_interval_bytes: int = LogConfig().index_interval_bytes,
) -> ReindexResult:
    """Derive missing and wrong files of one segment; durable when this returns.

    The caller must hold the lock of the store. The result can be pickled.
    """
    work = _Reindex(filesystem, clock or SystemClock(), index_interval_bytes, is_all=is_all)
    work.run(candidate)
    return work.done


class _Reindex:
    def __init__(
        self, filesystem: Filesystem, clock: Clock, index_interval_bytes: int, *, is_all: bool
    ) -> None:
        self._filesystem = filesystem
        self._clock = clock
        self._interval = index_interval_bytes
        self._is_all = is_all
        self.done = ReindexResult()

    def run(self, candidate: ReindexCandidate) -> None:
        result = verify_segment(self._filesystem, candidate.files)
        self._repair(candidate.files, candidate.following, result)
        self.done.findings.extend(
            finding
            for finding in result.findings
            if finding.is_damage and finding.path not in self.done.written
        )

    def _repair(
        self, files: SegmentFiles, following: SegmentFiles | None, result: SegmentResult
    ) -> None:
        is_foreign = any(finding.kind is FindingKind.UNKNOWN for finding in result.findings)
        if is_foreign or not files.is_sealed or files.is_cold or result.is_damaged("log"):
            return
        if result.is_damaged("seal"):
            is_followed = following and result.next_offset == following.base_offset
            if is_followed and not self._has_rival_seal(files, result.size):
                self._derive_seal(files)
        elif self._is_all or result.is_damaged("index"):
            self._derive_index(files)
        if result.is_damaged("keys"):
            self._derive_keys(files)

    def _derive_index(self, files: SegmentFiles) -> None:
        log = self._scan(files, read_segment_seal(self._filesystem, files).leader_epoch)
        write_index(
            self._log_directory(files),
            log.index,
            base_offset=files.base_offset,
            log_size=log.stats.size,
            generation=files.generation,
        )
        self._filesystem.sync_directory(files.directory)
        self.done.written.append(files.path("index"))

    def _derive_keys(self, files: SegmentFiles) -> None:
        log = map_file(self._filesystem, files.path("log"))
        data = build_key_index(log, base_offset=files.base_offset)
        name = segment_file(files.base_offset, "keys", files.generation)
        replace_file(self._filesystem, files.directory, name, [data])
        self._filesystem.sync_directory(files.directory)
        self.done.written.append(files.path("keys"))

    def _derive_seal(self, files: SegmentFiles) -> None:
        log = self._scan(files, files.leader_epoch)
        file = self._filesystem.open(files.path("log"))
        try:
            file.sync()
        finally:
            file.close()
        seal = log.stats.seal(self._clock.wall_ms())
        write_seal(self._log_directory(files), seal, log.index, files.generation)
        self.done.written.extend((files.path("index"), files.path("seal")))

    def _has_rival_seal(self, files: SegmentFiles, size: int) -> bool:
        """Whether a valid seal of the same size contradicts the log; either may be right."""
        try:
            return read_segment_seal(self._filesystem, files).size == size
        except (CorruptFile, FileNotFoundError):
            return False

    def _scan(self, files: SegmentFiles, leader_epoch: int | None) -> SegmentScan:
        log = scan(
            map_file(self._filesystem, files.path("log")),
            base_offset=files.base_offset,
            created_ms=self._clock.wall_ms(),
            index_interval_bytes=self._interval,
            leader_epoch=leader_epoch,
        )
        assert log.damage is None, "verified a moment ago, and the store is locked"
        return log

    def _log_directory(self, files: SegmentFiles) -> LogDirectory:
        return LogDirectory(
            self._filesystem, files.directory, FileCache(1), FileCache(1), self._interval
        )
