"""Several group coordinators on one node: elected, loaded, deposed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any

import pytest

from millstream.broker.groups.group_coordinators import GroupCoordinators
from millstream.broker.groups.values import OffsetAndMetadata, OffsetCommitter
from millstream.broker.state.coordinators import LOAD_RETRY_SECONDS
from millstream.broker.state.internal_partitions import InternalPartition
from millstream.broker.state.routing import index_of_group
from millstream.errors import (
    CoordinatorLoading,
    CorruptData,
    InvalidTransactionState,
    NotCoordinator,
    NotCoordinatorAnymore,
    Unavailable,
    UnknownGroup,
)
from millstream.records.topic_partition import TopicPartition
from tests.broker.groups.classic.group_bench import join_of
from tests.broker.groups.group_node import CONFIG, FakeTopics
from tests.broker.state.internal_nodes import ElectedPartitions, turns
from tests.in_loop import in_loop

WHERE = TopicPartition("t", 0)
COUNT = 4


class RemoteOffsetsFake:
    def __init__(self) -> None:
        self.finished: list[tuple[int, tuple[str, ...], bool]] = []

    async def finish_transaction(
        self, producer_id: int, producer_epoch: int, group_ids: Collection[str], *, is_commit: bool
    ) -> None:
        assert producer_epoch == 0
        self.finished.append((producer_id, tuple(group_ids), is_commit))


class GroupsNode:
    def __init__(self) -> None:
        self.partitions = ElectedPartitions(count=COUNT)
        self.remote = RemoteOffsetsFake()
        self.groups = GroupCoordinators(
            self.partitions.context(),
            FakeTopics("t"),
            config=CONFIG,
            config_of=lambda _: CONFIG,
            remote=self.remote,
        )

    async def commit(self, group_id: str, offset: int) -> None:
        offsets = {WHERE: OffsetAndMetadata(offset=offset)}
        await self.groups.of(group_id).commit(group_id, OffsetCommitter(), offsets)

    def fetch(self, group_id: str) -> Any:
        found = self.groups.of(group_id).fetch(group_id, [WHERE])[WHERE]
        return found.offset if isinstance(found, OffsetAndMetadata) else found

    def stage(self, group_id: str, offset: int, verify: Any = None) -> Any:
        return self.groups.of(group_id).stage_offsets(
            group_id,
            member_id="",
            generation=-1,
            instance_id=None,
            producer_id=9,
            producer_epoch=0,
            offsets={WHERE: OffsetAndMetadata(offset=offset)},
            verify=verify,
        )


@asynccontextmanager
async def a_node() -> AsyncIterator[GroupsNode]:
    node = GroupsNode()
    await node.groups.open()
    try:
        yield node
    finally:
        await node.groups.close()
        await node.partitions.store.close()


def partition_of(group_id: str) -> InternalPartition:
    return InternalPartition("groups", index_of_group(group_id, COUNT))


GROUPS = [f"g{number}" for number in range(20)]
A = GROUPS[0]
B = next(group for group in GROUPS if partition_of(group) != partition_of(A))


@in_loop
async def test_a_group_that_another_node_coordinates_is_refused_with_its_node() -> None:
    async with a_node() as node:
        with pytest.raises(NotCoordinator) as refused:
            node.fetch("g")
        assert refused.value.coordinator == -1
        node.partitions.depose(partition_of("g"), leader=3)
        with pytest.raises(NotCoordinator, match="node 3 leads it") as refused:
            node.fetch("g")
        assert refused.value.coordinator == 3


@in_loop
async def test_requests_are_refused_until_the_state_is_loaded_and_then_answered() -> None:
    async with a_node() as node:
        await node.partitions.take(partition_of(A))
        await node.commit(A, 7)
        await node.partitions.lose(partition_of(A))
        node.partitions.opening = asyncio.Event()
        await node.partitions.take(partition_of(A), epoch=3)
        with pytest.raises(CoordinatorLoading):
            node.fetch(A)
        with pytest.raises(CoordinatorLoading):
            node.groups.find(A)
        with pytest.raises(CoordinatorLoading):
            node.groups.listed()
        with pytest.raises(CoordinatorLoading):
            node.groups.page(None, 10)
        with pytest.raises(CoordinatorLoading):
            await node.commit(A, 8)
        assert node.groups.coordinators.loading_count == 1
        node.partitions.opening.set()
        await turns()
        assert node.fetch(A) == 7
        assert [listing.group_id for listing in node.groups.listed()] == [A]


@in_loop
async def test_nothing_is_answered_between_the_slices_of_a_large_state() -> None:
    async with a_node() as node:
        partition = partition_of(A)
        await node.partitions.take(partition)
        coordinator = node.groups.of(A)
        many = {TopicPartition("t", n): OffsetAndMetadata(offset=n) for n in range(2_000)}
        await coordinator.commit(A, OffsetCommitter(), many)
        await node.partitions.lose(partition)
        node.partitions.elect(partition, epoch=3)
        refused = 0
        while True:
            await asyncio.sleep(0)
            try:
                found = node.groups.of(A).fetch(A)
            except CoordinatorLoading:
                refused += 1
            else:
                break
        assert refused > 2_000 / 256
        assert len(found) == 2_000


@in_loop
async def test_two_coordinators_have_their_own_groups_side_by_side() -> None:
    async with a_node() as node:
        node.partitions.elect(partition_of(A))
        await node.partitions.take(partition_of(B))
        await asyncio.gather(node.commit(A, 1), node.commit(B, 2))
        assert (node.fetch(A), node.fetch(B)) == (1, 2)
        assert node.groups.of(A) is not node.groups.of(B)
        assert [group.group_id for group in node.groups.of(A).registry] == [A]
        assert [group.group_id for group in node.groups.page(None, 10)] == sorted([A, B])
        assert [group.group_id for group in node.groups.page(None, 1)] == sorted([A, B])[:1]
        assert len(node.groups) == 2
        node.partitions.depose(partition_of(A))
        assert node.fetch(B) == 2
        with pytest.raises(NotCoordinator):
            node.fetch(A)


@in_loop
async def test_groups_of_all_partitions_are_listed_in_order() -> None:
    async with a_node() as node:
        node.partitions.elect_all("groups")
        await turns()
        for group_id in reversed(GROUPS):
            await node.commit(group_id, 1)
        pages = [group.group_id for group in node.groups.page("g11", 4)]
        assert pages == sorted(name for name in GROUPS if name > "g11")[:4]
        assert {listing.group_id for listing in node.groups.listed()} == set(GROUPS)
        assert len(list(node.groups.committed_offsets())) == len(GROUPS)


@in_loop
async def test_members_that_wait_are_told_when_the_coordinator_is_deposed() -> None:
    async with a_node() as node:
        await node.partitions.take(partition_of(A))
        joining = asyncio.create_task(node.groups.of(A).join(A, join_of(needs_known_id=False)))
        await turns()
        assert not joining.done()
        node.partitions.depose(partition_of(A))
        with pytest.raises(NotCoordinatorAnymore):
            await joining


@pytest.mark.parametrize("does_it_reach_the_replicas", [False, True])
@in_loop
async def test_a_commit_in_flight_is_no_success_when_the_coordinator_is_deposed(
    does_it_reach_the_replicas: bool,
) -> None:
    async with a_node() as node:
        partition = partition_of(A)
        await node.partitions.take(partition)
        log = node.partitions.logs[partition]
        log.is_held = True
        committing = asyncio.create_task(node.commit(A, 7))
        await turns()
        if does_it_reach_the_replicas:
            del node.partitions.logs[partition]
        node.partitions.depose(partition)
        log.let_go()
        with pytest.raises(NotCoordinatorAnymore):
            await committing


@in_loop
async def test_a_deposed_coordinator_answers_nothing_and_writes_nothing() -> None:
    async with a_node() as node:
        partition = partition_of(A)
        await node.partitions.take(partition)
        await node.commit(A, 7)
        late = node.groups.of(A)
        log = node.partitions.logs.pop(partition)
        node.partitions.depose(partition)
        end = log.end_offset
        offsets = {WHERE: OffsetAndMetadata(offset=8)}
        # The log still accepts appends: it is the coordinator that must not make them.
        for attempt in (
            lambda: late.commit(A, OffsetCommitter(), offsets),
            lambda: late.join(A, join_of()),
            lambda: late.delete(A),
            lambda: late.leave(A, []),
            lambda: late.reset(A, offsets),
        ):
            with pytest.raises((NotCoordinator, NotCoordinatorAnymore)):
                await attempt()
        with pytest.raises(NotCoordinator):
            late.fetch(A, [WHERE])
        with pytest.raises(NotCoordinator):
            late.describe(A)
        await turns()
        assert log.end_offset == end


@in_loop
async def test_a_coordinator_elected_again_knows_only_what_is_in_the_log() -> None:
    async with a_node() as node:
        partition = partition_of(A)
        await node.partitions.take(partition)
        await node.commit(A, 7)
        first = node.groups.of(A)
        node.partitions.elect(partition, epoch=2)  # A later epoch of the same node.
        await turns()
        assert node.groups.of(A) is not first
        assert node.fetch(A) == 7
        await node.commit(A, 8)
        with pytest.raises(NotCoordinator):
            first.fetch(A, [WHERE])
        assert node.fetch(A) == 8


@in_loop
async def test_a_log_that_has_another_leader_refuses_before_the_node_is_told() -> None:
    async with a_node() as node:
        partition = partition_of(A)
        await node.partitions.take(partition)
        node.partitions.logs[partition].is_led = False
        with pytest.raises(NotCoordinator) as refused:
            await node.commit(A, 7)
        assert refused.value.coordinator == 2
        node.partitions.logs[partition].is_led = True
        with pytest.raises(NotCoordinator):  # Others may have written in between.
            await node.commit(A, 8)


@in_loop
async def test_without_a_lease_nothing_is_answered_from_memory() -> None:
    async with a_node() as node:
        node.partitions.elect_all("groups")
        await turns()
        await node.commit(A, 7)
        node.partitions.has_lease = False
        with pytest.raises(NotCoordinator, match="lease"):
            node.fetch(A)
        with pytest.raises(NotCoordinator, match="lease"):
            node.groups.listed()


@in_loop
async def test_a_deposition_during_the_loading_leaves_nothing_behind() -> None:
    async with a_node() as node:
        partition = partition_of(A)
        node.partitions.opening = asyncio.Event()
        await node.partitions.take(partition)
        node.partitions.depose(partition)
        node.partitions.opening.set()
        await turns()
        with pytest.raises(NotCoordinator):
            node.fetch(A)
        await node.partitions.take(partition, epoch=4)
        assert node.fetch(A) is None


@in_loop
async def test_a_state_that_cannot_be_read_is_told_and_read_again() -> None:
    async with a_node() as node:
        node.partitions.error = CorruptData("the log is damaged")
        await node.partitions.take(partition_of(A))
        with pytest.raises(CorruptData, match="damaged"):
            node.fetch(A)
        assert node.groups.coordinators.failures() == [f"{partition_of(A)}: the log is damaged"]
        node.partitions.error = None
        node.partitions.timers.advance(LOAD_RETRY_SECONDS)
        await turns()
        assert node.fetch(A) is None
        assert node.groups.coordinators.failures() == []


@in_loop
async def test_a_state_that_a_bug_kept_from_being_loaded_is_loaded_again() -> None:
    async with a_node() as node:
        node.partitions.error = KeyError("a bug")
        node.partitions.elect(partition_of(A))
        await turns()
        with pytest.raises(Unavailable, match="internal error"):
            node.fetch(A)
        assert node.groups.coordinators.failures()
        node.partitions.error = None
        node.partitions.timers.advance(LOAD_RETRY_SECONDS)
        await turns()
        assert node.fetch(A) is None
        assert node.groups.coordinators.failures() == []


@in_loop
async def test_offsets_of_a_transaction_are_committed_by_the_coordinators_of_their_groups() -> None:
    async with a_node() as node:
        await node.partitions.take(partition_of(A))
        await node.stage(A, 5)
        await node.groups.finish_transaction(9, 0, [A, B], is_commit=True)
        assert node.fetch(A) == 5
        assert node.remote.finished == [(9, (B,), True)]


@in_loop
async def test_offsets_of_a_transaction_that_ends_while_it_is_verified_are_not_staged() -> None:
    async with a_node() as node:
        await node.partitions.take(partition_of(A))
        answered = asyncio.Event()
        staging = asyncio.create_task(node.stage(A, 5, verify=answered.wait))
        await turns()
        await node.groups.finish_transaction(9, 0, [A], is_commit=True)
        answered.set()
        with pytest.raises(InvalidTransactionState, match="ended while it was verified"):
            await staging
        assert not node.groups.of(A).offsets.is_pending(A, WHERE)
        with pytest.raises(UnknownGroup):
            await node.groups.of(A).delete(A)
        await node.stage(A, 6, verify=answered.wait)
        assert node.groups.of(A).offsets.is_pending(A, WHERE)
