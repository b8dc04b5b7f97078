"""Caps of queues: what is refused, what never is, and that nobody slips through."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.broker.access.caller import NOBODY, Caller
from millstream.broker.access.principal import user
from millstream.broker.broker import Broker
from millstream.broker.queues.row import QUEUES_PREFIX, decode_row
from millstream.broker.queues.values import QueueChanges
from millstream.config.schema import BrokerConfig
from millstream.errors import CapExceeded, MillstreamError
from tests.in_loop import in_loop

ALICE, BOB = (Caller(user(name), "10.0.0.1") for name in ("alice", "bob"))
NO_CHANGES = QueueChanges()


async def opened(path: Path, **limits: int) -> Broker:
    limits = {f"limit_{name}": value for name, value in limits.items()}
    return await Broker.open(str(path), config=BrokerConfig(**limits))


@in_loop
async def test_a_user_creates_as_many_queues_as_the_cap_says(tmp_path: Path) -> None:
    broker = await opened(tmp_path, queues_per_user=2)
    for name in ("a", "b"):
        await broker.queues.put(name, NO_CHANGES, ALICE)
    words = r"^1 more queues for c make 3 of User:alice, limits\.queues_per_user is 2$"
    with pytest.raises(CapExceeded, match=words):
        await broker.queues.put("c", NO_CHANGES, ALICE)
    assert broker.topics.find("c") is None, "no topic is left behind"
    await broker.queues.put("c", NO_CHANGES, BOB)
    await broker.queues.put("d", NO_CHANGES)  # The node itself.
    await broker.close()


@in_loop
async def test_the_cap_of_all_holds_without_logins_too(tmp_path: Path) -> None:
    broker = await opened(tmp_path, queues=1, queues_per_user=1)
    await broker.queues.put("a", NO_CHANGES, NOBODY)
    with pytest.raises(CapExceeded, match=r"make 2 in all, limits.queues is 1"):
        await broker.queues.put("b", NO_CHANGES, NOBODY)
    await broker.close()


@in_loop
async def test_changes_and_deletions_pass_above_a_cap_and_a_deleted_queue_gives_its_place_back(
    tmp_path: Path,
) -> None:
    broker = await opened(tmp_path)
    for name in ("a", "b"):
        await broker.queues.put(name, NO_CHANGES, ALICE)
    await broker.close()
    broker = await opened(tmp_path, queues=1, queues_per_user=1)
    _, is_new = await broker.queues.put("a", QueueChanges(deliveries_max=7), ALICE)
    assert not is_new
    await broker.queues.delete("a")
    with pytest.raises(CapExceeded):
        await broker.queues.put("c", NO_CHANGES, ALICE)
    await broker.topics.delete("b")  # And its queue.
    await broker.queues.put("c", NO_CHANGES, ALICE)
    await broker.close()


@in_loop
async def test_creations_at_once_do_not_exceed_the_cap(tmp_path: Path) -> None:
    broker = await opened(tmp_path, queues_per_user=3, queues=4)
    results: list[Any] = await asyncio.gather(
        *(broker.queues.put(f"q{n}", NO_CHANGES, (ALICE, BOB)[n % 2]) for n in range(12)),
        return_exceptions=True,
    )
    refused = [item for item in results if isinstance(item, MillstreamError)]
    assert {type(item) for item in refused} == {CapExceeded}
    assert len(results) - len(refused) == len(broker.queues.all()) == 4
    await broker.close()


@in_loop
async def test_the_owner_is_stored_and_kept_by_changes_and_a_restart(tmp_path: Path) -> None:
    broker = await opened(tmp_path)
    await broker.queues.put("a", NO_CHANGES, ALICE)
    await broker.queues.put("a", QueueChanges(deliveries_max=7), BOB)
    await broker.close()
    broker = await opened(tmp_path)
    [entry] = await broker.metadata.list(QUEUES_PREFIX)
    row = decode_row(entry.key, entry.value)
    assert (row.owner, row.config.deliveries_max) == ("User:alice", 7)
    older = msgspec.json.decode(entry.value)
    del older["owner"]
    assert decode_row(entry.key, msgspec.json.encode(older)).owner is None
    await broker.close()
