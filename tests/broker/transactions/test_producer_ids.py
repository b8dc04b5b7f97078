"""Producer ids are never assigned twice."""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker.transactions.producer_ids import (
    BLOCK_SIZE,
    KEY,
    PRODUCER_ID_MAX,
    ProducerIds,
)
from millstream.errors import Busy, CorruptData, DiskFull, StorageFailed
from millstream.metadata.interface import MetadataEntry
from tests.in_loop import in_loop

from .transaction_fakes import FakeMetadata


async def take(ids: ProducerIds, count: int) -> list[int]:
    return [await ids.take() for _ in range(count)]


@in_loop
async def test_ids_rise_from_zero_over_the_ends_of_blocks() -> None:
    ids = ProducerIds(FakeMetadata())
    assert await take(ids, 2 * BLOCK_SIZE + 1) == list(range(2 * BLOCK_SIZE + 1))


@in_loop
async def test_a_block_is_reserved_before_its_first_id_is_given_out() -> None:
    metadata = FakeMetadata()
    ids = ProducerIds(metadata)
    metadata.error = DiskFull("no room")
    with pytest.raises(DiskFull):
        await ids.take()
    metadata.error = None
    assert await ids.take() == 0
    assert metadata.rows[KEY].value == str(BLOCK_SIZE).encode()


@in_loop
async def test_an_id_is_not_given_out_again_after_a_crash() -> None:
    metadata = FakeMetadata()
    before = await take(ProducerIds(metadata), BLOCK_SIZE + 1)
    after = await take(ProducerIds(metadata), BLOCK_SIZE + 1)
    assert not set(before) & set(after)
    assert min(after) > max(before)


@in_loop
async def test_those_who_come_at_once_share_a_block() -> None:
    metadata = FakeMetadata()
    ids = ProducerIds(metadata)
    taken = await asyncio.gather(*(ids.take() for _ in range(BLOCK_SIZE + 10)))
    assert sorted(taken) == list(range(BLOCK_SIZE + 10))
    assert metadata.revision == 2


@in_loop
async def test_two_nodes_never_give_out_the_same() -> None:
    metadata = FakeMetadata()
    one, other = ProducerIds(metadata), ProducerIds(metadata)
    taken = await asyncio.gather(
        *(ids.take() for _ in range(2 * BLOCK_SIZE) for ids in (one, other))
    )
    assert len(set(taken)) == len(taken)


@in_loop
async def test_who_is_always_overtaken_is_told_to_try_again() -> None:
    metadata = FakeMetadata()

    def overtake() -> None:
        metadata.revision += 1
        metadata.rows[KEY] = MetadataEntry(KEY, b"5000", metadata.revision, metadata.revision)

    metadata.on_transact = overtake
    ids = ProducerIds(metadata)
    with pytest.raises(Busy):
        await ids.take()
    metadata.on_transact = lambda: None
    assert await ids.take() == 5000


@in_loop
async def test_what_is_no_number_is_damage() -> None:
    metadata = FakeMetadata()
    for value in (b"", b"-5", b"12a", b"1" * 30):
        metadata.rows[KEY] = MetadataEntry(KEY, value, 1, 1)
        with pytest.raises(CorruptData, match=KEY):
            await ProducerIds(metadata).take()


@in_loop
async def test_the_last_ids_are_not_followed_by_the_first() -> None:
    metadata = FakeMetadata()
    metadata.rows[KEY] = MetadataEntry(KEY, str(PRODUCER_ID_MAX - 5).encode(), 1, 1)
    with pytest.raises(StorageFailed, match="producer ids are used up"):
        await ProducerIds(metadata).take()
