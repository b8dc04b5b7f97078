"""The group coordinator: requests, storage before answers, restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from millstream.broker.groups.consumer.consumer_group import ConsumerGroup
from millstream.broker.groups.consumer.member import ConsumerHeartbeat
from millstream.broker.groups.coordinator import EXPIRY_SECONDS
from millstream.broker.groups.group import GROUP_ID_LENGTH_MAX, GroupType
from millstream.broker.groups.offsets import offset_store as offsets_store
from millstream.broker.groups.values import (
    GroupSyncRequest,
    LeavingMember,
    OffsetAndMetadata,
    OffsetCommitter,
)
from millstream.config.schema import BrokerConfig
from millstream.errors import (
    DiskFull,
    GroupNotEmpty,
    GroupSubscribed,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidGroup,
    InvalidProducerEpoch,
    InvalidSessionTimeout,
    MemberIdNeeded,
    OffsetMetadataTooLarge,
    RebalanceInProgress,
    Stopping,
    UnknownFormat,
    UnknownGroup,
    UnknownMember,
    UnstableOffset,
)
from millstream.records.topic_partition import TopicPartition
from tests.broker.groups.classic.group_bench import SESSION_MS, join_of

from .group_node import CONFIG, Node, turns

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
NOBODY = OffsetCommitter()
SESSION = SESSION_MS / 1000

Work = Callable[[Node], Coroutine[Any, Any, None]]


def on_a_node(work: Work) -> Callable[[], None]:
    """Make a test of a coroutine that takes a running node."""

    def test() -> None:
        async def live() -> None:
            node = Node()
            await node.start()
            await work(node)
            await node.stop()

        asyncio.run(live())

    test.__name__ = work.__name__
    return test


def offsets(**found: int) -> dict[TopicPartition, OffsetAndMetadata]:
    """`t0=5` is offset 5 of the first partition of `t`."""
    return {
        TopicPartition(name[0], int(name[1:])): OffsetAndMetadata(offset=n)
        for name, n in found.items()
    }


def fetched(node: Node, *partitions: TopicPartition, group_id: str = "g") -> list[int | None]:
    found = node.groups.fetch(group_id, partitions)
    return [offset and offset.offset for offset in found.values()]


async def stage(node: Node, producer_id: int = 7, epoch: int = 0, **found: int) -> None:
    await node.groups.stage_offsets(
        "g",
        member_id="",
        generation=-1,
        instance_id=None,
        producer_id=producer_id,
        producer_epoch=epoch,
        offsets=offsets(**found),
    )


# Membership.


@on_a_node
async def test_members_gather_and_get_their_shares(node: Node) -> None:
    first, second = await node.stable(count=2)
    assert first.generation == second.generation == 1
    assert first.leader == second.leader == first.member_id
    shares = {m.member_id: m.assignment for m in node.groups.describe("g").members}
    assert shares == {m.member_id: m.member_id.encode() for m in (first, second)}


@on_a_node
async def test_ids_of_members_begin_with_who_they_are_and_cannot_be_guessed(node: Node) -> None:
    with pytest.raises(MemberIdNeeded) as needed:
        await node.groups.join("g", join_of(client_id="app"))
    assert needed.value.member_id.startswith("app-")
    assert len(needed.value.member_id) == len("app-") + 36
    (static,) = await node.stable("h", instance_id="one")
    assert static.member_id.startswith("one-")


@on_a_node
async def test_the_alarm_of_a_group_lets_silent_members_go(node: Node) -> None:
    (only,) = await node.stable()
    await node.advance(SESSION / 2)
    node.groups.heartbeat("g", only.member_id, None, 1)
    await node.advance(SESSION * 0.9)
    node.groups.heartbeat("g", only.member_id, None, 1)
    await node.advance(SESSION)
    with pytest.raises(UnknownMember):
        node.groups.heartbeat("g", only.member_id, None, 1)
    assert node.groups.describe("g").state == "Empty"


@on_a_node
async def test_a_group_has_one_alarm_at_a_time(node: Node) -> None:
    before = node.timers.pending
    members = await node.stable(count=5)
    for _ in range(20):
        for member in members:
            node.groups.heartbeat("g", member.member_id, None, 1)
        await node.advance(1)
    assert node.timers.pending == before + 1


@on_a_node
async def test_a_group_that_nobody_joined_in_the_end_is_forgotten(node: Node) -> None:
    with pytest.raises(MemberIdNeeded):
        await node.groups.join("g", join_of())
    assert [listed.group_id for listed in node.groups.listed()] == ["g"]
    before = node.timers.pending
    await node.advance(SESSION)
    assert node.groups.listed() == []
    assert node.timers.pending == before - 1
    assert node.state.entries == {}


@pytest.mark.parametrize("group_id", ["", "x" * (GROUP_ID_LENGTH_MAX + 1)])
def test_a_group_cannot_be_called_anything(group_id: str) -> None:
    @on_a_node
    async def check(node: Node) -> None:
        with pytest.raises(InvalidGroup, match="must have 1 to 1024 characters"):
            await node.groups.join(group_id, join_of())
        with pytest.raises(InvalidGroup):
            node.groups.heartbeat(group_id, "m", None, 1)

    check()


@on_a_node
async def test_old_consumers_without_a_group_commit_under_an_empty_id(node: Node) -> None:
    await node.groups.commit("", NOBODY, offsets(t0=5))
    assert fetched(node, T0, group_id="") == [5]
    await node.restart()
    assert fetched(node, T0, group_id="") == [5]
    await node.groups.delete("")


@pytest.mark.parametrize("timeout_ms", [0, 999, 1_800_001, -1])
def test_a_session_has_limits(timeout_ms: int) -> None:
    @on_a_node
    async def check(node: Node) -> None:
        with pytest.raises(InvalidSessionTimeout, match="must be between 1000 and 1800000 ms"):
            await node.groups.join("g", join_of(session_timeout_ms=timeout_ms))
        assert node.groups.listed() == []

    check()


@on_a_node
async def test_who_is_in_no_group_is_unknown(node: Node) -> None:
    with pytest.raises(UnknownMember):
        node.groups.heartbeat("g", "m", None, 1)
    with pytest.raises(UnknownMember):
        await node.groups.leave("g", [LeavingMember("m")])
    with pytest.raises(UnknownMember):
        await node.groups.sync("g", GroupSyncRequest(member_id="m", generation=1))
    with pytest.raises(UnknownMember):
        await node.groups.join("g", join_of("m"))
    assert node.groups.listed() == []


@on_a_node
async def test_a_client_that_goes_away_while_it_waits_harms_nobody(node: Node) -> None:
    waiting = asyncio.create_task(node.groups.join("g", join_of(needs_known_id=False)))
    await turns()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await node.advance(0.1)
    other = asyncio.create_task(node.groups.join("g", join_of(needs_known_id=False)))
    await node.advance(SESSION + 1)
    assert other.result().generation == 2
    assert len(other.result().members) == 1


@on_a_node
async def test_those_who_wait_are_told_when_the_node_stops(node: Node) -> None:
    waiting = asyncio.create_task(node.groups.join("g", join_of(needs_known_id=False)))
    await turns()
    await node.groups.close()
    with pytest.raises(Stopping):
        await waiting
    with pytest.raises(Stopping):
        await node.groups.join("g", join_of())
    with pytest.raises(Stopping):
        await node.groups.commit("g", NOBODY, offsets(t0=1))


# Storage.


@on_a_node
async def test_members_stay_in_their_generation_over_a_power_cut(node: Node) -> None:
    first, second = await node.stable(count=2)
    await node.crash()
    node.groups.heartbeat("g", first.member_id, None, 1)
    synced = await node.groups.sync("g", GroupSyncRequest(member_id=second.member_id, generation=1))
    assert synced.assignment == second.member_id.encode()
    await node.advance(SESSION / 2)
    node.groups.heartbeat("g", first.member_id, None, 1)
    await node.advance(SESSION / 2)
    with pytest.raises(RebalanceInProgress):
        node.groups.heartbeat("g", first.member_id, None, 1)


@on_a_node
async def test_nobody_is_told_of_a_generation_that_is_not_stored(node: Node) -> None:
    joining = asyncio.create_task(node.groups.join("g", join_of(needs_known_id=False)))
    await turns()
    node.timers.advance(0.1)
    assert node.groups.describe("g").state == "CompletingRebalance"
    assert not joining.done()
    assert node.state.entries == {}
    joined = await joining
    assert joined.generation == 1
    assert list(node.state.entries) == [b'["classic","g"]']


@on_a_node
async def test_a_share_that_cannot_be_stored_is_given_to_nobody(node: Node) -> None:
    first, second = await node.stable(count=2)
    again = [
        asyncio.create_task(
            node.groups.join("g", join_of(m.member_id, protocols={"range": b"other"}))
        )
        for m in (first, second)
    ]
    await asyncio.gather(*again)
    waiting = asyncio.create_task(
        node.groups.sync("g", GroupSyncRequest(member_id=second.member_id, generation=2))
    )
    await turns()
    node.filesystem.bytes_max = node.filesystem.bytes_used
    share = GroupSyncRequest(
        member_id=first.member_id, generation=2, assignments={first.member_id: b"x" * 4_000_000}
    )
    with pytest.raises(DiskFull):
        await node.groups.sync("g", share)
    with pytest.raises(DiskFull):
        await waiting
    with pytest.raises(RebalanceInProgress):
        node.groups.heartbeat("g", first.member_id, None, 2)
    node.filesystem.free(100_000_000)
    again = [
        asyncio.create_task(node.groups.join("g", join_of(m.member_id))) for m in (first, second)
    ]
    assert {joined.generation for joined in await asyncio.gather(*again)} == {3}


FILL = [(b'["offset","h","t",%d]' % n, b"x" * 100_000) for n in range(20)]
"""More than the log has reserved: on a full disk it fails, with all that is put beside it."""


@on_a_node
async def test_a_group_that_cannot_be_stored_when_it_becomes_empty_is_stored_later(
    node: Node,
) -> None:
    (only,) = await node.stable()
    node.filesystem.bytes_max = node.filesystem.bytes_used
    big = node.state.put(FILL)
    await node.groups.leave("g", [LeavingMember(only.member_id)])
    with pytest.raises(DiskFull):
        await big
    await turns()
    assert node.groups.describe("g").state == "Empty"
    assert only.member_id.encode() in node.state.entries[b'["classic","g"]']
    node.filesystem.free(100_000_000)
    with pytest.raises(MemberIdNeeded):
        await node.groups.join("g", join_of())
    assert only.member_id.encode() not in node.state.entries[b'["classic","g"]']
    await node.crash()
    (again,) = await node.stable()
    assert again.generation == 3


# Group types.


@on_a_node
async def test_a_classic_member_does_not_join_a_consumer_group_that_has_members(
    node: Node,
) -> None:
    class Busy(ConsumerGroup):
        is_empty = False  # type: ignore[assignment]

    node.groups.registry.admit(Busy("g", CONFIG))
    with pytest.raises(InconsistentProtocol, match="group 'g' is of type 'consumer'"):
        await node.groups.join("g", join_of())
    with pytest.raises(UnknownMember):
        node.groups.heartbeat("g", "m", None, 1)
    with pytest.raises(UnknownGroup):
        node.groups.describe("g")


@on_a_node
async def test_an_empty_group_gives_way_to_one_of_another_kind_and_its_offsets_stay(
    node: Node,
) -> None:
    (only,) = await node.stable()
    await node.groups.commit(
        "g", OffsetCommitter(member_id=only.member_id, generation=1), offsets(t0=5)
    )
    await node.groups.leave("g", [LeavingMember(only.member_id)])
    beat = ConsumerHeartbeat(
        member_id="m",
        member_epoch=0,
        rebalance_timeout_ms=1000,
        topic_names=frozenset({"t"}),
        owned={},
    )
    await node.groups.consumers.heartbeat("g", beat)
    assert b'["classic","g"]' not in node.state.entries, "one kind at a time, on the disk too"
    await node.crash()
    assert [listed.kind for listed in node.groups.listed()] == [GroupType.CONSUMER]
    assert fetched(node, T0) == [5]
    with pytest.raises(InconsistentProtocol):
        await node.groups.join("g", join_of())
    await node.groups.consumers.heartbeat("g", ConsumerHeartbeat(member_id="m", member_epoch=-1))
    (again,) = await node.stable()
    assert again.generation == 1
    assert not any(key.startswith(b'["consumer"') for key in node.state.entries)
    await node.crash()
    assert [listed.kind for listed in node.groups.listed()] == [GroupType.CLASSIC]
    assert fetched(node, T0) == [5]


def test_entries_of_a_later_release_are_refused_untouched() -> None:
    async def work() -> None:
        node = Node()
        await node.start()
        await node.state.put([(b'["share","g"]', b"{}")])
        await node.stop()
        with pytest.raises(UnknownFormat, match="share"):
            await node.start()

    asyncio.run(work())


# Describing and deleting.


@on_a_node
async def test_groups_are_listed_with_kind_state_and_type(node: Node) -> None:
    await node.stable("a")
    await node.groups.commit("b", NOBODY, offsets(t0=1))
    listed = {group.group_id: group[1:] for group in node.groups.listed()}
    assert listed == {
        "a": (GroupType.CLASSIC, "Stable", "consumer"),
        "b": (GroupType.CLASSIC, "Empty", ""),
    }


@on_a_node
async def test_a_group_without_members_is_deleted_with_its_offsets(node: Node) -> None:
    (only,) = await node.stable()
    await node.groups.commit(
        "g", OffsetCommitter(member_id=only.member_id, generation=1), offsets(t0=5)
    )
    await stage(node, t1=6)
    with pytest.raises(GroupNotEmpty):
        await node.groups.delete("g")
    await node.groups.leave("g", [LeavingMember(only.member_id)])
    await node.groups.delete("g")
    assert node.state.entries == {}
    assert node.groups.listed() == []
    assert fetched(node, T0) == [None]
    with pytest.raises(UnknownGroup):
        await node.groups.delete("g")
    await node.groups.finish_transaction(7, 0, ["g"], is_commit=True)
    assert fetched(node, T1) == [None]
    await node.crash()
    assert node.groups.listed() == []


@on_a_node
async def test_a_commit_in_flight_is_deleted_with_its_group(node: Node) -> None:
    await node.groups.commit("g", NOBODY, offsets(t0=5))
    in_flight = asyncio.create_task(node.groups.commit("g", NOBODY, offsets(t1=6)))
    await asyncio.sleep(0)
    await node.groups.delete("g")
    await in_flight
    assert fetched(node, T0, T1) == [None, None]
    await node.crash()
    assert node.groups.listed() == []


@on_a_node
async def test_a_deletion_that_fails_leaves_the_group(node: Node) -> None:
    await node.groups.commit("g", NOBODY, {T0: OffsetAndMetadata(offset=5)})
    node.filesystem.bytes_max = node.filesystem.bytes_used
    big = node.state.put(FILL)  # Its failure fails all puts of the same batch.
    with pytest.raises(DiskFull):
        await node.groups.delete("g")
    with pytest.raises(DiskFull):
        await big
    assert fetched(node, T0) == [5]
    assert [listed.group_id for listed in node.groups.listed()] == ["g"]
    node.filesystem.free(100_000_000)
    await node.groups.delete("g")


# Offsets.


@on_a_node
async def test_what_is_committed_is_fetched_also_after_a_power_cut(node: Node) -> None:
    noted = OffsetAndMetadata(offset=5, leader_epoch=3, metadata="a note")
    await node.groups.commit("g", NOBODY, {T0: noted, T1: OffsetAndMetadata(offset=6)})
    for _ in range(2):
        assert node.groups.fetch("g", [T0, T1, U0]) == {
            T0: noted,
            T1: OffsetAndMetadata(offset=6),
            U0: None,
        }
        assert set(node.groups.fetch("g")) == {T0, T1}
        await node.crash()


@on_a_node
async def test_a_commit_is_one_put(node: Node) -> None:
    many = {TopicPartition("t", n): OffsetAndMetadata(offset=n) for n in range(500)}
    await node.groups.commit("g", NOBODY, many)
    assert node.store.get("groups").counters.appends == 1


@on_a_node
async def test_a_commit_shows_when_it_is_durable_and_not_before(node: Node) -> None:
    await node.groups.commit("g", NOBODY, offsets(t0=5))
    in_flight = asyncio.create_task(node.groups.commit("g", NOBODY, offsets(t0=6)))
    await asyncio.sleep(0)
    assert fetched(node, T0) == [5]
    await in_flight
    assert fetched(node, T0) == [6]


@on_a_node
async def test_a_commit_whose_client_went_away_counts_all_the_same(node: Node) -> None:
    in_flight = asyncio.create_task(node.groups.commit("g", NOBODY, offsets(t0=6)))
    await asyncio.sleep(0)
    in_flight.cancel()
    await turns()
    assert fetched(node, T0) == [6]
    await node.crash()
    assert fetched(node, T0) == [6]


@on_a_node
async def test_a_commit_that_fails_changes_nothing_and_makes_no_group(node: Node) -> None:
    await node.groups.commit("g", NOBODY, offsets(t0=5))
    node.filesystem.bytes_max = node.filesystem.bytes_used
    large = {
        TopicPartition("t", n): OffsetAndMetadata(offset=9, metadata="x" * 1000)
        for n in range(4000)
    }
    for group_id in ("g", "h"):
        with pytest.raises(DiskFull):
            await node.groups.commit(group_id, NOBODY, large)
    assert fetched(node, T0) == [5]
    assert [listed.group_id for listed in node.groups.listed()] == ["g"]
    node.filesystem.free(100_000_000)
    await node.groups.commit("h", NOBODY, offsets(t0=7))
    await node.crash()
    assert fetched(node, T0) == [5]


@on_a_node
async def test_a_member_of_a_group_that_is_not_there_cannot_commit(node: Node) -> None:
    with pytest.raises(UnknownGroup):
        await node.groups.commit("g", OffsetCommitter(member_id="m", generation=1), offsets(t0=5))
    assert node.groups.listed() == []


@on_a_node
async def test_an_old_generation_never_commits(node: Node) -> None:
    (only,) = await node.stable()
    member = OffsetCommitter(member_id=only.member_id, generation=1)
    await node.groups.commit("g", member, offsets(t0=5))
    again = await node.groups.join("g", join_of(only.member_id))
    assert again.generation == 2
    for _ in range(2):
        with pytest.raises(IllegalGeneration):
            await node.groups.commit("g", member, offsets(t0=9))
        with pytest.raises(IllegalGeneration):
            await node.groups.stage_offsets(
                "g",
                member_id=only.member_id,
                generation=1,
                instance_id=None,
                producer_id=7,
                producer_epoch=0,
                offsets=offsets(t0=9),
            )
        await node.crash()
    assert fetched(node, T0) == [5]


@on_a_node
async def test_what_may_be_remembered_beside_an_offset_is_limited(node: Node) -> None:
    node.groups.check_offset(OffsetAndMetadata(offset=1, metadata="\u00e4" * 5))
    with pytest.raises(OffsetMetadataTooLarge, match="metadata must have at most 10 bytes, got 11"):
        node.groups.check_offset(OffsetAndMetadata(offset=1, metadata="\u00e4" * 5 + "x"))


@on_a_node
async def test_of_a_group_that_is_not_there_nothing_is_committed(node: Node) -> None:
    assert node.groups.fetch("g", [T0]) == {T0: None}
    assert node.groups.fetch("g") == {}


# Transactions.


@on_a_node
async def test_staged_offsets_count_when_the_transaction_is_committed(node: Node) -> None:
    await node.groups.commit("g", NOBODY, offsets(t0=5))
    await stage(node, t0=8, t1=9)
    for _ in range(2):
        assert fetched(node, T0, T1) == [5, None]
        found = node.groups.fetch("g", [T0, T1, U0], is_stable_required=True)
        assert [type(value) for value in found.values()] == [
            UnstableOffset,
            UnstableOffset,
            type(None),
        ]
        await node.crash()
    await node.groups.finish_transaction(7, 0, ["g"], is_commit=True)
    for _ in range(2):
        assert fetched(node, T0, T1) == [8, 9]
        await node.groups.finish_transaction(7, 0, ["g"], is_commit=True)
        await node.groups.finish_transaction(7, 0, ["g"], is_commit=False)
        await node.crash()
    assert not any(b"pending" in key for key in node.state.entries)


@on_a_node
async def test_staged_offsets_go_when_the_transaction_is_aborted(node: Node) -> None:
    await stage(node, t0=8)
    await node.groups.finish_transaction(7, 0, ["g"], is_commit=False)
    assert fetched(node, T0) == [None]
    assert node.state.entries == {}


@on_a_node
async def test_a_transaction_that_ends_while_offsets_are_being_staged_has_them(
    node: Node,
) -> None:
    staging = asyncio.create_task(stage(node, t0=8))
    await asyncio.sleep(0)
    await node.groups.finish_transaction(7, 0, ["g"], is_commit=True)
    await staging
    assert fetched(node, T0) == [8]
    assert not any(b"pending" in key for key in node.state.entries)


@on_a_node
async def test_a_commit_that_is_later_than_the_staging_stays_however_they_overlap(
    node: Node,
) -> None:
    await stage(node, t0=8)
    later = asyncio.create_task(node.groups.commit("g", NOBODY, offsets(t0=20)))
    await asyncio.sleep(0)
    await node.groups.finish_transaction(7, 0, ["g"], is_commit=True)
    await later
    for _ in range(2):
        assert fetched(node, T0) == [20]
        await node.crash()


@on_a_node
async def test_order_holds_over_a_restart(node: Node) -> None:
    await node.groups.commit("g", NOBODY, offsets(t1=1))
    await stage(node, t0=8)
    await node.restart()
    await node.groups.commit("g", NOBODY, offsets(t0=20))
    await node.restart()
    await node.groups.finish_transaction(7, 0, ["g"], is_commit=True)
    assert fetched(node, T0) == [20]


@on_a_node
async def test_an_overtaken_producer_stages_nothing(node: Node) -> None:
    await stage(node, epoch=3, t0=8)
    with pytest.raises(InvalidProducerEpoch):
        await stage(node, epoch=2, t0=9)


@on_a_node
async def test_a_member_of_a_group_that_is_not_there_stages_nothing(node: Node) -> None:
    with pytest.raises(IllegalGeneration):
        await node.groups.stage_offsets(
            "g",
            member_id="m",
            generation=1,
            instance_id=None,
            producer_id=7,
            producer_epoch=0,
            offsets=offsets(t0=1),
        )
    assert node.groups.listed() == []


def test_a_transaction_with_very_many_offsets_is_ended_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offsets_store, "FINISH_BYTES_MAX", 1000)

    @on_a_node
    async def check(node: Node) -> None:
        await stage(node, **{f"t{n}": n for n in range(100)})
        before = node.store.get("groups").counters.appends
        await node.groups.finish_transaction(7, 0, ["g"], is_commit=True)
        assert node.store.get("groups").counters.appends - before > 5
        assert len(node.groups.fetch("g")) == 100

    check()


# Deleting offsets.


@on_a_node
async def test_offsets_of_topics_that_nobody_reads_can_be_deleted(node: Node) -> None:
    (only,) = await node.stable()
    member = OffsetCommitter(member_id=only.member_id, generation=1)
    await node.groups.commit("g", member, offsets(t0=5, u0=6))
    found = await node.groups.delete_offsets("g", [T0, U0], is_subscribed={"t"}.__contains__)
    assert isinstance(found[T0], GroupSubscribed)
    assert found[U0] is None
    assert fetched(node, T0, U0) == [5, None]
    assert node.groups.subscriptions("g") == [b"topics"]
    await node.crash()
    assert fetched(node, T0, U0) == [5, None]


@on_a_node
async def test_offsets_of_an_empty_group_can_all_be_deleted(node: Node) -> None:
    await node.groups.commit("g", NOBODY, offsets(t0=5))
    await node.groups.delete_offsets("g", [T0], is_subscribed=lambda _: True)
    assert node.groups.listed() == [], "nothing is left of a group that only had offsets"
    with pytest.raises(UnknownGroup):
        await node.groups.delete_offsets("g", [T0], is_subscribed=lambda _: False)


@on_a_node
async def test_it_is_not_known_what_members_read_that_are_no_consumers(node: Node) -> None:
    await node.stable(protocol_type="connect")
    with pytest.raises(GroupNotEmpty):
        await node.groups.delete_offsets("g", [T0], is_subscribed=lambda _: False)
    assert node.groups.subscriptions("g") == []


# Expiry.


@on_a_node
async def test_offsets_of_a_topic_that_is_deleted_go(node: Node) -> None:
    old = node.topics.find("t").id
    await node.groups.commit(
        "g",
        NOBODY,
        {T0: OffsetAndMetadata(offset=5, topic_id=old), U0: OffsetAndMetadata(offset=6)},
    )
    node.topics.delete("t")
    new = node.topics.create("t").id
    await node.groups.commit("g", NOBODY, {T1: OffsetAndMetadata(offset=7, topic_id=new)})
    await turns()
    assert fetched(node, T0, T1, U0) == [None, 7, 6]
    await node.crash()
    assert fetched(node, T0, T1, U0) == [None, 7, 6]


@on_a_node
async def test_offsets_of_topics_that_went_while_the_node_was_away_go_when_it_starts(
    node: Node,
) -> None:
    await node.groups.commit("g", NOBODY, offsets(t0=5, u0=6))
    await node.groups.close()
    node.topics.delete("t")
    await node.crash()
    assert fetched(node, T0, U0) == [None, 6]


RETENTION_MS = 3 * 3_600_000


def on_a_forgetful_node(work: Work) -> Callable[[], None]:
    def test() -> None:
        async def live() -> None:
            config = BrokerConfig(
                offsets_retention_ms=RETENTION_MS, group_session_timeout_ms_min=1000
            )
            node = Node(config=config)
            await node.start()
            await work(node)
            await node.stop()

        asyncio.run(live())

    test.__name__ = work.__name__
    return test


@on_a_forgetful_node
async def test_offsets_of_a_group_without_members_go_after_a_while(node: Node) -> None:
    (only,) = await node.stable()
    member = OffsetCommitter(member_id=only.member_id, generation=1)
    await node.groups.commit("g", member, offsets(t0=5))
    for _ in range(40):
        node.groups.heartbeat("g", only.member_id, None, 1)
        await node.advance(SESSION / 2)
    node.clock.jump_wall(2 * RETENTION_MS)
    await node.groups.expire_offsets()
    assert fetched(node, T0) == [5], "the group has a member"
    await node.advance(SESSION)
    node.clock.jump_wall(RETENTION_MS - 20_000)
    await node.groups.expire_offsets()
    assert fetched(node, T0) == [5], "it has not been empty for so long"
    node.clock.jump_wall(20_000)
    await node.groups.expire_offsets()
    assert fetched(node, T0) == [None]
    assert node.groups.listed() == []
    assert node.state.entries == {}


@on_a_forgetful_node
async def test_offsets_of_a_consumer_that_is_in_no_group_go_by_their_age(node: Node) -> None:
    await node.groups.commit("g", NOBODY, offsets(t0=5))
    node.clock.jump_wall(RETENTION_MS // 2)
    await node.groups.commit("g", NOBODY, offsets(t1=6))
    node.clock.jump_wall(RETENTION_MS // 2)
    await node.advance(EXPIRY_SECONDS)
    assert fetched(node, T0, T1) == [None, 6]
    node.clock.jump_wall(RETENTION_MS // 2)
    await node.advance(EXPIRY_SECONDS)
    assert node.state.entries == {}


@on_a_forgetful_node
async def test_an_old_client_may_want_its_offsets_kept_for_less_or_more(node: Node) -> None:
    await node.groups.commit("g", NOBODY, offsets(t0=5), retention_ms=1000)
    await node.groups.commit("g", NOBODY, offsets(t1=6), retention_ms=10 * RETENTION_MS)
    node.clock.jump_wall(5 * RETENTION_MS)
    await node.groups.expire_offsets()
    assert fetched(node, T0, T1) == [None, 6]


@on_a_forgetful_node
async def test_a_commit_in_flight_is_not_taken_for_old(node: Node) -> None:
    await node.groups.commit("g", NOBODY, offsets(t0=5))
    node.clock.jump_wall(RETENTION_MS)
    in_flight = asyncio.create_task(node.groups.commit("g", NOBODY, offsets(t0=6)))
    await asyncio.sleep(0)
    await node.groups.expire_offsets()
    await in_flight
    assert fetched(node, T0) == [6]
    await node.crash()
    assert fetched(node, T0) == [6]


@on_a_forgetful_node
async def test_a_full_disk_only_delays_that_offsets_go(node: Node) -> None:
    await node.groups.commit("g", NOBODY, offsets(t0=5))
    node.clock.jump_wall(RETENTION_MS)
    node.filesystem.bytes_max = node.filesystem.bytes_used
    big = node.state.put(FILL)
    await node.groups.expire_offsets()
    with pytest.raises(DiskFull):
        await big
    assert fetched(node, T0) == [5]
    node.filesystem.free(100_000_000)
    await node.groups.expire_offsets()
    assert fetched(node, T0) == [None]
