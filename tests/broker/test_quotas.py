"""Quotas of a node: stored, charged and changed."""

from __future__ import annotations

import asyncio

import pytest

from millstream.broker.quotas import DEFAULT, ClientQuotaEntity, QuotaKind, Quotas, entity_key
from millstream.errors import CorruptFile, InvalidRequest, StorageFailed, UnknownFormat
from millstream.metadata.sqlite import SqliteMetadata
from tests.in_loop import in_loop
from tests.metadata.memory import DyingMetadata, MemoryMetadata

ENTITIES = [
    ClientQuotaEntity("u", "c"),
    ClientQuotaEntity("u", DEFAULT),
    ClientQuotaEntity("u", None),
    ClientQuotaEntity(DEFAULT, "c"),
    ClientQuotaEntity(DEFAULT, DEFAULT),
    ClientQuotaEntity(DEFAULT, None),
    ClientQuotaEntity(None, "c"),
    ClientQuotaEntity(None, DEFAULT),
    ClientQuotaEntity("user:default", "client id/with=signs&ünïcode \n 漢字"),
    ClientQuotaEntity("u/client-id=c", None),
    ClientQuotaEntity("default", None),
]


async def opened(metadata) -> Quotas:
    quotas = Quotas(metadata)
    await quotas.open()
    return quotas


@in_loop
async def test_quotas_survive_a_restart(tmp_path):
    path = str(tmp_path / "meta.db")
    async with SqliteMetadata(path) as metadata:
        quotas = await opened(metadata)
        assert quotas.is_empty
        for number, entity in enumerate(ENTITIES, 1):
            await quotas.alter(entity, {"producer_byte_rate": float(number)})
        await quotas.alter(ENTITIES[0], {"request_percentage": 12.5})
    async with SqliteMetadata(path) as metadata:
        quotas = await opened(metadata)
        assert not quotas.is_empty
        wanted = {
            entity: {"producer_byte_rate": float(number)}
            for number, entity in enumerate(ENTITIES, 1)
        }
        wanted[ENTITIES[0]]["request_percentage"] = 12.5
        assert quotas.all() == wanted
        await quotas.alter(ENTITIES[0], {"producer_byte_rate": None})
        assert quotas.all()[ENTITIES[0]] == {"request_percentage": 12.5}


def test_every_entity_has_a_key_of_its_own():
    keys = {entity_key(entity) for entity in ENTITIES}
    assert len(keys) == len(ENTITIES)
    assert all(key.isascii() and key.isprintable() and " " not in key for key in keys)


@in_loop
async def test_who_has_no_quota_never_waits():
    quotas = await opened(MemoryMetadata())
    assert quotas.charge(QuotaKind.PRODUCE, "u", "c", 1e12, 0.0) == 0
    await quotas.alter(ClientQuotaEntity("v", None), {"producer_byte_rate": 1.0})
    assert quotas.charge(QuotaKind.PRODUCE, "u", "c", 1e12, 0.0) == 0
    assert quotas.charge(QuotaKind.CONSUME, "v", "c", 1e12, 0.0) == 0
    assert quotas.wait_ms(QuotaKind.CONSUME, "v", "c", 0.0) == 0


@in_loop
async def test_who_used_too_much_waits_until_the_rate_has_made_up_for_it():
    quotas = await opened(MemoryMetadata())
    await quotas.alter(ClientQuotaEntity("u", None), {"consumer_byte_rate": 1000.0})
    assert quotas.charge(QuotaKind.CONSUME, "u", "c", 10_000, 100.0) == 0
    assert quotas.charge(QuotaKind.CONSUME, "u", "d", 500, 100.0) == 500
    assert quotas.wait_ms(QuotaKind.CONSUME, "u", "e", 100.25) == 250
    assert quotas.wait_ms(QuotaKind.CONSUME, "u", "e", 100.5) == 0


@in_loop
async def test_the_time_of_requests_is_a_share_of_a_core():
    quotas = await opened(MemoryMetadata())
    await quotas.alter(ClientQuotaEntity(None, DEFAULT), {"request_percentage": 50.0})
    assert quotas.charge(QuotaKind.REQUEST, "u", "c", 5.0, 0.0) == 0
    assert quotas.charge(QuotaKind.REQUEST, "u", "c", 1.0, 0.0) == 2000


