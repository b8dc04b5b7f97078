"""The writes of one response of a leader are waited for together, whenever each of them ends."""

from __future__ import annotations

import asyncio

from millstream.cluster.replication.replica_fetcher import _Writes
from millstream.errors import LogOffline
from tests.in_loop import in_loop


@in_loop
async def test_a_write_that_ends_at_once_does_not_end_the_wait_for_later_ones():
    # As the end of a segment without records, in a response with records of another partition.
    writes = _Writes()
    writes.add().set_result(None)
    later = writes.add()
    waiting = asyncio.ensure_future(writes.wait())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    later.set_result(None)
    await waiting


@in_loop
async def test_a_write_ends_once_whatever_is_told_afterwards():
    writes = _Writes()
    first, second = writes.add(), writes.add()
    first.set_exception(LogOffline("the disk failed"))
    first.set_result(None)
    waiting = asyncio.ensure_future(writes.wait())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    second.set_result(None)
    await waiting
    assert str(first.error) == "the disk failed"


@in_loop
async def test_nothing_to_write_is_nothing_to_wait_for():
    writes = _Writes()
    writes.add().set_result(None)
    await writes.wait()
