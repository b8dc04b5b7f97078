"""Writes a topic to its lake table, exactly once.

    position of the table ─► read committed records ─► Parquet files ─► one commit ─► position

A run reads up to the end of the log at its start. It may be killed at any step, and may run twice
at the same time: files without a commit are not part of the table, and a commit that is not on top
of the newest positions is refused. After an error of unknown outcome the table itself says what was
committed, so the next run begins there.

Files that were written and never committed are removed at once after a refusal, and by a vacuum of
the table after a crash.
"""

from __future__ import annotations

import contextlib
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs

from millstream.clients.partition import OffsetBounds, RecordSource
from millstream.config.schema import MIB
from millstream.errors import InvalidConfig, LakeConflict, LakeError
from millstream.lake.deletions import PendingDeletion, TopicDeletions, finished, without
from millstream.lake.files import write_files
from millstream.lake.table import LakeFile, LakeTable, open_filesystem
from millstream.lake.topic_log import TopicLog, open_log
from millstream.lake.topic_table import PositionReport

logger = logging.getLogger(__name__)

FILE_BYTES = 128 * MIB
"""Size of a file, about."""

COMMIT_OFFSETS_MAX = 5_000_000
"""Offsets of one commit: what a crash costs in repeated work, and the memory of statistics."""


class LakeProgress(NamedTuple):
    """What a run has written."""

    offsets: int
    """Offsets that the positions moved over. There may be fewer records."""
    files: int
    bytes: int
    commits: int
    version: int
    """Of the table after the run."""
    deleted: int = 0
    """Rows that deletions by key have removed from the table."""


class LakePart(NamedTuple):
    """A range of offsets to write to files, in this process or another one."""

    topic: str
    topic_id: uuid.UUID
    uri: str
    partition: int
    start: int
    end: int
    file_bytes: int
    deletions: tuple[PendingDeletion, ...]
    """Those whose records are left out."""


class LakeLag(NamedTuple):
    """How far the lake is behind the log in one partition."""

    partition: int
    position: int | None
    """Next offset to write; `None` if none of the partition was written."""
    log: OffsetBounds

    @property
    def offsets(self) -> int:
        """Offsets that are not in the lake yet."""
        start = self.log.start if self.position is None else self.position
        return max(0, self.log.end - start)


