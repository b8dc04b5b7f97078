"""Damage of markers, and of what is beside them: reported, and never the loss of a record."""

from __future__ import annotations

import pytest

from millstream.errors import CorruptData
from millstream.storage.files.cold_marker import write_cold_marker
from millstream.storage.segment.cold_segment import ColdSegment
from millstream.testing import SimulatedFilesystem
from tests.crash.workload import damage_found
from tests.in_loop import in_loop

from .stores import cold, fill, make_store, numbers, values

DIRECTORY = "/data/topics/t/0"


async def tiered_disk() -> tuple[SimulatedFilesystem, list[ColdSegment]]:
    disk = SimulatedFilesystem()
    async with make_store(disk) as store:
        log = await store.log("t")
        await fill(log, 20)
        await store.relocator.run_once()
        segments = cold(log)
    assert not damage_found(disk)
    return disk, segments


def flip(disk: SimulatedFilesystem, path: str) -> None:
    file = disk.open(path)
    data = file.read_at(40, 1)
    file.write_at(40, [bytes([data[0] ^ 1])])
    file.sync()
    file.close()


@in_loop
async def test_a_damaged_marker_makes_its_range_unreadable_and_nothing_else():
    disk, segments = await tiered_disk()
    name = f"{DIRECTORY}/{segments[1].base_offset:020d}.0.cold"
    flip(disk, name)
    assert any(name == finding.path and finding.is_damage for finding in damage_found(disk))
    async with make_store(disk) as store:
        assert ".cold" in str(store.damage())
        log = await store.log("t")
        with pytest.raises(CorruptData):
            log.read(segments[1].base_offset)
        after = segments[2].base_offset
        assert values(log, after) == numbers(after, 20)
        await fill(log, 2, first=20)
        await store.relocator.run_once()
        await store.relocator.sweep()
        store._clock.advance(100 * 3600)
        await store.relocator.sweep()
        assert disk.size(f"/cold/{segments[1].marker.key}"), "its object is not swept"
    assert name.rpartition("/")[2] in disk.list(DIRECTORY)
    disk.remove(name)
    write_cold_marker(disk, DIRECTORY, segments[1].marker)
    async with make_store(disk) as store:
        assert not store.damage(), "an operator has restored the marker"
        assert values(await store.log("t")) == numbers(0, 22)


@pytest.mark.parametrize("suffix", ["seal", "index", "keys"])
@pytest.mark.parametrize("how", ["flipped", "removed"])
@in_loop
async def test_the_other_files_of_a_cold_segment_are_not_needed(suffix: str, how: str):
    disk, segments = await tiered_disk()
    for segment in segments:
        path = segment.log_directory.path(segment.base_offset, suffix)
        if path.rpartition("/")[2] not in disk.list(DIRECTORY):
            continue
        disk.remove(path) if how == "removed" else flip(disk, path)
    async with make_store(disk) as store:
        assert not store.damage()
        log = await store.log("t")
        assert values(log) == numbers(0, 20)
        assert len(cold(log)) == len(segments)


@in_loop
async def test_a_marker_beside_the_file_counts_for_nothing():
    disk, segments = await tiered_disk()
    segment = segments[0]
    data = disk.content(f"/cold/{segment.marker.key}")
    file = disk.create(segment.path)
    file.write_at(0, [data])
    file.sync()
    file.close()
    async with make_store(disk) as store:
        log = await store.log("t")
        assert segment.base_offset not in [s.base_offset for s in cold(log)]
        await store.relocator.run_once()
        assert segment.base_offset in [s.base_offset for s in cold(log)], "it was moved again"
        assert cold(log)[0].marker.key != segment.marker.key
        assert segment.marker.key.rpartition("/")[2] not in str(disk.list("/cold"))
        assert values(log) == numbers(0, 20)
    assert not damage_found(disk)
