"""Committed offsets of groups, and those pending in transactions.

There are two kinds of entries, and every operation is a list of changes to them, which is stored as
one put and then applied:

    offset   (group, topic, partition)              committed by the group
    pending  (producer, group, topic, partition)    to be committed when the transaction ends

When a transaction commits, its pending offsets become those of the group, unless the group has
committed since they were staged: the later commit wins, and `order` tells which that is. When it
aborts, they are deleted. Each change is atomic, so a crash leaves both entries or neither, and
ending a transaction twice changes nothing.
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
    """The key of a committed offset."""

    group_id: str
    partition: TopicPartition


class PendingOffsetKey(NamedTuple):
    """The key of an offset that is pending in a producer's transaction."""

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
    """Rises with every commit of this node: of two commits, the later has the greater number."""
    expires_ms: int | None = None
    """When it expires, if an old client set that itself."""
    producer_epoch: int = -1
    """The epoch of the producer that staged it."""


OffsetChange: TypeAlias = (
    tuple[OffsetKey, CommittedOffset | None] | tuple[PendingOffsetKey, CommittedOffset | None]
)
"""The new value of an entry; `None` deletes it."""

_NOTHING: Mapping[TopicPartition, CommittedOffset] = {}


class CommittedOffsets:
    """The offsets of all groups."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._pending: dict[int, dict[PendingOffsetKey, CommittedOffset]] = {}
        self._producers: dict[OffsetKey, set[int]] = {}
        """The transactions in which each offset is pending; offsets without any are left out."""
        self.order = 0
        """The greatest order seen."""

    def apply(self, changes: Iterable[OffsetChange]) -> None:
        """Apply changes that are stored."""
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

    # Lookup.

    def groups(self) -> list[str]:
        """Return the ids of all groups that have committed or staged offsets."""
        return sorted({*self._groups, *(key.group_id for key in self._producers)})

    def topics(self) -> set[tuple[str, uuid.UUID | None]]:
        """Return all topics of which offsets are committed or pending, with their ids if known."""
        committed = (
            (partition.topic, each.offset.topic_id)
            for offsets in self._groups.values()
            for partition, each in offsets.items()
        )
        pending = (
            (key.partition.topic, each.offset.topic_id)
            for staged in self._pending.values()
            for key, each in staged.items()
        )
        return {*committed, *pending}

    def of_group(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return all offsets committed by a group."""
        return self._groups.get(group_id, _NOTHING)

    def get(self, group_id: str, partition: TopicPartition) -> CommittedOffset | None:
        return self.of_group(group_id).get(partition)

    def is_pending(self, group_id: str, partition: TopicPartition) -> bool:
        """Return whether an open transaction may change the committed offset."""
        return OffsetKey(group_id, partition) in self._producers

    def has_any(self, group_id: str) -> bool:
        """Return whether a group has committed or pending offsets."""
        return group_id in self._groups or any(k.group_id == group_id for k in self._producers)

    # Planned changes.

    def check_stage(self, producer_id: int, producer_epoch: int) -> None:
        """Raise `InvalidProducerEpoch` if a later epoch of the producer has staged offsets."""
        newest = max((c.producer_epoch for c in self._pending_of(producer_id).values()), default=-1)
        if producer_epoch < newest:
            raise InvalidProducerEpoch(
                f"producer {producer_id} staged offsets with epoch {newest}, got {producer_epoch}"
            )

    def changes_to_finish(
        self, producer_id: int, producer_epoch: int, group_ids: Iterable[str], *, is_commit: bool
    ) -> Iterator[list[OffsetChange]]:
        """Yield the changes that end a transaction for these groups; each list is atomic.

        Offsets staged by a later epoch belong to another transaction, and stay.
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

    def changes_to_delete(
        self, group_id: str, partitions: Iterable[TopicPartition]
    ) -> list[OffsetChange]:
        """Return the changes that delete offsets of a group, with those pending for them."""
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

    def changes_to_delete_group(self, group_id: str) -> list[OffsetChange]:
        """Return the changes that delete all offsets of a group."""
        pending = (key.partition for key in self._producers if key.group_id == group_id)
        return self.changes_to_delete(
            group_id, {**self.of_group(group_id), **dict.fromkeys(pending)}
        )

    def changes_to_delete_topics(
        self, is_deleted: Callable[[str, uuid.UUID | None], bool]
    ) -> list[OffsetChange]:
        """Return the changes that delete all offsets of deleted topics.

        A topic is identified by its name and, if that was known at the commit, by its id.
        """
        changes: list[OffsetChange] = [
            (OffsetKey(group_id, partition), None)
            for group_id, offsets in self._groups.items()
            for partition, committed in offsets.items()
            if is_deleted(partition.topic, committed.offset.topic_id)
        ]
        changes.extend(
            (key, None)
            for pending in self._pending.values()
            for key, staged in pending.items()
            if is_deleted(key.partition.topic, staged.offset.topic_id)
        )
        return changes

    def changes_to_expire(
        self, group_id: str, *, empty_since_ms: int | None, now_ms: int, retention_ms: int
    ) -> list[OffsetChange]:
        """Return the changes that delete the expired offsets of a group without members.

        An offset expires when the group has had no members and the offset was not committed for
        `retention_ms`, or at the time that an old client set. Offsets that a transaction may still
        change do not expire.
        """
        due = [
            partition
            for partition, committed in self.of_group(group_id).items()
            if _is_due(committed, empty_since_ms, now_ms, retention_ms)
            and not self.is_pending(group_id, partition)
        ]
        return self.changes_to_delete(group_id, due)

    def _pending_of(self, producer_id: int) -> Mapping[PendingOffsetKey, CommittedOffset]:
        return self._pending.get(producer_id, {})


def _is_due(
    committed: CommittedOffset, empty_since_ms: int | None, now_ms: int, retention_ms: int
) -> bool:
    if committed.expires_ms is not None:
        return now_ms >= committed.expires_ms
    return now_ms - max(committed.committed_ms, empty_since_ms or 0) >= retention_ms