@in_loop
async def test_a_quota_that_is_removed_holds_no_more():
    metadata = MemoryMetadata()
    quotas = await opened(metadata)
    entity = ClientQuotaEntity("u", None)
    await quotas.alter(entity, {"producer_byte_rate": 1.0, "consumer_byte_rate": 1.0})
    assert quotas.charge(QuotaKind.PRODUCE, "u", "c", 100, 0.0) > 0
    await quotas.alter(entity, {"producer_byte_rate": None, "request_percentage": None})
    assert quotas.charge(QuotaKind.PRODUCE, "u", "c", 100, 0.0) == 0
    assert not quotas.is_empty
    await quotas.alter(entity, {"consumer_byte_rate": None})
    assert quotas.is_empty
    assert quotas.all() == {}
    assert metadata.entries == {}
    await quotas.alter(entity, {"consumer_byte_rate": 5.0})
    assert quotas.all() == {entity: {"consumer_byte_rate": 5.0}}


@in_loop
async def test_all_changes_of_an_entity_are_made_or_none():
    quotas = await opened(MemoryMetadata())
    entity = ClientQuotaEntity("u", None)
    for changes in (
        {"producer_byte_rate": 1.0, "consumer_byte_rate": -1.0},
        {"producer_byte_rate": 1.0, "nonsense": 1.0},
        {"producer_byte_rate": 1.0, "nonsense": None},
    ):
        with pytest.raises(InvalidRequest):
            await quotas.alter(entity, changes)
    with pytest.raises(InvalidRequest):
        await quotas.alter(ClientQuotaEntity(None, None), {"producer_byte_rate": 1.0})
    await quotas.alter(entity, {"producer_byte_rate": 1.0}, is_validate_only=True)
    assert quotas.is_empty


@in_loop
async def test_changes_at_once_all_happen():
    quotas = await opened(MemoryMetadata())
    entity = ClientQuotaEntity("u", None)
    await asyncio.gather(
        *(
            quotas.alter(entity, {kind.value: float(number)})
            for number, kind in enumerate(QuotaKind, 1)
        )
    )
    assert quotas.all()[entity] == {kind.value: n for n, kind in enumerate(QuotaKind, 1)}


@in_loop
async def test_a_failing_disk_changes_nothing():
    quotas = await opened(DyingMetadata(MemoryMetadata(), 2, is_made=False))
    await quotas.alter(ClientQuotaEntity("u", None), {"producer_byte_rate": 1.0})
    with pytest.raises(StorageFailed):
        await quotas.alter(ClientQuotaEntity("u", None), {"producer_byte_rate": 2.0})
    assert quotas.all() == {ClientQuotaEntity("u", None): {"producer_byte_rate": 1.0}}


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (b"x", CorruptFile, "quotas/user=u is not a valid quota"),
        (b'{"version":2,"entity":{},"rates":{}}', UnknownFormat, "has version 2, expected 1"),
    ],
)
def test_a_row_that_cannot_be_read_is_reported(value, error, message):
    async def run() -> None:
        metadata = MemoryMetadata()
        await metadata.transact(puts={"quotas/user=u": value})
        await opened(metadata)

    with pytest.raises(error, match=message):
        asyncio.run(run())


@in_loop
async def test_the_default_of_the_node_holds_where_no_quota_is_set():
    quotas = Quotas(MemoryMetadata(), defaults={QuotaKind.PRODUCE: 10.0})
    await quotas.open()
    assert not quotas.is_empty
    assert quotas.charge(QuotaKind.PRODUCE, "u", "a", 150, 0.0) == 5_000
    assert quotas.charge(QuotaKind.PRODUCE, "u", "b", 100, 0.0) == 0, "each has its own"
    assert quotas.charge(QuotaKind.CONSUME, "u", "a", 10**9, 0.0) == 0
    await quotas.alter(ClientQuotaEntity(None, "a"), {"producer_byte_rate": 1000.0})
    assert quotas.wait_ms(QuotaKind.PRODUCE, "u", "a", 0.0) == 0, "what is set goes before it"
    await quotas.alter(ClientQuotaEntity(None, "a"), {"producer_byte_rate": None})
    assert not quotas.is_empty
