"""The consumer groups (KIP-848) among the groups of this node."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from millstream.broker.groups.consumer.consumer_group import ConsumerGroup
from millstream.broker.groups.consumer.heartbeat_validation import check_heartbeat
from millstream.broker.groups.consumer.member import (
    JOIN_EPOCH,
    ConsumerHeartbeat,
    ConsumerHeartbeatResult,
    ConsumerMember,
)
from millstream.broker.groups.consumer.partition_set import PartitionSet
from millstream.broker.groups.consumer.topic_catalog import TopicCatalog, WatchedTopics
from millstream.broker.groups.group import TicketAnswer, check_group_id
from millstream.broker.groups.registry import GroupRegistry
from millstream.broker.groups.values import LeaveResult, LeavingMember
from millstream.clock import Clock
from millstream.config.schema import BrokerConfig
from millstream.errors import UnknownGroup, UnknownMember


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescription:
    group_id: str
    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[tuple[ConsumerMember, PartitionSet], ...]
    """The members in the order in which they joined, each with its target."""


class ConsumerGroups:
    """Passes requests to the consumer groups of a registry."""

    def __init__(
        self,
        registry: GroupRegistry,
        topics: WatchedTopics,
        *,
        config_of: Callable[[str], BrokerConfig],
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._config_of = config_of
        self._clock = clock
        self._catalog = TopicCatalog(topics)

    def close(self) -> None:
        """Stop watching topics."""
        self._catalog.close()

    async def heartbeat(
        self, group_id: str, beat: ConsumerHeartbeat, *, may_lack_id: bool = False
    ) -> ConsumerHeartbeatResult:
        """Pass a heartbeat to its group. The answer is durable.

        `may_lack_id` is for clients that join without an id of their own, and get one.
        """
        check_group_id(group_id)
        if may_lack_id and not beat.member_id and beat.member_epoch == JOIN_EPOCH:
            beat = replace(beat, member_id=str(uuid.uuid4()))
        check_heartbeat(beat)
        self._registry.check_open()
        group = self._group_of(group_id, beat)
        now = self._clock.monotonic()
        answer: ConsumerHeartbeatResult = await self._registry.run_step(
            group,
            lambda ticket: [
                TicketAnswer(ticket, group.heartbeat(beat, self._catalog.current, now))
            ],
        )
        return answer

    async def remove(self, group_id: str, leavers: Sequence[LeavingMember]) -> list[LeaveResult]:
        """Remove members on behalf of an operator. Durable when this returns."""
        group = self._existing(group_id)
        results: list[LeaveResult] = await self._registry.run_step(
            group, lambda ticket: [TicketAnswer(ticket, group.remove(leavers))]
        )
        return results

    def _group_of(self, group_id: str, beat: ConsumerHeartbeat) -> ConsumerGroup:
        existing = self._registry.find(group_id)
        if isinstance(existing, ConsumerGroup):
            return existing
        if beat.member_epoch != JOIN_EPOCH:
            raise UnknownMember(f"consumer group {group_id!r} does not exist")
        if existing is not None and not existing.is_empty:
            raise UnknownGroup(
                f"group {group_id!r} has members of the {existing.kind.value} protocol: a group"
                " cannot change its protocol while it has members"
            )
        group = ConsumerGroup(group_id, self._config_of(group_id))
        self._registry.admit(group)
        return group

    def describe(self, group_id: str) -> ConsumerGroupDescription:
        """Describe a consumer group; raises `UnknownGroup`."""
        self._registry.check_led()
        group = self._existing(group_id)
        members = sorted(group.members.values(), key=lambda member: member.joined_epoch)
        return ConsumerGroupDescription(
            group_id=group_id,
            state=group.state,
            epoch=group.epoch,
            target_epoch=group.target_epoch,
            assignor=group.assignor,
            members=tuple((member, group.targets[member.member_id]) for member in members),
        )

    def _existing(self, group_id: str) -> ConsumerGroup:
        group = self._registry.find(group_id)
        if not isinstance(group, ConsumerGroup):
            raise UnknownGroup(f"consumer group {group_id!r} does not exist")
        return group
