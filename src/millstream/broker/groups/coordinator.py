"""A group coordinator: requests to groups, and to the offsets that they commit.

A lone node has one for all groups, the nodes of a cluster one for each internal partition that they
lead (`group_coordinators.py`).

A request finds its group, and the registry stores and answers what the group decides. A group id
has one type of group at a time; an empty group is replaced by one of another type, and its offsets
stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Protocol

from millstream.broker.fair_iteration import iterate_fairly
from millstream.broker.groups.classic import record as classic_record
from millstream.broker.groups.classic.classic_group import ClassicGroup
from millstream.broker.groups.classic.rebalance import ClassicLimits
from millstream.broker.groups.consumer import records as consumer_records
from millstream.broker.groups.consumer.consumer_group import ConsumerGroup
from millstream.broker.groups.consumer.consumer_groups import ConsumerGroups
from millstream.broker.groups.consumer.topic_catalog import WatchedTopics
from millstream.broker.groups.group import Group, check_group_id, decode_key
from millstream.broker.groups.offsets import record as offsets_record
from millstream.broker.groups.offsets.committed_offsets import CommittedOffsets
from millstream.broker.groups.offsets.offset_store import OffsetStore
from millstream.broker.groups.registry import GroupRegistry
from millstream.broker.groups.values import (
    NO_MEMBER,
    ClassicGroupDescription,
    GroupJoinRequest,
    GroupJoinResult,
    GroupListing,
    GroupSyncRequest,
    GroupSyncResult,
    LeaveResult,
    LeavingMember,
    OffsetAndMetadata,
    OffsetCommitter,
)
from millstream.broker.state.state_log import StateLog
from millstream.broker.topics.topic import TopicChange, TopicEvent
from millstream.clock import Clock, Timer, Timers
from millstream.config.schema import BrokerConfig
from millstream.errors import (
    GroupNotEmpty,
    GroupSubscribed,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidSessionTimeout,
    InvalidTransactionState,
    MillstreamError,
    OffsetMetadataTooLarge,
    UnknownFormat,
    UnknownGroup,
    UnknownMember,
    UnstableOffset,
)
from millstream.records.topic_partition import TopicPartition

logger = logging.getLogger(__name__)

EXPIRY_SECONDS = 600.0
"""Interval of looking for expired offsets. Kafka's default."""

GROUPS_PER_TURN = 100
"""Groups examined before the loop serves others."""

CONSUMER_PROTOCOL = "consumer"
"""The type of groups whose members tell which topics they read."""


class CoordinatorTopics(WatchedTopics, Protocol):
    """The part of `Topics` that is used here."""

    async def is_deleted(self, name: str, topic_id: uuid.UUID | None) -> bool: ...


