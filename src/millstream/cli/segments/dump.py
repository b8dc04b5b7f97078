"""`millstream segments dump`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import click

from millstream.cli.support.options import data_option, one_line_errors
from millstream.cli.support.output import finding_line, text_or_base64, to_json
from millstream.errors import CorruptBatch, UnknownLog
from millstream.records.compression import Codec
from millstream.records.filter.keys.matcher import KeyMatch, KeyMatcher
from millstream.records.iterate import read_records
from millstream.records.record import StoredRecord
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.storage.files.names import LogName
from millstream.storage.files.partition_metadata import DeletionRule
from millstream.storage.inspect.batch_walk import WalkedBatch, walk_batches
from millstream.storage.inspect.catalog import (
    Finding,
    SegmentFiles,
    check_directory,
    log_directory,
    log_names,
    survey_partition,
)


@click.command()
@data_option
@click.option("--topic", required=True, metavar="NAME", help="Topic to dump.")
@click.option(
    "--partition",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Partition to dump.",
)
@click.option(
    "--from",
    "start",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="OFFSET",
    help="Start at the batch that contains this offset.",
)
@click.option(
    "--until",
    type=click.IntRange(min=0),
    metavar="OFFSET",
    help="Stop before this offset.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop after this number of lines.",
)
@click.option("--records", "is_records", is_flag=True, help="Show the records of each batch.")
@click.pass_context
def dump(
    context: click.Context,
    *,
    data: str,
    topic: str,
    partition: int,
    start: int,
    until: int | None,
    limit: int | None,
    is_records: bool,
) -> None:
    """Print the batches of a partition, or their records, one JSON object per line.

    Keys and values are printed as text if they are UTF-8, otherwise in base64; the field next to
    them says which. Deleted records are omitted. Damage is reported on standard error with file and
    position, and skipped if the index or the next segment allows. Reads only, and can run beside a
    running node.

    \b
    Exit status:
        0  no damage
        1  damaged
        2  wrong usage

    \b
    Example:
        millstream segments dump --topic orders --from 1000 --limit 10 --records
    """
    output = _Output(start, until, is_records=is_records)
    with one_line_errors():
        for line in islice(output.lines(data, LogName(topic, partition)), limit):
            click.echo(to_json(line))
    context.exit(1 if output.is_damaged else 0)


class _Output:
    def __init__(self, start: int, until: int | None, *, is_records: bool) -> None:
        self._start = start
        self._until = until
        self._is_records = is_records
        self._deleted = KeyMatcher({})
        self.is_damaged = False

    def lines(self, data: str, name: LogName) -> Iterator[dict[str, Any]]:
        """Yield lines for standard output; problems are printed to standard error."""
        filesystem = OsFilesystem()
        check_directory(filesystem, data)
        if name not in log_names(filesystem, data):
            raise UnknownLog(f"{data} has no log {name}")
        files = survey_partition(filesystem, log_directory(data, name))
        self._start = max(self._start, files.start_offset or 0)
        self._deleted = _matcher(files.deletions)
        for segment, item in walk_batches(filesystem, files, self._start):
            if isinstance(item, Finding):
                self._report(item)
            elif item.is_sound and not self._is_before(item.header.base_offset):
                return
            elif item.header.last_offset >= self._start:
                yield from self._lines_of(segment, item)

    def _lines_of(self, segment: SegmentFiles, batch: WalkedBatch) -> Iterator[dict[str, Any]]:
        if not self._is_records:
            yield _batch_line(batch)
        elif batch.is_sound:
            try:
                records = read_records(batch.data)
            except CorruptBatch as error:
                self._report(Finding(segment.path("log"), batch.position, str(error)))
                return
            is_control = batch.header.is_control
            for record in records:
                is_deleted = not is_control and record.offset < self._deleted.before(record.key)
                is_wanted = record.offset >= self._start and self._is_before(record.offset)
                if is_wanted and not is_deleted:
                    yield _record_line(record, is_control=is_control)

    def _is_before(self, offset: int) -> bool:
        return self._until is None or offset < self._until

    def _report(self, finding: Finding) -> None:
        self.is_damaged |= finding.is_damage
        click.echo(finding_line(finding), err=True)


def _matcher(deletions: Iterable[DeletionRule]) -> KeyMatcher:
    limits: dict[KeyMatch, int] = {}
    for deletion in deletions:
        limits[deletion.match] = max(deletion.before, limits.get(deletion.match, 0))
    return KeyMatcher(limits)


def _batch_line(batch: WalkedBatch) -> dict[str, Any]:
    header = batch.header
    return {
        "offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "segment": batch.segment,
        "generation": batch.generation,
        "position": batch.position,
        "bytes": header.size,
        "codec": _codec_name(header.codec),
        "base_timestamp_ms": header.base_timestamp,
        "max_timestamp_ms": header.max_timestamp,
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "leader_epoch": header.leader_epoch,
        "is_transactional": header.is_transactional,
        "is_control": header.is_control,
        "crc_ok": batch.is_sound,
    }


def _codec_name(number: int) -> str:
    return Codec(number).name.lower() if number in set(Codec) else f"unknown ({number})"


def _record_line(record: StoredRecord, *, is_control: bool) -> dict[str, Any]:
    key, key_encoding = text_or_base64(record.key)
    value, value_encoding = text_or_base64(record.value)
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": key,
        "key_encoding": key_encoding,
        "value": value,
        "value_encoding": value_encoding,
        "headers": [_header_line(name, data) for name, data in record.headers],
        "is_control": is_control,
    }


def _header_line(name: str, data: bytes | None) -> dict[str, Any]:
    value, encoding = text_or_base64(data)
    return {"key": name, "value": value, "value_encoding": encoding}
