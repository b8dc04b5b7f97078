"""Groups on a disk that loses power: what was answered holds, whatever moment that happens."""

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

from .group_node import CONFIG, FakeTopics, Node, turns

STATES = 120
PARTITIONS = [TopicPartition("t", number) for number in range(3)]
PRODUCER = 7


@dataclass(frozen=True)
class Began:
    """Something was asked for: it may happen from now on."""

    number: int
    offsets: tuple[tuple[TopicPartition, int], ...]


@dataclass(frozen=True)
class Ended:
    """What was asked for was answered with success: it has happened."""

    number: int


@dataclass(frozen=True)
class Told:
    """A member was told of a generation."""

    member_id: str
    generation: int


@dataclass(frozen=True)
class Shared:
    """A member was given its share of a generation."""

    member_id: str
    generation: int
    share: bytes


@dataclass(frozen=True)
class Moved:
    """Members came, went or gathered: an old generation need not be there any more."""


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
        _check_offsets(groups, state)
        _check_membership(groups, state)
        await _check_transaction(groups, state)
        await groups.close()
        await log.close()
        await store.close()


def _check_offsets(groups: GroupCoordinator, state: CrashState) -> None:
    """An offset is that of the last commit that was answered, or of one that began since."""
    ended = {note.number for note in state.notes if isinstance(note, Ended)}
    found = groups.fetch("plain", PARTITIONS)
    for partition in PARTITIONS:
        allowed: list[int | None] = [None]
        for note in state.notes:
            if isinstance(note, Began) and partition in dict(note.offsets):
                if note.number in ended:
                    allowed.clear()
                allowed.append(dict(note.offsets)[partition])
        offset = found[partition]
        assert not isinstance(offset, MillstreamError)
        value = None if offset is None else offset.offset
        assert value in allowed, f"{state}: {partition} is at {value}, allowed is {allowed}"


def _check_membership(groups: GroupCoordinator, state: CrashState) -> None:
    """Who was told of a generation last is in it, or in a later one that nobody was told of."""
    told = [note for note in state.notes if isinstance(note, Told)]
    if not told:
        return
    group = groups.registry.find("members")
    assert group is not None, f"{state}: the group is gone"
    generation = group.generation  # type: ignore[attr-defined]
    assert generation >= told[-1].generation, f"{state}: the generation fell"
    settled = _since_moved(state)
    for note in settled:
        if isinstance(note, Told):
            groups.heartbeat("members", note.member_id, None, note.generation)
        if isinstance(note, Shared):
            shares = {m.member_id: m.assignment for m in groups.describe("members").members}
            assert shares[note.member_id] == note.share, f"{state}: a share is lost"


def _since_moved(state: CrashState) -> list[object]:
    """What was noted since members last came, went or gathered."""
    notes = list(state.notes)
    moved = [index for index, note in enumerate(notes) if isinstance(note, Moved)]
    return notes[moved[-1] + 1 :] if moved else notes


async def _check_transaction(groups: GroupCoordinator, state: CrashState) -> None:
    """A transaction that was about to be committed can be, and then counts as a whole."""
    began = [n for n in state.notes if isinstance(n, str) and n == "committing"]
    if not began:
        return
    await groups.finish_transaction(PRODUCER, 0, ["transactional"], is_commit=True)
    found = groups.fetch("transactional", PARTITIONS, is_stable_required=True)
    assert list(found.values()) == [OffsetAndMetadata(offset=100)] * 3, f"{state}: {found}"


async def _live(node: Node, chance: random.Random) -> None:
    """Members join, share, commit and leave; others commit on their own; a transaction ends."""
    await asyncio.gather(
        _commit_plainly(node, chance, 12),
        _be_members(node),
        _transact(node),
    )


async def _commit_plainly(node: Node, chance: random.Random, count: int) -> None:
    for number in range(count):
        chosen = chance.sample(PARTITIONS, chance.randrange(1, 4))
        offsets = dict.fromkeys(chosen, number)
        node.filesystem.note(Began(number, tuple(offsets.items())))
        committed = {partition: OffsetAndMetadata(offset=n) for partition, n in offsets.items()}
        await node.groups.commit("plain", OffsetCommitter(), committed)
        node.filesystem.note(Ended(number))


async def _be_members(node: Node) -> None:
    ids = ["", ""]
    for generation in range(1, 4):
        node.filesystem.note(Moved())
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
            node.filesystem.note(Told(member.member_id, member.generation))
        shares = {member_id: f"{generation} {member_id}".encode() for member_id in ids}
        node.filesystem.note(Moved())
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
            node.filesystem.note(Shared(member_id, generation, share.assignment))
    node.filesystem.note(Moved())
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


# Many lives of a node, with clients that go on through all of them.


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


def test_the_simulated_disk_is_what_is_tested() -> None:
    """A guard of the test itself: the workload writes, and syncs, more than once."""

    async def work() -> None:
        node = Node()
        await node.start()
        await _live(node, random.Random(0))
        counters = node.store.get("groups").counters
        assert counters.appends > 10
        assert counters.syncs > 10
        assert isinstance(node.filesystem, SimulatedFilesystem)
        assert isinstance(node.topics, FakeTopics)

    asyncio.run(work())