class LakeWriter:
    """Moves the committed records of one topic to its table."""

    def __init__(
        self,
        source: RecordSource,
        topic: str,
        uri: str,
        *,
        file_bytes: int = FILE_BYTES,
        commit_offsets_max: int = COMMIT_OFFSETS_MAX,
        make_name: Callable[[], str] = lambda: uuid.uuid4().hex,
        write_parts: Callable[[Sequence[LakePart]], list[LakeFile]] | None = None,
    ) -> None:
        """Create a writer. `write_parts` writes the files of a commit, by default this process."""
        if not MIB <= file_bytes <= 1024 * MIB:
            raise InvalidConfig(
                f"file_bytes must be between {MIB} and {1024 * MIB}, got {file_bytes}"
            )
        self._source = source
        self._topic = topic
        self._uri = uri
        self._file_bytes = file_bytes
        self._commit_offsets_max = commit_offsets_max
        self._make_name = make_name
        self._write_parts = write_parts

    def run(
        self, progress: Callable[[int, int], None] = lambda _done, _total: None
    ) -> LakeProgress:
        """Write what is committed in the log now and not yet in the table.

        Raises `DataLost` if retention has deleted records that the table does not have, and
        `LakeConflict` if another writer is at work.
        """
        log = open_log(self._source, self._topic)
        table = self._table(log)
        bounds = log.bounds()
        # After the bounds: a deletion of later records does not concern this run.
        deletions = TopicDeletions(self._source, self._topic)
        pending = deletions.pending(table)
        starts = _starts(log, table, bounds)
        report = PositionReport(self._source, self._topic, self._uri)
        report.send(table.positions(log.topic.partitions))  # A crash may have prevented it.
        total = sum(max(0, bounds[number].end - starts[number]) for number in bounds)
        done = LakeProgress(0, 0, 0, 0, table.version)
        for moves in _portions(starts, bounds, self._commit_offsets_max):
            files = self._commit(log, table, moves, pending, is_recorded=deletions.is_recorded)
            report.send(table.positions(log.topic.partitions))
            count = sum(end - start for start, end in moves.values())
            done = LakeProgress(
                done.offsets + count,
                done.files + len(files),
                done.bytes + sum(file.size for file in files),
                done.commits + 1,
                table.version,
            )
            progress(done.offsets, total)
        reached = {number: max(starts[number], bound.end) for number, bound in bounds.items()}
        return self._delete(table, pending, reached, done)

    def _delete(
        self,
        table: LakeTable,
        pending: Sequence[PendingDeletion],
        reached: Mapping[int, int],
        done: LakeProgress,
    ) -> LakeProgress:
        """Remove the rows of deletions from the table, and note which ones are finished."""
        if not pending:
            return done
        position = finished(pending, reached)
        rows = table.delete(
            " OR ".join(deletion.sql() for deletion in pending),
            deletions_position=table.deletions_position() if position is None else position,
        )
        logger.info("%s: %d rows deleted by key, in %d deletions", table.uri, rows, len(pending))
        return done._replace(commits=done.commits + 1, version=table.version, deleted=rows)

    def lag(self) -> list[LakeLag]:
        """Return how far the table is behind the log, by partition."""
        log = open_log(self._source, self._topic)
        table = LakeTable.open(self._uri)
        table.check_topic(log.topic.name, log.topic.id)
        return [
            LakeLag(number, table.position(number), bounds)
            for number, bounds in log.bounds().items()
        ]

    def _table(self, log: TopicLog) -> LakeTable:
        """Return the table with all columns of the topic; create it if there is none."""
        topic_id = log.topic.id
        if topic_id is None:
            raise InvalidConfig(f"topic {self._topic!r} has no id, which a table needs")
        table = LakeTable.create(self._uri, topic=self._topic, topic_id=topic_id, typed=log.typed)
        table.add_columns(log.typed)
        return table

    def _commit(
        self,
        log: TopicLog,
        table: LakeTable,
        moves: dict[int, tuple[int, int]],
        pending: Sequence[PendingDeletion],
        *,
        is_recorded: bool,
    ) -> list[LakeFile]:
        parts = [
            LakePart(
                *(self._topic, table.topic_id, self._uri, partition, start, end),
                *(self._file_bytes, tuple(pending)),
            )
            for partition, (start, end) in moves.items()
        ]
        files: list[LakeFile] = []
        try:
            if self._write_parts is not None:
                files = self._write_parts(parts)
            else:
                for part in parts:
                    files += write_part(log, part, make_name=self._make_name)
            table.commit(
                files,
                {partition: end for partition, (_, end) in moves.items()},
                starts={
                    partition: start
                    for partition, (start, _) in moves.items()
                    if table.position(partition) is None
                },
                deletions_position=table.deletions_position() if is_recorded else None,
            )
        except LakeConflict:
            # Refused for certain. After any other error the files may be part of the table.
            _remove(table.filesystem(), files)
            raise
        return files


def write_part(
    log: TopicLog, part: LakePart, *, make_name: Callable[[], str] = lambda: uuid.uuid4().hex
) -> list[LakeFile]:
    """Write the files of a part, which belong to the table once they are committed."""

    def names() -> Iterator[str]:
        while True:
            yield f"p{part.partition}-{part.start}-{make_name()}.parquet"

    try:
        return write_files(
            open_filesystem(part.uri),
            _filtered(log.rows(part.partition, part.start, part.end), without(part.deletions)),
            names(),
            schema=log.schema,
            file_bytes=part.file_bytes,
        )
    except OSError as error:
        raise LakeError(f"files of {part.uri} cannot be written: {error}") from error


def _starts(log: TopicLog, table: LakeTable, bounds: dict[int, OffsetBounds]) -> dict[int, int]:
    """Return where to go on in each partition. One that was never written begins with the log."""
    starts = {}
    for number, (first, last) in bounds.items():
        position = table.position(number)
        if position is None:
            starts[number] = first
        else:
            log.check_start(number, position, OffsetBounds(first, last))
            starts[number] = position
    return starts


def _portions(
    starts: dict[int, int], bounds: dict[int, OffsetBounds], count_max: int
) -> Iterator[dict[int, tuple[int, int]]]:
    """Divide what there is to write into commits: a range of offsets for each partition."""
    waiting = {number: start for number, start in starts.items() if start < bounds[number].end}
    while waiting:
        share = max(1, count_max // len(waiting))
        portion = {
            number: (start, min(start + share, bounds[number].end))
            for number, start in waiting.items()
        }
        yield portion
        waiting = {number: end for number, (_, end) in portion.items() if end < bounds[number].end}


def _filtered(
    batches: Iterator[pa.RecordBatch], is_kept: pc.Expression | None
) -> Iterator[pa.RecordBatch]:
    """Leave out rows that were deleted: the log may have them for a moment after that."""
    for batch in batches:
        yield batch if is_kept is None else batch.filter(is_kept)


def _remove(filesystem: pyarrow.fs.FileSystem, files: list[LakeFile]) -> None:
    for file in files:
        with contextlib.suppress(OSError):
            filesystem.delete_file(file.path)
