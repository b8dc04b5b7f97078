"""Serves whole segments to replicas that copy or repair theirs.

A leader serves its followers, and a member of the ISR serves its leader, whose own segment is
damaged. The bytes are not checked here: who fetches a segment verifies all of it against the digest
in the manifest before it counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice

from millstream.cluster.control.cluster_state import PartitionId
from millstream.cluster.replication.local_replica import LocalReplica
from millstream.cluster.replication.replica_context import ReplicaContext
from millstream.errors import InvalidAddress, MillstreamError
from millstream.protocols.peer.error_codes import PeerErrorCode
from millstream.protocols.peer.errors import peer_code_of
from millstream.protocols.peer.messages.segments import (
    SegmentChunkRequest,
    SegmentChunkResponse,
    SegmentManifestEntry,
    SegmentManifestEpoch,
    SegmentManifestRequest,
    SegmentManifestResponse,
)
from millstream.storage.disk.executor import Executor
from millstream.storage.files.names import SegmentId

CHUNK_BYTES_MAX = 4 * 1024 * 1024
ENTRIES_MAX = 1000


class SegmentServer:
    """Answers requests for segments of the replicas of this node."""

    def __init__(
        self,
        context: ReplicaContext,
        replicas: Mapping[PartitionId, LocalReplica],
        background: Executor,
    ) -> None:
        self._context = context
        self._replicas = replicas
        self._background = background

    async def manifest(self, request: SegmentManifestRequest) -> SegmentManifestResponse:
        """List the finished segments of a partition."""
        found = self._find(PartitionId(request.topic_id, request.index), request.leader_epoch)
        if isinstance(found, PeerErrorCode):
            return SegmentManifestResponse(error_code=found)
        log = found.partition.log
        sealed = log.replication.resync.manifest()
        wanted = [entry for entry in sealed if entry.next_offset > request.from_offset]
        count = max(1, min(request.count_max, ENTRIES_MAX))
        return SegmentManifestResponse(
            leader_epoch=request.leader_epoch,
            log_start=log.start_offset,
            eviction_floor=log.eviction_floor,
            eviction_reason=log.eviction_reason,
            high_watermark=log.end_offset,
            epochs=tuple(
                SegmentManifestEpoch(epoch=epoch.number, start_offset=epoch.start_offset)
                for epoch in log.partition.epochs
            ),
            segments=tuple(
                SegmentManifestEntry(
                    base=entry.base_offset,
                    generation=entry.generation,
                    size=entry.size,
                    next_offset=entry.next_offset,
                    digest=entry.digest,
                    leader_epoch=entry.leader_epoch,
                    created_age_ms=entry.created_age_ms,
                    sealed_age_ms=entry.sealed_age_ms,
                )
                for entry in islice(wanted, count)
            ),
            has_more=len(wanted) > count,
            sealed_end=sealed[-1].next_offset if sealed else log.replication.first_offset,
            sealed_bytes=sum(entry.size for entry in wanted),
        )

    async def chunk(self, request: SegmentChunkRequest) -> SegmentChunkResponse:
        """Read bytes of a segment."""
        found = self._find(PartitionId(request.topic_id, request.index), request.leader_epoch)
        if isinstance(found, PeerErrorCode):
            return SegmentChunkResponse(error_code=found)
        resync = found.partition.log.replication.resync
        segment = SegmentId(request.base, request.generation)
        size_max = max(1, min(request.bytes_max, CHUNK_BYTES_MAX))
        try:
            chunk = await self._background.run(
                lambda: bytes(resync.read_bytes(segment, request.position, size_max))
            )
        except InvalidAddress:
            return SegmentChunkResponse(error_code=PeerErrorCode.SEGMENT_NOT_FOUND)
        except MillstreamError as error:
            return SegmentChunkResponse(error_code=peer_code_of(error))
        self._context.counters.served_resync_bytes += len(chunk)
        return SegmentChunkResponse(chunk=memoryview(chunk))

    def _find(self, key: PartitionId, leader_epoch: int) -> LocalReplica | PeerErrorCode:
        """Return a replica that may serve, or why there is none.

        The epoch must be the one that this node knows: in another one, the logs may differ.
        """
        replica = self._replicas.get(key)
        state = self._context.state.partitions.get(key)
        if replica is None or state is None or not replica.partition.is_open:
            return PeerErrorCode.NOT_LEADER_OR_FOLLOWER
        if leader_epoch != state.leader_epoch:
            is_old = leader_epoch < state.leader_epoch
            return (
                PeerErrorCode.FENCED_LEADER_EPOCH if is_old else PeerErrorCode.UNKNOWN_LEADER_EPOCH
            )
        if replica.leader is None and not state.is_counted(self._context.node_id):
            return PeerErrorCode.REPLICA_NOT_AVAILABLE
        return replica
