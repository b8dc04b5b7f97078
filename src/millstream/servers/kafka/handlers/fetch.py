"""Fetch: records out of several partitions, now or when there are enough of them.

A fetch that finds too little waits, without polling: each of its partitions calls back when
something can be read, and only those that did are read again. Records are sent from where they
lie; nothing of them is copied or looked into.

Where a partition has no more records, but its end is further on, an empty batch takes the consumer
there. Nobody is in a hurry for that, so it does not end the wait: a client that makes nothing of
such a batch would ask again at once, for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from uuid import UUID

from millstream.broker.partition.partition import Partition
from millstream.broker.quotas import QuotaKind
from millstream.errors import MillstreamError, OffsetOutOfRange
from millstream.protocols.kafka.codec.primitives import NO_ID
from millstream.protocols.kafka.error_codes import ErrorCode
from millstream.protocols.kafka.errors import code_of
from millstream.protocols.kafka.messages.fetch import (
    FetchRequest,
    FetchResponse,
    FetchResponseAbortedTransaction,
    FetchResponseEpochEnd,
    FetchResponsePartition,
    FetchResponseTopic,
)
from millstream.servers.kafka.deferred_response import DeferredResponse
from millstream.servers.kafka.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    CachedPartition,
    FetchSession,
    PartitionKey,
)
from millstream.servers.kafka.request_context import RequestContext
from millstream.storage.prefetch import ColdRange

TOPIC_ID_SINCE = 13
"""The first version that names topics by id."""

SESSION_SINCE = 7
"""The first version with fetch sessions."""

READ_COMMITTED = 1
CONSUMER = -1
WAIT_MS_MAX = 300_000
"""The longest that a fetch waits, whatever it asks for: an answer must come before idle limits."""


def fetch(request: FetchRequest, context: RequestContext) -> object:
    """Answer a fetch: at once, or when enough can be read or it waited long enough."""
    try:
        wanted, session = _wanted(request, context)
    except _Refused as refused:
        return FetchResponse(error_code=refused.code, session_id=NO_SESSION)
    work = PendingFetch(request, context, wanted, session)
    unopened = work.unopened()
    if unopened or work.cold_ranges():
        return _prepare_and_answer(unopened, work)
    return work.begin()


async def _prepare_and_answer(
    unopened: Sequence[Partition], work: PendingFetch
) -> FetchResponse | DeferredResponse:
    """Open partitions, and have old data brought in, away from the loop."""
    for one in unopened:
        try:
            await one.open()
        except MillstreamError:  # Reading it gives the same error, in its place.
            continue
    for partition, ranges in work.cold_ranges():
        if partition.is_open:
            await partition.reader.prefetch(ranges)
    return work.begin()


class _Refused(Exception):
    def __init__(self, code: ErrorCode) -> None:
        self.code = code


def _wanted(
    request: FetchRequest, context: RequestContext
) -> tuple[Iterable[CachedPartition], FetchSession | None]:
    """What is asked for, in this request or in those of its session before."""
    if request.replica_id != CONSUMER or request.replica_state.replica_id != CONSUMER:
        raise _Refused(ErrorCode.INVALID_REQUEST)  # There are no replicas that could fetch.
    uses_ids = context.version >= TOPIC_ID_SINCE
    named = [
        CachedPartition(
            PartitionKey(topic.topic, topic.topic_id, part.partition),
            part.fetch_offset,
            part.partition_max_bytes,
            part.current_leader_epoch,
            part.last_fetched_epoch,
        )
        for topic in request.topics
        for part in topic.partitions
    ]
    sessions, now = context.fetch_sessions, context.broker.clock.monotonic()
    epoch = request.session_epoch if context.version >= SESSION_SINCE else FINAL_EPOCH
    if epoch in (FINAL_EPOCH, INITIAL_EPOCH):
        if request.session_id != NO_SESSION:
            sessions.end(request.session_id, principal=context.principal)
        if epoch == FINAL_EPOCH:
            return named, None
        begun = sessions.begin(named, principal=context.principal, uses_topic_ids=uses_ids, now=now)
        return named, begun
    session = sessions.resume(
        request.session_id,
        epoch,
        principal=context.principal,
        uses_topic_ids=uses_ids,
        now=now,
    )
    if isinstance(session, ErrorCode):
        raise _Refused(session)
    forgotten = (
        PartitionKey(topic.topic, topic.topic_id, index)
        for topic in request.forgotten_topics_data
        for index in topic.partitions
    )
    session.update(named, forgotten)
    return list(session.wanted.values()), session


class PendingFetch:
    """One fetch under way."""

    def __init__(
        self,
        request: FetchRequest,
        context: RequestContext,
        wanted: Iterable[CachedPartition],
        session: FetchSession | None,
    ) -> None:
        self._context = context
        self._session = session
        self._is_full = session is None or request.session_epoch == INITIAL_EPOCH
        self._size_min = request.min_bytes
        self._size_max = max(0, min(request.max_bytes, context.config.fetch_bytes_max))
        self._wait_ms = min(max(request.max_wait_ms, 0), WAIT_MS_MAX)
        self._is_committed_only = request.isolation_level == READ_COMMITTED
        self._wanted = list(wanted)
        self._partitions = [self._resolve(one.key) for one in self._wanted]
        self._results: list[FetchResponsePartition | None] = []
        """What was read. While the fetch waits, records are let go and read again at its end."""
        self._sizes: list[int] = []
        """How many bytes of records were read; an empty batch counts for nothing."""
        self._changed: set[int] = set()
        self._watchers: list[tuple[Partition, partial[None]]] = []
        self._deferred = DeferredResponse(self._stop_waiting)
        self._timer: asyncio.TimerHandle | None = None
        self._is_look_scheduled = False

    def unopened(self) -> list[Partition]:
        """Return the partitions that were not used since the node started."""
        return [p for p in self._partitions if isinstance(p, Partition) and not p.is_open]

    def cold_ranges(self) -> list[tuple[Partition, list[ColdRange]]]:
        """Return what would have to be waited for, since it is old and not in memory.

        What is read again later, while the fetch waits for something new, lies at the head.
        """
        found = []
        room = self._size_max
        for wanted, partition in zip(self._wanted, self._partitions, strict=True):
            if room <= 0:
                break
            if not isinstance(partition, Partition) or not partition.is_open:
                continue  # Reading it gives the error.
            if wanted.offset < partition.high_watermark:
                size_max = min(room, wanted.size_max)
                room -= size_max
                if ranges := partition.reader.cold_ranges(wanted.offset, size_max=size_max):
                    found.append((partition, ranges))
        return found

    def begin(self) -> FetchResponse | DeferredResponse:
        """Read once, and answer with that if it is enough."""
        room = self._size_max
        is_first = True
        for wanted, found in zip(self._wanted, self._partitions, strict=True):
            result, size = self._read(wanted, found, room=room, is_first=is_first)
            self._results.append(result)
            self._sizes.append(size)
            room = max(0, room - size)
            is_first = is_first and not size
        if self._is_enough():
            return self._answer()
        self._wait()
        return self._deferred

    def _resolve(self, key: PartitionKey) -> Partition | MillstreamError:
        topics = self._context.broker.topics
        try:
            if key.topic_id != NO_ID:
                return topics.by_id(key.topic_id).partition(key.partition)
            return topics.partition(key.topic, key.partition)
        except MillstreamError as error:
            return error

    # Reading.

    def _read(
        self,
        wanted: CachedPartition,
        found: Partition | MillstreamError,
        *,
        room: int,
        is_first: bool,
    ) -> tuple[FetchResponsePartition, int]:
        index = wanted.key.partition
        if isinstance(found, MillstreamError):
            return _failed(index, found), 0
        try:
            found.offsets.check_leader_epoch(wanted.leader_epoch)
            if (diverging := _diverging(wanted, found)) is not None:
                return _nothing(index, found, diverging), 0
            if room <= 0:
                return _nothing(index, found, None), 0
            got = found.reader.read(
                wanted.offset,
                size_max=min(room, wanted.size_max),
                is_committed_only=self._is_committed_only,
                is_first=is_first,
            )
        except OffsetOutOfRange as error:
            return _failed(index, error, log_start=found.log_start_offset), 0
        except MillstreamError as error:
            return _failed(index, error), 0
        aborted = None
        if self._is_committed_only:
            aborted = tuple(
                FetchResponseAbortedTransaction(
                    producer_id=one.producer_id, first_offset=one.first_offset
                )
                for one in got.aborted
            )
        result = FetchResponsePartition(
            partition_index=index,
            high_watermark=found.high_watermark,
            last_stable_offset=found.last_stable_offset,
            log_start_offset=found.log_start_offset,
            aborted_transactions=aborted,
            records=got.parts,
        )
        return result, 0 if got.is_blank else got.size

    def _is_enough(self) -> bool:
        if self._wait_ms == 0 or not self._wanted or sum(self._sizes) >= self._size_min:
            return True
        return any(
            result is not None and (result.error_code or result.diverging_epoch.epoch >= 0)
            for result in self._results
        )

    # Waiting.

    def _wait(self) -> None:
        self._let_records_go()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._wait_ms / 1000, self._finish)
        for number, found in enumerate(self._partitions):
            if isinstance(found, Partition):
                callback = partial(self._note_change, number)
                found.watch(callback)
                self._watchers.append((found, callback))
        self._context.fetch_sessions.waiting[self] = self._finish

    def _note_change(self, number: int) -> None:
        self._changed.add(number)
        if not self._is_look_scheduled:
            self._is_look_scheduled = True
            asyncio.get_running_loop().call_soon(self._look_again)

    def _look_again(self) -> None:
        """Read the partitions again that have something new."""
        self._is_look_scheduled = False
        if self._deferred.is_done:
            return
        changed, self._changed = self._changed, set()
        for number in sorted(changed):
            self._read_again(number)
        if self._is_enough():
            self._finish()
        else:
            self._let_records_go()

    def _let_records_go(self) -> None:
        """Keep no records: a client may have a thousand fetches wait, each with all it may hold."""
        self._results = [
            None if size else result
            for result, size in zip(self._results, self._sizes, strict=True)
        ]

    def _finish(self) -> None:
        if not self._deferred.is_done:
            self._stop_waiting()
            self._read_rest()
            self._deferred.finish(self._answer())

    def _read_rest(self) -> None:
        """Read again what was let go."""
        for number, result in enumerate(self._results):
            if result is None:
                self._read_again(number)

    def _read_again(self, number: int) -> None:
        others = sum(self._sizes) - self._sizes[number]
        self._results[number], self._sizes[number] = self._read(
            self._wanted[number],
            self._partitions[number],
            room=self._size_max - others,
            is_first=others == 0,
        )

    def _stop_waiting(self) -> None:
        """Leave nothing behind, whether the fetch was answered or its connection ended."""
        if self._timer is not None:
            self._timer.cancel()
        for found, callback in self._watchers:
            found.unwatch(callback)
        self._watchers.clear()
        self._context.fetch_sessions.waiting.pop(self, None)

    # Answering.

    def _answer(self) -> FetchResponse:
        topics: dict[tuple[str, UUID], list[FetchResponsePartition]] = {}
        for wanted, result, size in zip(self._wanted, self._results, self._sizes, strict=True):
            assert result is not None, "what was let go was read again"
            if not self._is_full and not _is_news(wanted, result):
                continue
            wanted.sent_high_watermark = result.high_watermark
            wanted.sent_log_start = result.log_start_offset
            topics.setdefault((wanted.key.topic, wanted.key.topic_id), []).append(result)
            if size and self._session is not None and wanted.key in self._session.wanted:
                self._session.move_to_end(wanted.key)
        throttle_ms = self._context.charge(QuotaKind.CONSUME, sum(self._sizes))
        return FetchResponse(
            throttle_time_ms=throttle_ms,
            session_id=self._session.id if self._session else NO_SESSION,
            responses=tuple(
                FetchResponseTopic(topic=name, topic_id=topic_id, partitions=tuple(results))
                for (name, topic_id), results in topics.items()
            ),
        )


def _is_news(wanted: CachedPartition, result: FetchResponsePartition) -> bool:
    """Whether a partition belongs into the answer of a session that goes on."""
    return bool(
        result.records
        or result.error_code
        or result.diverging_epoch.epoch >= 0
        or result.high_watermark != wanted.sent_high_watermark
        or result.log_start_offset != wanted.sent_log_start
    )


def _diverging(wanted: CachedPartition, found: Partition) -> FetchResponseEpochEnd | None:
    """Where the log parts from what the consumer has read, if it does."""
    if wanted.last_fetched_epoch < 0:
        return None
    epoch, end = found.offsets.epoch_end(wanted.last_fetched_epoch)
    if epoch >= 0 and (epoch < wanted.last_fetched_epoch or end < wanted.offset):
        return FetchResponseEpochEnd(epoch=epoch, end_offset=end)
    return None


def _nothing(
    index: int, found: Partition, diverging: FetchResponseEpochEnd | None
) -> FetchResponsePartition:
    return FetchResponsePartition(
        partition_index=index,
        high_watermark=found.high_watermark,
        last_stable_offset=found.last_stable_offset,
        log_start_offset=found.log_start_offset,
        diverging_epoch=diverging or FetchResponseEpochEnd(),
        records=b"",
    )


def _failed(index: int, error: MillstreamError, *, log_start: int = -1) -> FetchResponsePartition:
    return FetchResponsePartition(
        partition_index=index,
        error_code=code_of(error),
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=log_start,
        aborted_transactions=None,
        records=b"",
    )