class GroupCoordinator:
    """The groups of one internal partition. Owned by one event loop."""

    def __init__(
        self,
        state: StateLog,
        topics: CoordinatorTopics,
        *,
        config: BrokerConfig,
        config_of: Callable[[str], BrokerConfig] | None = None,
        clock: Clock,
        timers: Timers,
    ) -> None:
        """Make the coordinator; `config_of` returns the config of one group, if they differ."""
        self._state = state
        self._topics = topics
        self._config = config
        self._config_of = config_of or (lambda _: config)
        self._clock = clock
        self._timers = timers
        self._store = OffsetStore(state, clock)
        self.registry = GroupRegistry(state, self._store, clock=clock, timers=timers)
        """Its groups, of both types."""
        self.consumers = ConsumerGroups(
            self.registry, topics, config_of=self._config_of, clock=clock
        )
        """The groups whose partitions the coordinator assigns (KIP-848)."""
        self._limits = ClassicLimits(
            members_max=config.group_members_max,
            initial_delay_ms=config.group_initial_rebalance_delay_ms,
        )
        self._expiry: Timer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop_watching: Callable[[], None] = lambda: None
        self._is_stopped = False

    @property
    def offsets(self) -> CommittedOffsets:
        """The committed offsets of all groups, to read."""
        return self._store.offsets

    # Opening and closing.

    async def start(self) -> None:
        """Load the groups, start their sessions, and watch for what expires.

        Other work of the event loop runs in between. Serve no request before this returns.
        """
        await self.load()
        self._stop_watching = self._topics.on_change(self._on_topic_change)
        self._expiry = self._timers.call_later(EXPIRY_SECONDS, self._start_expiry)
        self._start_task(self.delete_offsets_of_deleted_topics())

    async def load(self) -> None:
        """Load the groups, and start their sessions."""
        entries = self._state.entries
        now = self._clock.monotonic()
        groups: dict[str, Group] = {}
        consumers: dict[str, list[tuple[bytes, bytes]]] = {}
        async for key, value in iterate_fairly(list(entries.items())):
            family, *names = parts = decode_key(key)
            if family == classic_record.FAMILY and len(names) == 1:
                groups[names[0]] = ClassicGroup.restore(names[0], value, self._limits, now)
            elif family in offsets_record.FAMILIES:
                self._store.load(parts, value)
            elif family == consumer_records.FAMILY:
                consumers.setdefault(str(names[:1]), []).append((key, value))
            else:
                raise UnknownFormat(f"groups: unknown kind of entry {parts}")
        async for stored in iterate_fairly(consumers.values(), len):
            for group_id, saved in consumer_records.decode_groups(stored).items():
                groups[group_id] = ConsumerGroup.restore(
                    group_id, saved, self._config_of(group_id), now
                )
        for group_id in self._store.offsets.groups():
            groups.setdefault(group_id, ClassicGroup(group_id, self._limits))
        async for group_id in iterate_fairly(sorted(groups)):
            self.registry.restore(groups[group_id])

    def reconfigure(self, group_id: str) -> None:
        """Apply the changed config of a group: to each member with its next heartbeat."""
        group = self.registry.find(group_id)
        if isinstance(group, ConsumerGroup):
            group.config = self._config_of(group_id)

    def depose(self, error: MillstreamError) -> None:
        """Fail all waiting requests, and refuse all others: this node is not the coordinator.

        Whether the groups have changed, only the next coordinator knows.
        """
        self.registry.depose(error)
        self._stop()

    async def close(self) -> None:
        """Fail all waiting requests. The next start loads the stored state."""
        self.registry.close()
        self._stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _stop(self) -> None:
        if self._is_stopped:
            return
        self._is_stopped = True
        self._stop_watching()
        self.consumers.close()
        if self._expiry is not None:
            self._expiry.cancel()
        for task in self._tasks:
            task.cancel()

    def _start_task(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Membership of classic groups.

    async def join(self, group_id: str, join: GroupJoinRequest) -> GroupJoinResult:
        """Add a member to a group, and return when its generation has started."""
        check_group_id(group_id)
        self._check_session(join.session_timeout_ms)
        group = self._group_to_join(group_id, join)
        new_id = f"{join.instance_id or join.client_id}-{uuid.uuid4()}"
        now = self._clock.monotonic()
        joined: GroupJoinResult = await self.registry.run_step(
            group, lambda ticket: group.join(join, ticket, new_id, now)
        )
        return joined

    def _check_session(self, timeout_ms: int) -> None:
        least = self._config.group_session_timeout_ms_min
        most = self._config.group_session_timeout_ms_max
        if not least <= timeout_ms <= most:
            raise InvalidSessionTimeout(
                f"session timeout must be between {least} and {most} ms, got {timeout_ms}"
            )

    def _group_to_join(self, group_id: str, join: GroupJoinRequest) -> ClassicGroup:
        existing = self.registry.find(group_id)
        if isinstance(existing, ClassicGroup):
            return existing
        if existing is not None and not existing.is_empty:
            raise InconsistentProtocol(f"group {group_id!r} is of type {existing.kind.value!r}")
        if join.member_id != NO_MEMBER:
            raise UnknownMember(f"group {group_id!r} has no member {join.member_id!r}")
        self.registry.check_open()
        group = ClassicGroup(group_id, self._limits)
        self.registry.admit(group)
        return group

    async def sync(self, group_id: str, sync: GroupSyncRequest) -> GroupSyncResult:
        """Return a member's assignment once the leader has sent it."""
        group = self._classic(group_id)
        now = self._clock.monotonic()
        synced: GroupSyncResult = await self.registry.run_step(
            group, lambda ticket: group.sync(sync, ticket, now)
        )
        return synced

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> None:
        """Renew a member's session; raises what it has to do instead of continuing."""
        self.registry.check_open()
        group = self._classic(group_id)
        group.heartbeat(member_id, instance_id, generation, self._clock.monotonic())

    async def leave(self, group_id: str, leavers: Sequence[LeavingMember]) -> list[LeaveResult]:
        """Remove members; operators remove those of consumer groups this way, too."""
        self.registry.check_open()
        if isinstance(self.registry.find(group_id), ConsumerGroup):
            return await self.consumers.remove(group_id, leavers)
        group = self._classic(group_id)
        results, answers = group.leave(leavers, self._clock.monotonic())
        self.registry.settle(group, answers)
        return results

    def _classic(self, group_id: str) -> ClassicGroup:
        """Return the classic group of a member; raises `UnknownMember` if there is none."""
        group = self.registry.find(check_group_id(group_id))
        if not isinstance(group, ClassicGroup):
            raise UnknownMember(f"classic group {group_id!r} does not exist")
        return group

    # Describing and deleting groups.

    def describe(self, group_id: str) -> ClassicGroupDescription:
        """Describe a classic group; raises `UnknownGroup`."""
        self.registry.check_led()
        group = self.registry.find(group_id)
        if not isinstance(group, ClassicGroup):
            raise UnknownGroup(f"classic group {group_id!r} does not exist")
        return group.describe()

    def listed(self) -> list[GroupListing]:
        return [
            GroupListing(group.group_id, group.kind, group.state, group.protocol_type)
            for group in self.registry
        ]

    async def delete(self, group_id: str) -> None:
        """Delete a group without members, and its offsets. Durable when this returns."""
        self.registry.check_open()
        group = self.registry.find(check_group_id(group_id, may_be_empty=True))
        if group is None:
            raise UnknownGroup(f"group {group_id!r} does not exist")
        if group.is_empty:
            await self.registry.delete(group)
        else:
            raise GroupNotEmpty(f"group {group_id!r} has members, and is {group.state}")

    # Offsets.

    def check_offset(self, offset: OffsetAndMetadata) -> None:
        """Raise `OffsetMetadataTooLarge` if the metadata of an offset is too large."""
        check_metadata(offset, self._config)

    async def commit(
        self,
        group_id: str,
        committer: OffsetCommitter,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        retention_ms: int | None = None,
    ) -> None:
        """Commit all of `offsets` or none. Durable when this returns.

        `UnknownGroup` means that the committer claims to be a member of a group that does not
        exist. For a committer that is not a member, the group is created.
        """
        self.registry.check_open()
        group = self._group_to_commit(group_id, committer)
        group.check_commit(
            committer.member_id,
            committer.generation,
            committer.instance_id,
            is_transactional=False,
        )
        if isinstance(group, ClassicGroup):
            group.touch(committer.member_id, self._clock.monotonic())
        expires_ms = None if retention_ms is None else self._clock.wall_ms() + retention_ms
        try:
            await self._store.commit(group_id, offsets, expires_ms=expires_ms)
        except MillstreamError:
            self.registry.drop_if_unused(group)
            raise

    async def reset(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Set the offsets of a group without members. Durable when this returns.

        All of `offsets` are committed or none; a group that does not exist is created. Raises
        `GroupNotEmpty` if it has members: they would continue from their own positions.
        """
        self.check_reset(group_id)
        await self.commit(group_id, OffsetCommitter(), offsets)

    def check_reset(self, group_id: str) -> None:
        """Raise if `reset` would refuse the group."""
        self.registry.check_open()
        group = self.registry.find(check_group_id(group_id))
        if group is not None and not group.is_empty:
            raise GroupNotEmpty(f"group {group_id!r} has members, and is {group.state}")

    def _group_to_commit(self, group_id: str, committer: OffsetCommitter) -> Group:
        existing = self.registry.find(check_group_id(group_id, may_be_empty=True))
        if existing is not None:
            return existing
        if committer.generation >= 0:
            raise UnknownGroup(f"group {group_id!r} does not exist")
        group = ClassicGroup(group_id, self._limits)
        self.registry.admit(group)
        return group

    async def stage_offsets(
        self,
        group_id: str,
        *,
        member_id: str,
        generation: int,
        instance_id: str | None,
        producer_id: int,
        producer_epoch: int,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        verify: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Store offsets until the producer's transaction ends. Durable when this returns.

        `verify` raises if the transaction is not open; without it, the caller keeps it open. After
        that all checks, and the order among requests, are decided before this first awaits.
        """
        if verify is not None:
            with self._store.verification(producer_id) as verification:
                await verify()
                if verification.is_outdated:
                    raise InvalidTransactionState(
                        f"a transaction of producer {producer_id} was ended while it was verified"
                    )
        self.registry.check_open()
        committer = OffsetCommitter(
            member_id=member_id, generation=generation, instance_id=instance_id
        )
        try:
            group = self._group_to_commit(group_id, committer)
        except UnknownGroup as error:
            raise IllegalGeneration(str(error)) from error
        try:
            group.check_commit(member_id, generation, instance_id, is_transactional=True)
            await self._store.stage(group_id, producer_id, producer_epoch, offsets)
        except MillstreamError:
            self.registry.drop_if_unused(group)
            raise

    async def finish_transaction(
        self,
        producer_id: int,
        producer_epoch: int,
        group_ids: Collection[str],
        *,
        is_commit: bool,
    ) -> None:
        """Commit or drop what the producer's transaction staged. Durable when this returns.

        Idempotent, so the caller may repeat it until it succeeds.
        """
        await self._store.finish(producer_id, producer_epoch, group_ids, is_commit=is_commit)

    def fetch(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        member_id: str | None = None,
        epoch: int = -1,
        is_stable_required: bool = False,
    ) -> dict[TopicPartition, OffsetAndMetadata | MillstreamError | None]:
        """Return the committed offsets of some partitions, or of all that the group has.

        `None` for a partition without one; `UnstableOffset` if a transaction may change it and the
        caller requires stable offsets. A group that does not exist has no offsets.
        """
        self.registry.check_led()
        check_group_id(group_id, may_be_empty=True)
        if (group := self.registry.find(group_id)) is not None:
            group.check_fetch(member_id, epoch)
        committed = self._store.offsets.of_group(group_id)
        offsets: dict[TopicPartition, OffsetAndMetadata | MillstreamError | None] = {}
        for partition in committed if partitions is None else partitions:
            if is_stable_required and self._store.offsets.is_pending(group_id, partition):
                offsets[partition] = UnstableOffset(
                    f"offset of {partition} is part of an open transaction"
                )
            else:
                entry = committed.get(partition)
                offsets[partition] = None if entry is None else entry.offset
        return offsets

    def subscriptions(self, group_id: str) -> list[bytes]:
        """Return the metadata that members of a classic group sent for the assignor in use.

        For groups of consumers it names the topics that they read, in a format that the servers
        know.
        """
        group = self.registry.find(group_id)
        is_consumer = group is not None and group.protocol_type == CONSUMER_PROTOCOL
        return group.subscriptions if isinstance(group, ClassicGroup) and is_consumer else []

    async def delete_offsets(
        self,
        group_id: str,
        partitions: Collection[TopicPartition],
        *,
        is_subscribed: Callable[[str], bool],
    ) -> dict[TopicPartition, MillstreamError | None]:
        """Delete offsets of a group, except of topics that it reads; returns an outcome for each.

        A group with members has to be one of consumers: of others it is not known what they read.
        For a classic group `is_subscribed` tells it, from its members' subscriptions.
        """
        self.registry.check_open()
        group = self.registry.find(check_group_id(group_id))
        if group is None:
            raise UnknownGroup(f"group {group_id!r} does not exist")
        if not group.is_empty and group.protocol_type != CONSUMER_PROTOCOL:
            raise GroupNotEmpty(f"group {group_id!r} has members, and is {group.state}")
        is_read = group.is_subscribed if isinstance(group, ConsumerGroup) else is_subscribed
        results: dict[TopicPartition, MillstreamError | None] = dict.fromkeys(partitions)
        for partition in results:
            if not group.is_empty and is_read(partition.topic):
                results[partition] = GroupSubscribed(
                    f"group {group_id!r} is subscribed to {partition.topic!r}"
                )
        free = [partition for partition, error in results.items() if error is None]
        await self._store.delete(group_id, free)
        self.registry.drop_if_unused(group)
        return results

    # Expiry.

    def _on_topic_change(self, change: TopicChange) -> None:
        if change.event is TopicEvent.DELETED:
            self._start_task(self.delete_offsets_of_deleted_topics())

    async def delete_offsets_of_deleted_topics(self) -> None:
        """Delete the offsets of topics that were deleted, even if others have their names now.

        A failure is only logged: this runs at each start, and from time to time.
        """
        try:
            topics = self._store.offsets.topics()
            deleted = {topic for topic in topics if await self._topics.is_deleted(*topic)}
            if not deleted:
                return

            def is_deleted(name: str, topic_id: uuid.UUID | None) -> bool:
                return (name, topic_id) in deleted

            for group_id in await self._store.delete_of_deleted_topics(is_deleted):
                if (group := self.registry.find(group_id)) is not None:
                    self.registry.drop_if_unused(group)
        except MillstreamError as error:
            logger.warning("offsets of deleted topics were not removed: %s", error)

    def _start_expiry(self) -> None:
        self._expiry = self._timers.call_later(EXPIRY_SECONDS, self._start_expiry)
        self._start_task(self.expire_offsets())
        self._start_task(self.delete_offsets_of_deleted_topics())

    async def expire_offsets(self) -> None:
        """Delete expired offsets, and groups that have neither offsets nor members."""
        try:
            for number, group in enumerate(self.registry):
                if number % GROUPS_PER_TURN == GROUPS_PER_TURN - 1:
                    await asyncio.sleep(0)
                with contextlib.suppress(GroupNotEmpty):  # A member joined meanwhile.
                    await self._expire_group(group)
        except MillstreamError as error:
            logger.warning("expired offsets were not removed: %s", error)

    async def _expire_group(self, group: Group) -> None:
        group_id = group.group_id
        if self.registry.find(group_id) is not group or not group.is_empty:
            return
        due = self._store.changes_to_expire(
            group_id,
            empty_since_ms=group.empty_since_ms,
            retention_ms=self._config.offsets_retention_ms,
        )
        if due:
            await self._store.put(due)
            logger.info("group %s: removed %d expired offsets", group_id, len(due))
        is_here = self.registry.find(group_id) is group and group.is_empty
        is_awaited = group.deadline is not None
        if is_here and not is_awaited and not self._store.knows(group_id):
            await self.registry.delete(group)


def check_metadata(offset: OffsetAndMetadata, config: BrokerConfig) -> None:
    """Raise `OffsetMetadataTooLarge` if the metadata of an offset is too large."""
    size, most = len(offset.metadata.encode()), config.offset_metadata_bytes_max
    if size > most:
        raise OffsetMetadataTooLarge(f"metadata must have at most {most} bytes, got {size}")
