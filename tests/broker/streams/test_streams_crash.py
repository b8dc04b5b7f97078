"""Power cuts: what was answered is durable, and nothing is stored partially.

The workload runs once, and the trace of its disk gives the states that a power cut could have left.
A node is started from each, clients retry what was not answered, and then everything must be stored
exactly once.
"""

from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass

import pytest

from millstream.broker.streams.create_stream import CreateStream, ForkSource
from millstream.broker.streams.writers import WriteMark
from millstream.errors import MillstreamError, StreamExists, StreamGone, UnknownStream
from millstream.testing import (
    CrashState,
    Fault,
    FaultyFilesystem,
    SimulatedFilesystem,
    sample_crash_states,
    sweep,
)
from millstream.testing.disk.fault import FaultKind
from tests.broker.streams.node import TEXT, Node, Rows, turns
from tests.metadata.memory import MemoryMetadata, MetadataServer

pytestmark = pytest.mark.timeout(120)

STATES = 150
APPENDS = 6
FORK = CreateStream(fork=ForkSource("a", 4))


@dataclass(frozen=True)
class Requested:
    """A request was sent: it may take effect from now on."""

    step: str


@dataclass(frozen=True)
class Answered:
    """A request was answered with success."""

    step: str


STEPS = (
    "create a",
    *(f"append {number}" for number in range(APPENDS)),
    "fork b",
    "create c",
    "close a",
    "delete c",
    "delete a",
)


async def do(node: Node, step: str) -> None:
    """Run one step of the workload; a client without an answer may repeat it."""
    action, _, name = step.partition(" ")
    if step == "create a":
        await node.create("a", TEXT, b"first")
    elif action == "append":
        number = int(name)
        await node.append("a", b"%d" % number, mark=WriteMark("p", 0, number))
    elif step == "fork b":
        await node.create("b", FORK)
    elif step == "create c":
        await node.create("c", TEXT)
    elif step == "close a":
        await node.append("a", b"end", mark=WriteMark("p", 0, APPENDS, is_closing=True))
    elif action == "delete":
        await node.streams.delete(name)


async def work(node: Node) -> None:
    for step in STEPS:
        node.disk.note(Requested(step))
        await do(node, step)
        node.disk.note(Answered(step))


@pytest.mark.parametrize("seed", range(4))
def test_a_power_cut_at_any_moment_leaves_whole_streams(seed: int) -> None:
    asyncio.run(_check_states(seed))


async def _check_states(seed: int) -> None:
    node = await Node(seed=seed).start()
    await work(node)
    for state in sample_crash_states(node.disk.trace, STATES, seed):
        rows = next((one for one in reversed(state.notes) if isinstance(one, Rows)), Rows((), 0))
        entries = {entry.key: entry for entry in rows.entries}
        metadata = MetadataServer(entries=entries, revision=rows.revision).connect()
        again = await Node(state.filesystem(), metadata, seed=seed).start()
        await _check(again, state)
        await again.stop()
    await node.stop()


async def _check(node: Node, state: CrashState) -> None:
    told = {one.step for one in state.notes if isinstance(one, Answered)}
    asked = [one.step for one in state.notes if isinstance(one, Requested)]
    await _check_told(node, told, set(asked), state)
    last = asked[-1] if asked else STEPS[0]
    for step in STEPS[STEPS.index(last) :]:
        await _retry(node, step)
    await _check_end(node, state)


