"""A truncation that an earlier release began is finished, and recorded as then."""

from __future__ import annotations

from millstream.storage.files.partition_metadata import LeaderEpoch, read_partition_metadata
from millstream.storage.files.watermark import WatermarkFile
from tests.in_loop import in_loop

from .golden.disk import golden_disk, golden_files, open_store
from .golden.make_v4_truncation import END, FOLDER, PARTITION, ROOT, make
from .rewritten import DIRECTORY, OLD

FILES = golden_files(FOLDER)


def test_the_golden_metadata_have_the_truncation() -> None:
    assert b'"version":4' in FILES["topics/t/0/partition.json"]
    disk = golden_disk(FILES, ROOT)
    assert read_partition_metadata(disk, DIRECTORY) == PARTITION
    assert WatermarkFile(disk, DIRECTORY).read() == END


@in_loop
async def test_the_golden_log_ends_where_it_was_to_end() -> None:
    disk = golden_disk(FILES, ROOT)
    store = open_store(disk, ROOT)
    assert store.damage() == {}
    log = await store.log("t")
    assert log.recovered.truncated_to == END
    assert [r.value for r in log.records()] == [OLD[offset] for offset in range(END)]
    assert log.partition.epochs == (LeaderEpoch(0, 0),)
    assert log.replication.known_high_watermark == END
    await store.close()
    assert b'"version":1' in disk.content(f"{DIRECTORY}/partition.json")


def test_the_same_log_makes_the_same_bytes() -> None:
    disk = make()
    assert {path.removeprefix(f"{ROOT}/") for path in disk.paths()} == set(FILES)
    for name, content in FILES.items():
        assert disk.content(f"{ROOT}/{name}") == content, name
