"""A log whose front an earlier release deleted can be read, and is written today as it was then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from millstream.errors import OffsetOutOfRange
from millstream.records.record import Record
from millstream.storage.inspect.verify_store import verify_store
from tests.in_loop import in_loop

from .golden.disk import golden_disk, golden_files, open_store
from .golden.make import AFTER_EPOCH, BATCHES
from .golden.make_v2 import FOLDER, ROOT, START, make

FILES = golden_files(FOLDER)
RECORDS = [record for batch in [*BATCHES, *AFTER_EPOCH] for record in batch]


def test_the_golden_log_starts_inside_its_first_segment() -> None:
    bases = [int(Path(name).stem) for name in FILES if name.endswith(".log")]
    assert bases[0] < START < bases[1]
    assert b'"version":2' in FILES["topics/deleted/0/partition.json"]


@in_loop
async def test_the_golden_log_gives_what_was_not_deleted_and_can_be_appended_to() -> None:
    disk = golden_disk(FILES, ROOT)
    store = open_store(disk, ROOT)
    assert (store.damage(), store.recovered()) == ({}, {})
    log = await store.log("deleted")
    assert (log.start_offset, log.end_offset) == (START, len(RECORDS))
    assert [record.value for record in log.records()] == [r.value for r in RECORDS[START:]]
    assert log.recovered.scanned_bytes == 0
    with pytest.raises(OffsetOutOfRange):
        log.read(START - 1)
    assert (await log.append_records([Record(b"today")])).offset == len(RECORDS)
    await store.close()
    assert list(verify_store(disk, ROOT)) == []


def test_the_same_deletion_makes_the_same_bytes() -> None:
    disk = asyncio.run(make())
    made = {path.removeprefix(f"{ROOT}/") for path in disk.paths()} - {"lock", "clock.json"}
    assert made == set(FILES)
    for name, content in FILES.items():
        assert disk.content(f"{ROOT}/{name}") == content, name
