"""Producers of a replica: what its batches will mean once they are committed.

A replica knows its batches before they are committed, and some may be truncated. Its producer
states are those of the committed prefix; the batches behind it wait here.

    append ─► waiting ─► high watermark passes them ─► replayed
                 ├─────► the log is truncated ────────► dropped
                 └─────► this node becomes the leader ─► replayed, and undone if they are taken back
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from millstream.broker.partition.producers.states import ProducerStates
from millstream.errors import CorruptBatch
from millstream.records.batch import BatchHeader, Bytes, split
from millstream.records.control import Marker, read_marker


class _WaitingBatch(NamedTuple):
    header: BatchHeader
    marker: Marker | None


class ReplicaProducers:
    """Applies the batches of a replica to the producer states of its partition, in time."""

    def __init__(self, states: ProducerStates) -> None:
        self._states = states
        self._waiting: deque[_WaitingBatch] = deque()

    def add(self, batches: Bytes) -> None:
        """Note batches that were appended, if they tell something about producers."""
        for header, batch in split(batches):
            if header.producer_id < 0:
                continue
            try:
                marker = read_marker(batch) if header.is_control else None
            except CorruptBatch:  # The leader has accepted it, and knows no more about it.
                continue
            if header.is_control and marker is None:
                continue
            self._waiting.append(_WaitingBatch(header, marker))

    def commit(self, high_watermark: int, now_ms: int) -> None:
        """Replay what is committed now."""
        waiting = self._waiting
        while waiting and waiting[0].header.base_offset < high_watermark:
            header, marker = waiting.popleft()
            self._states.replay(header, marker, now_ms=now_ms)

    def truncate(self, offset: int) -> None:
        """Drop what was removed from the log."""
        while self._waiting and self._waiting[-1].header.base_offset >= offset:
            self._waiting.pop()

    def lead(self, now_ms: int) -> None:
        """Replay everything: a leader checks new batches against all that the log has."""
        while self._waiting:
            header, marker = self._waiting.popleft()
            self._states.replay_uncommitted(header, marker, now_ms=now_ms)
