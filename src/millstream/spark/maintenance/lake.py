"""A job that writes a topic to its lake table in parallel.

    driver: positions of the table ─► parts of the log ─► tasks: files ─► driver: one commit

The commits are those of `millstream lake write`, so each can go on where the other one stopped. A
task that fails or runs twice leaves files that no commit has, and a vacuum removes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from millstream.clients.kafka.client import KafkaClient
from millstream.clients.partition import OffsetBounds
from millstream.config.schema import MIB
from millstream.errors import UnknownTopicId
from millstream.lake.table import LakeFile
from millstream.lake.topic_log import open_log
from millstream.lake.writer import LakePart, LakeProgress, LakeWriter, write_part
from millstream.records.topic_partition import TopicPartition
from millstream.spark.maintenance.tasks import run_tasks
from millstream.spark.options import SourceOptions
from millstream.spark.source_cache import make_client, open_client

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMIT_OFFSETS_MAX = 100_000_000
"""Offsets of one commit: enough that all executors have something to do."""

PART_BYTES = 256 * MIB
"""Bytes of the log that one task reads, about."""


def write_lake(
    spark: SparkSession,
    options: SourceOptions,
    topic: str,
    uri: str,
    *,
    file_bytes: int,
    part_bytes: int = PART_BYTES,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> LakeProgress:
    """Write what a topic has and its table has not; see `LakeWriter.run`.

    All executors must be able to write to the table.
    """

    def write(parts: Sequence[LakePart]) -> list[LakeFile]:
        pieces, sizes = _pieces(client, parts, part_bytes)
        results = run_tasks(
            spark, lambda part: _write(options, part), pieces, sizes, progress=lambda _: None
        )
        return [file for files in results for file in files]

    with make_client(options) as client:
        writer = LakeWriter(
            client,
            topic,
            uri,
            file_bytes=file_bytes,
            commit_offsets_max=COMMIT_OFFSETS_MAX,
            write_parts=write,
        )
        return writer.run(progress=progress)


def _write(options: SourceOptions, part: LakePart) -> list[LakeFile]:
    """Write a part. Runs in a task."""
    log = open_log(open_client(options), part.topic)
    if log.topic.id != part.topic_id:
        raise UnknownTopicId(
            f"topic {part.topic!r} was deleted and created again (id {part.topic_id}, now"
            f" {log.topic.id})"
        )
    return write_part(log, part)


def _pieces(
    client: KafkaClient, parts: Sequence[LakePart], part_bytes: int
) -> tuple[list[LakePart], list[int]]:
    """Divide parts into pieces for tasks; return them with the bytes of the log of each."""
    offset_bytes = client.offset_bytes(
        {
            TopicPartition(part.topic, part.partition): OffsetBounds(part.start, part.end)
            for part in parts
        }
    )
    pieces: list[LakePart] = []
    sizes: list[int] = []
    for part in parts:
        count = part.end - part.start
        size = count * offset_bytes[TopicPartition(part.topic, part.partition)]
        number = min(count, max(1, round(size / part_bytes)))
        edges = [part.start + count * index // number for index in range(number + 1)]
        for start, end in pairwise(edges):
            pieces.append(part._replace(start=start, end=end))
            sizes.append(max(1, int(size / number)))
    return pieces, sizes
