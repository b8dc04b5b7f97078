"""Caps of topics and partitions: what is refused, what never is, and that nobody slips through."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.access.caller import NOBODY, Caller
from millstream.broker.access.principal import user
from millstream.broker.broker import Broker
from millstream.broker.topics.topic import decode_row, topic_key
from millstream.config.schema import BrokerConfig
from millstream.errors import CapExceeded, InvalidName, MillstreamError
from tests.in_loop import in_loop

ALICE, BOB = (Caller(user(name), "10.0.0.1") for name in ("alice", "bob"))


async def opened(path: Path, **limits: int) -> Broker:
    limits = {f"limit_{name}": value for name, value in limits.items()}
    return await Broker.open(str(path), config=BrokerConfig(**limits))


@in_loop
async def test_a_user_creates_as_many_topics_as_the_cap_says(tmp_path: Path) -> None:
    broker = await opened(tmp_path, topics_per_user=2)
    topics = broker.topics
    await topics.create("a", creator=ALICE)
    await topics.put("b", creator=ALICE)
    words = r"^1 more topics for c make 3 of User:alice, limits\.topics_per_user is 2$"
    for attempt in (
        lambda: topics.create("c", creator=ALICE),
        lambda: topics.create("c", creator=ALICE, is_validate_only=True),
        lambda: topics.put("c", creator=ALICE),
        lambda: topics.ensure("c", creator=ALICE),
    ):
        with pytest.raises(CapExceeded, match=words):
            await attempt()
    assert topics.find("c") is None
    await topics.create("c", creator=BOB)
    await topics.create("d")  # The node itself, such as for dead letters.
    await broker.close()


@in_loop
async def test_a_deleted_topic_gives_its_place_back(tmp_path: Path) -> None:
    broker = await opened(tmp_path, topics_per_user=1, partitions_per_user=3)
    for round_number in range(3):
        await broker.topics.create(f"a{round_number}", partitions=3, creator=ALICE)
        with pytest.raises(CapExceeded):
            await broker.topics.create("b", creator=ALICE)
        await broker.topics.delete(f"a{round_number}")
    await broker.close()


@in_loop
async def test_partitions_are_counted_when_a_topic_is_created_and_when_it_grows(
    tmp_path: Path,
) -> None:
    broker = await opened(tmp_path, partitions_per_user=5)
    topics = broker.topics
    await topics.create("a", partitions=3, creator=ALICE)
    with pytest.raises(CapExceeded, match="3 more partitions for b make 6 of User:alice"):
        await topics.create("b", partitions=3, creator=ALICE)
    for attempt in (
        lambda: topics.add_partitions("a", 6),
        lambda: topics.add_partitions("a", 6, is_validate_only=True),
        lambda: topics.put("a", partitions=6, creator=BOB),  # It is still the topic of alice.
    ):
        with pytest.raises(CapExceeded):
            await attempt()
    assert topics.get("a").partition_count == 3
    await topics.add_partitions("a", 5)
    await broker.close()


@in_loop
async def test_caps_of_all_hold_without_logins_too(tmp_path: Path) -> None:
    broker = await opened(tmp_path, topics=2, partitions=4, topics_per_user=1)
    topics = broker.topics
    await topics.create("a", partitions=2, creator=NOBODY)
    await topics.create("b", partitions=1, creator=NOBODY)
    with pytest.raises(CapExceeded, match=r"1 more topics for c make 3 in all, limits.topics is 2"):
        await topics.create("c", creator=NOBODY)
    with pytest.raises(CapExceeded, match=r"make 5 in all, limits.partitions is 4"):
        await topics.add_partitions("b", 3)
    await broker.close()


@in_loop
async def test_changes_and_deletions_pass_above_a_cap_that_was_lowered(tmp_path: Path) -> None:
    broker = await opened(tmp_path)
    for name in ("a", "b", "c"):
        await broker.topics.create(name, partitions=2, creator=ALICE)
    await broker.close()
    broker = await opened(tmp_path, topics=1, partitions=1, topics_per_user=1)
    await broker.topics.alter("a", {"retention.ms": "1000"})
    await broker.topics.put("a", partitions=2, creator=ALICE)
    await broker.topics.ensure("b", creator=ALICE)
    for name in ("a", "b", "c"):
        await broker.topics.delete(name)
    await broker.topics.create("d", partitions=1, creator=ALICE)
    await broker.close()


@in_loop
async def test_creations_at_once_do_not_exceed_the_cap(tmp_path: Path) -> None:
    broker = await opened(tmp_path, topics_per_user=5, topics=7)
    results: list[Any] = await asyncio.gather(
        *(broker.topics.create(f"t{n}", creator=(ALICE, BOB)[n % 2]) for n in range(30)),
        return_exceptions=True,
    )
    refused = [item for item in results if isinstance(item, MillstreamError)]
    assert {type(item) for item in refused} == {CapExceeded}
    assert len(results) - len(refused) == len(list(broker.topics.all())) == 7
    await broker.close()


@in_loop
async def test_an_attempt_that_fails_for_another_reason_takes_no_place(tmp_path: Path) -> None:
    broker = await opened(tmp_path, topics_per_user=2)
    await broker.topics.create("a.b", creator=ALICE)
    for _ in range(3):
        with pytest.raises(InvalidName):
            await broker.topics.create("a_b", creator=ALICE)
        cancelled = asyncio.ensure_future(broker.topics.create("c", creator=ALICE))
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    if broker.topics.find("c") is not None:  # It went on after its caller had gone.
        await broker.topics.delete("c")
    await broker.topics.create("d", creator=ALICE)
    await broker.close()


@in_loop
async def test_the_owner_is_stored_and_survives_changes_and_a_restart(tmp_path: Path) -> None:
    broker = await opened(tmp_path)
    await broker.topics.create("a", creator=ALICE)
    await broker.topics.create("b")
    await broker.topics.alter("a", {"retention.ms": "1000"})
    await broker.topics.add_partitions("a", 3)
    await broker.close()
    broker = await opened(tmp_path)
    assert broker.topics.get("a").row.owner == "User:alice"
    assert broker.topics.get("b").row.owner is None
    await broker.close()


def test_a_row_of_an_older_release_has_no_owner() -> None:
    value = b'{"version":1,"id":"00000000-0000-0000-0000-000000000001","partitions":1,"configs":{}}'
    assert decode_row(topic_key("a"), value)[1].owner is None
