"""Appending single records to a topic, for servers that do not receive batches.

Records of one call for the same partition become one batch, in their order: all of them are
appended or none. Those for several partitions become several batches, of which one may fail while
another does not. In a cluster, a batch for a partition that another node leads is sent there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from millstream.broker.access.caller import Caller
from millstream.broker.partition.batch_validator import InvalidBatchRecord, InvalidBatchValues
from millstream.broker.partition.partition import Partition
from millstream.broker.partition.results import Appended
from millstream.broker.partition.value_check import ValueFault
from millstream.broker.topics.topic import Topic
from millstream.clock import Clock
from millstream.errors import Busy, InvalidRequest, NotLeader
from millstream.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from millstream.records.build import build_batch
from millstream.records.murmur2 import murmur2
from millstream.records.record import Record

APPEND_TIMEOUT_MS = 30_000
"""How long records wait if too many bytes wait for the disk."""


ELECTION_SECONDS_MAX = 2.0
ELECTION_POLL_SECONDS = 0.05
"""How long a batch waits for a leader of its partition, and how often it looks: a leader that hands
over is replaced by then, and a topic that was just created has its first one."""

ANY_OFFSET = -1
"""As the offset of a batch: the end of the log, wherever that is."""


class AppendTimings(NamedTuple):
    """Where the time of an append was spent, in milliseconds."""

    commit_ms: float = 0.0
    """From when the records had their offsets to when they were acknowledged."""
    fsync_ms: float = 0.0
    """The part of it that the disk took."""
    throttle_ms: float = 0.0
    """How long the records waited for their offsets."""


class ProducerStamp(NamedTuple):
    """The producer of the records, and the sequence of the first one."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH
    sequence: int = NO_SEQUENCE


NO_PRODUCER_STAMP = ProducerStamp()


class AppendResult(NamedTuple):
    """The offsets of appended records."""

    offsets: tuple[int, ...]
    """One for each record, in their order."""
    partitions: tuple[int, ...]
    """One for each record too."""
    head: int
    """The high watermark of the partition of the last record."""
    timings: AppendTimings


class PartitionAppend(NamedTuple):
    """A batch that was appended to one partition."""

    offset: int
    """The offset of its first record."""
    head: int
    """The high watermark of the partition, once the batch was committed."""
    timings: AppendTimings


class BatchForwarder(Protocol):
    """Sends batches to the nodes that lead their partitions; implemented by `cluster`."""

    async def append(
        self,
        partition: Partition,
        batch: bytes,
        refusal: NotLeader,
        *,
        expected_offset: int,
        caller: Caller | None,
    ) -> PartitionAppend:
        """Append a batch at the node that `refusal` names; return when it is committed.

        That node is told the caller, and checks its rights again.

        If `expected_offset` is not `ANY_OFFSET` and the log does not end there, `Busy` is raised.

        Batches of a partition keep the order of the calls. Raises `refusal` if it names no other
        node, `OutcomeUnknown` if the batch may have been appended, and otherwise the error of the
        leader, which says that it was not.
        """
        ...


