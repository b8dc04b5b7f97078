"""Old segments move to the cold store, and are read, kept over restarts and evicted from there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from millstream.errors import RequestError, TierUnavailable
from millstream.storage.store import Store
from millstream.storage.tier.cold_store import DirectoryStore
from millstream.testing import ManualClock, SimulatedFilesystem
from tests.in_loop import in_loop

from .stores import TIERED, BadStore, cold, fill, make_store, numbers, values


def names(disk: SimulatedFilesystem, suffix: str) -> list[str]:
    return [name for name in disk.list("/data/topics/t/0") if name.endswith(suffix)]


@in_loop
async def test_old_segments_move_and_are_read_as_before():
    disk = SimulatedFilesystem()
    async with make_store(disk) as store:
        log = await store.log("t")
        await fill(log, 20)
        segments = len(log.segments)
        await store.relocator.run_once()
        assert len(cold(log)) == segments - 2, "the newest two stay"
        assert not any(s in log.segments[-2:] for s in cold(log))
        assert len(names(disk, ".cold")) == segments - 2
        assert len(names(disk, ".log")) == 2, "the local files are gone"
        assert values(log) == numbers(0, 20)
        assert log.size_bytes == sum(segment.size for segment in log.segments)


@in_loop
async def test_they_are_read_after_a_restart_and_the_log_goes_on():
    disk = SimulatedFilesystem()
    async with make_store(disk) as store:
        log = await store.log("t")
        await fill(log, 20)
        await store.relocator.run_once()
        moved = len(cold(log))
    async with make_store(disk) as store:
        log = await store.log("t")
        assert len(cold(log)) == moved
        assert not store.damage()
        await fill(log, 10, first=20)
        assert values(log) == numbers(0, 30)
        assert log.find_timestamp(25).offset == 25


@in_loop
async def test_retention_deletes_the_objects_and_then_the_markers():
    disk = SimulatedFilesystem()
    async with make_store(disk) as store:
        log = await store.log("t")
        await fill(log, 20)
        await store.relocator.run_once()
        offset = cold(log)[2].base_offset
        await log.evict_before(offset)
        assert values(log) == numbers(offset, 20)
        await log.roll()
        await store.relocator.run_once()
        left = len(cold(log))
        assert len(names(disk, ".cold")) == left
        keys = list(DirectoryStore("/cold", disk).list(f"{store.store_id}/"))
        assert len([key for key in keys if key.endswith(".log")]) == left
        assert len(keys) == 3 * left


@in_loop
async def test_what_local_retention_keeps_is_not_moved():
    clock = ManualClock()
    config = replace(TIERED, local_retention_ms=60_000)
    async with make_store(SimulatedFilesystem(), config=config, clock=clock) as store:
        log = await store.log("t")
        await fill(log, 20)
        await store.relocator.run_once()
        assert not cold(log)
        clock.advance(61)
        await store.relocator.run_once()
        assert len(cold(log)) == len(log.segments) - 2
    config = replace(TIERED, local_retention_bytes=4000)
    async with make_store(SimulatedFilesystem(), config=config) as store:
        log = await store.log("t")
        await fill(log, 40)
        await store.relocator.run_once()
        local = sum(s.size for s in log.segments if s not in cold(log))
        assert cold(log)
        assert 4000 <= local < 4000 + 1024


@in_loop
async def test_a_log_that_is_not_open_is_relocated_too():
    disk = SimulatedFilesystem()
    async with make_store(disk, config=replace(TIERED, is_tiered=False)) as store:
        await fill(await store.log("t"), 20)
    async with make_store(disk) as store:
        await store.relocator.run_once()
        assert cold(store.get("t"))


@in_loop
async def test_without_a_tier_cold_records_are_refused_and_not_lost():
    disk = SimulatedFilesystem()
    async with make_store(disk) as store:
        log = await store.log("t")
        await fill(log, 20)
        await store.relocator.run_once()
        hot = log.segments[-2].base_offset
    async with Store("/data", filesystem=disk, log_config=TIERED, clock=ManualClock()) as store:
        log = await store.log("t")
        with pytest.raises(TierUnavailable, match=r"tier\.store is not set"):
            log.read(0)
        assert log.read(hot).data
        assert log.start_offset == 0
        assert log.end_offset == 20


@in_loop
async def test_records_in_a_cold_store_are_not_deleted_by_key():
    async with make_store(SimulatedFilesystem()) as store:
        log = await store.log("t")
        await fill(log, 20)
        await store.relocator.run_once()
        with pytest.raises(RequestError, match="cold store"):
            await log.delete_keys(key=b"k")


@pytest.mark.parametrize("kind", ["short", "flipped", "index", "failing", "lost"])
@in_loop
async def test_an_object_that_is_not_what_was_stored_never_replaces_a_file(kind):
    disk = SimulatedFilesystem()
    bad = BadStore(DirectoryStore("/cold", disk))

    def put(key: str, pieces: list[bytes]) -> list[bytes]:
        data = b"".join(pieces)
        if kind == "failing":
            raise OSError("no space")
        if key.endswith(".index") != (kind == "index"):
            return pieces
        if kind == "short":
            return [data[:-10]]
        if kind in ("flipped", "index"):
            return [data[:60] + bytes([data[60] ^ 1]) + data[61:]]
        return pieces

    bad.on_put = put
    if kind == "lost":
        bad.size = lambda key: (_ for _ in ()).throw(FileNotFoundError(key))
    async with make_store(disk, cold=bad) as store:
        log = await store.log("t")
        await fill(log, 20)
        await store.relocator.run_once()
        assert not cold(log)
        assert not names(disk, ".cold")
        assert len(names(disk, ".log")) == len(log.segments)
        assert "cannot be moved" in store.tier_problems()[0]
        assert values(log) == numbers(0, 20)


@pytest.mark.parametrize("kind", ["missing", "short", "flipped", "other", "failing"])
@in_loop
async def test_what_the_store_returns_wrong_is_refused_and_read_once_it_is_right(kind):
    disk = SimulatedFilesystem()
    clock = ManualClock()
    bad = BadStore(DirectoryStore("/cold", disk))
    async with make_store(disk, cold=bad, clock=clock) as store:
        log = await store.log("t")
        await fill(log, 20)
        await store.relocator.run_once()
        hot = log.segments[-2].base_offset
        other = bad.store.read(cold(log)[1].marker.key, 0, 10_000)

        def read(key: str, data: bytes) -> bytes:
            if kind == "missing":
                raise FileNotFoundError(key)
            if kind == "failing":
                raise OSError("reset")
            if kind == "short":
                return data[:-1]
            return other[: len(data)] if kind == "other" else data[:-1] + b"?"

        bad.on_read = read
        with pytest.raises(TierUnavailable):
            log.read(0)
        for _ in range(3):
            with pytest.raises(TierUnavailable):
                log.read(0)
        assert bad.reads, "it was asked"
        assert "cold" in store.tier_problems()[0]
        assert not store.damage(), "nothing is taken for lost"
        assert log.read(hot).data
        await fill(log, 1, first=20)
        bad.on_read = lambda _key, data: data
        clock.advance(2)
        assert values(log) == numbers(0, 21)
        assert not store.tier_problems()
