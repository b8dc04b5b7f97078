"""A log that an earlier release rewrote can be read, and is written today as it was then."""

from __future__ import annotations

from millstream.records.record import Record
from millstream.storage.files.names import parse_segment_file
from millstream.storage.files.partition_metadata import read_partition_metadata
from millstream.storage.inspect.verify_store import verify_store
from tests.in_loop import in_loop

from .golden.disk import golden_disk, golden_files, open_store
from .golden.make_v3 import DELETED, FOLDER, PARTITION, ROOT, make
from .rewritten import DIRECTORY, NEW, D, X

FILES = golden_files(FOLDER)
LOG = "topics/t/0/"


def test_the_golden_log_has_a_rewritten_segment() -> None:
    names = [parse_segment_file(name.removeprefix(LOG)) for name in FILES]
    assert {name.id for name in names if name} == {X, D}
    assert {name.suffix for name in names if name} == {"log", "index", "seal"}


def test_the_golden_description_says_all_that_version_3_can_say() -> None:
    assert b'"version":3' in FILES[f"{LOG}partition.json"]
    assert read_partition_metadata(golden_disk(FILES, ROOT), DIRECTORY) == PARTITION


@in_loop
async def test_the_golden_log_gives_what_is_left_and_can_be_appended_to() -> None:
    disk = golden_disk(FILES, ROOT)
    store = open_store(disk, ROOT)
    assert (store.damage(), store.recovered()) == ({}, {})
    log = await store.log("t")
    assert (log.start_offset, log.eviction_floor, log.end_offset) == (3, 2, 40)
    left = {n: value for n, value in NEW.items() if n >= 3 and n not in DELETED}
    assert {record.offset: record.value for record in log.records(3)} == left
    assert log.recovered.scanned_bytes == 0
    assert (await log.append_records([Record(b"today")])).offset == 40
    await store.close()
    assert [found for found in verify_store(disk, ROOT) if found.is_damage] == []


def test_the_same_rewrite_makes_the_same_bytes() -> None:
    disk = make()
    assert {path.removeprefix(f"{ROOT}/") for path in disk.paths()} == set(FILES)
    for name, content in FILES.items():
        assert disk.content(f"{ROOT}/{name}") == content, name
