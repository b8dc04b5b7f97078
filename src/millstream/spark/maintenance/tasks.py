"""A function applied to many items as tasks of one Spark job, with progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, TypeVar

from millstream.spark.maintenance.failure import one_line_failures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
R = TypeVar("R")

TASK_BYTES = 256 * 1024 * 1024
"""Approximate size of a task: a task costs a few milliseconds, and checking this many bytes a few
tenths of a second.
"""

_PROGRESS_SECONDS = 0.2


def run_tasks(
    spark: SparkSession,
    work: Callable[[T], R],
    items: Sequence[T],
    sizes: Sequence[int],
    *,
    progress: Callable[[int], None],
) -> list[R]:
    """Call `work` for each item, and return the results in the order of the items.

    `progress` is called in this thread with the number of bytes completed, of those in `sizes`.
    Spark repeats a task that fails, as configured, so `work` may be called several times for an
    item. Raises `SparkFailed` if a task still fails.
    """
    if not items:
        return []
    context = spark.sparkContext
    done = context.accumulator(0)
    tasks = list(_tasks(items, sizes))

    def run(task: tuple[Sequence[T], int]) -> list[R]:
        group, size = task
        results = [work(item) for item in group]
        done.add(size)
        return results

    collect = context.parallelize(tasks, len(tasks)).map(run).collect
    with one_line_failures(), ThreadPoolExecutor(1) as pool:
        future = pool.submit(collect)
        while not wait([future], _PROGRESS_SECONDS).done:
            progress(min(done.value, sum(sizes)))  # A task that Spark repeats is counted twice.
        results_by_task = future.result()
    progress(sum(sizes))
    return [result for results in results_by_task for result in results]


def _tasks(items: Sequence[T], sizes: Sequence[int]) -> Iterator[tuple[list[T], int]]:
    """Group consecutive items; yield each group with its size."""
    group: list[T] = []
    size = 0
    for item, item_size in zip(items, sizes, strict=True):
        if group and size + item_size > TASK_BYTES:
            yield group, size
            group, size = [], 0
        group.append(item)
        size += item_size
    if group:
        yield group, size
