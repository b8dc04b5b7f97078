"""Consumer groups on a node: stored before they are answered, restored, beside classic ones."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from millstream.broker.groups.consumer.member import ConsumerHeartbeat, ConsumerHeartbeatResult
from millstream.broker.groups.consumer.records import FAMILY
from millstream.broker.groups.group import GroupType, decode_key
from millstream.broker.groups.values import GroupListing, OffsetAndMetadata, OffsetCommitter
from millstream.errors import (
    DiskFull,
    GroupNotEmpty,
    GroupSubscribed,
    IllegalGeneration,
    InconsistentProtocol,
    InvalidGroup,
    InvalidRegex,
    InvalidRequest,
    MillstreamError,
    StaleMemberEpoch,
    Stopping,
    UnknownGroup,
    UnknownMember,
)
from millstream.records.topic_partition import TopicPartition
from tests.broker.groups.classic.group_bench import join_of
from tests.broker.groups.group_node import turns

from .consumer_clients import REBALANCE_TIMEOUT_MS, Client, subscription_fields
from .consumer_node import ConsumerNode, on_a_node

T0 = TopicPartition("apple", 0)


# Durability.


@on_a_node
async def test_nobody_is_answered_before_the_answer_is_durable(node: ConsumerNode) -> None:
    client = Client("a", subscription=subscription_fields(topic_names=frozenset({"apple"})))
    answer = asyncio.ensure_future(node.send(client.beat()))
    await asyncio.sleep(0)
    assert not node.state.entries
    assert not answer.done()
    assert (await answer).member_epoch == 1
    assert {decode_key(key)[0] for key in node.state.entries} == {FAMILY}


@on_a_node
async def test_members_go_on_with_their_epochs_after_a_power_cut(node: ConsumerNode) -> None:
    first, second = await node.join("a"), await node.join("b")
    await node.beat(first)
    before = node.groups.consumers.describe("g")
    await node.crash()
    assert node.groups.consumers.describe("g") == before
    first.release()
    assert (await node.beat(first)).member_epoch == 2
    assert (await node.beat(second)).assigned == node.of(2, 3)
    assert node.groups.consumers.describe("g").state == "Stable"
    assert node.groups.consumers.describe("g").epoch == 2


@on_a_node
async def test_a_second_request_waits_for_what_the_first_changed(node: ConsumerNode) -> None:
    client = Client("a", subscription=subscription_fields(topic_names=frozenset({"apple"})))
    first = asyncio.ensure_future(node.send(client.beat()))
    second = asyncio.ensure_future(node.send(client.beat()))
    await asyncio.sleep(0)
    assert not first.done()
    assert not second.done()
    assert await first == await second


@on_a_node
async def test_what_could_not_be_stored_is_stored_with_what_comes_next(node: ConsumerNode) -> None:
    first, second = await node.join("a"), await node.join("b")
    await node.beat(first)
    first.release()
    fail_puts(node, 1)
    with pytest.raises(DiskFull):
        await node.beat(first)
    first.on_lost_response()
    assert (await node.beat(second)).assigned == node.of(2, 3)
    await node.crash()
    assert (await node.beat(first)).member_epoch == 2
    assert node.groups.consumers.describe("g").state == "Stable"


@on_a_node
async def test_a_grant_is_never_stored_without_the_release_before_it(node: ConsumerNode) -> None:
    """The first of two writes fails after the second was started."""
    first, second = await node.join("a"), await node.join("b")
    await node.beat(first)
    first.release()
    fail_puts(node, 1)
    results = await asyncio.gather(
        node.send(first.beat()), node.send(second.beat()), return_exceptions=True
    )
    assert isinstance(results[0], DiskFull)
    assert isinstance(results[1], ConsumerHeartbeatResult)
    assert results[1].assigned == node.of(2, 3)
    await node.crash()
    held = [member.held for member, _ in node.groups.consumers.describe("g").members]
    assert held == [node.of(0, 1), node.of(2, 3)]


@on_a_node
async def test_what_is_durable_is_not_written_again(node: ConsumerNode) -> None:
    first, _ = await node.join("a"), await node.join("b")
    put, written = node.state.put, []

    def watched(entries: Any) -> asyncio.Future[None]:
        written.extend(decode_key(key)[2:] for key, _ in entries)
        return put(entries)

    node.state.put = watched  # type: ignore[method-assign]
    await node.beat(first)
    assert written == [["current", "a"]]
    await node.beat(first)
    assert written == [["current", "a"]]


def fail_puts(node: ConsumerNode, count: int) -> None:
    """Let the next `count` puts fail as on a full disk, some time after they were made."""
    put = node.state.put
    left = count

    def failing(entries: Any) -> asyncio.Future[None]:
        nonlocal left
        if not left:
            return put(entries)
        left -= 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_exception, DiskFull("no bench"))
        return future

    node.state.put = failing  # type: ignore[method-assign]


# Time.


@on_a_node
async def test_a_silent_member_is_removed_durably(node: ConsumerNode) -> None:
    await node.join("a")
    await node.advance(46)
    assert node.groups.consumers.describe("g").state == "Empty"
    await node.crash()
    assert node.groups.consumers.describe("g").members == ()


@on_a_node
async def test_after_a_restart_members_have_a_whole_session(node: ConsumerNode) -> None:
    client = await node.join("a")
    await node.advance(40)
    await node.restart()
    await node.advance(40)
    await node.beat(client)
    await node.advance(50)
    with pytest.raises(UnknownMember):
        await node.beat(client)


@on_a_node
async def test_after_a_restart_who_was_letting_go_has_to_do_so_in_time(node: ConsumerNode) -> None:
    first, second = await node.join("a"), await node.join("b")
    await node.beat(first)
    await node.restart()
    for _ in range(5):
        await node.advance(REBALANCE_TIMEOUT_MS / 1000 / 4)
        await node.beat(second)
    assert second.hands == node.of(0, 1, 2, 3)


# Topics.


@on_a_node
async def test_topics_that_come_grow_and_go_are_followed(node: ConsumerNode) -> None:
    client = Client("a", subscription=subscription_fields(topic_regex="a.*"))
    await node.beat(client)
    node.topics.create("avocado", 1)
    assert len((await node.beat(client)).assigned or ()) == 2
    node.topics.alter("avocado")
    assert (await node.beat(client)).assigned is None
    node.topics.delete("avocado")
    assert (await node.beat(client)).assigned == node.of(0, 1, 2, 3)
    node.topics.grow("apple", 5)
    client.release()
    assert (await node.beat(client)).assigned == node.of(0, 1, 2, 3, 4)


@on_a_node
async def test_what_changed_while_the_node_was_away_is_seen(node: ConsumerNode) -> None:
    client = await node.join("a")
    await node.stop()
    node.topics.grow("apple", 6)
    await node.start()
    answer = await node.beat(client)
    assert (answer.member_epoch, answer.assigned) == (2, node.of(*range(6)))


@on_a_node
async def test_a_restart_alone_divides_nothing_anew(node: ConsumerNode) -> None:
    client = await node.join("a")
    await node.restart()
    answer = await node.beat(client)
    assert (answer.member_epoch, answer.assigned) == (1, None)


# Group types.


@on_a_node
async def test_groups_are_listed_with_their_kind(node: ConsumerNode) -> None:
    await node.join("a")
    await node.stable("classic")
    assert set(node.groups.listed()) == {
        GroupListing("g", GroupType.CONSUMER, "Stable", "consumer"),
        GroupListing("classic", GroupType.CLASSIC, "Stable", "consumer"),
    }


@on_a_node
async def test_a_group_does_not_change_its_protocol_while_it_has_members(
    node: ConsumerNode,
) -> None:
    await node.join("a")
    with pytest.raises(InconsistentProtocol):
        await node.groups.join("g", join_of())
    await node.stable("classic")
    with pytest.raises(UnknownGroup, match="has members of the classic protocol"):
        await node.join("a", "classic")
    with pytest.raises(UnknownGroup):
        node.groups.consumers.describe("classic")
    with pytest.raises(UnknownGroup):
        node.groups.describe("g")


@on_a_node
async def test_an_empty_group_changes_its_protocol_and_keeps_its_offsets(
    node: ConsumerNode,
) -> None:
    await node.groups.commit("g", OffsetCommitter(), {T0: OffsetAndMetadata(offset=7)})
    client = await node.join("a")
    assert found(node) == 7
    await node.send(client.leave_request())
    await node.stable("g")
    assert [group.kind for group in node.groups.listed()] == [GroupType.CLASSIC]
    await node.crash()
    assert [group.kind for group in node.groups.listed()] == [GroupType.CLASSIC]
    assert found(node) == 7


@on_a_node
async def test_a_join_that_is_refused_leaves_no_group(node: ConsumerNode) -> None:
    client = Client("a", subscription=subscription_fields(topic_regex="("))
    with pytest.raises(InvalidRegex):
        await node.beat(client)
    with pytest.raises(UnknownMember):
        await node.send(ConsumerHeartbeat(member_id="a", member_epoch=3))
    with pytest.raises(InvalidGroup):
        await node.send(Client("a").beat(), "")
    assert node.groups.listed() == []


@on_a_node
async def test_a_member_id_is_drawn_only_for_those_who_may_lack_one(node: ConsumerNode) -> None:
    beat = Client("").beat()
    answer = await node.groups.consumers.heartbeat("g", beat, may_lack_id=True)
    assert UUID(answer.member_id)
    with pytest.raises(InvalidRequest, match="member id must not be empty"):
        await node.groups.consumers.heartbeat("g", beat)
    with pytest.raises(InvalidRequest):
        await node.groups.consumers.heartbeat(
            "g", ConsumerHeartbeat(member_id="", member_epoch=1), may_lack_id=True
        )


@on_a_node
async def test_a_group_with_members_is_not_deleted_and_an_empty_one_is(node: ConsumerNode) -> None:
    client = await node.join("a")
    with pytest.raises(GroupNotEmpty):
        await node.groups.delete("g")
    await node.send(client.leave_request())
    await node.groups.delete("g")
    assert node.groups.listed() == []
    await node.crash()
    assert node.groups.listed() == []
    assert not node.state.entries


@on_a_node
async def test_a_node_that_stops_hears_no_one(node: ConsumerNode) -> None:
    client = await node.join("a")
    node.groups.registry.close()
    with pytest.raises(Stopping):
        await node.beat(client)


# Offsets.


@on_a_node
async def test_a_member_commits_at_its_epoch_and_at_no_other(node: ConsumerNode) -> None:
    client = await node.join("a")
    await commit(node, "a", client.epoch, 5)
    with pytest.raises(StaleMemberEpoch):
        await commit(node, "a", client.epoch + 1, 6)
    with pytest.raises(UnknownMember):
        await commit(node, "b", client.epoch, 6)
    with pytest.raises(UnknownMember):
        await node.groups.commit("g", OffsetCommitter(), {T0: OffsetAndMetadata(offset=6)})
    assert found(node, member_id="a", epoch=client.epoch) == 5
    with pytest.raises(StaleMemberEpoch):
        found(node, member_id="a", epoch=client.epoch + 1)


@on_a_node
async def test_a_transaction_of_another_epoch_is_of_an_illegal_generation(
    node: ConsumerNode,
) -> None:
    await node.join("a")

    async def stage(epoch: int) -> None:
        await node.groups.stage_offsets(
            "g",
            member_id="a",
            generation=epoch,
            instance_id=None,
            producer_id=1,
            producer_epoch=0,
            offsets={T0: OffsetAndMetadata(offset=1)},
        )

    await stage(1)
    with pytest.raises(IllegalGeneration):
        await stage(2)


@on_a_node
async def test_offsets_of_topics_that_are_read_stay(node: ConsumerNode) -> None:
    client = await node.join("a")
    await commit(node, "a", client.epoch, 5)
    results = await node.groups.delete_offsets("g", [T0], is_subscribed=lambda _: False)
    assert isinstance(results[T0], GroupSubscribed)


async def commit(node: ConsumerNode, member_id: str, epoch: int, offset: int) -> None:
    committer = OffsetCommitter(member_id=member_id, generation=epoch)
    await node.groups.commit("g", committer, {T0: OffsetAndMetadata(offset=offset)})


def found(node: ConsumerNode, **caller: Any) -> int | None:
    value = node.groups.fetch("g", [T0], **caller)[T0]
    assert not isinstance(value, MillstreamError)
    return None if value is None else value.offset


@on_a_node
async def test_many_members_come_at_once(node: ConsumerNode) -> None:
    clients = await asyncio.gather(*(node.join(f"m{number}") for number in range(8)))
    for _ in range(6):
        for client in clients:
            client.release()
        await asyncio.gather(*(node.beat(client) for client in clients))
        await turns()
    assert node.groups.consumers.describe("g").state == "Stable"
    (topic,) = node.of(0)
    hands = [number for client in clients for number in client.hands.get(topic, ())]
    assert sorted(hands) == [0, 1, 2, 3]
