"""What an earlier release wrote can be read, and what it wrote is what we write.

A change of format fails here. That is meant: give it a new version number, keep reading the old
one, and add golden files for the new one beside these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from millstream.records.record import Record, StoredRecord
from millstream.storage.files.checkpoint import SyncPoint, decode_checkpoint
from millstream.storage.files.seal import decode_seal
from millstream.storage.inspect.verify_store import verify_store
from millstream.testing import SimulatedFilesystem

from .golden.disk import golden_disk, golden_files, open_store
from .golden.make import AFTER_EPOCH, BATCHES, FOLDER, NOW_MS, PACKED, ROOT, make

FILES = golden_files(FOLDER)
WRITTEN_ALIKE = [
    name
    for name in FILES
    if not name.startswith("topics/packed/") and not name.endswith("checkpoint")
]
"""Compressed bytes may differ between versions of a codec's library, so those are only read.

So is the checkpoint: that of today has version 2 (`GOLDEN_CHECKPOINT`)."""

GOLDEN_CHECKPOINT = (FOLDER.parent / "v4" / "checkpoint").read_bytes()


def stored(batches: Sequence[Sequence[Record]]) -> list[StoredRecord]:
    records = [record for batch in batches for record in batch]
    return [
        StoredRecord(
            offset,
            NOW_MS if record.timestamp_ms is None else record.timestamp_ms,
            record.key,
            record.value,
            record.headers,
        )
        for offset, record in enumerate(records)
    ]


EXPECTED = {
    "sealed": stored([*BATCHES, *AFTER_EPOCH]),
    "growing": stored(BATCHES[:3]),
    "packed": stored([records for _, records in PACKED]),
}


def test_the_golden_files_are_all_there():
    kinds = {Path(name).suffix or Path(name).name for name in FILES}
    assert kinds == {".log", ".index", ".seal", ".json", "checkpoint"}
    assert len(FILES) == 18


@pytest.mark.parametrize("topic", EXPECTED)
def test_golden_files_give_exactly_the_records_that_went_in(topic):
    async def read() -> list[StoredRecord]:
        store = open_store(golden_disk(FILES, ROOT), ROOT)
        assert store.damage() == {}
        found = list((await store.log(topic)).records())
        await store.close()
        return found

    assert asyncio.run(read()) == EXPECTED[topic]


def test_golden_files_that_were_closed_cleanly_are_trusted_without_a_scan():
    store = open_store(golden_disk(FILES, ROOT), ROOT)
    assert store.recovered() == {}
    scanned = {name.topic: store._recovered[name].scanned_bytes for name in store.names()}
    assert scanned == {
        "growing": len(FILES["topics/growing/0/00000000000000000000.log"]),
        "packed": 0,
        "sealed": 0,
    }


def test_golden_files_are_found_by_time():
    async def find() -> list[object]:
        log = await open_store(golden_disk(FILES, ROOT), ROOT).log("sealed")
        return [log.find_timestamp(NOW_MS + later) for later in (-9_000, 1, 9_000, 9_001)]

    found = asyncio.run(find())
    assert found == [(0, NOW_MS), (2, NOW_MS + 9_000), (2, NOW_MS + 9_000), None]


def test_golden_logs_can_be_appended_to():
    async def go_on(topic: str) -> list[StoredRecord]:
        disk = golden_disk(FILES, ROOT)
        store = open_store(disk, ROOT)
        await (await store.log(topic)).append_records([Record(b"today", timestamp_ms=1)])
        await store.close()
        again = open_store(disk, ROOT)
        assert (again.damage(), again.recovered()) == ({}, {})
        return list((await again.log(topic)).records())

    for topic, records in EXPECTED.items():
        today = StoredRecord(len(records), 1, None, b"today")
        assert asyncio.run(go_on(topic)) == [*records, today]


def test_golden_files_are_sound_to_the_last_byte():
    assert [
        found for found in verify_store(golden_disk(FILES, ROOT), ROOT) if found.is_damage
    ] == []


def test_reading_golden_files_changes_none_of_them():
    disk = golden_disk(FILES, ROOT)

    async def read() -> None:
        store = open_store(disk, ROOT)
        for topic in ("sealed", "packed"):
            assert list((await store.log(topic)).records()) == EXPECTED[topic]
        await store.close()

    asyncio.run(read())
    for name, content in FILES.items():
        if not name.startswith("topics/growing/"):
            assert disk.content(f"{ROOT}/{name}") == content, name


@pytest.fixture(scope="module")
def written_today() -> SimulatedFilesystem:
    return asyncio.run(make())


@pytest.mark.parametrize("name", WRITTEN_ALIKE)
def test_the_same_records_make_the_same_bytes(written_today, name):
    assert written_today.content(f"{ROOT}/{name}") == FILES[name]


def test_the_same_records_make_the_same_files(written_today):
    made = {path.removeprefix(f"{ROOT}/") for path in written_today.paths()}
    assert made - {"lock", "clock.json"} == set(FILES)


def test_the_same_records_make_the_same_checkpoint(written_today):
    assert written_today.content(f"{ROOT}/topics/growing/0/checkpoint") == GOLDEN_CHECKPOINT


# What the golden files say, so that they are known to be more than what they are compared with.


def test_the_golden_checkpoint_attests_the_whole_golden_log():
    size = len(FILES["topics/growing/0/00000000000000000000.log"])
    assert decode_checkpoint(FILES["topics/growing/0/checkpoint"]) == SyncPoint(0, size)
    end = len(EXPECTED["growing"])
    assert decode_checkpoint(GOLDEN_CHECKPOINT) == SyncPoint(0, size, end)


def test_the_golden_seals_cover_their_logs_without_a_gap():
    expected_base = 0
    for name, content in FILES.items():
        if name.startswith("topics/sealed/") and name.endswith(".seal"):
            seal = decode_seal(content)
            assert seal.base_offset == expected_base == int(Path(name).stem)
            assert seal.size == len(FILES[name.replace(".seal", ".log")])
            assert seal.leader_epoch == (4 if seal.base_offset == 9 else 0)
            expected_base = seal.next_offset
    assert expected_base == len(EXPECTED["sealed"])
