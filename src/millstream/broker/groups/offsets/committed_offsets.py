"""What groups have committed: how far they have read of each partition.

Two kinds of entries, and all that happens to them is a list of changes, which is stored as one put
and then applied:

    offset   (group, topic, partition)              what the group has committed
    pending  (producer, group, topic, partition)    what a transaction will commit when it ends

When a transaction ends well, its pending offsets become the group's, except where the group has
committed since they were staged: of two commits the later one counts, and `order` tells which that
is. When it is aborted they go. Either is one change, so a crash finds both or neither, and ending
a transaction a second time finds nothing to do.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from millstream.broker.groups.values import OffsetAndMetadata
from millstream.errors import InvalidProducerEpoch
from millstream.records.topic_partition import TopicPartition


class OffsetKey(NamedTuple):
    """Whose offset, of which partition."""

    group_id: str
    partition: TopicPartition


class PendingOffsetKey(NamedTuple):
    """Whose offset, of which partition, is part of which producer's transaction."""

    producer_id: int
    group_id: str
    partition: TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """An offset, and when it was committed or staged."""

    offset: OffsetAndMetadata
    committed_ms: int
    """Wall time, for retention only."""
    order: int
    """Rises with every commit of this node: of two, the one with the greater number is later."""
    expires_ms: int | None = None
    """When it goes, where an old client said so itself."""
    producer_epoch: int = -1
    """The epoch of the producer that staged it."""


OffsetChange: TypeAlias = (
    tuple[OffsetKey, CommittedOffset | None] | tuple[PendingOffsetKey, CommittedOffset | None]
)
"""What an entry becomes; `None` where it goes."""

_NOTHING: Mapping[TopicPartition, CommittedOffset] = {}


