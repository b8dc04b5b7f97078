"""Committed offsets kept in the state log: durable before anyone is told.

Changes are put in the order in which they are made and applied in that order once they are stored,
so what is in memory is always what a restart would find. A change that rests on what is there must
not overlook what is in flight: `_flying` knows that, by key.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
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
"""What ending a transaction puts in one go. It is ended again after a crash, so it may be parted;
a limit keeps a transaction with very many offsets from having none that can be stored."""

DELETIONS_PER_TURN = 10_000
"""Offsets of a deleted topic that go with one put: far fewer bytes than one may have."""


class OffsetStore:
    """The offsets of all groups, on one event loop."""

    def __init__(self, state: StateLog, clock: Clock) -> None:
        self.offsets = CommittedOffsets()
        """What is stored."""
        self._state = state
        self._clock = clock
        self._order = 0
        self._flying: dict[OffsetKey | PendingOffsetKey, asyncio.Future[None]] = {}

    def load(self, parts: list[Any], value: bytes) -> None:
        """Take in an entry of the state log, whose key has these parts."""
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
        """Commit all of `offsets` or none. Durable when done, though nobody may wait for it."""
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
        """Keep offsets for the end of the producer's transaction: all of them, or none."""
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

    async def finish(
        self, producer_id: int, producer_epoch: int, group_ids: Collection[str], *, is_commit: bool
    ) -> None:
        """End a transaction for these groups. Ending it once more finds nothing to do."""
        await self._land(lambda key: _is_pending_of(key, producer_id))
        while True:
            changes = self._finishing(producer_id, producer_epoch, group_ids, is_commit=is_commit)
            if not changes:
                return
            keys = {key for key, _ in changes}
            if not keys.isdisjoint(self._flying):
                # Someone commits the same offset right now: which is later has to be known first.
                await self._land(keys.__contains__)
                continue
            await self.put(changes)

    def _finishing(
        self, producer_id: int, producer_epoch: int, group_ids: Collection[str], *, is_commit: bool
    ) -> list[OffsetChange]:
        """Return the next changes that end a transaction, as many as one put should have."""
        found: list[OffsetChange] = []
        size = 0
        for changes in self.offsets.finishing(
            producer_id, producer_epoch, group_ids, is_commit=is_commit
        ):
            found += changes
            size += sum(_size_of(encode_change(change)) for change in changes)
            if size >= FINISH_BYTES_MAX:
                break
        return found

    # Deleting.

    async def delete(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """Have offsets of a group go, with what is pending for them."""
        await self._land(lambda key: key.group_id == group_id and key.partition in partitions)
        await self.put(self.offsets.deleting(group_id, partitions))

    async def delete_gone(self, is_gone: Callable[[str, uuid.UUID | None], bool]) -> set[str]:
        """Have all offsets of topics go that are gone, some at a time; returns whose they were."""
        await self._land(lambda _: True)
        changes = self.offsets.deleting_gone(is_gone)
        for start in range(0, len(changes), DELETIONS_PER_TURN):
            await self.put(changes[start : start + DELETIONS_PER_TURN])
        return {key.group_id for key, _ in changes}

    async def delete_group(self, group_id: str) -> list[OffsetChange]:
        """Return the changes by which all offsets of a group go, for a put of its deletion."""
        await self._land(lambda key: key.group_id == group_id)
        return self.offsets.deleting_group(group_id)

    def expiring(
        self, group_id: str, *, empty_since_ms: int | None, retention_ms: int
    ) -> list[OffsetChange]:
        """Return the changes by which those offsets of a group go that are due."""
        due = self.offsets.expiring(
            group_id,
            empty_since_ms=empty_since_ms,
            now_ms=self._clock.wall_ms(),
            retention_ms=retention_ms,
        )
        return [change for change in due if change[0] not in self._flying]

    def knows(self, group_id: str) -> bool:
        """Whether a group has offsets, or will have when they are stored."""
        is_flying = any(key.group_id == group_id for key in self._flying)
        return is_flying or self.offsets.has_any(group_id)

    # Storing.

    def put(
        self, changes: Sequence[OffsetChange], others: Sequence[StateEntry] = ()
    ) -> Awaitable[None]:
        """Store changes, together with `others`, and apply them when they are durable."""
        stored = self._state.put([*map(encode_change, changes), *others])
        for key, _ in changes:
            self._flying[key] = stored
        stored.add_done_callback(partial(self._land_changes, changes))
        return asyncio.shield(stored)

    def _land_changes(self, changes: Sequence[OffsetChange], stored: asyncio.Future[None]) -> None:
        for key, _ in changes:
            if self._flying.get(key) is stored:
                del self._flying[key]
        if stored.exception() is None:
            self.offsets.apply(changes)

    async def _land(self, is_concerned: Callable[[OffsetKey | PendingOffsetKey], bool]) -> None:
        """Return when what is in flight now for these keys was stored, or was not."""
        flying = {stored for key, stored in self._flying.items() if is_concerned(key)}
        if flying:
            await asyncio.wait(flying)

    def _next_order(self) -> int:
        self._order += 1
        return self._order


def _is_pending_of(key: OffsetKey | PendingOffsetKey, producer_id: int) -> bool:
    return isinstance(key, PendingOffsetKey) and key.producer_id == producer_id


def _size_of(entry: StateEntry) -> int:
    key, value = entry
    return len(key) + len(value or b"")
