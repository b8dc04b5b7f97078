"""Reads of other nodes in partitions that this node leads, and deletions in them."""

from __future__ import annotations

from millstream.broker.partition.partition import Partition
from millstream.broker.partition.record_page import NewRecordsWaiter
from millstream.broker.partition.results import FetchResult
from millstream.broker.topics.topics import Topics
from millstream.clock import Timers
from millstream.errors import NotLeader, OffsetOutOfRange
from millstream.protocols.peer.messages.delete_before import (
    DeleteBeforeRequest,
    DeleteBeforeResponse,
)
from millstream.protocols.peer.messages.fetch_batches import (
    FetchBatchesAbortedTransaction,
    FetchBatchesRequest,
    FetchBatchesResponse,
)
from millstream.protocols.peer.messages.find_offset import FindOffsetRequest, FindOffsetResponse
from millstream.servers.peer.peer_context import PeerContext

BYTES_MAX = 1024 * 1024
"""Bytes of one response; a single batch may be larger."""

WAIT_SECONDS_MAX = 60.0

DELETED_BITS = 40
"""Bits of an offset, in a number that stands for what was removed."""

NOTHING = FetchResult((), -1, 0)


class PeerReadHandlers:
    """Answers the nodes that read a partition from its leader."""

    def __init__(self, topics: Topics, timers: Timers) -> None:
        self._topics = topics
        self._timers = timers

    async def fetch(
        self, request: FetchBatchesRequest, _context: PeerContext
    ) -> FetchBatchesResponse:
        """Return batches, or only start and end; first wait for news if the caller asks for it."""
        partition = self._partition(request)
        self._check(partition, request.leader_epoch)
        if request.wait_ms_max:
            await self._wait(partition, request)
            self._check(partition, request.leader_epoch)
        if not request.bytes_max:
            return _response(partition)
        return await _read(partition, request)

    async def find(self, request: FindOffsetRequest, _context: PeerContext) -> FindOffsetResponse:
        """Return the first offset from a time on."""
        partition = self._partition(request)
        self._check(partition)
        offset = await partition.find_timestamp(request.timestamp_ms)
        return FindOffsetResponse(offset=-1 if offset is None else offset)

    async def delete(
        self, request: DeleteBeforeRequest, _context: PeerContext
    ) -> DeleteBeforeResponse:
        """Delete the records before an offset."""
        partition = self._partition(request)
        self._check(partition)
        return DeleteBeforeResponse(log_start=await partition.delete_before(request.offset))

    def _partition(
        self, request: FetchBatchesRequest | FindOffsetRequest | DeleteBeforeRequest
    ) -> Partition:
        return self._topics.by_id(request.topic_id).partition(request.index)

    @staticmethod
    def _check(partition: Partition, leader_epoch: int = -1) -> None:
        """Raise unless this node leads, and shows everything that was committed before."""
        if not partition.is_open:
            raise NotLeader(f"{partition} is not open at this node")
        if partition.replica is not None:
            partition.replica.check_end()
        if leader_epoch > partition.offsets.leader_epoch:
            raise NotLeader(f"{partition}: epoch {leader_epoch} has begun")

    async def _wait(self, partition: Partition, request: FetchBatchesRequest) -> None:
        """Return when the partition differs from what the caller knows, or after its time."""
        known = (request.known_end, request.known_stable_end, request.known_removals)
        waiter = NewRecordsWaiter([partition], self._timers)
        try:
            while partition.is_open and known == (
                partition.high_watermark,
                partition.last_stable_offset,
                removals_of(partition),
            ):
                if not await waiter.wait(min(WAIT_SECONDS_MAX, request.wait_ms_max / 1000)):
                    return
        finally:
            waiter.close()


def removals_of(partition: Partition) -> int:
    """Return a number that is another one if records were removed meanwhile."""
    log = partition.log
    return log.start_offset ^ (log.deleted_records << DELETED_BITS)


async def _read(partition: Partition, request: FetchBatchesRequest) -> FetchBatchesResponse:
    """Return the batches at the requested offset."""
    size_max = min(request.bytes_max, BYTES_MAX)
    if cold := partition.reader.cold_ranges(request.offset, size_max=size_max):
        await partition.reader.prefetch(cold)
    try:
        found = partition.reader.read(
            request.offset, size_max=size_max, is_committed_only=request.is_committed_only
        )
    except OffsetOutOfRange:
        return _response(partition, is_out_of_range=True)
    return _response(partition, found)


def _response(
    partition: Partition, found: FetchResult = NOTHING, *, is_out_of_range: bool = False
) -> FetchBatchesResponse:
    """Return a response with the start and the end of a partition."""
    gap = partition.reader.gap_at(0)
    return FetchBatchesResponse(
        leader_epoch=partition.offsets.leader_epoch,
        high_watermark=partition.high_watermark,
        last_stable_offset=partition.last_stable_offset,
        log_start=partition.log_start_offset,
        eviction_floor=0 if gap is None else gap.to_offset + 1,
        eviction_reason=None if gap is None else gap.reason,
        removals=removals_of(partition),
        is_out_of_range=is_out_of_range,
        next_offset=found.next_offset,
        is_blank=found.is_blank,
        aborted=tuple(
            FetchBatchesAbortedTransaction(
                producer_id=each.producer_id, first_offset=each.first_offset
            )
            for each in found.aborted
        ),
        batches=found.parts or None,
    )
