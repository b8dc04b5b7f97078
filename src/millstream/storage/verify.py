"""Checking a data directory, byte by byte, without touching it.

Every batch is summed, every offset, epoch and seal is compared with its neighbours, and every
entry of every index with the batch that it points at. Torn is not corrupt, here as in recovery:
bytes that no seal, checkpoint or later segment attests may be an unfinished write, which the next
start cuts off, so they are noted and are no damage.

A directory without the seal of its last segment, or without a checkpoint, looks like one after a
crash and is taken for that; it has lost no data. Nothing tells that the last segments of a log are
gone if all their files are. Of a damaged log only the first bad batch is reported.

A running node may own the directory. Whatever looks damaged is therefore looked at a second time,
from a fresh list of names, and only what is still wrong there is believed.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from multiprocessing import get_context

from millstream.errors import (
    CorruptBatch,
    CorruptFile,
    MillstreamError,
    StorageFailed,
    UnknownFormat,
)
from millstream.records.batch import HEADER_SIZE, decode_header
from millstream.storage.catalog import (
    Finding,
    Kind,
    PartitionFiles,
    SegmentFiles,
    check_directory,
    log_directory,
    log_names,
    problem,
    read_file,
    read_growing,
    read_seal_of,
    survey,
)
from millstream.storage.checkpoint import NOTHING_SYNCED
from millstream.storage.document import read_document
from millstream.storage.filesystem import File, Filesystem, OsFilesystem, join
from millstream.storage.index import ENTRY_SIZE, INDEX_HEADER_SIZE, Index, decode_index
from millstream.storage.names import (
    NODE_FILE,
    PARTITION_FILE,
    TEMPORARY_SUFFIX,
    TOPICS_DIRECTORY,
    is_topic,
    parse_partition,
    segment_file,
)
from millstream.storage.scan import Scan, check_at, scan
from millstream.storage.seal import Seal
from millstream.storage.store import STORE_KIND, STORE_VERSION

Progress = Callable[[int, int], None]
"""Told how many bytes are done, and of how many."""

POOL_BYTES_MIN = 512 * 1024 * 1024
"""Below this, starting processes takes longer than the work."""

INDEX_SIZE_MAX = INDEX_HEADER_SIZE + ENTRY_SIZE * (2**31 // HEADER_SIZE)
"""One entry for each of the smallest batches in the largest segment."""

_CHUNK = 1024 * 1024
_INDEXED_SIZE = struct.Struct("<16xq")
_SEAL_FIELDS = {
    "next_offset": 16,
    "size": 24,
    "batch_count": 32,
    "record_count": 40,
    "timestamp_min": 48,
    "timestamp_max": 56,
    "digest": 80,
    "leader_epoch": 96,
}
"""What a seal says that the log says too, and where it stands. When it was made and sealed is
known to the seal alone."""


@dataclass(frozen=True, slots=True)
class SegmentResult:
    """What was found in one segment."""

    base_offset: int
    size: int
    next_offset: int | None
    """Where the next segment has to start; `None` where that cannot be told."""
    findings: Sequence[Finding]

    def is_damaged(self, *suffixes: str) -> bool:
        """Whether one of these files is damaged or missing; without any, whether anything is."""
        ends = tuple(f".{suffix}" for suffix in suffixes) or ("",)
        return any(found.is_damage and found.path.endswith(ends) for found in self.findings)


# A store.


def verify_store(
    filesystem: Filesystem,
    path: str,
    *,
    progress: Progress = lambda _done, _total: None,
    processes: int | None = None,
) -> Iterator[Finding]:
    """Yield all that is damaged or unfinished in a data directory, in the order of its names.

    It is worked on by `processes` at once, or by as many as there are processors for it where
    there is enough to do. A file system other than that of the machine stays in this process.
    """
    check_directory(filesystem, path)
    try:
        yield from _verify_node(filesystem, path)
    except UnknownFormat as error:
        yield problem(join(path, NODE_FILE), error)
        return  # Nothing can be said of what another version wrote.
    directories = [log_directory(path, name) for name in log_names(filesystem, path)]
    partitions = [survey(filesystem, directory) for directory in directories]
    segments = [files for partition in partitions for files in partition.segments]
    total = sum(files.size for files in segments)
    results = _verify_segments(filesystem, segments, processes, total)
    done = 0
    progress(done, total)
    for partition_files in partitions:
        found = {}
        for files in partition_files.segments:
            found[files.base_offset] = next(results)
            done += files.size
            progress(done, total)
        yield from _believe(filesystem, partition_files, found)


def _verify_node(filesystem: Filesystem, path: str) -> Iterator[Finding]:
    node = join(path, NODE_FILE)
    names = filesystem.list(path)
    yield from _temporaries(path, names)
    try:
        read_document(filesystem, node, STORE_KIND, STORE_VERSION)
    except FileNotFoundError:
        # It is durable before the first topic can be.
        if TOPICS_DIRECTORY in names:
            yield Finding(node, None, "is missing")
        else:
            yield Finding(node, None, "will be written at the next start", Kind.UNFINISHED)
    except (CorruptFile, OSError) as error:
        yield problem(node, error)
    yield from _strangers(filesystem, join(path, TOPICS_DIRECTORY))


def _strangers(filesystem: Filesystem, topics: str) -> Iterator[Finding]:
    """Note what no log will be looked for in."""
    for topic in filesystem.list(topics):
        directory = join(topics, topic)
        try:
            names = filesystem.list(directory)
        except NotADirectoryError:
            yield Finding(directory, None, "is not a directory", Kind.UNFINISHED)
            continue
        if not is_topic(topic):
            yield Finding(directory, None, "no topic can be called so", Kind.UNFINISHED)
            continue
        for name in names:
            if parse_partition(name) is None:
                yield Finding(join(directory, name), None, "is no partition", Kind.UNFINISHED)


def _verify_segments(
    filesystem: Filesystem, segments: Sequence[SegmentFiles], processes: int | None, total: int
) -> Iterator[SegmentResult]:
    """Yield the results in the order of `segments`, worked out by several processes."""
    if processes is None:
        processes = len(os.sched_getaffinity(0)) if total >= POOL_BYTES_MIN else 1
    processes = min(processes, len(segments))
    work = partial(verify_segment, filesystem)
    if processes <= 1 or not isinstance(filesystem, OsFilesystem):
        yield from map(work, segments)
        return
    # Spawned, because a process with threads, such as one with a progress bar, must not fork.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        try:
            yield from pool.map(work, segments)
        except BrokenProcessPool as error:
            raise StorageFailed(f"a process that verified segments was ended: {error}") from error
        finally:
            pool.shutdown(cancel_futures=True)


# A partition.


def verify_partition(filesystem: Filesystem, directory: str) -> list[Finding]:
    """Return all that is damaged or unfinished in the directory of a partition."""
    files = survey(filesystem, directory)
    return _believe(filesystem, files, _results(filesystem, files, {}))


def _results(
    filesystem: Filesystem, files: PartitionFiles, known: Mapping[int, SegmentResult]
) -> dict[int, SegmentResult]:
    return {
        segment.base_offset: known.get(segment.base_offset) or verify_segment(filesystem, segment)
        for segment in files.segments
    }


def _believe(
    filesystem: Filesystem, files: PartitionFiles, results: Mapping[int, SegmentResult]
) -> list[Finding]:
    """Return what was found, once damage was seen a second time."""
    first = list(_judge(files, results))
    suspects = {found.path for found in first if found.is_damage}
    if not suspects:
        return first
    again = survey(filesystem, files.directory)
    sound = {base: result for base, result in results.items() if not result.is_damaged()}
    second = _judge(again, _results(filesystem, again, sound))
    return [found for found in second if not found.is_damage or found.path in suspects]


def _judge(files: PartitionFiles, results: Mapping[int, SegmentResult]) -> Iterator[Finding]:
    yield from files.findings
    yield from _temporaries(files.directory, files.names)
    for result in results.values():
        yield from result.findings
    chain = [segment for segment in files.segments if segment.suffixes != {"index"}]
    yield from _check_start(files, chain)
    for before, after in pairwise(chain):
        yield from _check_joint(before, results[before.base_offset], after)
    yield from _check_synced(files, [results[segment.base_offset] for segment in chain])


def _temporaries(directory: str, names: Iterable[str]) -> Iterator[Finding]:
    for name in names:
        if name.endswith(TEMPORARY_SUFFIX):
            yield Finding(
                join(directory, name),
                None,
                "will be removed at the next start",
                Kind.UNFINISHED,
            )


def _check_start(files: PartitionFiles, chain: Sequence[SegmentFiles]) -> Iterator[Finding]:
    """Check that the log starts where `partition.json` says."""
    start = files.start_offset
    if start is None or not chain or chain[0].base_offset == start:
        return
    first = chain[0]
    if first.base_offset < start:
        what = f"lies before the first offset of the log, {start}"
        yield Finding(first.path("log"), None, what, Kind.UNFINISHED)
    else:
        yield _hole(start, first)


def _check_joint(
    before: SegmentFiles, result: SegmentResult, after: SegmentFiles
) -> Iterator[Finding]:
    """Check that a segment starts where the one before it ends."""
    end, base = result.next_offset, after.base_offset
    if end == base or (end is None and result.is_damaged()):
        return
    if end is None or base < end:
        what = f"starts at offset {base}, the segment before it ends at {end}"
        yield Finding(after.path("log"), 0, what) if after.is_attested else _never_synced(after)
    elif before.is_sealed or not after.is_attested:
        yield _hole(end, after)
    else:
        what = f"ends at offset {end}, the next segment starts at {base}"
        yield Finding(before.path("log"), result.size, what)


def _hole(start: int, after: SegmentFiles) -> Finding:
    if not after.is_attested:
        return _never_synced(after)
    missing = join(after.directory, segment_file(start, "log"))
    what = f"is missing: offsets {start} to {after.base_offset - 1} have no segment"
    return Finding(missing, None, what)


def _never_synced(files: SegmentFiles) -> Finding:
    what = "lies behind an unfinished write; will be removed at the next start"
    return Finding(files.path("log"), None, what, Kind.UNFINISHED)


def _check_synced(files: PartitionFiles, chain: Sequence[SegmentResult]) -> Iterator[Finding]:
    """Check that the segment of which the checkpoint speaks is there, or nothing of it is lost."""
    synced = files.synced
    last = chain[-1] if chain else SegmentResult(0, 0, files.start_offset or 0, ())
    if synced == NOTHING_SYNCED or (chain and last.base_offset >= synced.base_offset):
        return
    if synced.size > 0 or last.next_offset != synced.base_offset:
        path = join(files.directory, segment_file(synced.base_offset, "log"))
        yield Finding(path, None, f"is missing, but {synced.size} bytes of it were synced")


# A segment.


def verify_segment(filesystem: Filesystem, files: SegmentFiles) -> SegmentResult:
    """Check the files of one segment against each other. The result can be pickled."""
    return _SegmentCheck(filesystem, files).run()


@dataclass(slots=True)
class _SegmentCheck:
    filesystem: Filesystem
    files: SegmentFiles
    findings: list[Finding] = field(default_factory=list)

    def run(self) -> SegmentResult:
        files = self.files
        if files.suffixes == {"index"}:
            self._note("index", None, "has no log; will be removed at the next start")
            return self._result(0, None)
        seal = self._seal()
        if "log" not in files.suffixes:
            self._damage("log", None, "is missing, though its seal is there")
            return self._result(0, seal.next_offset if seal else None)
        log = self._scan(seal)
        self._check_index(seal, log)
        if log is None:
            return self._result(0, seal.next_offset if seal else None)
        ends = [seal.next_offset] if seal else []
        if log.damage is None:
            ends.append(log.tally.next_offset)
        return self._result(log.tally.size, max(ends, default=None))

    def _result(self, size: int, next_offset: int | None) -> SegmentResult:
        return SegmentResult(self.files.base_offset, size, next_offset, tuple(self.findings))

    def _damage(self, suffix: str, position: int | None, what: str) -> None:
        self.findings.append(Finding(self.files.path(suffix), position, what))

    def _note(self, suffix: str, position: int | None, what: str) -> None:
        self.findings.append(Finding(self.files.path(suffix), position, what, Kind.UNFINISHED))

    # The seal.

    def _seal(self) -> Seal | None:
        if "seal" not in self.files.suffixes:
            if self.files.is_sealed:
                self._damage("seal", None, "is missing, though later segments are there")
            return None
        try:
            return read_seal_of(self.filesystem, self.files)
        except (MillstreamError, OSError) as error:
            self.findings.append(problem(self.files.path("seal"), error))
            return None

    def _compare(self, seal: Seal, log: Scan) -> None:
        """Check that a seal says what a sound log says."""
        found = log.tally.seal(seal.sealed_ms)
        if found.size < seal.size:
            self._damage("log", found.size, f"ends here, its seal says at byte {seal.size}")
            return
        wrong = [name for name in _SEAL_FIELDS if getattr(seal, name) != getattr(found, name)]
        if wrong:
            words = (
                f"{name} is {_plain(getattr(seal, name))}, by log {_plain(getattr(found, name))}"
                for name in wrong
            )
            self._damage("seal", _SEAL_FIELDS[wrong[0]], "; ".join(words))

    # The log.

    def _scan(self, seal: Seal | None) -> Scan | None:
        try:
            view = self._view(seal)
        except _Unreadable as error:
            self._damage("log", error.position, str(error))
            return None
        except OSError as error:
            self.findings.append(problem(self.files.path("log"), error))
            return None
        log = scan(
            view,
            base_offset=self.files.base_offset,
            created_ms=seal.created_ms if seal else 0,
            index_interval_bytes=1,  # Every batch, because any may be one that the index names.
            leader_epoch=self._leader_epoch(seal, view),
        )
        self._check_log(view, log)
        if seal and log.damage is None:
            self._compare(seal, log)
        return log

    def _view(self, seal: Seal | None) -> memoryview:
        """Return the bytes of the log: a map where no one writes, else a copy."""
        file = self.filesystem.open_readonly(self.files.path("log"))
        try:
            if seal is None or (size := file.size()) > seal.size:
                return read_growing(self.filesystem, self.files)
            _read_through(file, size)
            return file.map(size)
        finally:
            file.close()

    def _leader_epoch(self, seal: Seal | None, view: memoryview) -> int | None:
        """Return the epoch that the batches have to bear: what two of three witnesses say."""
        expected = self.files.leader_epoch
        if seal is None or expected == seal.leader_epoch:
            return expected
        if expected is None:
            return seal.leader_epoch
        try:
            if decode_header(view).leader_epoch != seal.leader_epoch:
                return expected
        except CorruptBatch:
            return expected
        path = join(self.files.directory, PARTITION_FILE)
        base, epoch = self.files.base_offset, seal.leader_epoch
        what = f"epoch at offset {base} is {expected}, the segment there bears {epoch}"
        self.findings.append(Finding(path, 0, what))
        return seal.leader_epoch

    def _check_log(self, view: memoryview, log: Scan) -> None:
        size, damage = log.tally.size, log.damage
        if damage and (not self.files.may_be_torn(size) or _bears_other_epoch(view, log)):
            self._damage("log", size, f"{damage.reason}; the bytes after it were not checked")
        elif size < self.files.synced:
            self._damage("log", size, f"ends here, but {self.files.synced} bytes were synced")
        elif damage:
            rest = len(view) - size
            what = f"{rest} bytes after {size} will be cut off at the next start"
            self._note("log", size, what)

    # The index.

    def _check_index(self, seal: Seal | None, log: Scan | None) -> None:
        if "index" not in self.files.suffixes:
            if self.files.is_sealed:
                self._damage("index", None, "is missing")
            return
        if found := self._index_problem(seal, log):
            if not self.files.is_sealed:  # Recovery does not look at it.
                what = f"{found.what}; will be written anew"
                found = replace(found, what=what, kind=Kind.UNFINISHED)
            self.findings.append(found)

    def _index_problem(self, seal: Seal | None, log: Scan | None) -> Finding | None:
        path = self.files.path("index")
        try:
            index = self._read_index(seal, log)
        except (MillstreamError, OSError) as error:
            return problem(path, error)
        if log is None:
            return None
        is_cut = log.damage is not None or (seal is not None and log.tally.size < seal.size)
        number = _wrong_entry(index, log, end=log.tally.size if is_cut else None)
        if number is None:
            return None
        position = INDEX_HEADER_SIZE + number * ENTRY_SIZE
        return Finding(path, position, f"entry {number} points at no such batch")

    def _read_index(self, seal: Seal | None, log: Scan | None) -> Index:
        """Read the index, which covers all of a sealed log and may be late on another."""
        path = self.files.path("index")
        data = read_file(self.filesystem, path, size_max=INDEX_SIZE_MAX)
        sizes = [seal.size] if seal else []
        if log and log.damage is None:
            sizes.append(log.tally.size)
        if not sizes or not self.files.is_sealed:
            late = _INDEXED_SIZE.unpack_from(data)[0] if len(data) >= INDEX_HEADER_SIZE else 0
            sizes = [min([late, *sizes])]
        return decode_index(
            memoryview(data), base_offset=self.files.base_offset, log_size=max(sizes)
        )


class _Unreadable(Exception):
    """The disk does not give bytes of a file back."""

    def __init__(self, position: int, error: OSError) -> None:
        super().__init__(f"cannot be read: {error.strerror}")
        self.position = position


def _read_through(file: File, size: int) -> None:
    """Read all of a file once: where the disk fails, a map of it would end the process."""
    for position in range(0, size, _CHUNK):
        try:
            file.read_at(position, _CHUNK)
        except OSError as error:
            raise _Unreadable(position, error) from error


def _bears_other_epoch(view: memoryview, log: Scan) -> bool:
    """Whether all is right with the batch at the damage but its epoch. No torn write is so."""
    try:
        check_at(view, log.tally.size, log.tally.next_offset, None)
    except CorruptBatch:
        return False
    return True


def _wrong_entry(index: Index, log: Scan, *, end: int | None) -> int | None:
    """Return the number of the first wrong entry of an index, if there is one.

    Nothing can be said of entries that point behind `end`, where a damaged log stops.
    """
    before = -1
    for number in range(len(index)):
        entry = index[number]
        if end is not None and entry.position >= end:
            break
        is_right = len(log.index) > 0 and entry == log.index.for_position(entry.position)
        is_next = entry.position == 0 if number == 0 else entry.position > before
        if not is_right or not is_next:
            return number
        before = entry.position
    return None


def _plain(value: object) -> object:
    return value.hex() if isinstance(value, bytes) else value
