"""Power cuts: what the group coordinator answered is durable at any moment."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

import pytest

from millstream.broker.groups.coordinator import GroupCoordinator
from millstream.broker.groups.values import (
    GroupSyncRequest,
    LeavingMember,
    OffsetAndMetadata,
    OffsetCommitter,
)
from millstream.broker.state.state_log import StateLog
from millstream.errors import MillstreamError
from millstream.records.topic_partition import TopicPartition
from millstream.storage.store import Store
from millstream.testing import (
    CrashState,
    ManualClock,
    ManualTimers,
    SimulatedFilesystem,
    sample_crash_states,
)
from millstream.testing.clocks.seeded_background import SeededBackground
from millstream.testing.disk.seeded_syncer import SeededSyncer
from tests.broker.groups.classic.group_bench import join_of
from tests.in_loop import in_loop

from .group_node import CONFIG, FakeTopics, Node, turns

STATES = 120
PARTITIONS = [TopicPartition("t", number) for number in range(3)]
PRODUCER = 7


@dataclass(frozen=True)
class Requested:
    """A request was sent: it may take effect from now on."""

    number: int
    offsets: tuple[tuple[TopicPartition, int], ...]


@dataclass(frozen=True)
class Succeeded:
    """A request was answered with success."""

    number: int


@dataclass(frozen=True)
class Joined:
    """A member's join was answered with a generation."""

    member_id: str
    generation: int


@dataclass(frozen=True)
class Assigned:
    """A member got its assignment."""

    member_id: str
    generation: int
    share: bytes


@dataclass(frozen=True)
class MembershipChanged:
    """Members joined or left: an old generation need not exist any more."""


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_at_any_moment_loses_nothing_that_was_answered(seed: int) -> None:
    asyncio.run(_check_states(seed))


async def _check_states(seed: int) -> None:
    node = Node(seed)
    await node.start()
    await _live(node, random.Random(seed))
    topics = node.topics
    for state in sample_crash_states(node.filesystem.trace, STATES, seed):
        clock = ManualClock()
        store = Store(
            "/state",
            filesystem=state.filesystem(),
            clock=clock,
            background=SeededBackground(seed),
            syncer=SeededSyncer(seed),
        )
        store.open()
        log = await StateLog.open(store, "groups", clock=clock)
        groups = GroupCoordinator(
            log, topics, config=CONFIG, clock=clock, timers=ManualTimers(clock)
        )
        await groups.load()
        _check_offsets(groups, state)
        _check_membership(groups, state)
        await _check_transaction(groups, state)
        await groups.close()
        await log.close()
        await store.close()


def _check_offsets(groups: GroupCoordinator, state: CrashState) -> None:
    """An offset is that of the last commit that was answered, or of one requested since."""
    ended = {note.number for note in state.notes if isinstance(note, Succeeded)}
    found = groups.fetch("plain", PARTITIONS)
    for partition in PARTITIONS:
        allowed: list[int | None] = [None]
        for note in state.notes:
            if isinstance(note, Requested) and partition in dict(note.offsets):
                if note.number in ended:
                    allowed.clear()
                allowed.append(dict(note.offsets)[partition])
        offset = found[partition]
        assert not isinstance(offset, MillstreamError)
        value = None if offset is None else offset.offset
        assert value in allowed, f"{state}: {partition} is at {value}, must be one of {allowed}"


def _check_membership(groups: GroupCoordinator, state: CrashState) -> None:
    """A member is in its last answered generation, or in a later one that was not answered."""
    told = [note for note in state.notes if isinstance(note, Joined)]
    if not told:
        return
    group = groups.registry.find("members")
    assert group is not None, f"{state}: the group is gone"
    generation = group.generation  # type: ignore[attr-defined]
    assert generation >= told[-1].generation, f"{state}: the generation fell"
    settled = _since_membership_changed(state)
    for note in settled:
        if isinstance(note, Joined):
            groups.heartbeat("members", note.member_id, None, note.generation)
        if isinstance(note, Assigned):
            shares = {m.member_id: m.assignment for m in groups.describe("members").members}
            assert shares[note.member_id] == note.share, f"{state}: a share is lost"


def _since_membership_changed(state: CrashState) -> list[object]:
    """Return the notes since the membership last changed."""
    notes = list(state.notes)
    moved = [index for index, note in enumerate(notes) if isinstance(note, MembershipChanged)]
    return notes[moved[-1] + 1 :] if moved else notes


