"""Verification of a data directory, byte by byte, without changes to it.

The checksum of every batch is verified, every offset, epoch and seal is compared with its
neighbours, and every entry of every index with the batch that it points to. Torn is not corrupt,
here as in recovery: bytes that no seal, checkpoint or later segment attests may be an unfinished
write, which the next start cuts off, so they are reported but are not damage.

A directory without the seal of its last segment, or without a checkpoint, looks like one after a
crash and is treated as such; it has lost no data. If all files of the last segments of a log are
gone, that cannot be detected. Of a damaged log only the first bad batch is reported.

A running node may own the directory. So everything that looks damaged is checked a second time,
from a fresh list of names, and only what is still wrong then is reported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import pairwise
from multiprocessing import get_context

from millstream.errors import (
    CorruptFile,
    StorageFailed,
    UnknownFormat,
)
from millstream.storage.disk.filesystem import Filesystem, OsFilesystem, join
from millstream.storage.files.checkpoint import NOTHING_SYNCED
from millstream.storage.files.document import read_document
from millstream.storage.files.names import (
    CLOCK_FILE,
    NODE_FILE,
    STORE_KIND,
    STORE_VERSION,
    TEMPORARY_SUFFIX,
    TOPICS_DIRECTORY,
    SegmentId,
    is_topic,
    parse_partition,
    segment_file,
)
from millstream.storage.inspect.catalog import (
    Finding,
    FindingKind,
    PartitionFiles,
    SegmentFate,
    SegmentFiles,
    check_directory,
    log_directory,
    log_names,
    segment_path,
    survey_partition,
    unusable_file_finding,
)
from millstream.storage.inspect.verify_segment import SegmentResult, verify_segment
from millstream.storage.retention.retention_clock import read_retention_clock

VerifyProgress = Callable[[int, int], None]
"""Called with the number of bytes done, and the total."""

SegmentChecks = Callable[[Sequence[SegmentFiles]], Iterator[SegmentResult]]
"""Calls `verify_segment` for each segment, possibly in other processes, and keeps their order."""

POOL_BYTES_MIN = 512 * 1024 * 1024
"""With less data, starting processes takes longer than the work."""

_NOTHING = SegmentId(-1, 0)
"""The last segment of a log without segments."""


# A store.


def verify_store(
    filesystem: Filesystem,
    path: str,
    *,
    progress: VerifyProgress = lambda _done, _total: None,
    processes: int | None = None,
    checks: SegmentChecks | None = None,
) -> Iterator[Finding]:
    """Yield all damaged and unfinished files of a data directory, ordered by name.

    The work is done by `processes` processes, by default one for each processor if there is enough
    to do. A file system other than that of the machine stays in this process. If `checks` is given,
    it checks the segments instead.
    """
    check_directory(filesystem, path)
    try:
        yield from _verify_node(filesystem, path)
    except UnknownFormat as error:
        yield unusable_file_finding(join(path, NODE_FILE), error)
        return  # Nothing can be said of what another version wrote.
    directories = [log_directory(path, name) for name in log_names(filesystem, path)]
    partitions = [survey_partition(filesystem, directory) for directory in directories]
    segments = [files for partition in partitions for files in partition.segments]
    total = sum(files.size for files in segments)
    in_processes = partial(_verify_segments, filesystem, processes=processes, total=total)
    results = (checks or in_processes)(segments)
    done = 0
    progress(done, total)
    for partition_files in partitions:
        partition_results = {}
        for files in partition_files.segments:
            partition_results[files.id] = next(results)
            done += files.size
            progress(done, total)
        yield from _confirm_damage(filesystem, partition_files, partition_results)


def _verify_node(filesystem: Filesystem, path: str) -> Iterator[Finding]:
    node = join(path, NODE_FILE)
    names = filesystem.list(path)
    yield from _temporaries(path, names)
    try:
        read_document(filesystem, node, STORE_KIND, STORE_VERSION)
    except FileNotFoundError:
        # The file is durable before the first topic can be.
        if TOPICS_DIRECTORY in names:
            yield Finding(node, None, "is missing")
        else:
            yield Finding(node, None, "will be written at the next start", FindingKind.UNFINISHED)
    except (CorruptFile, OSError) as error:
        yield unusable_file_finding(node, error)
    yield from _verify_clock(filesystem, path)
    yield from _unknown_directories(filesystem, join(path, TOPICS_DIRECTORY))


def _verify_clock(filesystem: Filesystem, path: str) -> Iterator[Finding]:
    """Check the retention clock. The next start writes the file if it is missing."""
    try:
        read_retention_clock(filesystem, path)
    except FileNotFoundError:
        return
    except (CorruptFile, UnknownFormat, OSError) as error:
        yield unusable_file_finding(join(path, CLOCK_FILE), error)


def _unknown_directories(filesystem: Filesystem, topics: str) -> Iterator[Finding]:
    """Report directories that cannot be logs."""
    for topic in filesystem.list(topics):
        directory = join(topics, topic)
        try:
            names = filesystem.list(directory)
        except NotADirectoryError:
            yield Finding(directory, None, "is not a directory", FindingKind.UNFINISHED)
            continue
        if not is_topic(topic):
            yield Finding(directory, None, "is not a valid topic name", FindingKind.UNFINISHED)
            continue
        for name in names:
            if parse_partition(name) is None:
                yield Finding(
                    join(directory, name), None, "is not a partition", FindingKind.UNFINISHED
                )


def _verify_segments(
    filesystem: Filesystem,
    segments: Sequence[SegmentFiles],
    *,
    processes: int | None,
    total: int,
) -> Iterator[SegmentResult]:
    """Yield the results in the order of `segments`, computed by several processes."""
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
            raise StorageFailed(f"a worker process of the verification died: {error}") from error
        finally:
            pool.shutdown(cancel_futures=True)


# A partition.


def verify_partition(filesystem: Filesystem, directory: str) -> list[Finding]:
    """Return all damaged and unfinished files in the directory of a partition."""
    files = survey_partition(filesystem, directory)
    return _confirm_damage(filesystem, files, _results(filesystem, files, {}))


def _results(
    filesystem: Filesystem, files: PartitionFiles, known: Mapping[SegmentId, SegmentResult]
) -> dict[SegmentId, SegmentResult]:
    return {
        segment.id: known.get(segment.id) or verify_segment(filesystem, segment)
        for segment in files.segments
    }


def _confirm_damage(
    filesystem: Filesystem, files: PartitionFiles, results: Mapping[SegmentId, SegmentResult]
) -> list[Finding]:
    """Return the findings, after a second look at those that are damage."""
    first = list(_judge(files, results))
    suspects = {finding.path for finding in first if finding.is_damage}
    if not suspects:
        return first
    again = survey_partition(filesystem, files.directory)
    fates = {segment.id: segment.fate for segment in again.segments}
    sound = {
        segment.id: results[segment.id]
        for segment in files.segments
        if not results[segment.id].is_damaged() and fates.get(segment.id) is segment.fate
    }
    second = _judge(again, _results(filesystem, again, sound))
    return [finding for finding in second if not finding.is_damage or finding.path in suspects]


def _judge(files: PartitionFiles, results: Mapping[SegmentId, SegmentResult]) -> Iterator[Finding]:
    yield from files.findings
    yield from _temporaries(files.directory, files.names)
    for segment in files.segments:
        yield from results[segment.id].findings
        yield from _check_rivals(segment, results)
    chain = [segment for segment in files.segments if segment.is_live]
    yield from _check_start(files, chain, results)
    for before, after in pairwise(chain):
        yield from _check_joint(before, results[before.id], after)
    yield from _check_synced(files, [results[segment.id] for segment in chain])


def _check_rivals(
    files: SegmentFiles, results: Mapping[SegmentId, SegmentResult]
) -> Iterator[Finding]:
    """Report what recovery does with a segment whose offsets others have too."""
    path = files.path(min(files.suffixes))
    others = ", ".join(segment_path(files.directory, rival, "log") for rival in files.rivals)
    is_unsound = any(results[s].is_damaged("log") for s in (files.id, *files.rivals))
    removal = (
        "is kept, because some are damaged" if is_unsound else "will be removed at the next start"
    )
    if files.fate is SegmentFate.SUPERSEDED:
        message = f"was rewritten into {others}; {removal}"
        yield Finding(path, None, message, FindingKind.UNFINISHED)
    elif files.fate is SegmentFate.UNFINISHED:
        message = f"was to replace {others}, and has no seal; {removal}"
        yield Finding(path, None, message, FindingKind.UNFINISHED)
    elif files.fate is SegmentFate.OVERLAPPING:
        yield Finding(path, None, f"shares offsets with {others}, and neither contains the other")


def _temporaries(directory: str, names: Iterable[str]) -> Iterator[Finding]:
    for name in names:
        if name.endswith(TEMPORARY_SUFFIX):
            yield Finding(
                join(directory, name),
                None,
                "will be removed at the next start",
                FindingKind.UNFINISHED,
            )


def _check_start(
    files: PartitionFiles, chain: Sequence[SegmentFiles], results: Mapping[SegmentId, SegmentResult]
) -> Iterator[Finding]:
    """Check that the log contains its start offset, or ends there."""
    start = files.start_offset
    if start is None or not chain:
        return
    if chain[0].base_offset > start:
        yield _hole(start, chain[0])
    last = results[chain[-1].id]
    end = last.end_offset if last.next_offset is None else last.next_offset
    if end is not None and end < start:
        message = f"ends at offset {end}, before the first offset of the log, {start}"
        kind = FindingKind.DAMAGED if files.is_start_attested else FindingKind.UNFINISHED
        yield Finding(chain[-1].path("log"), last.size, message, kind)


def _check_joint(
    before: SegmentFiles, result: SegmentResult, after: SegmentFiles
) -> Iterator[Finding]:
    """Check that a segment starts where the one before it ends."""
    end, base = result.next_offset, after.base_offset
    if end == base or (end is None and result.is_damaged()):
        return
    if end is None or base < end:
        message = f"starts at offset {base}, the segment before it ends at {end}"
        yield Finding(after.path("log"), 0, message) if after.is_attested else _never_synced(after)
    elif before.is_sealed or not after.is_attested:
        yield _hole(end, after)
    else:
        message = f"ends at offset {end}, the next segment starts at {base}"
        yield Finding(before.path("log"), result.size, message)


def _hole(start: int, after: SegmentFiles) -> Finding:
    if not after.is_attested:
        return _never_synced(after)
    missing = join(after.directory, segment_file(start, "log"))
    message = f"is missing: offsets {start} to {after.base_offset - 1} have no segment"
    return Finding(missing, None, message)


def _never_synced(files: SegmentFiles) -> Finding:
    message = "follows an unfinished write; will be removed at the next start"
    return Finding(files.path("log"), None, message, FindingKind.UNFINISHED)


def _check_synced(files: PartitionFiles, chain: Sequence[SegmentResult]) -> Iterator[Finding]:
    """Check that the segment in the checkpoint exists, or that nothing of it is lost.

    A segment that it was rewritten into, which contains its base offset, will do as well.
    """
    synced = files.synced
    last = chain[-1] if chain else SegmentResult(_NOTHING, 0, files.start_offset or 0, ())
    if synced == NOTHING_SYNCED or last.id.base_offset >= synced.base_offset:
        return
    if last.id.generation > 0 and (last.next_offset or 0) > synced.base_offset:
        return
    if synced.size > 0 or last.next_offset != synced.base_offset:
        path = join(files.directory, segment_file(synced.base_offset, "log"))
        yield Finding(path, None, f"is missing, but {synced.size} bytes of it were synced")