class CommittedOffsets:
    """The offsets of all groups."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[int, dict[PendingOffsetKey, CommittedOffset]] = {}
        self._producers: dict[OffsetKey, set[int]] = {}
        """Which transactions each offset is part of; without those that are part of none."""
        self.order = 0
        """The greatest order that was seen."""

    def apply(self, changes: Iterable[OffsetChange]) -> None:
        """Make changes that are stored."""
        for key, committed in changes:
            if committed is not None:
                self.order = max(self.order, committed.order)
            if isinstance(key, OffsetKey):
                self._apply_offset(key, committed)
            else:
                self._apply_pending(key, committed)

    def _apply_offset(self, key: OffsetKey, committed: CommittedOffset | None) -> None:
        if committed is not None:
            self._groups.setdefault(key.group_id, {})[key.partition] = committed
            return
        offsets = self._groups.get(key.group_id, {})
        offsets.pop(key.partition, None)
        if not offsets:
            self._groups.pop(key.group_id, None)

    def _apply_pending(self, key: PendingOffsetKey, committed: CommittedOffset | None) -> None:
        offset_key = OffsetKey(key.group_id, key.partition)
        if committed is not None:
            self._pending.setdefault(key.producer_id, {})[key] = committed
            self._producers.setdefault(offset_key, set()).add(key.producer_id)
            return
        pending = self._pending.get(key.producer_id, {})
        pending.pop(key, None)
        if not pending:
            self._pending.pop(key.producer_id, None)
        producers = self._producers.get(offset_key, set())
        producers.discard(key.producer_id)
        if not producers:
            self._producers.pop(offset_key, None)

    # Looking.

    def groups(self) -> list[str]:
        """Return the ids of all groups that have committed or staged anything."""
        return sorted({*self._groups, *(key.group_id for key in self._producers)})

    def of_group(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return all that a group has committed."""
        return self._groups.get(group_id, _NOTHING)

    def get(self, group_id: str, partition: TopicPartition) -> CommittedOffset | None:
        """Return what a group has committed of a partition."""
        return self.of_group(group_id).get(partition)

    def is_pending(self, group_id: str, partition: TopicPartition) -> bool:
        """Whether a transaction that is open may change what a group has committed."""
        return OffsetKey(group_id, partition) in self._producers

    def has_any(self, group_id: str) -> bool:
        """Whether a group has committed anything, or a transaction may do so for it."""
        return group_id in self._groups or any(k.group_id == group_id for k in self._producers)

    # Planning changes.

    def check_stage(self, producer_id: int, producer_epoch: int) -> None:
        """Raise `InvalidProducerEpoch` if a later instance of the producer has staged already."""
        newest = max((c.producer_epoch for c in self._pending_of(producer_id).values()), default=-1)
        if producer_epoch < newest:
            found = f"epoch of producer {producer_id} is {producer_epoch}"
            raise InvalidProducerEpoch(f"{found}, {newest} has staged offsets")

    def finishing(
        self, producer_id: int, producer_epoch: int, group_ids: Iterable[str], *, is_commit: bool
    ) -> Iterator[list[OffsetChange]]:
        """Yield the changes that end a transaction for these groups; those of a list go together.

        What a later epoch has staged belongs to another transaction, and stays.
        """
        ended = set(group_ids)
        for key, staged in list(self._pending_of(producer_id).items()):
            if key.group_id not in ended or staged.producer_epoch > producer_epoch:
                continue
            present = self.get(key.group_id, key.partition)
            is_latest = present is None or present.order < staged.order
            changes: list[OffsetChange] = [(key, None)]
            if is_commit and is_latest:
                changes.append((OffsetKey(key.group_id, key.partition), staged))
            yield changes

    def deleting(self, group_id: str, partitions: Iterable[TopicPartition]) -> list[OffsetChange]:
        """Return the changes by which offsets of a group go, with what is pending for them."""
        changes: list[OffsetChange] = []
        offsets = self.of_group(group_id)
        for partition in partitions:
            key = OffsetKey(group_id, partition)
            if partition in offsets:
                changes.append((key, None))
            changes.extend(
                (PendingOffsetKey(producer_id, group_id, partition), None)
                for producer_id in sorted(self._producers.get(key, ()))
            )
        return changes

    def deleting_group(self, group_id: str) -> list[OffsetChange]:
        """Return the changes by which all offsets of a group go."""
        pending = (key.partition for key in self._producers if key.group_id == group_id)
        return self.deleting(group_id, {**self.of_group(group_id), **dict.fromkeys(pending)})

    def deleting_gone(self, is_gone: Callable[[str, uuid.UUID | None], bool]) -> list[OffsetChange]:
        """Return the changes by which all offsets of topics go that are gone.

        A topic is told by its name and, where that was known at the commit, by its id.
        """
        changes: list[OffsetChange] = [
            (OffsetKey(group_id, partition), None)
            for group_id, offsets in self._groups.items()
            for partition, committed in offsets.items()
            if is_gone(partition.topic, committed.offset.topic_id)
        ]
        changes.extend(
            (key, None)
            for pending in self._pending.values()
            for key, staged in pending.items()
            if is_gone(key.partition.topic, staged.offset.topic_id)
        )
        return changes

    def expiring(
        self, group_id: str, *, empty_since_ms: int | None, now_ms: int, retention_ms: int
    ) -> list[OffsetChange]:
        """Return the changes by which offsets of a group without members go, when due.

        They are due when the group had no members and the offset was not committed for
        `retention_ms`, or when an old client said that they are. What a transaction may still
        change stays.
        """
        due = [
            partition
            for partition, committed in self.of_group(group_id).items()
            if _is_due(committed, empty_since_ms, now_ms, retention_ms)
            and not self.is_pending(group_id, partition)
        ]
        return self.deleting(group_id, due)

    def _pending_of(self, producer_id: int) -> Mapping[PendingOffsetKey, CommittedOffset]:
        return self._pending.get(producer_id, {})


def _is_due(
    committed: CommittedOffset, empty_since_ms: int | None, now_ms: int, retention_ms: int
) -> bool:
    if committed.expires_ms is not None:
        return now_ms >= committed.expires_ms
    return now_ms - max(committed.committed_ms, empty_since_ms or 0) >= retention_ms
