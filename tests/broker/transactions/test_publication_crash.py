"""After any power cut, a publication over real partitions and logs is complete or absent.

Three tasks write to two partitions each, a fourth is not chosen, and one request publishes the
three. This is done twice. The power is cut at any moment and everything is opened again from the
contents of the disk. The publisher then continues in one of two ways: it lost its response and
repeats the request, or it was restarted and all tasks write again.
"""

from __future__ import annotations

import os

import pytest

from millstream.broker.transactions.publication import (
    NO_SEQUENCE,
    ProposedTransaction,
    PublicationProposal,
    PublicationResult,
)
from millstream.broker.transactions.transaction import TransactionProducer, TransactionState
from millstream.testing import SimulatedFilesystem, sample_crash_states
from tests.broker.partitions import append, batch
from tests.in_loop import in_loop

from .test_coordinator_crash import TIMEOUT_MS, WHERE, RealNode
from .transaction_fakes import FakeMetadata

STATES = 5_000 if os.environ.get("MILLSTREAM_LONG") else 150
ROUNDS = 2
TASKS = 3


async def write(node: RealNode, name: str, value: bytes) -> ProposedTransaction:
    """Write to all partitions as a task, and leave the transaction open."""
    producer = await node.transactions.init_producer(name, TIMEOUT_MS)
    await node.transactions.ensure_partitions(name, *producer, WHERE, may_add=True)
    for where in WHERE:
        partition = node.topics.partition(*where)
        await partition.open()
        data = batch(
            value,
            producer_id=producer.id,
            epoch=producer.epoch,
            sequence=0,
            is_transactional=True,
        )
        await append(partition, data)
    return ProposedTransaction(name, TransactionProducer(*producer))


async def propose(node: RealNode, sequence: int) -> PublicationProposal:
    await write(node, "q/0/failed", b"never")
    chosen = [await write(node, f"q/{task}", b"%d" % sequence) for task in range(TASKS)]
    return PublicationProposal(publisher="q", sequence=sequence, chosen=tuple(chosen), prefix="q/")


async def workload(node: RealNode) -> None:
    for sequence in range(ROUNDS):
        proposal = await propose(node, sequence)
        node.disk.note(("asked", proposal))
        await node.transactions.publish(proposal)
        node.disk.note(("answered", proposal))


async def last_sequence(node: RealNode) -> int:
    """Abort open transactions, as a restarted publisher does; return the last sequence."""
    nothing = PublicationProposal(publisher="q", sequence=ROUNDS, prefix="q/", is_commit=False)
    return (await node.transactions.publish(nothing)).last_sequence


async def check(node: RealNode, *, last: int) -> None:
    """Check that all records of each sequence up to the last are visible once, and no others."""
    expected = [b"%d" % sequence for sequence in range(last + 1) for _ in range(TASKS)]
    for where in WHERE:
        partition = node.topics.partition(*where)
        await partition.open()
        assert node.committed(where) == expected
        assert partition.last_stable_offset == partition.high_watermark, "nothing hangs"


@pytest.mark.parametrize("is_asked_again", [True, False])
@in_loop
async def test_every_power_cut_leaves_a_publication_whole_and_its_repetition_adds_nothing(
    is_asked_again: bool,
) -> None:
    disk, metadata = SimulatedFilesystem(), FakeMetadata()
    node = RealNode(disk, metadata)
    await node.start()
    await workload(node)
    await node.stop()
    found_states, found_last = set(), set()
    for number, state in enumerate(sample_crash_states(disk.trace, STATES, seed=5)):
        asked = [what for kind, what in state.notes if kind == "asked"]
        answered = sum(kind == "answered" for kind, _ in state.notes)
        after = RealNode(state.filesystem(), metadata, seed=number)
        await after.start()
        found_states.update(found.state for found in after.transactions.all())
        await after.settled()
        if is_asked_again and asked:
            await ask_again(after, asked, answered)
            await check(after, last=asked[-1].sequence)
        last = await last_sequence(after)
        found_last.add(last)
        assert answered - 1 <= last < len(asked)
        await check(after, last=last)
        await go_on(after, last)
        await check(after, last=ROUNDS - 1)
        await after.stop()
    assert {
        TransactionState.ONGOING,
        TransactionState.PREPARE_COMMIT,
        TransactionState.COMPLETE_COMMIT,
    } <= found_states
    assert found_last == {NO_SEQUENCE, *range(ROUNDS)}


async def ask_again(node: RealNode, asked: list[PublicationProposal], answered: int) -> None:
    """Repeat the last request, as a publisher whose response was lost does."""
    answer = await node.transactions.publish(asked[-1])
    assert answer.last_sequence == asked[-1].sequence
    assert answer.is_repeated or len(asked) > answered, "what was answered is done"
    assert (await node.transactions.publish(asked[-1])).is_repeated


async def go_on(node: RealNode, last: int) -> None:
    """Restart the publisher: repeat the last completed sequence, then publish the others."""
    for sequence in range(max(last, 0), ROUNDS):
        answer = await node.transactions.publish(await propose(node, sequence))
        assert answer == PublicationResult(is_repeated=sequence == last, last_sequence=sequence)
