"""`verify` and `reindex` of a data directory on Spark, one task per group of segments.

Findings and their order are those of `millstream segments`: the driver lists the segments and
checks relations between them; only the work on a single segment runs in tasks. The directory must
have the same path on the driver and on all workers.
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
    """Return all damage and unfinished work in a data directory, including the node's own logs.

    With `state`, segments that an earlier run completed are not read again.
    """
    filesystem = OsFilesystem()
    check_directory(filesystem, data)
    job = _SegmentJob(spark, progress)
    finished = None if state is None else CompletedTasks(state, "verify", SegmentResult)

    def checks(segments: Sequence[SegmentFiles]) -> Iterator[SegmentResult]:
        work = partial(verify_segment, filesystem)
        return job.run(segments, work, files_of=lambda files: files, finished=finished)

    return [
        finding
        for path in store_paths(filesystem, data)
        for finding in verify_store(filesystem, path, checks=checks)
    ]


def reindex(
    spark: SparkSession,
    data: str,
    *,
    is_all: bool = False,
    state: str | None = None,
    progress: VerifyProgress,
) -> ReindexResult:
    """Rebuild missing or wrong indexes and seals, or with `is_all` every index.

    With `state`, segments that an earlier run completed are skipped.
    """
    filesystem = OsFilesystem()
    job = _SegmentJob(spark, progress)
    kind = "reindex all" if is_all else "reindex"
    finished = None if state is None else CompletedTasks(state, kind, ReindexResult)

    def repairs(candidates: Sequence[ReindexCandidate]) -> Iterator[ReindexResult]:
        work = partial(reindex_segment, filesystem, is_all=is_all)
        return job.run(
            candidates, work, files_of=lambda candidate: candidate.files, finished=finished
        )

    return reindex_store(filesystem, data, is_all=is_all, repairs=repairs)


class _SegmentJob:
    """Runs work on segments, store by store, and reports progress in bytes over all stores."""

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
            work = finished.recording(lambda item: _name(files_of(item)), work)
            # Results are reused only for sealed segments; others change between runs.
            sealed = [number for number, item in enumerate(items) if files_of(item).is_sealed]
            loaded = {number: finished.load(names[number]) for number in sealed}
            known = {number: result for number, result in loaded.items() if result is not None}
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
    """Return the name of a segment in its present state: after it has grown, the name differs."""
    return f"{files.path('log')} {files.size} {files.fate.value}"
