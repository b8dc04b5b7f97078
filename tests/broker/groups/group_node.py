"""The groups of a node over a simulated disk, with a manual clock."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from millstream.broker.groups.coordinator import GroupCoordinator
from millstream.broker.groups.values import GroupJoinResult, GroupSyncRequest
from millstream.broker.state.state_log import StateLog
from millstream.broker.topics.topic import TopicChange, TopicEvent
from millstream.config.schema import BrokerConfig
from millstream.storage.store import Store
from millstream.testing import ManualClock, ManualTimers, SimulatedFilesystem
from millstream.testing.clocks.seeded_background import SeededBackground
from millstream.testing.disk.seeded_syncer import SeededSyncer
from tests.broker.groups.classic.group_bench import join_of

CONFIG = BrokerConfig(
    group_members_max=10, group_session_timeout_ms_min=1000, offset_metadata_bytes_max=10
)


@dataclass(frozen=True)
class FakeTopic:
    name: str
    id: uuid.UUID
    partition_count: int = 2


class FakeTopics:
    """Topics by name. One that is created again has another id."""

    def __init__(self, *names: str) -> None:
        self._topics: dict[str, FakeTopic] = {}
        self._callbacks: list[Callable[[Any], None]] = []
        for name in names:
            self.create(name)

    def create(self, name: str) -> FakeTopic:
        self._topics[name] = FakeTopic(name, uuid.uuid4())
        return self._topics[name]

    def delete(self, name: str) -> None:
        topic: Any = self._topics.pop(name)
        for callback in list(self._callbacks):
            callback(TopicChange(topic, TopicEvent.DELETED))

    def find(self, name: str) -> Any:
        return self._topics.get(name)

    async def is_deleted(self, name: str, topic_id: uuid.UUID | None) -> bool:
        topic = self._topics.get(name)
        return topic is None or topic_id not in (None, topic.id)

    def all(self) -> list[Any]:
        return list(self._topics.values())

    def on_change(self, callback: Callable[[Any], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)


class Node:
    """The groups of one node. `restart` starts a new node on the same disk."""

    def __init__(self, seed: int = 0, config: BrokerConfig = CONFIG) -> None:
        self.filesystem = SimulatedFilesystem()
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.topics = FakeTopics("t", "u")
        self.groups: GroupCoordinator
        self._config = config
        self._seed = seed

    async def start(self) -> None:
        self.store = Store(
            "/state",
            filesystem=self.filesystem,
            clock=self.clock,
            background=SeededBackground(self._seed),
            syncer=SeededSyncer(self._seed),
        )
        self.store.open()
        self.state = await StateLog.open(self.store, "groups", clock=self.clock)
        self.groups = GroupCoordinator(
            self.state,
            self.topics,
            config=self._config,
            clock=self.clock,
            timers=self.timers,
        )
        await self.groups.start()
        await turns()

    async def stop(self) -> None:
        await self.groups.close()
        await self.state.close()
        await self.store.close()

    async def restart(self) -> None:
        """Stop cleanly, and start again."""
        await self.stop()
        await self.start()

    async def crash(self, seed: int | None = None) -> None:
        """Cut the power, and start again."""
        await self.groups.close()
        self.filesystem = self.filesystem.crash(seed)
        await turns()
        await self.start()

    async def advance(self, seconds: float) -> None:
        """Advance the clock in small steps, and run the loop in between."""
        steps = max(1, min(100, round(seconds * 10)))
        for _ in range(steps):
            self.timers.advance(seconds / steps)
            await turns()

    async def stable(
        self, group_id: str = "g", count: int = 1, **changes: Any
    ) -> list[GroupJoinResult]:
        """Let members join and get assignments; the first is the leader."""
        joins = [
            asyncio.create_task(
                self.groups.join(group_id, join_of(needs_known_id=False, **changes))
            )
            for _ in range(count)
        ]
        await self.advance(0.5)
        joined = [join.result() for join in joins]
        await asyncio.gather(
            *(
                self.groups.sync(
                    group_id,
                    GroupSyncRequest(
                        member_id=member.member_id,
                        generation=member.generation,
                        assignments={
                            each.member_id: each.member_id.encode() for each in member.members
                        },
                    ),
                )
                for member in joined
            )
        )
        return joined


async def turns(count: int = 40) -> None:
    """Run the event loop until nothing that is ready is left."""
    for _ in range(count):
        await asyncio.sleep(0)
