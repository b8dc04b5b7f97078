"""A gap says which policy deleted its records, and still says so after a crash."""

from __future__ import annotations

import pytest

from millstream.records.record import Gap
from millstream.storage.files.document import encode_document
from millstream.storage.files.partition_metadata import (
    PartitionMetadata,
    read_partition_metadata,
    write_partition_metadata,
)
from millstream.testing import SimulatedFilesystem
from millstream.testing.disk.crash_states import crash_states
from tests.in_loop import in_loop
from tests.storage.keyed import DIRECTORY, SMALL, filled
from tests.storage.logs import make_store
from tests.storage.retention.test_eviction import plan, sealed


@in_loop
async def test_a_gap_has_the_reason_of_its_eviction():
    _, _, log = await filled()
    await log.evict_before(9, "age")
    assert log.gap_at(4) == Gap(4, 8, "age")
    assert next(iter(log.records(4))) == Gap(4, 8, "age")


@in_loop
async def test_a_gap_of_several_evictions_has_the_reason_of_the_last():
    _, _, log = await filled()
    await log.evict_before(9, "age")
    await log.evict_before(20, "bytes")
    assert log.gap_at(4) == Gap(4, 19, "bytes")


@in_loop
async def test_an_eviction_that_moves_nothing_does_not_change_the_reason():
    _, _, log = await filled()
    await log.evict_before(20, "records")
    await log.evict_before(9, "age")
    await log.delete_before(25)
    assert log.gap_at(4) == Gap(4, 19, "records")


@in_loop
async def test_the_reason_is_what_it_was_when_the_log_is_opened_again():
    disk, store, log = await filled()
    await log.evict_before(20, "records")
    await log.delete_before(22)
    await store.close()
    again = make_store(disk, config=SMALL)
    assert (await again.log("a")).gap_at(0) == Gap(0, 19, "records")


@in_loop
async def test_after_a_power_cut_the_floor_has_its_own_reason():
    disk, _, log = await filled()
    begin = len(disk.trace.events)
    await log.evict_before(9, "age")
    await log.evict_before(20, "bytes")
    points = range(begin, len(disk.trace.events) + 1)
    seen = set()
    for state in crash_states(disk.trace, seed=1, randoms=2, points=points):
        partition = read_partition_metadata(state.filesystem(), DIRECTORY)
        seen.add((partition.eviction_floor, partition.eviction_reason))
    assert seen == {(0, "retention"), (9, "age"), (20, "bytes")}


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"retention_ms": 5}, "age"),
        ({"retention_bytes": 100}, "bytes"),
        ({"retention_records": 10}, "records"),
        ({"retention_ms": 5, "retention_bytes": 0}, "bytes"),
        ({"retention_ms": 1, "retention_bytes": 200}, "age"),
    ],
)
def test_the_reason_is_that_of_the_last_segment_that_is_evicted(limits, reason):
    log = [sealed(0, age_ms=9), sealed(10, age_ms=3), sealed(20, age_ms=3)]
    found = plan(log, **limits)
    assert found is not None
    assert found.gap_reason == reason


# The stored form.


def test_a_floor_that_an_earlier_release_stored_has_no_exact_reason():
    disk = SimulatedFilesystem({"/p": None})
    write_partition_metadata(disk, "/p", PartitionMetadata(start_offset=9, eviction_floor=9))
    assert b"eviction_reason" not in disk.content("/p/partition.json")
    assert read_partition_metadata(disk, "/p").eviction_reason == "retention"


def test_a_reason_of_a_later_release_is_shown_as_the_general_one():
    content = {
        "durability": "fsync",
        "start_offset": 9,
        "leader_epochs": [[0, 0]],
        "eviction_floor": 9,
        "eviction_reason": "moved elsewhere",
    }
    data = encode_document("millstream-partition", 3, content)
    disk = SimulatedFilesystem({"/p": None, "/p/partition.json": data})
    assert read_partition_metadata(disk, "/p").eviction_reason == "retention"
