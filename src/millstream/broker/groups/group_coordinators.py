"""All groups that this node coordinates, and the way to those of other nodes.

A request about one group goes to `of(group_id)`, the coordinator of its internal partition. What
concerns many groups is combined here.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import islice
from typing import Protocol

from millstream.broker.groups.coordinator import CoordinatorTopics, GroupCoordinator, check_metadata
from millstream.broker.groups.group import Group
from millstream.broker.groups.offsets.committed_offsets import CommittedOffset
from millstream.broker.groups.values import GroupListing, OffsetAndMetadata
from millstream.broker.state.coordinators import CoordinatorContext, Coordinators
from millstream.broker.state.internal_partitions import GROUPS
from millstream.broker.state.routing import index_of_group
from millstream.broker.state.state_log import StateLog
from millstream.config.schema import BrokerConfig
from millstream.errors import NotCoordinator
from millstream.records.topic_partition import TopicPartition


class RemoteOffsets(Protocol):
    """The offsets of groups that other nodes coordinate. `cluster` implements it."""

    async def finish_transaction(
        self, producer_id: int, producer_epoch: int, group_ids: Collection[str], *, is_commit: bool
    ) -> None:
        """Let the coordinators of these groups commit or drop what a transaction staged.

        Returns when that is durable for all of them. Raises if it is not known for one; the caller
        repeats it then, for all. `group_ids` may belong to several coordinators.
        """
        ...


class GroupCoordinators:
    """The group coordinators of a node. Owned by one event loop."""

    def __init__(
        self,
        context: CoordinatorContext,
        topics: CoordinatorTopics,
        *,
        config: BrokerConfig,
        config_of: Callable[[str], BrokerConfig],
        remote: RemoteOffsets | None = None,
    ) -> None:
        self._topics = topics
        self._config = config
        self._config_of = config_of
        self._clock = context.clock
        self._timers = context.timers
        self._remote = remote
        self.coordinators = Coordinators(GROUPS, context, self._make, index_of=index_of_group)
        self.of = self.coordinators.of
        """Returns the coordinator of a group; raises if that is not this node."""

    async def open(self) -> None:
        """Load the groups that this node coordinates, now and after each election."""
        await self.coordinators.open()

    async def close(self) -> None:
        """Fail all waiting requests. The next start loads the stored state."""
        self.stop_waiting()
        await self.coordinators.close()

    def _make(self, state: StateLog, epoch: int) -> GroupCoordinator:  # noqa: ARG002
        return GroupCoordinator(
            state,
            self._topics,
            config=self._config,
            config_of=self._config_of,
            clock=self._clock,
            timers=self._timers,
        )

    def reconfigure(self, group_id: str) -> None:
        """Apply the changed config of a group, if this node coordinates it."""
        for coordinator in self.coordinators.ready():
            coordinator.reconfigure(group_id)

    def stop_waiting(self) -> None:
        """Fail requests that wait for other members: the node is stopping."""
        for coordinator in self.coordinators.ready():
            coordinator.registry.close()

    # All groups.

    def __iter__(self) -> Iterator[Group]:
        """Go over the groups that are loaded, for metrics."""
        for coordinator in self.coordinators.ready():
            yield from coordinator.registry

    def __len__(self) -> int:
        return sum(len(coordinator.registry) for coordinator in self.coordinators.ready())

    def find(self, group_id: str) -> Group | None:
        """Return a group that this node coordinates, or `None` if it does not exist."""
        return self.of(group_id).registry.find(group_id)

    def listed(self) -> list[GroupListing]:
        """List the groups of this node; raises `CoordinatorLoading` if some are not loaded."""
        return [
            listing
            for coordinator in self.coordinators.loaded()
            for listing in coordinator.listed()
        ]

    def page(self, after: str | None, count_max: int) -> list[Group]:
        """Return up to `count_max` groups whose ids come after `after`, sorted by id.

        Raises `CoordinatorLoading` if some are not loaded.
        """
        pages = [
            coordinator.registry.page(after, count_max)
            for coordinator in self.coordinators.loaded()
        ]
        if len(pages) == 1:
            return pages[0]
        return list(islice(heapq.merge(*pages, key=lambda group: group.group_id), count_max))

    # Offsets.

    def committed(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return all offsets committed by a group."""
        return self.of(group_id).offsets.of_group(group_id)

    def committed_offsets(self) -> Iterator[tuple[str, Mapping[TopicPartition, CommittedOffset]]]:
        """Go over the offsets of all groups that are loaded, for metrics."""
        for coordinator in self.coordinators.ready():
            for group in coordinator.registry:
                yield group.group_id, coordinator.offsets.of_group(group.group_id)

    def check_offset(self, offset: OffsetAndMetadata) -> None:
        """Raise `OffsetMetadataTooLarge` if the metadata of an offset is too large."""
        check_metadata(offset, self._config)

    async def finish_transaction(
        self, producer_id: int, producer_epoch: int, group_ids: Collection[str], *, is_commit: bool
    ) -> None:
        """Commit or drop what a producer's transaction staged, in groups of any node.

        Durable when this returns. Idempotent, so the caller may repeat it until it succeeds.
        """
        if self.coordinators.count == 1 and self._remote is None:
            coordinator = self.of(next(iter(group_ids), ""))
            await coordinator.finish_transaction(
                producer_id, producer_epoch, group_ids, is_commit=is_commit
            )
            return
        here: dict[GroupCoordinator, list[str]] = {}
        elsewhere: list[str] = []
        for group_id in group_ids:
            if self.coordinators.is_here(group_id):
                here.setdefault(self.of(group_id), []).append(group_id)
            else:
                elsewhere.append(group_id)
        work = [
            coordinator.finish_transaction(
                producer_id, producer_epoch, group_ids, is_commit=is_commit
            )
            for coordinator, group_ids in here.items()
        ]
        if elsewhere:
            if self._remote is None:
                raise NotCoordinator(f"this node does not coordinate group {elsewhere[0]!r}")
            work.append(
                self._remote.finish_transaction(
                    producer_id, producer_epoch, elsewhere, is_commit=is_commit
                )
            )
        for outcome in await asyncio.gather(*work, return_exceptions=True):
            if outcome is not None:
                raise outcome
