"""Reads far behind the head: what is not in memory is brought in by threads, and no more."""

from __future__ import annotations

import asyncio
import mmap
import os

import pytest

from millstream.config.schema import LogConfig
from millstream.storage.disk.page_cache import MincoreProbe, detect_page_cache_probe
from millstream.storage.log import Log
from millstream.storage.prefetch import COLD_RANGE_BYTES_MIN, Prefetcher
from millstream.storage.store import Store
from tests.in_loop import in_loop

from .logs import HeldExecutor, batch_of, turns

SMALL = LogConfig(segment_bytes_max=4096)
VALUE = b"x" * 900


class Disk:
    """Says what is in memory: nothing, until something was brought in."""

    def __init__(self) -> None:
        self.is_warm = False
        self.asked: list[int] = []

    def is_resident(self, view: memoryview) -> bool:
        self.asked.append(len(view))
        return self.is_warm


async def filled(store: Store, *, segments: int = 6) -> Log:
    log = await store.log("t", config=SMALL)
    while len(log.segments) < segments:
        await log.append(batch_of(VALUE))
    return log


@in_loop
async def test_what_lies_near_the_head_is_read_at_once(tmp_path):
    disk = Disk()
    async with Store(str(tmp_path), page_cache_probe=disk) as store:
        log = await filled(store)
        for offset in (
            log.end_offset - 1,
            log.segments[-1].base_offset,
            log.segments[-2].base_offset,
        ):
            assert store.prefetcher.cold_ranges(log.segments, offset, 1_000) == []
        assert disk.asked == [], "nobody even asks"
        assert store.prefetcher.cold_ranges(log.segments[-2:], 0, 1_000) == []


@in_loop
async def test_what_is_old_and_in_memory_is_read_at_once(tmp_path):
    disk = Disk()
    async with Store(str(tmp_path), page_cache_probe=disk) as store:
        log = await filled(store)
        log.read(0)  # Its index is at hand from here on.
        disk.is_warm = True
        assert store.prefetcher.cold_ranges(log.segments, 0, 1_000) == []
        assert disk.asked == [1_000]


@in_loop
async def test_what_is_old_and_not_in_memory_is_brought_in(tmp_path):
    disk = Disk()
    async with Store(str(tmp_path), page_cache_probe=disk) as store:
        log = await filled(store)
        [stretch] = store.prefetcher.cold_ranges(log.segments, 1, 1_000)
        assert (stretch.segment, stretch.offset) == (log.segments[0], 1)
        await store.prefetcher.prefetch([stretch])
        assert store.prefetcher.reads == 1
        assert store.prefetcher.bytes >= log.segments[0].size, "its index too, and what follows"


@in_loop
async def test_a_read_over_several_segments_is_brought_in_whole_up_to_the_hot_ones(tmp_path):
    disk = Disk()
    async with Store(str(tmp_path), page_cache_probe=disk) as store:
        log = await filled(store)
        found = store.prefetcher.cold_ranges(log.segments, 0, 10**9)
        assert [one.segment for one in found] == list(log.segments[:-2])
        two = store.prefetcher.cold_ranges(log.segments, 0, log.segments[0].size + 1)
        assert [one.segment for one in two] == list(log.segments[:2])


@in_loop
async def test_while_something_is_brought_in_the_loop_goes_on(tmp_path):
    background = HeldExecutor()
    background.is_held = True
    async with Store(str(tmp_path), page_cache_probe=Disk()) as store:
        log = await filled(store)
        warming = Prefetcher(background, Disk())
        bringing = asyncio.ensure_future(
            warming.prefetch(warming.cold_ranges(log.segments, 0, COLD_RANGE_BYTES_MIN))
        )
        await turns()
        assert not bringing.done()
        await log.append(batch_of(b"new"))  # Nobody waits for the disk but who reads what is old.
        background.let_go()
        await bringing
        assert warming.reads == len(log.segments) - 2


@in_loop
async def test_a_segment_that_went_meanwhile_is_no_error(tmp_path):
    async with Store(str(tmp_path), page_cache_probe=Disk()) as store:
        log = await filled(store)
        stretches = store.prefetcher.cold_ranges(log.segments, 0, 1_000)
        await log.evict_before(log.segments[2].base_offset)
        await store.prefetcher.prefetch(stretches)
        assert store.prefetcher.reads == 1


@in_loop
async def test_where_nothing_tells_what_is_in_memory_nothing_is_cold(tmp_path):
    async with Store(str(tmp_path)) as store:
        log = await filled(store)
        assert Prefetcher(HeldExecutor(), None).cold_ranges(log.segments, 0, 10**9) == []


# The kernel.

is_told = pytest.mark.skipif(detect_page_cache_probe() is None, reason="this system does not tell")


@is_told
def test_what_was_just_written_is_in_memory(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100_000)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        view = memoryview(mapped)
        residency = MincoreProbe()
        for start, end in (
            (0, 0),
            (0, 1),
            (5, 4_096),
            (4_095, 4_097),
            (0, 100_000),
            (99_999, 10**6),
        ):
            with view[start:end] as part:
                assert residency.is_resident(part)
        view.release()


@is_told
def test_what_the_kernel_dropped_is_not_in_memory_until_it_was_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(8 * 1024 * 1024))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            view, residency = memoryview(mapped), MincoreProbe()
            is_dropped = not residency.is_resident(view)
            if is_dropped:
                assert os.pread(file.fileno(), len(view), 0)
                assert residency.is_resident(view)
            view.release()
    if not is_dropped:
        pytest.skip("this file system keeps files in memory")