async def _check_transaction(groups: GroupCoordinator, state: CrashState) -> None:
    """A transaction that was about to be committed can be committed, completely."""
    began = [n for n in state.notes if isinstance(n, str) and n == "committing"]
    if not began:
        return
    await groups.finish_transaction(PRODUCER, 0, ["transactional"], is_commit=True)
    found = groups.fetch("transactional", PARTITIONS, is_stable_required=True)
    assert list(found.values()) == [OffsetAndMetadata(offset=100)] * 3, f"{state}: {found}"


async def _live(node: Node, chance: random.Random) -> None:
    """Run the workload: members join, sync, commit and leave; others commit; a transaction ends."""
    await asyncio.gather(
        _commit_plainly(node, chance, 12),
        _be_members(node),
        _transact(node),
    )


async def _commit_plainly(node: Node, chance: random.Random, count: int) -> None:
    for number in range(count):
        chosen = chance.sample(PARTITIONS, chance.randrange(1, 4))
        offsets = dict.fromkeys(chosen, number)
        node.filesystem.note(Requested(number, tuple(offsets.items())))
        committed = {partition: OffsetAndMetadata(offset=n) for partition, n in offsets.items()}
        await node.groups.commit("plain", OffsetCommitter(), committed)
        node.filesystem.note(Succeeded(number))


async def _be_members(node: Node) -> None:
    ids = ["", ""]
    for generation in range(1, 4):
        node.filesystem.note(MembershipChanged())
        protocols = {"range": b"%d" % generation}
        joining = [
            asyncio.create_task(
                node.groups.join(
                    "members", join_of(member, needs_known_id=False, protocols=protocols)
                )
            )
            for member in ids
        ]
        while not all(task.done() for task in joining):
            node.timers.advance(0.1)
            await turns(10)
        joined = [task.result() for task in joining]
        ids = [member.member_id for member in joined]
        for member in joined:
            assert member.generation == generation
            node.filesystem.note(Joined(member.member_id, member.generation))
        shares = {member_id: f"{generation} {member_id}".encode() for member_id in ids}
        node.filesystem.note(MembershipChanged())
        synced = await asyncio.gather(
            *(
                node.groups.sync(
                    "members",
                    GroupSyncRequest(
                        member_id=member.member_id,
                        generation=generation,
                        assignments=shares if member.members else {},
                    ),
                )
                for member in joined
            )
        )
        for member_id, share in zip(ids, synced, strict=True):
            node.filesystem.note(Assigned(member_id, generation, share.assignment))
    node.filesystem.note(MembershipChanged())
    await node.groups.leave("members", [LeavingMember(ids[0])])
    await turns()


async def _transact(node: Node) -> None:
    await node.groups.stage_offsets(
        "transactional",
        member_id="",
        generation=-1,
        instance_id=None,
        producer_id=PRODUCER,
        producer_epoch=0,
        offsets={partition: OffsetAndMetadata(offset=100) for partition in PARTITIONS},
    )
    node.filesystem.note("committing")
    await node.groups.finish_transaction(PRODUCER, 0, ["transactional"], is_commit=True)


# Many runs of a node, with clients that continue through all of them.


@pytest.mark.parametrize("seed", range(20))
def test_committed_offsets_never_go_back_over_many_lives(seed: int) -> None:
    asyncio.run(_live_often(seed))


async def _live_often(seed: int) -> None:
    chance = random.Random(seed)
    node = Node(seed)
    await node.start()
    acked = dict.fromkeys(PARTITIONS, -1)
    asked = dict.fromkeys(PARTITIONS, -1)
    for number in range(60):
        partition = chance.choice(PARTITIONS)
        asked[partition] = number
        work = asyncio.create_task(
            node.groups.commit(
                "g", OffsetCommitter(), {partition: OffsetAndMetadata(offset=number)}
            )
        )
        event = chance.random()
        if event < 0.15:
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0)
            await node.crash(chance.randrange(100) if event < 0.1 else None)
        elif event < 0.25:
            work.cancel()
        elif event < 0.3:
            await asyncio.gather(work, return_exceptions=True)
            await node.restart()
        (result,) = await asyncio.gather(work, return_exceptions=True)
        if result is None:
            acked[partition] = number
        await turns()
        for each, value in node.groups.fetch("g", PARTITIONS).items():
            assert not isinstance(value, MillstreamError)
            found = -1 if value is None else value.offset
            assert acked[each] <= found <= asked[each], f"{each} is at {found}"
            acked[each] = found
    await node.stop()


@in_loop
async def test_the_simulated_disk_is_what_is_tested() -> None:
    """Check the test setup: the workload writes, and syncs, more than once."""

    node = Node()
    await node.start()
    await _live(node, random.Random(0))
    counters = node.store.get("groups").counters
    assert counters.appends > 10
    assert counters.syncs > 10
    assert isinstance(node.filesystem, SimulatedFilesystem)
    assert isinstance(node.topics, FakeTopics)
