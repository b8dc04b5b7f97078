"""Slices that were just read for one follower, kept for the others.

With three replicas, two followers fetch the same records at about the same time. The second one
gets the memory that was read, and verified, for the first. A slice is taken out when the next one
of its partition was read, and after a moment: its ages are those of when it was read.
"""

from __future__ import annotations

from typing import NamedTuple

from millstream.clock import Clock
from millstream.cluster.control.cluster_state import PartitionId
from millstream.protocols.peer.messages.peer_fetch import PeerFetchRequestPartition
from millstream.storage.segment.replica_slice import ReplicaSlice

BYTES_MAX = 32 * 1024 * 1024
"""Of all slices of a node: two full responses."""

SECONDS_MAX = 0.5


class _KeptSlice(NamedTuple):
    source: ReplicaSlice
    leader_epoch: int
    """The epoch in which it was read, not that of its records."""
    read_at: float


class SliceCache:
    """The last slice of each partition, as far as there is room. Belongs to one event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._kept: dict[PartitionId, _KeptSlice] = {}
        """In the order in which they were read."""
        self.bytes = 0
        """What the slices take."""

    def get(
        self, key: PartitionId, item: PeerFetchRequestPartition, size_max: int
    ) -> ReplicaSlice | None:
        """Return a slice that answers a fetch, if there is one."""
        kept = self._kept.get(key)
        if (
            kept is None
            or kept.source.offset != item.fetch_offset
            or kept.leader_epoch != item.leader_epoch
            or len(kept.source.data) > size_max
            or self._clock.monotonic() - kept.read_at > SECONDS_MAX
        ):
            return None
        return kept.source

    def add(self, key: PartitionId, item: PeerFetchRequestPartition, source: ReplicaSlice) -> None:
        """Keep a slice that was read for a fetch."""
        self._drop(key)
        if source.data:
            self._kept[key] = _KeptSlice(source, item.leader_epoch, self._clock.monotonic())
            self.bytes += len(source.data)
        self.expire()

    def expire(self) -> None:
        """Drop what is too old or too much."""
        now = self._clock.monotonic()
        while self._kept:
            oldest = next(iter(self._kept))
            is_old = now - self._kept[oldest].read_at > SECONDS_MAX
            if not is_old and self.bytes <= BYTES_MAX:
                break
            self._drop(oldest)

    def _drop(self, key: PartitionId) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self.bytes -= len(kept.source.data)
