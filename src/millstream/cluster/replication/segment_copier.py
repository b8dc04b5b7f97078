"""Copies finished segments from another replica: in chunks, to a temporary file, verified.

A part survives a restart, so a copy goes on where it was interrupted. One chunk is in memory for
each copy. All copies of a node share one limit of bytes per second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from millstream.clock import Clock
from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.replication.local_replica import LocalReplica, ResyncProgress
from millstream.cluster.replication.replica_context import ReplicaContext
from millstream.cluster.replication.replica_fetcher import PeerCalls
from millstream.errors import CorruptData, Unavailable
from millstream.protocols.peer.errors import peer_error_of
from millstream.protocols.peer.handshake import Purpose
from millstream.protocols.peer.messages.segments import (
    SegmentChunkRequest,
    SegmentChunkResponse,
    SegmentManifestRequest,
    SegmentManifestResponse,
)
from millstream.storage.replica.segment_resync import ManifestSegment

CHUNK_BYTES = 1024 * 1024
PAGE_ENTRIES = 500
CALL_SECONDS_MAX = 15.0


class ByteRateLimiter:
    """Limits copies to a number of bytes per second; 0 is no limit. Unused time is not saved."""

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        self._bytes_per_second = bytes_per_second
        self._clock = clock
        self._free_at = 0.0

    async def take(self, size: int) -> None:
        """Return when `size` more bytes may be fetched."""
        if not self._bytes_per_second:
            return
        now = self._clock.monotonic()
        start = max(now, self._free_at)
        self._free_at = start + size / self._bytes_per_second
        if start > now:
            await asyncio.sleep(start - now)


class ManifestPage(NamedTuple):
    """A part of the list of finished segments of another replica."""

    segments: Sequence[ManifestSegment]
    has_more: bool
    sealed_end: int
    sealed_bytes: int
    high_watermark: int


class SegmentCopier:
    """Copies segments from other nodes into the logs of this one."""

    def __init__(self, context: ReplicaContext, peers: PeerCalls, limiter: ByteRateLimiter) -> None:
        self._context = context
        self._peers = peers
        self._limiter = limiter

    async def manifest(
        self, key: PartitionId, source: int, leader_epoch: int, from_offset: int
    ) -> ManifestPage:
        """Return the first finished segments of another replica that have records from there on."""
        response = await self._peers.call(
            source,
            Purpose.REPLICATION,
            SegmentManifestRequest(
                topic_id=key.topic_id,
                index=key.partition,
                leader_epoch=leader_epoch,
                from_offset=from_offset,
                count_max=PAGE_ENTRIES,
            ),
            timeout_s=CALL_SECONDS_MAX,
        )
        assert isinstance(response, SegmentManifestResponse)
        if response.error_code:
            raise peer_error_of(response.error_code, f"node {source} refused its segments")
        return ManifestPage(
            tuple(_entries(response)),
            response.has_more,
            response.sealed_end,
            response.sealed_bytes,
            response.high_watermark,
        )

    async def copy(
        self,
        replica: LocalReplica,
        source: int,
        leader_epoch: int,
        wanted: ManifestSegment,
        progress: ResyncProgress,
    ) -> None:
        """Copy a segment and make it one of the log. Verified and durable when this returns."""
        resync = replica.partition.log.replication.resync
        position = min(resync.part_size(wanted), wanted.size)
        progress.bytes_done += position
        while position < wanted.size:
            chunk = await self._chunk(replica.key, source, leader_epoch, wanted, position)
            position = await resync.write_part(wanted, position, chunk)
            progress.bytes_done += len(chunk)
            self._context.counters.resync_bytes += len(chunk)
        try:
            await resync.install(wanted)
        except CorruptData:
            progress.bytes_done -= wanted.size
            self._context.counters.resync_refusals += 1
            raise
        self._context.counters.resync_segments += 1

    async def _chunk(
        self,
        key: PartitionId,
        source: int,
        leader_epoch: int,
        wanted: ManifestSegment,
        position: int,
    ) -> memoryview:
        size = min(CHUNK_BYTES, wanted.size - position)
        await self._limiter.take(size)
        response = await self._peers.call(
            source,
            Purpose.REPLICATION,
            SegmentChunkRequest(
                topic_id=key.topic_id,
                index=key.partition,
                leader_epoch=leader_epoch,
                base=wanted.base_offset,
                generation=wanted.generation,
                position=position,
                bytes_max=size,
            ),
            timeout_s=CALL_SECONDS_MAX,
        )
        assert isinstance(response, SegmentChunkResponse)
        if response.error_code:
            raise peer_error_of(response.error_code, f"node {source} refused a segment")
        chunk = response.chunk or b""
        assert isinstance(chunk, bytes | memoryview), "as it was decoded"
        if not 0 < len(chunk) <= size:
            raise Unavailable(
                f"node {source} sent {len(chunk)} bytes of a segment, asked for {size}"
            )
        return memoryview(chunk)


def _entries(response: SegmentManifestResponse) -> Iterator[ManifestSegment]:
    for entry in response.segments:
        yield ManifestSegment(
            base_offset=entry.base,
            generation=entry.generation,
            next_offset=entry.next_offset,
            size=entry.size,
            digest=bytes(entry.digest),
            leader_epoch=entry.leader_epoch,
            created_age_ms=entry.created_age_ms,
            sealed_age_ms=entry.sealed_age_ms,
        )