class _Election:
    """Batches that wait for a leader, in their order."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.count = 0


class RecordAppender:
    """Appends records to topics; keyless ones go to the partitions in turn, one for each call."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turn = 0
        self.forwarder: BatchForwarder | None = None
        """Takes the batches for partitions that other nodes lead; None on a lone node."""
        self._elections: dict[Partition, _Election] = {}
        """Partitions without a leader for which batches wait."""

    async def append(
        self,
        topic: Topic,
        records: Sequence[Record],
        *,
        partitions: Sequence[int | None] | None = None,
        stamp: ProducerStamp = NO_PRODUCER_STAMP,
        caller: Caller | None = None,
    ) -> AppendResult:
        """Append records; `partitions` has the partition of each, or None to choose it by key.

        `caller` is the client that sends them, None for what the node appends itself.

        Returns once the topic's durability class is met for all of them. With a `stamp`, a repeated
        call appends nothing again; if the topic has several partitions, all records must then have
        the same one.
        """
        if stamp is not NO_PRODUCER_STAMP:
            _check_stamped(topic, partitions)
        indexes = self._assign_partitions(topic, records, partitions)
        chosen = dict.fromkeys(indexes)
        for index in chosen:
            await self._open(topic.partition(index))
        if len(chosen) == 1:
            [index] = chosen
            offset, head, timings = await self._append(
                topic.partition(index), records, stamp, caller
            )
            offsets = tuple(range(offset, offset + len(records)))
            return AppendResult(offsets, tuple(indexes), head, timings)
        return await self._append_to_several(topic, records, indexes, caller)

    async def _append_to_several(
        self, topic: Topic, records: Sequence[Record], indexes: list[int], caller: Caller | None
    ) -> AppendResult:
        rows: dict[int, list[int]] = {}
        for row, index in enumerate(indexes):
            rows.setdefault(index, []).append(row)
        results = await asyncio.gather(
            *(
                self._append(
                    topic.partition(index),
                    [records[row] for row in group],
                    NO_PRODUCER_STAMP,
                    caller,
                )
                for index, group in rows.items()
            ),
            return_exceptions=True,
        )
        if faults := sorted(
            ValueFault(group[fault.record], fault.reason)
            for group, result in zip(rows.values(), results, strict=True)
            if isinstance(result, InvalidBatchValues)
            for fault in result.faults
        ):
            raise InvalidBatchValues(faults)
        if invalid := sorted(
            group[record_index]
            for group, result in zip(rows.values(), results, strict=True)
            if isinstance(result, InvalidBatchRecord)
            for record_index in result.record_indexes
        ):
            raise InvalidBatchRecord(invalid)
        next_offsets: dict[int, int] = {}
        heads: dict[int, int] = {}
        timings: list[AppendTimings] = []
        for index, result in zip(rows, results, strict=True):
            if isinstance(result, BaseException):
                raise result
            next_offsets[index], heads[index], append_time = result
            timings.append(append_time)
        offsets = []
        for index in indexes:
            offsets.append(next_offsets[index])
            next_offsets[index] += 1
        slowest = AppendTimings(*map(max, zip(*timings, strict=True)))
        return AppendResult(tuple(offsets), tuple(indexes), heads[indexes[-1]], slowest)

    async def _open(self, partition: Partition) -> None:
        """Open a partition, unless it has no replica here and its batches are sent elsewhere."""
        try:
            await partition.open()
        except NotLeader:
            if self.forwarder is None:
                raise

    def _assign_partitions(
        self,
        topic: Topic,
        records: Sequence[Record],
        partitions: Sequence[int | None] | None,
    ) -> list[int]:
        count = topic.partition_count
        if count == 1 and partitions is None:
            return [0] * len(records)
        self._turn += 1
        indexes = []
        for row, record in enumerate(records):
            requested = partitions[row] if partitions is not None else None
            if requested is not None:
                indexes.append(topic.partition(requested).index)
            elif count == 1:
                indexes.append(0)
            elif record.key is None:
                indexes.append(self._turn % count)
            else:
                indexes.append((murmur2(record.key) & 0x7FFFFFFF) % count)
        return indexes

    async def _append(
        self,
        partition: Partition,
        records: Sequence[Record],
        stamp: ProducerStamp,
        caller: Caller | None,
    ) -> PartitionAppend:
        clock = self._clock
        batch = build_batch(
            records,
            now_ms=clock.wall_ms(),
            producer_id=stamp.producer_id,
            producer_epoch=stamp.epoch,
            base_sequence=stamp.sequence,
        )
        return await self.append_batch(partition, batch, caller=caller)

    async def append_batch(
        self,
        partition: Partition,
        batch: bytes,
        *,
        expected_offset: int = ANY_OFFSET,
        caller: Caller | None = None,
    ) -> PartitionAppend:
        """Append a batch that this node built, here or at the node that leads the partition.

        With an `expected_offset`, it is appended there or not at all: if the log does not end
        there, `Busy` is raised, and nothing was appended.
        """
        if self.forwarder is None:
            if not partition.is_open:
                await partition.open()
            return await self._append_here(partition, batch, expected_offset)
        if expected_offset != ANY_OFFSET:
            return await self._append_anywhere(partition, batch, caller, expected_offset)
        if partition not in self._elections:
            try:
                return await self._append_anywhere(partition, batch, caller)
            except NotLeader:  # Nothing was appended.
                pass
        return await self._append_when_led(partition, batch, caller)

    async def _append_when_led(
        self, partition: Partition, batch: bytes, caller: Caller | None
    ) -> PartitionAppend:
        """Append a batch to a partition that has no leader now; wait a moment for one.

        Batches that come meanwhile wait too, so that they keep their order.
        """
        deadline = self._clock.monotonic() + ELECTION_SECONDS_MAX
        waiting = self._elections.setdefault(partition, _Election())
        waiting.count += 1
        try:
            async with waiting.lock:
                while True:
                    try:
                        return await self._append_anywhere(partition, batch, caller)
                    except NotLeader:
                        if self._clock.monotonic() >= deadline:
                            raise
                    await asyncio.sleep(ELECTION_POLL_SECONDS)
        finally:
            waiting.count -= 1
            if not waiting.count:
                self._elections.pop(partition, None)

    async def _append_anywhere(
        self,
        partition: Partition,
        batch: bytes,
        caller: Caller | None,
        expected_offset: int = ANY_OFFSET,
    ) -> PartitionAppend:
        assert self.forwarder is not None
        try:
            if not partition.is_open:
                await partition.open()
            return await self._append_here(partition, batch, expected_offset)
        except NotLeader as refusal:  # Nothing was appended.
            return await self.forwarder.append(
                partition, batch, refusal, expected_offset=expected_offset, caller=caller
            )

    async def _append_here(
        self, partition: Partition, batch: bytes, expected_offset: int
    ) -> PartitionAppend:
        clock = self._clock
        started = admitted = clock.monotonic()

        def note_admission(offset: int) -> None:
            nonlocal admitted
            check_offset(partition, offset, expected_offset)
            admitted = clock.monotonic()

        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        partition.appender.append(
            batch, future, timeout_ms=APPEND_TIMEOUT_MS, on_admit=note_admission, is_built=True
        )
        appended = await future
        timings = append_timings(partition, started, admitted, clock.monotonic())
        return PartitionAppend(appended.offset, partition.high_watermark, timings)


