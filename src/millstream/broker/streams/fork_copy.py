"""Copying what a fork inherits.

A fork is a topic of its own that begins with copies of the source's records, keys, headers and
timestamps included; only the marks of their writers stay behind. That costs once as much as the
records are large, and from then on nothing: a fork is read like any other topic, at every door, and
what becomes of its source does not matter to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from millstream.broker.partition.partition import Partition
from millstream.broker.partition.record_page import read_page
from millstream.broker.partition.results import Appended
from millstream.broker.streams.stream import DurableStream
from millstream.broker.streams.write_marks import without_mark
from millstream.clock import Clock
from millstream.config.schema import MIB
from millstream.errors import BatchTooLarge, InvalidRequest, Stopping
from millstream.records.build import build_batch
from millstream.records.record import Record, StoredRecord

CHUNK_BYTES_MAX = 1 * MIB
CHUNK_RECORDS_MAX = 1_000
"""What is copied in one go: a few milliseconds in which the loop does little else."""

FORK_BYTES_MAX = 256 * MIB
"""What a fork may inherit, as batches: the request waits for the copy, a few seconds then."""


class ForkCopy:
    """Copies records of one stream into the partition of its fork."""

    def __init__(
        self,
        source: DurableStream,
        target: Partition,
        *,
        clock: Clock,
        is_stopping: Callable[[], bool],
        size_max: int = FORK_BYTES_MAX,
    ) -> None:
        self._source = source
        self._target = target
        self._clock = clock
        self._is_stopping = is_stopping
        self._size_max = size_max
        self._size = 0

    async def until(self, end_offset: int) -> int:
        """Copy all records before an offset of the source's partition; return how many."""
        cursor = self._source.partition.log_start_offset
        count = 0
        while cursor < end_offset:
            before = cursor
            records, cursor = await self._read(cursor, end_offset, limit=CHUNK_RECORDS_MAX)
            if cursor == before:
                break
            count += await self._append(records)
        return count

    async def more(self, offset: int, amount: int, *, is_json: bool) -> int:
        """Copy some of what follows an offset: messages, or bytes of one record; return records."""
        if not is_json:
            records, _ = await self._read(offset, self._source.end_offset, limit=1)
            value = (records[0].value or b"") if records else b""
            _check_there(amount, len(value), "bytes")
            return await self._append([Record(value[:amount])])
        count = 0
        while count < amount:
            records, offset = await self._read(
                offset, self._source.end_offset, limit=min(amount - count, CHUNK_RECORDS_MAX)
            )
            if not records:
                break
            count += await self._append(records)
        _check_there(amount, count, "messages")
        return count

    async def _read(self, offset: int, end_offset: int, *, limit: int) -> tuple[list[Record], int]:
        """Return copies of the next records, and where to go on."""
        found = await read_page(
            self._source.partition, offset, limit=limit, size_max=CHUNK_BYTES_MAX
        )
        return [_copied(one) for one in found.records if one.offset < end_offset], found.next_offset

    async def _append(self, records: Sequence[Record]) -> int:
        if self._is_stopping():
            raise Stopping("the node is stopping, and the fork was not finished")
        if not records:
            return 0
        batch = build_batch(records, now_ms=self._clock.wall_ms())
        self._size += len(batch)
        if self._size > self._size_max:
            raise BatchTooLarge(f"a fork may inherit {self._size_max} bytes, this would be more")
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._target.appender.append(batch, future)
        await future
        return len(records)


def _check_there(amount: int, there: int, what: str) -> None:
    if there < amount:
        raise InvalidRequest(f"sub-offset is {amount}, and {there} {what} follow the offset")


def _copied(record: StoredRecord) -> Record:
    return Record(record.value, record.key, without_mark(record.headers), record.timestamp_ms)
