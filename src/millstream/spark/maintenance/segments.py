"""`verify` and `reindex` of a data directory on Spark: a task for each segment.

What is found, and in which order, is what `millstream segments` finds: the driver lists the
segments and judges what belongs together, and only the work on a single segment goes to tasks.
The directory has to be at the same path for the driver and for all workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from millstream.spark.maintenance.completed_tasks import CompletedTasks
from millstream.spark.maintenance.tasks import run_tasks
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.storage.inspect.catalog import Finding, SegmentFiles, check_directory, store_paths
from millstream.storage.inspect.reindex import (
    ReindexCandidate,
    ReindexResult,
    reindex_segment,
    reindex_store,
)
from millstream.storage.inspect.verify_segment import SegmentResult, verify_segment
from millstream.storage.inspect.verify_store import VerifyProgress, verify_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")


def verify(
    spark: SparkSession, data: str, *, state: str | None = None, progress: VerifyProgress
) -> list[Finding]:
    """Return all that is damaged or unfinished in a data directory, and in what a node keeps there.

    With `state`, segments that an earlier run has finished there are not read again.
    """
    filesystem = OsFilesystem()
    check_directory(filesystem, data)
    job = _SegmentJob(spark, progress)
    finished = None if state is None else CompletedTasks(state, "verify", SegmentResult)

    def checks(segments: Sequence[SegmentFiles]) -> Iterator[SegmentResult]:
        work = partial(verify_segment, filesystem)
        return job.run(segments, work, files_of=lambda files: files, finished=finished)

    return [
        found
        for path in store_paths(filesystem, data)
        for found in verify_store(filesystem, path, checks=checks)
    ]


def reindex(
    spark: SparkSession,
    data: str,
    *,
    is_all: bool = False,
    state: str | None = None,
    progress: VerifyProgress,
) -> ReindexResult:
    """Derive missing or wrong indexes and seals, or with `is_all` every index.

    With `state`, segments that an earlier run has finished there are passed over.
    """
    filesystem = OsFilesystem()
    job = _SegmentJob(spark, progress)
    kind = "reindex all" if is_all else "reindex"
    finished = None if state is None else CompletedTasks(state, kind, ReindexResult)

    def repairs(suspects: Sequence[ReindexCandidate]) -> Iterator[ReindexResult]:
        work = partial(reindex_segment, filesystem, is_all=is_all)
        return job.run(suspects, work, files_of=lambda suspect: suspect.files, finished=finished)

    return reindex_store(filesystem, data, is_all=is_all, repairs=repairs)


class _SegmentJob:
    """Runs work over segments, store after store, and counts the bytes of all."""

    def __init__(self, spark: SparkSession, progress: VerifyProgress) -> None:
        self._spark = spark
        self._progress = progress
        self._bytes_before = 0

    def run(
        self,
        items: Sequence[T],
        work: Callable[[T], R],
        *,
        files_of: Callable[[T], SegmentFiles],
        finished: CompletedTasks[R] | None,
    ) -> Iterator[R]:
        """Yield the results in the order of `items`."""
        sizes = [files_of(item).size for item in items]
        names = [_name(files_of(item)) for item in items]
        known: dict[int, R] = {}
        if finished is not None:
            finished.make_directory()
            work = finished.around(lambda item: _name(files_of(item)), work)
            # What still grows, or waits to be removed, is another thing each time.
            lasting = [number for number, item in enumerate(items) if files_of(item).is_sealed]
            found = {number: finished.load(names[number]) for number in lasting}
            known = {number: result for number, result in found.items() if result is not None}
        todo = [number for number in range(len(items)) if number not in known]
        before = self._bytes_before + sum(sizes[number] for number in known)
        total = self._bytes_before + sum(sizes)
        self._progress(before, total)
        results = run_tasks(
            self._spark,
            work,
            [items[number] for number in todo],
            [sizes[number] for number in todo],
            progress=lambda done: self._progress(before + done, total),
        )
        self._bytes_before = total
        known |= dict(zip(todo, results, strict=True))
        yield from (known[number] for number in range(len(items)))


def _name(files: SegmentFiles) -> str:
    """Return what a segment is called in this state: one that has grown since is another."""
    return f"{files.path('log')} {files.size} {files.fate.value}"
