"""All groups of this node: what clients ask of them, and of the offsets that they commit.

A request finds its group, and the registry sees to what the group's machine says. A group's id has
one kind of group at a time; an empty group gives way to one of another kind, and its offsets stay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from typing import Protocol

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
from millstream.broker.topics.topic import Topic, TopicChange, TopicEvent
from millstream.clock import Clock, Timer, Timers
from millstream.config.schema import BrokerConfig
from millstream.errors import (
    GroupNotEmpty,
    GroupSubscribed,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidSessionTimeout,
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
"""How often offsets are looked at that may have become too old. Kafka's own interval."""

GROUPS_PER_TURN = 100
"""How many groups are looked at before others have their turn."""

CONSUMER_PROTOCOL = "consumer"
"""The type of those groups whose members say which topics they read."""


class CoordinatorTopics(WatchedTopics, Protocol):
    """What is needed of `Topics` here."""

    def find(self, name: str) -> Topic | None:
        """Return a topic, if there is one."""
        ...


class GroupCoordinator:
    """The groups of this node, on one event loop."""

    def __init__(
        self,
        state: StateLog,
        topics: CoordinatorTopics,
        *,
        config: BrokerConfig,
        clock: Clock,
        timers: Timers,
    ) -> None:
        """Take up the groups that `state` holds. Call it on the loop, for sessions begin here."""
        self._topics = topics
        self._config = config
        self._clock = clock
        self._timers = timers
        self._store = OffsetStore(state, clock)
        self.registry = GroupRegistry(state, self._store, clock=clock, timers=timers)
        """The groups as machines, for those who drive groups of other kinds."""
        self.consumers = ConsumerGroups(self.registry, topics, config=config, clock=clock)
        """Those whose partitions the coordinator divides (KIP-848)."""
        self._limits = ClassicLimits(
            members_max=config.group_members_max,
            initial_delay_ms=config.group_initial_rebalance_delay_ms,
        )
        self._expiry: Timer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop_watching: Callable[[], None] = lambda: None
        self._is_closed = False
        self._load(state.entries)

    @property
    def offsets(self) -> CommittedOffsets:
        """What all groups have committed, to look at."""
        return self._store.offsets

    # Opening and closing.

    def _load(self, entries: Mapping[bytes, bytes]) -> None:
        now = self._clock.monotonic()
        found: dict[str, Group] = {}
        consumers: list[tuple[bytes, bytes]] = []
        for key, value in entries.items():
            family, *rest = parts = decode_key(key)
            if family == classic_record.FAMILY and len(rest) == 1:
                found[rest[0]] = ClassicGroup.restore(rest[0], value, self._limits, now)
            elif family in offsets_record.FAMILIES:
                self._store.load(parts, value)
            elif family == consumer_records.FAMILY:
                consumers.append((key, value))
            else:
                raise UnknownFormat(f"groups: nothing is known of entries like {parts}")
        for group_id, saved in consumer_records.decode_groups(consumers).items():
            found[group_id] = ConsumerGroup.restore(group_id, saved, self._config, now)
        for group_id in self._store.offsets.groups():
            found.setdefault(group_id, ClassicGroup(group_id, self._limits))
        for group_id in sorted(found):
            self.registry.restore(found[group_id])

    def start(self) -> None:
        """Begin to watch topics go and offsets grow old, on the running loop."""
        self._stop_watching = self._topics.on_change(self._on_topic_change)
        self._expiry = self._timers.call_later(EXPIRY_SECONDS, self._begin_expiry)
        self._begin(self.forget_gone_topics())

    async def close(self) -> None:
        """Answer all who wait; what was stored is found again by the next start."""
        if self._is_closed:
            return
        self._is_closed = True
        self._stop_watching()
        self.consumers.close()
        self.registry.close()
        if self._expiry is not None:
            self._expiry.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # Membership of classic groups.

    async def join(self, group_id: str, join: GroupJoinRequest) -> GroupJoinResult:
        """Take a member into a group, and return when its generation has begun."""
        check_group_id(group_id)
        self._check_session(join.session_timeout_ms)
        group = self._group_to_join(group_id, join)
        new_id = f"{join.instance_id or join.client_id}-{uuid.uuid4()}"
        now = self._clock.monotonic()
        joined: GroupJoinResult = await self.registry.ask(
            group, lambda ticket: group.join(join, ticket, new_id, now)
        )
        return joined

    def _check_session(self, timeout_ms: int) -> None:
        least = self._config.group_session_timeout_ms_min
        most = self._config.group_session_timeout_ms_max
        if not least <= timeout_ms <= most:
            allowed = f"allowed is {least} to {most}"
            raise InvalidSessionTimeout(f"session timeout is {timeout_ms} ms, {allowed}")

    def _group_to_join(self, group_id: str, join: GroupJoinRequest) -> ClassicGroup:
        found = self.registry.find(group_id)
        if isinstance(found, ClassicGroup):
            return found
        if found is not None and not found.is_empty:
            raise InconsistentProtocol(f"{group_id!r} is a group of kind {found.kind.value!r}")
        if join.member_id != NO_MEMBER:
            raise UnknownMember(f"{group_id!r} has no member {join.member_id!r}")
        self.registry.check_open()
        group = ClassicGroup(group_id, self._limits)
        self.registry.admit(group)
        return group

    async def sync(self, group_id: str, sync: GroupSyncRequest) -> GroupSyncResult:
        """Return a member's share, when the leader has brought it."""
        group = self._classic(group_id)
        now = self._clock.monotonic()
        synced: GroupSyncResult = await self.registry.ask(
            group, lambda ticket: group.sync(sync, ticket, now)
        )
        return synced

    def heartbeat(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> None:
        """Take note that a member is alive; raises what it has to do instead of going on."""
        self.registry.check_open()
        group = self._classic(group_id)
        group.heartbeat(member_id, instance_id, generation, self._clock.monotonic())

    async def leave(self, group_id: str, leavers: Sequence[LeavingMember]) -> list[LeaveResult]:
        """Let members go; operators remove those of consumer groups this way, too."""
        self.registry.check_open()
        if isinstance(self.registry.find(group_id), ConsumerGroup):
            return await self.consumers.remove(group_id, leavers)
        group = self._classic(group_id)
        results, answers = group.leave(leavers, self._clock.monotonic())
        self.registry.settle(group, answers)
        return results

    def _classic(self, group_id: str) -> ClassicGroup:
        """Return the classic group whose member speaks; whoever is in none is unknown."""
        group = self.registry.find(check_group_id(group_id))
        if not isinstance(group, ClassicGroup):
            raise UnknownMember(f"there is no classic group {group_id!r}")
        return group

    # Looking at groups, and deleting them.

    def describe(self, group_id: str) -> ClassicGroupDescription:
        """Return a classic group as it stands; raises `UnknownGroup` where there is none."""
        group = self.registry.find(group_id)
        if not isinstance(group, ClassicGroup):
            raise UnknownGroup(f"there is no classic group {group_id!r}")
        return group.describe()

    def listed(self) -> list[GroupListing]:
        """Return all groups."""
        return [
            GroupListing(group.group_id, group.kind, group.state, group.protocol_type)
            for group in self.registry
        ]

    async def delete(self, group_id: str) -> None:
        """Forget a group without members, and its offsets. Durable when this returns."""
        self.registry.check_open()
        group = self.registry.find(check_group_id(group_id, may_be_empty=True))
        if group is None:
            raise UnknownGroup(f"there is no group {group_id!r}")
        if group.is_empty:
            await self.registry.delete(group)
        else:
            raise GroupNotEmpty(f"{group_id!r} has members, and is {group.state}")

    # Offsets.

    def check_offset(self, offset: OffsetAndMetadata) -> None:
        """Raise `OffsetMetadataTooLarge` if more is to be remembered beside an offset than may."""
        size, most = len(offset.metadata.encode()), self._config.offset_metadata_bytes_max
        if size > most:
            raise OffsetMetadataTooLarge(f"metadata has {size} bytes, allowed are {most}")

    async def commit(
        self,
        group_id: str,
        committer: OffsetCommitter,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        *,
        retention_ms: int | None = None,
    ) -> None:
        """Commit all of `offsets` or none. Durable when this returns.

        `UnknownGroup` means that a member of a group speaks that is not there. A group of which
        nothing is known is made for those who commit without being members.
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
            self.registry.drop_if_void(group)
            raise

    async def reset(
        self, group_id: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Have a group without members read from elsewhere. Durable when this returns.

        All of `offsets` are committed or none; a group that is not there is made. Raises
        `GroupNotEmpty` where it has members: they would go on from where they are.
        """
        self.check_reset(group_id)
        await self.commit(group_id, OffsetCommitter(), offsets)

    def check_reset(self, group_id: str) -> None:
        """Raise what `reset` would, as far as the group is concerned."""
        self.registry.check_open()
        found = self.registry.find(check_group_id(group_id))
        if found is not None and not found.is_empty:
            raise GroupNotEmpty(f"{group_id!r} has members, and is {found.state}")

    def _group_to_commit(self, group_id: str, committer: OffsetCommitter) -> Group:
        found = self.registry.find(check_group_id(group_id, may_be_empty=True))
        if found is not None:
            return found
        if committer.generation >= 0:
            raise UnknownGroup(f"there is no group {group_id!r}")
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
    ) -> None:
        """Keep offsets until the producer's transaction ends. Durable when this returns.

        All checks and the order among requests are settled before this first waits.
        """
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
            self.registry.drop_if_void(group)
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

        Calling it again does nothing, so whoever ends a transaction may do so until it is done.
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
        """Return what a group has committed of some partitions, or of all that it has.

        `None` where nothing is; `UnstableOffset` where a transaction may change it and the caller
        wants to know. Of a group that is not there nothing is committed.
        """
        check_group_id(group_id, may_be_empty=True)
        if (group := self.registry.find(group_id)) is not None:
            group.check_fetch(member_id, epoch)
        committed = self._store.offsets.of_group(group_id)
        found: dict[TopicPartition, OffsetAndMetadata | MillstreamError | None] = {}
        for partition in committed if partitions is None else partitions:
            if is_stable_required and self._store.offsets.is_pending(group_id, partition):
                found[partition] = UnstableOffset(f"{partition} is part of an open transaction")
            else:
                entry = committed.get(partition)
                found[partition] = None if entry is None else entry.offset
        return found

    def subscriptions(self, group_id: str) -> list[bytes]:
        """Return what the members of a classic group said to the strategy in use.

        For groups of consumers that names the topics that they read, in a form that doors know.
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
        """Have offsets of a group go, unless it reads their topics; says for each what was done.

        A group with members has to be one of consumers, for of others it is not known what they
        read. `is_subscribed` tells it of a classic group, from its members' subscriptions.
        """
        self.registry.check_open()
        group = self.registry.find(check_group_id(group_id))
        if group is None:
            raise UnknownGroup(f"there is no group {group_id!r}")
        if not group.is_empty and group.protocol_type != CONSUMER_PROTOCOL:
            raise GroupNotEmpty(f"{group_id!r} has members, and is {group.state}")
        reads = group.is_subscribed if isinstance(group, ConsumerGroup) else is_subscribed
        results: dict[TopicPartition, MillstreamError | None] = dict.fromkeys(partitions)
        for partition in results:
            if not group.is_empty and reads(partition.topic):
                results[partition] = GroupSubscribed(f"{group_id!r} reads {partition.topic!r}")
        free = [partition for partition, error in results.items() if error is None]
        await self._store.delete(group_id, free)
        self.registry.drop_if_void(group)
        return results

    # What goes by itself.

    def _on_topic_change(self, change: TopicChange) -> None:
        if change.event is TopicEvent.DELETED:
            self._begin(self.forget_gone_topics())

    async def forget_gone_topics(self) -> None:
        """Have the offsets go of topics that are gone, though others of their names may be there.

        Where they cannot now, they go later: this is done at each start, and from time to time.
        """
        try:
            for group_id in await self._store.delete_gone(self._is_gone):
                if (group := self.registry.find(group_id)) is not None:
                    self.registry.drop_if_void(group)
        except MillstreamError as error:
            logger.warning("offsets of topics that are gone were not removed: %s", error)

    def _is_gone(self, name: str, topic_id: uuid.UUID | None) -> bool:
        topic = self._topics.find(name)
        return topic is None or topic_id not in (None, topic.id)

    def _begin_expiry(self) -> None:
        self._expiry = self._timers.call_later(EXPIRY_SECONDS, self._begin_expiry)
        self._begin(self.expire_offsets())
        self._begin(self.forget_gone_topics())

    async def expire_offsets(self) -> None:
        """Have offsets go that are too old, and groups that have neither offsets nor members."""
        try:
            for number, group in enumerate(self.registry):
                if number % GROUPS_PER_TURN == GROUPS_PER_TURN - 1:
                    await asyncio.sleep(0)
                with contextlib.suppress(GroupNotEmpty):  # Someone has joined it meanwhile.
                    await self._expire_group(group)
        except MillstreamError as error:
            logger.warning("offsets that are too old were not removed: %s", error)

    async def _expire_group(self, group: Group) -> None:
        group_id = group.group_id
        if self.registry.find(group_id) is not group or not group.is_empty:
            return
        due = self._store.expiring(
            group_id,
            empty_since_ms=group.empty_since_ms,
            retention_ms=self._config.offsets_retention_ms,
        )
        if due:
            await self._store.put(due)
            logger.info("group %s: %d offsets are too old, and went", group_id, len(due))
        is_here = self.registry.find(group_id) is group and group.is_empty
        is_awaited = group.deadline is not None
        if is_here and not is_awaited and not self._store.knows(group_id):
            await self.registry.delete(group)
