"""A cold store that hangs delays those who read from it, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from millstream.config.schema import StoreConfig, TierConfig
from millstream.errors import TierUnavailable
from millstream.records.record import Record
from millstream.storage.segment.cold_segment import ColdMiss
from millstream.storage.store import Store
from millstream.storage.tier.cold_reader import ColdReader
from millstream.storage.tier.cold_store import DirectoryStore
from millstream.storage.tier.tier_threads import TierThreads
from tests.in_loop import in_loop

from .stores import TIERED, BadStore, cold, fill, values


def open_store(path: Path, bad: BadStore) -> Store:
    return Store(
        str(path / "data"),
        log_config=TIERED,
        config=StoreConfig(upkeep_interval_ms=0),
        tier=TierConfig(store=str(path / "cold"), read_wait_ms=20),
        cold_store=bad,
    )


def store_in(path: Path) -> BadStore:
    (path / "cold").mkdir()
    return BadStore(DirectoryStore(str(path / "cold")))


@in_loop
async def test_appends_the_tail_retention_and_a_stop_do_not_wait_for_reads(tmp_path: Path) -> None:
    bad, released = store_in(tmp_path), threading.Event()

    def hang(_key: str, data: bytes) -> bytes:
        assert released.wait(300)
        return data

    store = open_store(tmp_path, bad)
    async with store:
        log = await store.log("t")
        await fill(log, 40)
        await store.relocator.run_once()
        bad.on_read = hang
        for segment in cold(log):
            ranges = store.prefetcher.cold_ranges(log.segments, segment.base_offset, 1000)
            assert ranges, "readers know that it is cold"
            await store.prefetcher.prefetch(ranges)
            with pytest.raises(ColdMiss):
                log.read(segment.base_offset)
        await fill(log, 5, first=40)
        assert log.read(44).data
        offset = cold(log)[1].base_offset
        await log.evict_before(offset)
        assert log.start_offset == offset
    released.set()


@in_loop
async def test_a_stop_does_not_wait_for_an_upload(tmp_path: Path) -> None:
    bad, released, begun = store_in(tmp_path), threading.Event(), threading.Event()

    def hang(_key: str, pieces: list[bytes]) -> list[bytes]:
        begun.set()
        assert released.wait(300)
        return pieces

    bad.on_put = hang
    store = open_store(tmp_path, bad)
    async with store:
        log = await store.log("t")
        await fill(log, 20)
        run = asyncio.ensure_future(store.relocator.run_once())
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 60)
        await fill(log, 5, first=20)
    await run
    released.set()
    async with open_store(tmp_path, store_in_again(tmp_path)) as store:
        assert len(values(await store.log("t"))) == 25


def store_in_again(path: Path) -> BadStore:
    return BadStore(DirectoryStore(str(path / "cold")))


@in_loop
async def test_a_piece_is_fetched_once_however_many_wait_for_it(tmp_path: Path) -> None:
    bad, released = store_in(tmp_path), threading.Event()

    def wait(_key: str, data: bytes) -> bytes:
        assert released.wait(300)
        return data

    async with open_store(tmp_path, bad) as store:
        log = await store.log("t")
        await fill(log, 20)
        await store.relocator.run_once()
        bad.reads = 0
        bad.on_read = wait
        misses = []
        for _ in range(50):
            with pytest.raises(ColdMiss) as miss:
                log.read(0)
            misses.append(miss.value.fetches[0])
        assert len(set(misses)) == 1
        released.set()
        await asyncio.wrap_future(misses[0])
        assert log.read(0).data
        assert bad.reads == 1


def test_the_queue_is_bounded_and_what_does_not_fit_is_refused() -> None:
    begun, released = threading.Event(), threading.Event()
    threads = TierThreads(1, queue_max=2, name="t")

    def run() -> bool:
        begun.set()
        return released.wait(300)

    running = threads.submit(run)
    assert begun.wait(60)
    waiting = [threads.submit(lambda: 1) for _ in range(2)]
    with pytest.raises(TierUnavailable, match="which is the limit"):
        threads.submit(lambda: 1)
    released.set()
    assert running.result(60)
    assert [call.result(60) for call in waiting] == [1, 1]
    threads.close()


def test_calls_that_hang_are_replaced_by_other_threads() -> None:
    now = [0.0]
    released = threading.Event()
    threads = TierThreads(1, queue_max=5, name="t", monotonic=lambda: now[0])
    begun = threading.Event()

    def hang() -> None:
        begun.set()
        released.wait(300)

    hanging = threads.submit(hang)
    assert begun.wait(60)
    now[0] = 60.0
    assert threads.submit(lambda: "other").result(60) == "other"
    assert threads.hanging == 1
    released.set()
    hanging.result(60)
    assert threads.submit(lambda: "more").result(60) == "more"
    threads.close()


@in_loop
async def test_the_cache_is_bounded(tmp_path: Path) -> None:
    bad = store_in(tmp_path)
    async with open_store(tmp_path, bad) as store:
        log = await store.log("t")
        await fill(log, 60)
        await store.relocator.run_once()
        threads = TierThreads(1, queue_max=500, name="t")
        reader = ColdReader(bad, threads, cache_bytes_max=3000, monotonic=lambda: 0.0)
        for segment in cold(log) * 2:
            try:
                reader.view(segment.marker, 0, segment.size)
            except ColdMiss as miss:
                await asyncio.wrap_future(miss.fetches[0])
            assert len(reader.view(segment.marker, 0, segment.size)) == segment.size
            assert reader.cached_bytes <= 3000
        threads.close()
        await log.append_records([Record(b"x")])