async def _check_told(node: Node, told: set[str], asked: set[str], state: object) -> None:
    there = {stream.path for stream in node.streams.all()}
    for path, made in (("a", "create a"), ("b", "fork b"), ("c", "create c")):
        if made in told and f"delete {path}" not in asked:
            assert path in there, f"{state}: {path} is lost"
        if made not in asked or f"delete {path}" in told:
            assert path not in there, f"{state}: {path} is there"
    assert {topic.name for topic in node.topics.all()} == there, f"{state}: a topic is left over"
    if "b" in there:
        assert await node.values("b") == [b"first", b"0", b"1", b"2"], f"{state}: half a fork"
    if "a" in there:
        found = await node.values("a")
        least = [b"first", *(b"%d" % n for n in range(APPENDS) if f"append {n}" in told)]
        assert found[: len(least)] == least, f"{state}: {found}"
        assert len(found) <= len(least) + 1, f"{state}: {found}"
        if "close a" in told:
            assert node.streams.get("a").closure is not None, f"{state}: open again"


async def _retry(node: Node, step: str) -> None:
    try:
        await do(node, step)
    except (UnknownStream, StreamGone, StreamExists):
        assert step.startswith("delete"), step  # It was deleted, and the answer was lost.


async def _check_end(node: Node, state: object) -> None:
    assert [stream.path for stream in node.streams.all()] == ["b"], str(state)
    assert [topic.name for topic in node.topics.all()] == ["b"], str(state)
    assert await node.values("b") == [b"first", b"0", b"1", b"2"], str(state)
    with pytest.raises(StreamGone):
        node.streams.get("a")
    await node.streams.delete("b")
    assert node.state.entries == {}, str(state)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC], ids=errno.errorcode.get)
def test_a_disk_that_fails_at_any_call_leaves_whole_streams(error: int) -> None:
    async def run(fault: Fault) -> None:
        disk, metadata = SimulatedFilesystem(), MemoryMetadata()
        node = Node(FaultyFilesystem(disk, fault), metadata)
        told: set[str] = set()
        asked: set[str] = set()
        try:
            await node.start()
            for step in STEPS:
                asked.add(step)
                await do(node, step)
                told.add(step)
        except (MillstreamError, OSError):
            pass
        again = await Node(disk.crash(1), metadata.reopened()).start()
        await _check_told(again, told, asked, fault)
        left = [step for step in STEPS if step not in told]
        for step in left:
            await _retry(again, step)
        await _check_end(again, fault)
        await again.stop()

    runs = 0
    for fault in sweep(error=error, forever=True):
        asyncio.run(run(fault))
        runs += 1
    assert runs > 50


@pytest.mark.parametrize("kind", ["error", "short write"])
def test_producers_that_retry_over_a_full_disk_are_stored_once(kind: FaultKind) -> None:
    """Many appends are in flight when the log takes some back, and those after them must fail,
    too.
    """
    count = 12

    async def produce(node: Node, producer: str) -> None:
        stream = node.streams.get("a")

        async def send(number: int) -> bool:
            value = f"{producer} {number}".encode()
            await turns(2 * (number - begin))  # So that they are not all in one write.
            try:
                await stream.append([value], WriteMark(producer, 0, number))
            except MillstreamError:
                return False
            return True

        begin = 0
        for _ in range(50):
            sent = await asyncio.gather(*(send(number) for number in range(begin, count)))
            if all(sent):
                return
            begin += sent.index(False)
        raise AssertionError(f"{producer} came as far as {begin}")

    async def run(fault: Fault) -> bool:
        disk = SimulatedFilesystem()
        node = await Node(FaultyFilesystem(disk, fault), MemoryMetadata()).start()
        await node.create("a")
        await asyncio.gather(*(produce(node, producer) for producer in "pqr"))
        again = await Node(disk.crash(1), node.metadata.reopened()).start()
        found = await again.values("a")
        for producer in "pqr":
            own = [one for one in found if one is not None and one.decode()[0] == producer]
            assert own == [f"{producer} {n}".encode() for n in range(count)], fault.describe()
        await again.stop()
        return bool(fault.hits)

    hits = 0
    for fault in sweep(
        error=errno.ENOSPC,
        kind=kind,
        only={"write_at"},
        path="/data/topics/a/0/00000000000000000000.log",
    ):
        hits += asyncio.run(run(fault))
    assert hits > 1