def check_offset(partition: Partition, offset: int, expected_offset: int) -> None:
    """Raise `Busy` if a batch would not get the offset that its sender expects."""
    if expected_offset not in (ANY_OFFSET, offset):
        raise Busy(f"{partition} ends at offset {offset}, and not at {expected_offset}")


def append_timings(
    partition: Partition, started: float, admitted: float, ended: float
) -> AppendTimings:
    """Return the timings of an append from when it started, got its offset and was acknowledged."""
    commit = ended - admitted
    fsync = min(commit, partition.appender.last_sync_seconds or 0.0)
    return AppendTimings(
        commit_ms=_ms(commit), fsync_ms=_ms(fsync), throttle_ms=_ms(admitted - started)
    )


def _check_stamped(topic: Topic, partitions: Sequence[int | None] | None) -> None:
    """Raise unless the records of a producer all have the same partition.

    Sequences are per partition. Without an explicit partition, a repeated request may go to another
    one: keyless records go to any, and keys to others once the topic has more partitions.
    """
    if topic.partition_count == 1:
        return
    named = set(partitions or [None])
    if None in named:
        raise InvalidRequest(
            f"partition is required for records of a producer, because {topic.name} has"
            f" {topic.partition_count} partitions"
        )
    if len(named) > 1:
        raise InvalidRequest(
            "all records of a producer must have the same partition, got"
            f" {sorted(index for index in named if index is not None)[:10]}"
        )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
