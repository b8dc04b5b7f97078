"""Work on many things as tasks of one Spark job, with progress."""

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
"""Things are put together into tasks of about this size: a task costs a few milliseconds, and
checking so much a few tenths of a second."""

_TELL_SECONDS = 0.2


def run_tasks(
    spark: SparkSession,
    work: Callable[[T], R],
    items: Sequence[T],
    sizes: Sequence[int],
    *,
    progress: Callable[[int], None],
) -> list[R]:
    """Call `work` for each item, somewhere, and return the results in the order of the items.

    `progress` is told, in this thread, how many of the bytes that `sizes` speaks of are done. A
    task that fails is tried again as Spark is set to; raises `SparkFailed` where that does not
    help. So `work` may be called several times for an item.
    """
    if not items:
        return []
    context = spark.sparkContext
    done = context.accumulator(0)
    tasks = list(_tasks(items, sizes))

    def run(task: tuple[Sequence[T], int]) -> list[R]:
        some, size = task
        results = [work(item) for item in some]
        done.add(size)
        return results

    collect = context.parallelize(tasks, len(tasks)).map(run).collect
    with one_line_failures(), ThreadPoolExecutor(1) as pool:
        future = pool.submit(collect)
        while not wait([future], _TELL_SECONDS).done:
            progress(min(done.value, sum(sizes)))  # A task that ran twice counts twice.
        found = future.result()
    progress(sum(sizes))
    return [result for results in found for result in results]


def _tasks(items: Sequence[T], sizes: Sequence[int]) -> Iterator[tuple[list[T], int]]:
    """Put items that follow each other together, each group with its size."""
    some: list[T] = []
    size = 0
    for item, item_size in zip(items, sizes, strict=True):
        if some and size + item_size > TASK_BYTES:
            yield some, size
            some, size = [], 0
        some.append(item)
        size += item_size
    if some:
        yield some, size
