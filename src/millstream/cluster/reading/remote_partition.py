"""A partition of which this node has no replica, read from its leader.

Start and end are those that a leader told last. While somebody watches, a request waits at the
leader for news (`FetchBatches` with a wait); batches are fetched when they are read, and not kept.

The leader answers only once it shows everything that was committed before its election. So an end
of an older leader never replaces that of a newer one, and one that is lower is no step back: it
says that records were lost.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from millstream.broker.partition.batch_opener import BatchOpener
from millstream.broker.partition.partition import Partition
from millstream.broker.partition.reader import RangeWithDeletions
from millstream.broker.partition.results import AbortedTransactionStart, FetchResult
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.cluster.replication.replica_fetcher import PeerCalls
from millstream.errors import (
    LeaderNotAvailable,
    MillstreamError,
    OffsetOutOfRange,
    OutcomeUnknown,
    PeerUnavailable,
    Unavailable,
)
from millstream.protocols.peer.handshake import Purpose
from millstream.protocols.peer.messages.delete_before import DeleteBeforeRequest
from millstream.protocols.peer.messages.fetch_batches import (
    FetchBatchesRequest,
    FetchBatchesResponse,
)
from millstream.protocols.peer.messages.find_offset import FindOffsetRequest
from millstream.records.record import Gap
from millstream.storage.prefetch import ColdRange
from millstream.tracing import untraced

logger = logging.getLogger(__name__)

CALL_SECONDS_MAX = 10.0
"""How long a leader may take to answer."""

ASK_SECONDS_MAX = 1.0
"""How long a reader waits while no leader can be asked: a leadership that is handed over is taken
over by then. After the loss of a node it takes longer, and clients are told so."""

RETRY_SECONDS = 0.1

FAILED_SECONDS = 1.0
"""Time until the next request for news after an unexpected error."""

NEWS_SECONDS_MAX = 20.0
"""How long a request for news waits at the leader."""


class PartitionEnds(NamedTuple):
    """Where a partition begins and ends, by the word of a leader."""

    leader_epoch: int
    log_start: int
    eviction_floor: int
    eviction_reason: str
    high_watermark: int
    last_stable_offset: int
    removals: int


class RemotePartition:
    """Implements `ReadablePartition` of the broker. Used on one event loop."""

    def __init__(self, partition: Partition, replica: LocalReplica, peers: PeerCalls) -> None:
        self._partition = partition
        self._replica = replica
        self._peers = peers
        self._ends: PartitionEnds | None = None
        self.asked_at = -math.inf
        """When the last question was sent whose answer is known, on the monotonic clock. The
        known end is not before the end of that time.
        """
        self._removal_token = object()
        self._asking: asyncio.Task[PartitionEnds] | None = None
        self._asking_next: asyncio.Task[PartitionEnds] | None = None
        self._watchers: dict[Callable[[], None], None] = {}
        self._following: asyncio.Task[None] | None = None
        self.reader = RemoteReader(self)

    def __str__(self) -> str:
        return str(self._partition)

    @property
    def topic(self) -> str:
        return self._partition.topic

    @property
    def index(self) -> int:
        return self._partition.index

    @property
    def topic_id(self) -> uuid.UUID:
        return self._partition.topic_id

    @property
    def opener(self) -> BatchOpener:
        return self._partition.opener

    # Start and end.

    @property
    def is_open(self) -> bool:
        return self._ends is not None

    async def open(self) -> None:
        if self._ends is None:
            await self.ask()

    def forget(self) -> None:
        """Forget what was known of the leader; it is asked before the next use."""
        self._ends = None
        self.asked_at = -math.inf
        self._removal_token = object()

    @property
    def ends(self) -> PartitionEnds:
        if self._ends is None:
            raise LeaderNotAvailable(f"the leader of {self} was not asked yet")
        return self._ends

    @property
    def removal_token(self) -> object:
        """Another object whenever records were removed."""
        return self._removal_token

    @property
    def log_start_offset(self) -> int:
        return self.ends.log_start

    @property
    def high_watermark(self) -> int:
        return self.ends.high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.ends.last_stable_offset

    async def settle(self, offset: int | None = None) -> None:
        """Learn the present end, unless what is known is enough."""
        if self._ends is None or offset is None or offset > self._ends.high_watermark:
            await self.ask()

    async def catch_up(self) -> None:
        await self.ask()

    async def ask(self) -> PartitionEnds:
        """Return where the partition ends, by a request that is sent after this call.

        Callers share requests: one that was sent before does not tell what was acknowledged since.
        """
        if self._asking_next is None:
            loop = asyncio.get_running_loop()
            self._asking_next = loop.create_task(self._ask_after(self._asking))
            self._asking_next.add_done_callback(_ignore)
        return await asyncio.shield(self._asking_next)

    async def _ask_after(self, before: asyncio.Task[PartitionEnds] | None) -> PartitionEnds:
        if before is not None and not before.done():
            await asyncio.wait([before])
        self._asking, self._asking_next = self._asking_next, None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ASK_SECONDS_MAX
        while True:
            sent_at = self._replica.clock.monotonic()
            try:
                response = await self.call(self._request())
            except Unavailable:
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(RETRY_SECONDS)
            else:
                if self.take(response):
                    self.asked_at = max(self.asked_at, sent_at)
                return ends_of(response)

    def _request(self) -> FetchBatchesRequest:
        return FetchBatchesRequest(topic_id=self.topic_id, index=self.index)

    async def call(self, request: Any, *, timeout_s: float = CALL_SECONDS_MAX) -> Any:
        """Send a request that may be repeated to the leader; return its response."""
        node_id = self._replica.leader_node()
        try:
            return await self._peers.call(node_id, Purpose.FORWARDING, request, timeout_s=timeout_s)
        except OutcomeUnknown as error:
            raise PeerUnavailable(f"node {node_id}, which leads {self}: {error}") from error

    def take(self, response: FetchBatchesResponse) -> bool:
        """Note what a leader told, unless something newer is known; wake the watchers.

        Returns whether a leader told it that has not been replaced, as far as is known.
        """
        ends, known = ends_of(response), self._ends
        if known is not None:
            if ends.leader_epoch < known.leader_epoch:
                return False
            is_same_leader = ends.leader_epoch == known.leader_epoch
            if is_same_leader and ends.high_watermark < known.high_watermark:
                return True  # A response was overtaken by a later one.
        self._ends = ends
        if known is not None and known.removals != ends.removals:
            self._removal_token = object()
        if known != ends:
            for callback in tuple(self._watchers):
                callback()
        return True

    # Watching.

    def watch(self, callback: Callable[[], None]) -> None:
        self._watchers[callback] = None
        if self._following is None:
            # It outlives the request that watches first, and serves others.
            self._following = asyncio.get_running_loop().create_task(
                self._follow(), context=untraced()
            )

    def unwatch(self, callback: Callable[[], None]) -> None:
        self._watchers.pop(callback, None)
        if not self._watchers and self._following is not None:
            self._following.cancel()
            self._following = None

    async def _follow(self) -> None:
        """Learn of news as long as somebody watches.

        Errors end nothing. The leader of a new topic may not have heard of the topic yet; and if it
        was deleted, the watchers are told of that by others, and stop watching.
        """
        while True:
            try:
                response = await self.call(
                    self._news_request(), timeout_s=NEWS_SECONDS_MAX + CALL_SECONDS_MAX
                )
                self.take(response)
            except MillstreamError:
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:
                logger.exception("%s: news of its leader were not taken", self)
                await asyncio.sleep(FAILED_SECONDS)

    def _news_request(self) -> FetchBatchesRequest:
        known = self._ends
        if known is None:
            return self._request()
        return FetchBatchesRequest(
            topic_id=self.topic_id,
            index=self.index,
            leader_epoch=known.leader_epoch,
            wait_ms_max=int(NEWS_SECONDS_MAX * 1000),
            known_end=known.high_watermark,
            known_stable_end=known.last_stable_offset,
            known_removals=known.removals,
        )

    # Requests.

    async def find_timestamp(self, timestamp_ms: int) -> int | None:
        response = await self.call(
            FindOffsetRequest(topic_id=self.topic_id, index=self.index, timestamp_ms=timestamp_ms)
        )
        return None if response.offset < 0 else int(response.offset)

    async def delete_before(self, offset: int) -> int:
        response = await self.call(
            DeleteBeforeRequest(topic_id=self.topic_id, index=self.index, offset=offset)
        )
        await self.ask()
        return int(response.log_start)


class RemoteReader:
    """The read side of a partition that another node leads: `RecordReader` of the broker."""

    def __init__(self, partition: RemotePartition) -> None:
        self._partition = partition

    @property
    def removals(self) -> tuple[int, object]:
        return self._partition.ends.log_start, self._partition.removal_token

    def deletions(self) -> tuple[int, object]:
        ends = self._partition.ends
        is_deleted = ends.log_start > ends.eviction_floor
        return (ends.log_start if is_deleted else 0), None

    async def fetch(
        self, offset: int, *, size_max: int, is_committed_only: bool = True
    ) -> FetchResult:
        partition = self._partition
        response = await partition.call(
            FetchBatchesRequest(
                topic_id=partition.topic_id,
                index=partition.index,
                offset=offset,
                bytes_max=max(1, size_max),
                is_committed_only=is_committed_only,
            )
        )
        partition.take(response)
        if response.is_out_of_range:
            raise OffsetOutOfRange(offset, start=response.log_start, end=response.high_watermark)
        batches = response.batches
        assert batches is None or isinstance(batches, bytes | memoryview)
        parts = (memoryview(batches),) if batches else ()
        return FetchResult(
            parts,
            response.next_offset,
            len(batches or b""),
            tuple(
                AbortedTransactionStart(each.producer_id, each.first_offset)
                for each in response.aborted
            ),
            response.is_blank,
        )

    def cold_ranges(
        self, offset: int, *, size_max: int
    ) -> Sequence[ColdRange | RangeWithDeletions]:
        """Return nothing: the leader prefetches."""
        del offset, size_max
        return ()

    async def prefetch(self, ranges: Sequence[ColdRange | RangeWithDeletions]) -> None:
        """Do nothing: the leader does it."""

    def gap_at(self, offset: int) -> Gap | None:
        ends = self._partition.ends
        if not 0 <= offset < ends.eviction_floor:
            return None
        return Gap(offset, ends.eviction_floor - 1, ends.eviction_reason)

    def count_deleted(self, first: int, end: int) -> int:
        """Return 0: in a cluster, records are not deleted by key."""
        del first, end
        return 0

    def deleted_among(self, offsets: Iterable[int]) -> list[int]:
        log_start = self._partition.ends.log_start
        return [offset for offset in offsets if offset < log_start]


def ends_of(response: FetchBatchesResponse) -> PartitionEnds:
    return PartitionEnds(
        response.leader_epoch,
        response.log_start,
        response.eviction_floor,
        response.eviction_reason or "",
        response.high_watermark,
        response.last_stable_offset,
        response.removals,
    )


def _ignore(task: asyncio.Task[PartitionEnds]) -> None:
    """Take note of an error that nobody may wait for."""
    with contextlib.suppress(asyncio.CancelledError):
        task.exception()
