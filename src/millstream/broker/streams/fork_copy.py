"""Copying the records that a fork inherits.

A fork is a topic of its own that starts with copies of the source's records, keys, headers and
timestamps included; only the write marks are left out. The cost is one copy of the records, and
nothing afterwards: a fork is read like any other topic, by every server, and does not depend on its
source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from millstream.broker.partition.partition import Partition
from millstream.broker.partition.record_page import read_page
from millstream.broker.streams.stream import DurableStream
from millstream.broker.streams.write_marks import without_mark
from millstream.broker.topics.record_appender import RecordAppender
from millstream.clock import Clock
from millstream.config.schema import MIB
from millstream.errors import (
    BatchTooLarge,
    InvalidRequest,
    NotLeader,
    PeerUnavailable,
    Stopping,
    Unavailable,
)
from millstream.records.build import build_batch
from millstream.records.record import Record, StoredRecord

CHUNK_BYTES_MAX = 1 * MIB
CHUNK_RECORDS_MAX = 1_000
"""Size of one step of the copy: a few milliseconds of the loop."""

FORK_BYTES_MAX = 256 * MIB
"""Bytes that a fork may inherit, as batches: the request waits for the copy, a few seconds."""


ELECTION_SECONDS_MAX = 10.0
ELECTION_POLL_SECONDS = 0.05
"""How long a copy waits for a leader of its partition, and how often it looks."""


class ForkCopy:
    """Copies records of one stream into the partition of its fork."""

    def __init__(
        self,
        source: DurableStream,
        target: Partition,
        *,
        clock: Clock,
        appends: RecordAppender,
        is_stopping: Callable[[], bool],
        size_max: int = FORK_BYTES_MAX,
    ) -> None:
        self._source = source
        self._target = target
        self._clock = clock
        self._appends = appends
        self._is_stopping = is_stopping
        self._size_max = size_max
        self._size = 0

    async def copy_until(self, end_offset: int) -> int:
        """Copy all records before an offset of the source's partition; return how many."""
        cursor = self._source.source.log_start_offset
        count = 0
        while cursor < end_offset:
            before = cursor
            records, cursor = await self._read(cursor, end_offset, limit=CHUNK_RECORDS_MAX)
            if cursor == before:
                break
            count += await self._append(records)
        return count

    async def copy_more(self, offset: int, amount: int, *, is_json: bool) -> int:
        """Copy messages, or bytes of one record, after an offset; return the number of records."""
        if not is_json:
            records, _ = await self._read(offset, self._source.end_offset, limit=1)
            value = (records[0].value or b"") if records else b""
            _check_amount(amount, len(value), "bytes")
            return await self._append([Record(value[:amount])])
        count = 0
        while count < amount:
            records, offset = await self._read(
                offset, self._source.end_offset, limit=min(amount - count, CHUNK_RECORDS_MAX)
            )
            if not records:
                break
            count += await self._append(records)
        _check_amount(amount, count, "messages")
        return count

    async def _read(self, offset: int, end_offset: int, *, limit: int) -> tuple[list[Record], int]:
        """Return copies of the next records, and the offset after them."""
        page = await read_page(self._source.source, offset, limit=limit, size_max=CHUNK_BYTES_MAX)
        return [
            _copied(record) for record in page.records if record.offset < end_offset
        ], page.next_offset

    async def _append(self, records: Sequence[Record]) -> int:
        if self._is_stopping():
            raise Stopping("the node is stopping, and the fork was not completed")
        if not records:
            return 0
        batch = build_batch(records, now_ms=self._clock.wall_ms())
        self._size += len(batch)
        if self._size > self._size_max:
            raise BatchTooLarge(f"a fork can inherit at most {self._size_max} bytes")
        await self._append_when_led(batch)
        return len(records)

    async def _append_when_led(self, batch: bytes) -> None:
        """Append a batch; in a cluster, the partition was just created, and may have no leader."""
        deadline = self._clock.monotonic() + ELECTION_SECONDS_MAX
        while True:
            try:
                await self._appends.append_batch(self._target, batch)
            except (NotLeader, PeerUnavailable) as error:  # Nothing was appended.
                if self._clock.monotonic() >= deadline:
                    raise Unavailable(str(error)) from error
                await asyncio.sleep(ELECTION_POLL_SECONDS)
            else:
                return


def _check_amount(amount: int, available: int, unit: str) -> None:
    if available < amount:
        raise InvalidRequest(f"sub-offset must be at most {available} {unit}, got {amount}")


def _copied(record: StoredRecord) -> Record:
    return Record(record.value, record.key, without_mark(record.headers), record.timestamp_ms)
