"""Records into a topic, for doors that take them one by one and not in batches.

Records of one call that go to the same partition become one batch, in their order: all of them are
appended or none. Those of several partitions are several batches, and one may fail while another
does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from millstream.broker.partition.partition import Partition
from millstream.broker.partition.results import Appended
from millstream.broker.topics.topic import Topic
from millstream.clock import Clock
from millstream.errors import InvalidRequest
from millstream.records.arrow.partitioner import murmur2
from millstream.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from millstream.records.build import build_batch
from millstream.records.record import Record

APPEND_TIMEOUT_MS = 30_000
"""How long records wait where too much waits for the disk already."""


class AppendTimings(NamedTuple):
    """What appending cost, in milliseconds."""

    commit_ms: float = 0.0
    """From when the records had their offsets to when they were safe."""
    fsync_ms: float = 0.0
    """Of these, how long the disk took."""
    throttle_ms: float = 0.0
    """How long they waited for their offsets."""


class ProducerStamp(NamedTuple):
    """Who appends, and where the records stand in the row of all that it appended."""

    producer_id: int = NO_PRODUCER_ID
    epoch: int = NO_PRODUCER_EPOCH
    sequence: int = NO_SEQUENCE


NO_PRODUCER_STAMP = ProducerStamp()


class AppendResult(NamedTuple):
    """Where records went."""

    offsets: tuple[int, ...]
    """One for each record, in their order."""
    partitions: tuple[int, ...]
    """One for each record too."""
    head: int
    """The offset after the last record of the partition that the last of these went to."""
    cost: AppendTimings


class RecordAppender:
    """Appends records to topics; keyless ones take the partitions in turn, a call each."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._turn = 0

    async def append(
        self,
        topic: Topic,
        records: Sequence[Record],
        *,
        partitions: Sequence[int | None] | None = None,
        stamp: ProducerStamp = NO_PRODUCER_STAMP,
    ) -> AppendResult:
        """Append records; `partitions` says where each goes, or leaves that to its key.

        Returns once the class of the topic is met for all of them. With a `stamp`, which needs
        all records to name one partition where there are several, a call that is repeated appends
        nothing anew.
        """
        if stamp is not NO_PRODUCER_STAMP:
            _check_stamped(topic, partitions)
        places = self._places(topic, records, partitions)
        chosen = dict.fromkeys(places)
        for index in chosen:
            await topic.partition(index).open()
        if len(chosen) == 1:
            [index] = chosen
            partition = topic.partition(index)
            appended, cost = await self._append(partition, records, stamp)
            offsets = tuple(range(appended.offset, appended.last_offset + 1))
            return AppendResult(offsets, tuple(places), partition.high_watermark, cost)
        return await self._append_to_several(topic, records, places, list(chosen))

    async def _append_to_several(
        self, topic: Topic, records: Sequence[Record], places: list[int], chosen: list[int]
    ) -> AppendResult:
        groups = [
            [record for record, place in zip(records, places, strict=True) if place == index]
            for index in chosen
        ]
        done = await asyncio.gather(
            *(
                self._append(topic.partition(index), group, NO_PRODUCER_STAMP)
                for index, group in zip(chosen, groups, strict=True)
            ),
            return_exceptions=True,
        )
        rows: dict[int, int] = {}
        costs: list[AppendTimings] = []
        for index, one in zip(chosen, done, strict=True):
            if isinstance(one, BaseException):
                raise one
            appended, cost = one
            rows[index] = appended.offset
            costs.append(cost)
        offsets = []
        for place in places:
            offsets.append(rows[place])
            rows[place] += 1
        head = topic.partition(places[-1]).high_watermark
        return AppendResult(
            tuple(offsets), tuple(places), head, AppendTimings(*map(max, zip(*costs, strict=True)))
        )

    def _places(
        self,
        topic: Topic,
        records: Sequence[Record],
        partitions: Sequence[int | None] | None,
    ) -> list[int]:
        count = topic.partition_count
        if count == 1 and partitions is None:
            return [0] * len(records)
        self._turn += 1
        places = []
        for row, record in enumerate(records):
            named = partitions[row] if partitions is not None else None
            if named is not None:
                places.append(topic.partition(named).index)
            elif count == 1:
                places.append(0)
            elif record.key is None:
                places.append(self._turn % count)
            else:
                places.append((murmur2(record.key) & 0x7FFFFFFF) % count)
        return places

    async def _append(
        self, partition: Partition, records: Sequence[Record], stamp: ProducerStamp
    ) -> tuple[Appended, AppendTimings]:
        clock = self._clock
        batch = build_batch(
            records,
            now_ms=clock.wall_ms(),
            producer_id=stamp.producer_id,
            producer_epoch=stamp.epoch,
            base_sequence=stamp.sequence,
        )
        begun = admitted = clock.monotonic()

        def note_admission(_: int) -> None:
            nonlocal admitted
            admitted = clock.monotonic()

        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        partition.appender.append(
            batch, future, timeout_ms=APPEND_TIMEOUT_MS, on_admit=note_admission
        )
        appended = await future
        return appended, append_timings(partition, begun, admitted, clock.monotonic())


def append_timings(
    partition: Partition, begun: float, admitted: float, ended: float
) -> AppendTimings:
    """Return what an append cost that began, got its offset and was safe at these moments."""
    commit = ended - admitted
    fsync = min(commit, partition.appender.last_sync_seconds or 0.0)
    return AppendTimings(
        commit_ms=_ms(commit), fsync_ms=_ms(fsync), throttle_ms=_ms(admitted - begun)
    )


def _check_stamped(topic: Topic, partitions: Sequence[int | None] | None) -> None:
    """Raise unless records of a producer name the one partition that they go to.

    Its numbers hold in one partition. Where nobody names it, a request that is repeated may go
    to another: keyless records go wherever, and keys to others once the topic has grown.
    """
    if topic.partition_count == 1:
        return
    named = set(partitions or [None])
    if None in named:
        raise InvalidRequest(
            f"records of a producer have to name their partition, since {topic.name} has"
            f" {topic.partition_count}: needed is partition"
        )
    if len(named) > 1:
        raise InvalidRequest(
            f"records of a producer go to the {len(named)} partitions"
            f" {sorted(one for one in named if one is not None)[:10]}, and have to go to one"
        )


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
