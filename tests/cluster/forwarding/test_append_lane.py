"""The order of batches on their way to a leader."""

from __future__ import annotations

import asyncio

import pytest

from millstream.cluster.forwarding.append_lane import DRAIN_SECONDS, AppendLane
from millstream.testing.clocks.manual_clock import ManualClock
from millstream.testing.clocks.manual_timers import ManualTimers
from tests.in_loop import in_loop


class Run:
    """A lane, and the order in which batches were sent."""

    def __init__(self) -> None:
        self.timers = ManualTimers(ManualClock())
        self.lane = AppendLane(self.timers)
        self.sent: list[tuple[str, int]] = []

    def enter(self, name: str, ticket: int, node_id: int) -> asyncio.Task[int]:
        async def send() -> int:
            await self.lane.enter(ticket, node_id)
            self.sent.append((name, node_id))
            return self.lane.sent(is_in_flight=True)

        return asyncio.create_task(send())


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@in_loop
async def test_batches_for_one_leader_are_sent_in_order_without_waiting_for_answers():
    run = Run()
    for name in "abc":
        run.enter(name, run.lane.take_ticket(), 1)
    await settle()
    assert run.sent == [("a", 1), ("b", 1), ("c", 1)]
    assert not run.lane.is_idle


@in_loop
async def test_refused_batches_go_to_the_new_leader_before_those_that_came_after_them():
    run = Run()
    tickets = {name: run.lane.take_ticket() for name in "abc"}
    a, b = run.enter("a", tickets["a"], 1), run.enter("b", tickets["b"], 1)
    await settle()
    run.enter("c", tickets["c"], 2)  # It knows the new leader already.
    await settle()
    assert run.sent == [("a", 1), ("b", 1)]
    assert run.lane.ended(await a)
    run.enter("a", tickets["a"], 2)
    await settle()
    assert len(run.sent) == 2  # The second batch is still in flight.
    assert run.lane.ended(await b)
    run.enter("b", tickets["b"], 2)
    await settle()
    assert run.sent[2:] == [("a", 2), ("b", 2), ("c", 2)]


@in_loop
async def test_a_silent_leader_blocks_its_successor_for_a_moment_only():
    run = Run()
    first = run.enter("a", run.lane.take_ticket(), 1)
    await settle()
    run.enter("b", run.lane.take_ticket(), 2)
    await settle()
    assert run.sent == [("a", 1)]
    run.timers.advance(DRAIN_SECONDS)
    await settle()
    assert run.sent == [("a", 1), ("b", 2)]
    # Sent again, the first batch would come after the second.
    assert not run.lane.ended(await first)


@in_loop
async def test_a_cancelled_batch_lets_others_pass():
    run = Run()
    await run.lane.enter(run.lane.take_ticket(), 1)
    waiting = run.enter("b", run.lane.take_ticket(), 1)
    run.enter("c", run.lane.take_ticket(), 1)
    await settle()
    waiting.cancel()
    run.lane.sent(is_in_flight=False)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await settle()
    assert run.sent == [("c", 1)]
