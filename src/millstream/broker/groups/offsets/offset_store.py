"""Committed offsets in the state log: durable before a commit is answered.

Changes are put in the order in which they are made, and applied in that order once they are stored,
so the state in memory is always what a restart would load. A change that depends on existing
entries must not overlook those in flight: `_in_flight` has them by key.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from millstream.broker.groups.offsets.committed_offsets import (
    CommittedOffset,
    CommittedOffsets,
    OffsetChange,
    OffsetKey,
    PendingOffsetKey,
)
from millstream.broker.groups.offsets.record import decode_change, encode_change
from millstream.broker.groups.values import OffsetAndMetadata
from millstream.broker.state.state_log import StateEntry, StateLog
from millstream.clock import Clock
from millstream.records.topic_partition import TopicPartition

FINISH_BYTES_MAX = 1024 * 1024
"""Size of one put when a transaction ends. Ending it is repeated after a crash, so it may take
several puts; without a limit, a transaction with very many offsets could never be stored.
"""

DELETIONS_PER_TURN = 10_000
"""Offsets of deleted topics in one put: far below the size limit of a put."""


class PendingVerification:
    """A transaction that is being verified, to stage its offsets."""

    def __init__(self) -> None:
        self.is_outdated = False
        """Whether a transaction of the producer was finished meanwhile."""


class OffsetStore:
    """The offsets of all groups. Owned by one event loop."""

    def __init__(self, state: StateLog, clock: Clock) -> None:
        self.offsets = CommittedOffsets()
        """The offsets that are durable."""
        self._state = state
        self._clock = clock
        self._order = 0
        self._in_flight: dict[OffsetKey | PendingOffsetKey, asyncio.Future[None]] = {}
        self._verifying: dict[int, list[PendingVerification]] = {}
        """Of producers whose transactions are being verified, to stage offsets."""

    def load(self, parts: list[Any], value: bytes) -> None:
        """Load an entry of the state log, whose key has these parts."""
        self.offsets.apply([decode_change(parts, value)])
        self._order = self.offsets.order

    # Committing.

    def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        expires_ms: int | None = None,
    ) -> Awaitable[None]:
        """Commit all of `offsets` or none. Cancelling the result does not cancel the commit."""
        order, now_ms = self._next_order(), self._clock.wall_ms()
        changes: list[OffsetChange] = [
            (
                OffsetKey(group_id, partition),
                CommittedOffset(
                    offset=offset, committed_ms=now_ms, order=order, expires_ms=expires_ms
                ),
            )
            for partition, offset in offsets.items()
        ]
        return self.put(changes)

    def stage(
        self,
        group_id: str,
        producer_id: int,
        producer_epoch: int,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
    ) -> Awaitable[None]:
        """Store offsets until the producer's transaction ends: all of them, or none."""
        self.offsets.check_stage(producer_id, producer_epoch)
        order, now_ms = self._next_order(), self._clock.wall_ms()
        changes: list[OffsetChange] = [
            (
                PendingOffsetKey(producer_id, group_id, partition),
                CommittedOffset(
                    offset=offset,
                    committed_ms=now_ms,
                    order=order,
                    producer_epoch=producer_epoch,
                ),
            )
            for partition, offset in offsets.items()
        ]
        return self.put(changes)

    @contextmanager
    def verification(self, producer_id: int) -> Iterator[PendingVerification]:
        """Notice whether a transaction of the producer is finished here while the block runs.

        The coordinator of the transaction may be another node, so the transaction may end between
        its answer and the staging. Offsets that are staged then would be pending forever.
        """
        verification = PendingVerification()
        running = self._verifying.setdefault(producer_id, [])
        running.append(verification)
        try:
            yield verification
        finally:
            running.remove(verification)
            if not running and self._verifying.get(producer_id) is running:
                del self._verifying[producer_id]

    async def finish(
        self, producer_id: int, producer_epoch: int, group_ids: Collection[str], *, is_commit: bool
    ) -> None:
        """End a transaction for these groups. Idempotent."""
        for verification in self._verifying.pop(producer_id, ()):
            verification.is_outdated = True
        await self._wait_in_flight(lambda key: _is_pending_of(key, producer_id))
        while True:
            changes = self._next_changes_to_finish(
                producer_id, producer_epoch, group_ids, is_commit=is_commit
            )
            if not changes:
                return
            keys = {key for key, _ in changes}
            if not keys.isdisjoint(self._in_flight):
                # A commit of the same offset is in flight: which is later has to be known first.
                await self._wait_in_flight(keys.__contains__)
                continue
            await self.put(changes)

    def _next_changes_to_finish(
        self, producer_id: int, producer_epoch: int, group_ids: Collection[str], *, is_commit: bool
    ) -> list[OffsetChange]:
        """Return the next changes that end a transaction, up to the size of one put."""
        batch: list[OffsetChange] = []
        size = 0
        for changes in self.offsets.changes_to_finish(
            producer_id, producer_epoch, group_ids, is_commit=is_commit
        ):
            batch += changes
            size += sum(_size_of(encode_change(change)) for change in changes)
            if size >= FINISH_BYTES_MAX:
                break
        return batch

    # Deleting.

    async def delete(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """Delete offsets of a group, with those pending for them."""
        await self._wait_in_flight(
            lambda key: key.group_id == group_id and key.partition in partitions
        )
        await self.put(self.offsets.changes_to_delete(group_id, partitions))

    async def delete_of_deleted_topics(
        self, is_deleted: Callable[[str, uuid.UUID | None], bool]
    ) -> set[str]:
        """Delete all offsets of deleted topics, some at a time; returns their groups."""
        await self._wait_in_flight(lambda _: True)
        changes = self.offsets.changes_to_delete_topics(is_deleted)
        for start in range(0, len(changes), DELETIONS_PER_TURN):
            await self.put(changes[start : start + DELETIONS_PER_TURN])
        return {key.group_id for key, _ in changes}

    async def delete_group(self, group_id: str) -> list[OffsetChange]:
        """Return the changes that delete all offsets of a group, to be put with its deletion."""
        await self._wait_in_flight(lambda key: key.group_id == group_id)
        return self.offsets.changes_to_delete_group(group_id)

    def changes_to_expire(
        self, group_id: str, *, empty_since_ms: int | None, retention_ms: int
    ) -> list[OffsetChange]:
        """Return the changes that delete the expired offsets of a group."""
        due = self.offsets.changes_to_expire(
            group_id,
            empty_since_ms=empty_since_ms,
            now_ms=self._clock.wall_ms(),
            retention_ms=retention_ms,
        )
        return [change for change in due if change[0] not in self._in_flight]

    def knows(self, group_id: str) -> bool:
        """Return whether a group has offsets, including those in flight."""
        is_in_flight = any(key.group_id == group_id for key in self._in_flight)
        return is_in_flight or self.offsets.has_any(group_id)

    # Storage.

    def put(
        self, changes: Sequence[OffsetChange], others: Sequence[StateEntry] = ()
    ) -> Awaitable[None]:
        """Store changes, together with `others`, and apply them when they are durable."""
        stored = self._state.put([*map(encode_change, changes), *others])
        for key, _ in changes:
            self._in_flight[key] = stored
        stored.add_done_callback(partial(self._on_stored, changes))
        return asyncio.shield(stored)

    def _on_stored(self, changes: Sequence[OffsetChange], stored: asyncio.Future[None]) -> None:
        for key, _ in changes:
            if self._in_flight.get(key) is stored:
                del self._in_flight[key]
        if stored.exception() is None:
            self.offsets.apply(changes)

    async def _wait_in_flight(
        self, is_concerned: Callable[[OffsetKey | PendingOffsetKey], bool]
    ) -> None:
        """Return when the changes of these keys that are in flight now are stored or refused."""
        in_flight = {stored for key, stored in self._in_flight.items() if is_concerned(key)}
        if in_flight:
            await asyncio.wait(in_flight)

    def _next_order(self) -> int:
        self._order += 1
        return self._order


def _is_pending_of(key: OffsetKey | PendingOffsetKey, producer_id: int) -> bool:
    return isinstance(key, PendingOffsetKey) and key.producer_id == producer_id


def _size_of(entry: StateEntry) -> int:
    key, value = entry
    return len(key) + len(value or b"")
