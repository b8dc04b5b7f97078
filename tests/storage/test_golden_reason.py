"""A gap reason and a topic id that an earlier release stored are read, and written as then."""

from __future__ import annotations

from millstream.records.record import Gap
from millstream.storage.files.partition_metadata import read_partition_metadata
from tests.in_loop import in_loop

from .golden.disk import golden_disk, golden_files, open_store
from .golden.make_v3_reason import FOLDER, PARTITION, ROOT, make
from .rewritten import DIRECTORY

FILES = golden_files(FOLDER)


def test_the_golden_description_has_reason_and_id() -> None:
    assert b'"version":3' in FILES["topics/t/0/partition.json"]
    assert read_partition_metadata(golden_disk(FILES, ROOT), DIRECTORY) == PARTITION


@in_loop
async def test_the_golden_log_tells_its_gap_and_names_itself_in_cursors() -> None:
    store = open_store(golden_disk(FILES, ROOT), ROOT)
    assert (store.damage(), store.recovered()) == ({}, {})
    log = await store.log("t")
    assert log.gap_at(0) == Gap(0, 2, "bytes")
    assert log.cursor_at(7) == "t@x3Jd0QmnRkK8m2Yv1pTq5w:0:7"
    await store.close()


def test_the_same_log_makes_the_same_bytes() -> None:
    disk = make()
    assert {path.removeprefix(f"{ROOT}/") for path in disk.paths()} == set(FILES)
    for name, content in FILES.items():
        assert disk.content(f"{ROOT}/{name}") == content, name
