"""The controller: one node of the cluster that elects leaders and assigns replicas.

Every node campaigns for the key `controller`, which is bound to the node's lease. The one that has
it looks at the whole state after each change, and proposes what `cluster.controller` decides. It
keeps no state of its own, so another one continues where it stopped. Each proposal compares the
controller's epoch: one that was replaced changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

from millstream.broker.topics.topic import TOPICS_PREFIX, Topic, decode_row
from millstream.broker.topics.topics import Topics
from millstream.clock import Clock
from millstream.cluster import controller
from millstream.cluster.control.cluster_state import (
    CONTROLLER_KEY,
    ClusterState,
    PartitionId,
    partition_key,
)
from millstream.cluster.control.membership import Membership
from millstream.cluster.control.proposer import Proposer
from millstream.cluster.control.removed_nodes import removed_key
from millstream.cluster.control.replication_factor import FACTOR_DEFAULT, factor_of, min_insync_of
from millstream.cluster.replication_state import NO_NODE, Proposal, ReplicationState
from millstream.errors import (
    InvalidReplication,
    LeaseExpired,
    MillstreamError,
    OutcomeUnknown,
    Unavailable,
)
from millstream.metadata.interface import (
    ABSENT,
    Compare,
    CompareCreated,
    LeasedMetadata,
)

logger = logging.getLogger(__name__)

REST_FACTOR = 4
"""A look at all partitions takes a fifth of the time at most."""

REST_SECONDS_MAX = 0.2
"""A node that dies meanwhile is noticed as much later, after some seconds."""

RETRY_SECONDS = 0.5
"""Time until the next look if the store could not be reached or a proposal was overtaken."""

PROPOSALS_AT_ONCE = 64
"""Transactions in flight: a store that syncs each one serves them together."""

BALANCE_SECONDS = 30.0
"""Interval of moving leaderships back to preferred replicas."""

BALANCE_MOVES_MAX = 10
"""Leaderships that are moved back at once: clients notice each one."""


class _Loads:
    """How many partitions each node has and should lead."""

    def __init__(self, states: Iterable[ReplicationState]) -> None:
        self.leaders: Counter[int] = Counter()
        self.replicas: Counter[int] = Counter()
        for state in states:
            self.leaders[state.target[0]] += 1
            self.replicas.update(state.target)


class ControllerLoop:
    """Campaigns for the office of the controller, and carries it out."""

    def __init__(
        self,
        metadata: LeasedMetadata,
        state: ClusterState,
        topics: Topics,
        membership: Membership,
        proposer: Proposer,
        *,
        clock: Clock,
        create_internal_topics: Callable[[], Coroutine[Any, Any, None]],
        replicas: int = FACTOR_DEFAULT,
    ) -> None:
        """`create_internal_topics` creates what every cluster has, unless it is there.

        `replicas` are those of a topic without a number, if there are as many nodes.
        """
        self._replicas = replicas
        self._metadata = metadata
        self._create_internal_topics = create_internal_topics
        self._creating: asyncio.Task[None] | None = None
        self._state = state
        self._topics = topics
        self._membership = membership
        self._proposer = proposer
        self._clock = clock
        self._epoch = 0
        """Create revision of the key while this node is the controller, else 0."""
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._next_balance = 0.0
        self._look_seconds = 0.0
        """How long it took to look at all partitions last."""
        self._stop_watching: Callable[[], None] = lambda: None
        self.elections = 0
        """Leaders elected by this node."""

    @property
    def is_controller(self) -> bool:
        return self._epoch != 0

    def start(self) -> None:
        """Campaign from now on."""
        state, wake = self._state, self._changed.set
        state.on_node.append(lambda *_: wake())
        state.on_partition.append(lambda *_: wake())
        state.on_controller.append(wake)
        self._stop_watching = self._topics.on_change(lambda _: wake())
        self._next_balance = self._clock.monotonic() + BALANCE_SECONDS
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop, and give up the office."""
        self._stop_watching()
        tasks = [task for task in (self._task, self._creating) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if epoch := self._epoch:
            self._epoch = 0
            try:
                await self._metadata.transact(
                    compares=[CompareCreated(CONTROLLER_KEY, epoch)], deletes=[CONTROLLER_KEY]
                )
            except MillstreamError as error:
                logger.warning("the office of the controller was not given up: %s", error)

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                is_done = await self._act()
            except (Unavailable, OutcomeUnknown, LeaseExpired) as error:
                logger.warning("controller: %s", error)
                is_done = False
            except Exception:  # A bug in one decision must not leave partitions without leaders.
                logger.exception("controller: a decision failed")
                is_done = False
            await asyncio.sleep(self._rest_seconds())
            timeout = BALANCE_SECONDS if is_done else RETRY_SECONDS
            # Not `wait_for`, which may swallow a cancellation at the moment of a change.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._changed.wait()

    def _rest_seconds(self) -> float:
        """Return how long to rest before the next look at all partitions.

        Each change of one partition asks for one. With many partitions, of which many change, the
        loop would do nothing else.
        """
        return min(self._look_seconds * REST_FACTOR, REST_SECONDS_MAX)

    async def _act(self) -> bool:
        """Do what there is to do; return False if something is left for the next time."""
        if not await self._campaign():
            return True
        await self._remove_orphans()
        await self._forget_removed_nodes()
        began = self._clock.monotonic()
        proposals = list(self._proposals())
        self._look_seconds = self._clock.monotonic() - began
        if not proposals:
            return True
        limit = asyncio.Semaphore(PROPOSALS_AT_ONCE)

        async def propose(partition: PartitionId, proposal: Proposal) -> None:
            async with limit:
                outcome = await self._proposer.propose(partition, proposal)
                logger.debug("controller: %s: %s", partition, outcome.value)

        await asyncio.gather(*(propose(*item) for item in proposals))
        return False

    async def _campaign(self) -> bool:
        """Return whether this node is the controller; become it if there is none."""
        lease = self._membership.lease
        if self._epoch and self._state.controller_id not in (NO_NODE, self._membership.node_id):
            self._epoch = 0
        if self._epoch or self._state.controller_id != NO_NODE or lease is None:
            if self._epoch and self._state.controller_id == NO_NODE:
                self._epoch = 0  # The lease has expired, and the key with it.
                return await self._campaign()
            return self._epoch != 0
        revision = await self._metadata.transact(
            compares=[CompareCreated(CONTROLLER_KEY, ABSENT)],
            puts={CONTROLLER_KEY: str(self._membership.node_id).encode()},
            lease=lease,
        )
        if revision is None:
            return False
        self._epoch = revision
        self._state.controller_id = self._membership.node_id
        # In a task: it waits for the leaders that this loop elects.
        self._creating = asyncio.get_running_loop().create_task(self._create_internal(revision))
        logger.info("node %d is the controller, epoch %d", self._membership.node_id, revision)
        return True

    async def _create_internal(self, epoch: int) -> None:
        """Create the internal topics, as long as this node is the controller: groups need them."""
        while self._epoch == epoch:
            try:
                await self._create_internal_topics()
            except MillstreamError as error:
                logger.warning("controller: internal topics were not created: %s", error)
            except Exception:
                logger.exception("controller: internal topics were not created")
            else:
                return
            await asyncio.sleep(RETRY_SECONDS)

    # Decisions.

    def _proposals(self) -> Iterator[tuple[PartitionId, Proposal]]:
        nodes = self._state.controller_nodes()
        epoch = self._epoch
        if not nodes:
            return
        yield from self._new_partitions(nodes)
        loads = _Loads(self._state.partitions.values())
        for topic in self._topics.all():
            counts = self._replicas_of(topic) if topic.is_internal else Counter()
            for index in range(topic.partition_count):
                key = PartitionId(topic.id, index)
                state = self._state.partitions.get(key)
                if state is None:
                    continue
                min_insync = min_insync_of(topic, len(state.target))
                election = controller.elect(
                    state, nodes, min_insync=min_insync, controller_epoch=epoch
                )
                if election is not None:
                    self.elections += 1
                    logger.info(
                        "controller: %s/%d: node %d leads in epoch %d",
                        topic.name,
                        index,
                        election.state.leader,
                        election.state.leader_epoch,
                    )
                    yield key, election
                    continue
                step = controller.next_step(state, nodes, min_insync=min_insync)
                if step is None and topic.is_internal:
                    step = self._grown(topic, state, nodes, loads)
                    if step is None and (step := controller.spread(state, nodes, counts)):
                        counts.subtract(state.target)
                        counts.update(step.target)
                if step is not None:
                    yield key, controller.propose(state, step, nodes, controller_epoch=epoch)
        yield from self._balance(nodes)

    def _new_partitions(self, nodes: controller.Nodes) -> Iterator[tuple[PartitionId, Proposal]]:
        # Internal partitions are counted apart: there are more of them than of most topics, and one
        # of them is far less work for its leader.
        targets: dict[bool, list[tuple[int, ...]]] = {
            is_internal: list(self._targets(is_internal=is_internal))
            for is_internal in (False, True)
        }
        for topic in self._topics.all():
            existing = targets[topic.is_internal]
            missing = [
                index
                for index in range(topic.partition_count)
                if PartitionId(topic.id, index) not in self._state.partitions
            ]
            if not missing:
                continue
            try:
                assigned = self._assign(topic, missing, nodes, existing)
            except InvalidReplication as error:  # A node has left since the topic was created.
                logger.warning("controller: %s: %s", topic.name, error)
                continue
            existing += assigned
            for index, replicas in zip(missing, assigned, strict=True):
                proposal = controller.new_partition(replicas, nodes, controller_epoch=self._epoch)
                if proposal is not None:
                    yield PartitionId(topic.id, index), proposal

    def _targets(self, *, is_internal: bool) -> Iterator[tuple[int, ...]]:
        """Yield the replicas that the partitions of internal or of other topics are to have."""
        for topic in self._topics.all():
            if topic.is_internal == is_internal:
                for index in range(topic.partition_count):
                    state = self._state.partitions.get(PartitionId(topic.id, index))
                    if state is not None:
                        yield state.target

    def _assign(
        self,
        topic: Topic,
        missing: list[int],
        nodes: controller.Nodes,
        existing: list[tuple[int, ...]],
    ) -> list[tuple[int, ...]]:
        chosen = dict(enumerate(topic.row.assignments or ()))
        free = sum(1 for node in nodes.values() if not node.is_stopping)
        drawn = iter(
            controller.assign_replicas(
                nodes,
                partitions=sum(1 for index in missing if not chosen.get(index)),
                factor=max(1, min(factor_of(topic.row, free, self._replicas), free)),
                existing=existing,
            )
        )
        return [chosen.get(index) or next(drawn) for index in missing]

    def _replicas_of(self, topic: Topic) -> Counter[int]:
        """Return how many replicas of a topic each node has or is to have."""
        counts: Counter[int] = Counter()
        for index in range(topic.partition_count):
            state = self._state.partitions.get(PartitionId(topic.id, index))
            if state is not None:
                counts.update(state.target)
        return counts

    def _grown(
        self, topic: Topic, state: ReplicationState, nodes: controller.Nodes, loads: _Loads
    ) -> ReplicationState | None:
        """Return the state that adds replicas to an internal partition that has too few.

        Internal topics are created by the first node of a cluster, before the others are there. The
        leaderships are spread at the same time. Nodes that come one after the other are added while
        the first are still copying: with two replicas, one that stops would stop the partition.
        """
        missing = factor_of(topic.row, len(nodes), self._replicas) - len(state.target)
        free = [node for node in nodes.values() if not node.is_stopping]
        added = [node.id for node in free if node.id not in state.target]
        if missing <= 0 or not added or state.removing:
            return None
        added.sort(key=lambda node: (loads.replicas[node], node))
        target = [*state.target, *added[:missing]]
        target.sort(key=lambda node: (loads.leaders[node], node))
        loads.leaders[target[0]] += 1
        loads.leaders[state.target[0]] -= 1
        loads.replicas.update(added[:missing])
        return controller.reassign(state, target, nodes)

    def _balance(self, nodes: controller.Nodes) -> Iterator[tuple[PartitionId, Proposal]]:
        """Move some leaderships back to preferred replicas, from time to time."""
        now = self._clock.monotonic()
        if now < self._next_balance:
            return
        self._next_balance = now + BALANCE_SECONDS
        partitions = self._state.partitions
        for key, successor in controller.preferred_moves(
            partitions, nodes, moves_max=BALANCE_MOVES_MAX
        ):
            state = partitions[key]
            yield key, controller.hand_over(state, successor, nodes, controller_epoch=self._epoch)

    async def _forget_removed_nodes(self) -> None:
        """Forget the removal of nodes that are gone: their ids may be used again."""
        state = self._state
        for node_id in state.removed - state.nodes.keys():
            if not any(node_id in known.replicas for known in state.partitions.values()):
                await self._metadata.transact(
                    compares=[CompareCreated(CONTROLLER_KEY, self._epoch)],
                    deletes=[removed_key(node_id)],
                )

    async def _remove_orphans(self) -> None:
        """Remove the states of partitions whose topics were deleted."""
        known = {topic.id for topic in self._topics.all()}
        orphans = [key for key in self._state.partitions if key.topic_id not in known]
        if not orphans:
            return
        # A topic may have been created just now, and its notification be on the way.
        rows = await self._metadata.list(TOPICS_PREFIX)
        stored = {decode_row(row.key, row.value)[1].id for row in rows}
        for key in orphans:
            state = self._state.partitions.get(key)
            if key.topic_id not in stored and state is not None:
                name = partition_key(key)
                await self._metadata.transact(
                    compares=[
                        Compare(name, state.revision),
                        CompareCreated(CONTROLLER_KEY, self._epoch),
                    ],
                    deletes=[name],
                )
