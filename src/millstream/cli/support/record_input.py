"""Reads records from the command line or from input, and appends them as they arrive.

Input is read in pieces: typed lines are sent one by one, a file in large batches. A batch is
appended before more is read, so the acknowledged records are always a prefix of the input, and a
line number says where to continue.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import IO, TYPE_CHECKING, NamedTuple

import click

from millstream.cli.support.exit import Exit
from millstream.cli.support.options import progress_bar
from millstream.cli.support.output import print_table, printable, to_json
from millstream.cli.support.record_lines import read_line
from millstream.cli.support.settings import pairs_of
from millstream.clients.http.core.append.new_record import NewRecord
from millstream.clients.http.core.values import Headers, Placed
from millstream.errors import InvalidRecord, MillstreamError

if TYPE_CHECKING:
    from millstream.clients.http.sync.client import Client

PIECE = 256 * 1024
"""Bytes per fetch: a quarter of the default batch size limit."""

RECORDS_MAX = 5_000
"""Records per append request; the limit of a request is 10,000."""

VALUE_SIZE_MAX = 16 * 1024 * 1024
"""Maximum size of a line or a raw value: the default request limit of a node."""


class RecordInput(NamedTuple):
    """Source and format of records."""

    value: bytes | None
    """The record given by --value, if any."""
    line_format: str
    key: str | None
    headers: Headers
    partition: int | None
    separator: bytes | None
    path: str | None


def input_of(
    *,
    key: str | None,
    value: str | None,
    headers: Sequence[str],
    partition: int | None,
    line_format: str,
    key_separator: str | None,
    path: str | None,
) -> RecordInput:
    """Return the source of records; contradictory options end the command."""
    if value is not None and (path is not None or key_separator is not None):
        raise click.UsageError("--value cannot be combined with --file or --key-separator")
    if line_format == "json" and (key is not None or headers or key_separator is not None):
        raise click.UsageError("with --format json, keys and headers are part of the lines")
    if key_separator is not None and (key is not None or line_format != "text"):
        raise click.UsageError("--key-separator requires --format text and no --key")
    if key_separator == "":
        raise click.UsageError("--key-separator must not be empty")
    return RecordInput(
        None if value is None else os.fsencode(value),
        line_format,
        key,
        dict(pairs_of(headers, hint="--header")),
        partition,
        None if key_separator is None else os.fsencode(key_separator),
        path,
    )


@dataclass
class AppendTally:
    """Acknowledged records so far, by partition."""

    records: int = 0
    lines: int = 0
    """Lines of input processed, including empty ones."""
    places: dict[int, list[int]] = field(default_factory=dict)
    """First offset, last offset and count, by partition."""

    def add(self, placed: Sequence[Placed]) -> None:
        self.records += len(placed)
        for place in placed:
            row = self.places.setdefault(place.partition, [place.offset, place.offset, 0])
            row[1] = place.offset
            row[2] += 1

    def report(self, *, as_json: bool) -> None:
        """Print the offsets of the appended records."""
        names = ("partition", "first_offset", "last_offset", "records")
        rows = [(partition, *row) for partition, row in sorted(self.places.items())]
        if as_json:
            places = [dict(zip(names, row, strict=True)) for row in rows]
            click.echo(to_json({"records": self.records, "partitions": places}))
        elif self.records == 1:
            click.echo(f"partition {rows[0][0]} offset {rows[0][1]}")
        elif rows:
            print_table(("PARTITION", "FIRST", "LAST", "RECORDS"), rows)


class InputBatch(NamedTuple):
    """Records to append together, and the position in the input after them."""

    records: list[NewRecord]
    lines: int
    position: int


def append_all(client: Client, topic: str, source: RecordInput, *, as_json: bool) -> None:
    """Append all records and report their offsets, even after an error."""
    tally = AppendTally()
    try:
        with ExitStack() as stack:
            for batch in _batches(source, stack):
                if batch.records:
                    tally.add(client.append_many(topic, batch.records))
                tally.lines = batch.lines
    except KeyboardInterrupt:
        tally.report(as_json=as_json)
        click.echo(_rest(tally, "ended by Ctrl-C"), err=True)
        click.get_current_context().exit(Exit.INTERRUPTED)
    except MillstreamError as error:
        if source.value is None and (tally.records or isinstance(error, InvalidRecord)):
            tally.report(as_json=as_json)
            notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
            raise click.ClickException(_rest(tally, f"{error}{notes}")) from error
        raise
    tally.report(as_json=as_json)
    if not tally.records:
        click.echo("the input has no records, nothing was appended", err=True)


def _rest(tally: AppendTally, reason: str) -> str:
    count = f"{tally.records} record{'' if tally.records == 1 else 's'} acknowledged"
    return printable(f"{reason}; {count}, continue with line {tally.lines + 1}")


def _batches(source: RecordInput, stack: ExitStack) -> Iterator[InputBatch]:
    if source.value is not None:
        yield InputBatch([_of_line(source, source.value)], 0, 0)
        return
    if source.path is None and sys.stdin.isatty():
        click.echo("One record per line; Ctrl-D ends the input.", err=True)
    file: IO[bytes] = sys.stdin.buffer
    if source.path is not None:
        file = stack.enter_context(click.open_file(source.path, "rb"))
    size = os.fstat(file.fileno()).st_size if source.path else 0
    bar = stack.enter_context(progress_bar("append")) if size else None
    for batch in input_batches(source, file):
        yield batch
        if bar:
            bar.update(batch.position, size)


def input_batches(source: RecordInput, file: IO[bytes]) -> Iterator[InputBatch]:
    """Yield the records of an input in batches as they arrive."""
    if source.line_format == "raw":
        value = file.read(VALUE_SIZE_MAX + 1)
        if len(value) > VALUE_SIZE_MAX:
            raise InvalidRecord(f"input is larger than the limit of {VALUE_SIZE_MAX} bytes")
        yield InputBatch([_record(source, source.key, value)], 1, len(value))
        return
    number, position = 0, 0
    for lines, position in _lines(file):
        for start in range(0, len(lines), RECORDS_MAX):
            chunk = lines[start : start + RECORDS_MAX]
            records: list[NewRecord] = []
            for line in chunk:
                try:
                    if source.line_format == "text" or line.strip():
                        records.append(_of_line(source, line))
                except InvalidRecord as error:
                    # Append the lines before it first.
                    yield InputBatch(records, number, position)
                    raise InvalidRecord(f"line {number + 1}: {error}") from None
                number += 1
            yield InputBatch(records, number, position)


def _lines(file: IO[bytes]) -> Iterator[tuple[list[bytes], int]]:
    """Yield complete lines as they arrive, without line ends, and the position after them."""
    rest, position = b"", 0
    while piece := file.read1(PIECE):  # type: ignore[attr-defined]  # Every buffer has it.
        position += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        if lines:
            yield lines, position
        if len(rest) > VALUE_SIZE_MAX:
            raise InvalidRecord(f"the next line is longer than {VALUE_SIZE_MAX} bytes")
    if rest:
        yield [rest], position


def _of_line(source: RecordInput, line: bytes) -> NewRecord:
    if source.line_format == "json":
        record = read_line(line)
        return replace(record, partition=source.partition)
    if source.separator is None:
        return _record(source, source.key, line)
    key, separator, value = line.partition(source.separator)
    if not separator:
        raise InvalidRecord(f"it does not contain {source.separator.decode(errors='replace')!r}")
    return _record(source, key, value)


def _record(source: RecordInput, key: str | bytes | None, value: bytes) -> NewRecord:
    return NewRecord(value, key, source.headers, source.partition)
