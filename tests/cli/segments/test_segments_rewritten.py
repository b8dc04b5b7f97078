"""`millstream segments` with rewritten segments and records deleted by key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from millstream.cli.main import main
from millstream.records.filter.batch_filter import filler_batches
from millstream.records.filter.keys.matcher import KeyMatch
from millstream.storage.disk.filesystem import OsFilesystem
from millstream.storage.files.document import encode_document, replace_file
from millstream.storage.files.names import STORE_KIND, STORE_VERSION, SegmentId
from millstream.storage.files.partition_metadata import DeletionRule, PartitionMetadata
from millstream.storage.inspect.batch_walk import walk_batches
from millstream.storage.inspect.catalog import survey_partition
from millstream.testing import SimulatedFilesystem
from tests.cli.stores import put_on_disk
from tests.storage.inspect.test_verify_store import Busy
from tests.storage.rewritten import (
    DIRECTORY,
    DROPPED,
    INPUTS,
    NEW,
    OLD,
    A,
    B,
    C,
    D,
    X,
    files_of,
    log_of,
    make_disk,
    make_log_directory,
    path_of,
    put_log,
    put_seal,
    remove,
)


def on_disk(path: Path, *segments: SegmentId, partition: PartitionMetadata | None = None) -> Path:
    disk = make_disk(*segments, partition=partition)
    replace_file(disk, "/data", "node.json", [encode_document(STORE_KIND, STORE_VERSION, {})])
    put_on_disk(disk, str(path))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory right after a rewrite took effect."""
    return on_disk(tmp_path / "data", A, B, C, D, X)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def dump(data: Path, *arguments: object) -> list[dict[str, Any]]:
    result = run("segments", "dump", "--data", data, "--topic", "t", *arguments)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def file_of(data: Path, segment: SegmentId, suffix: str) -> Path:
    return Path(path_of(segment, suffix).replace("/data", str(data), 1))


def test_list_shows_generations_and_leaves_out_what_was_rewritten(data: Path) -> None:
    rows = json.loads(run("segments", "list", "--data", data, "--json").stdout)
    assert [(row["base_offset"], row["generation"], row["next_offset"]) for row in rows] == [
        (0, 1, 30),
        (30, 0, 40),
    ]
    assert (rows[0]["records"], rows[0]["batches"]) == (30 - len(DROPPED), 14)
    header, first, *_ = run("segments", "list", "--data", data).stdout.splitlines()
    assert header.split()[-1] == "GENERATION"
    assert first.split()[-1] == "1"


def test_list_shows_the_inputs_of_an_unfinished_rewrite(data: Path) -> None:
    file_of(data, X, "seal").unlink()
    rows = json.loads(run("segments", "list", "--data", data, "--json").stdout)
    assert [row["base_offset"] for row in rows] == [0, 10, 20, 30]
    assert {row["generation"] for row in rows} == {0}


def test_list_gives_a_segment_without_records_no_time(tmp_path: Path) -> None:
    disk = make_disk()
    place = make_log_directory(disk)
    put_log(place, X, filler_batches(0, 30, leader_epoch=0))
    put_seal(place, X)
    replace_file(disk, "/data", "node.json", [encode_document(STORE_KIND, STORE_VERSION, {})])
    put_on_disk(disk, str(tmp_path / "data"))
    (row,) = json.loads(run("segments", "list", "--data", tmp_path / "data", "--json").stdout)
    assert (row["first_timestamp_ms"], row["last_timestamp_ms"]) == (None, None)
    assert (row["records"], row["batches"], row["next_offset"]) == (0, 1, 30)


def test_dump_shows_what_counts(data: Path) -> None:
    records = dump(data, "--records")
    assert {record["offset"]: record["value"].encode() for record in records} == NEW
    batches = dump(data)
    assert {(batch["segment"], batch["generation"]) for batch in batches} == {(0, 1), (30, 0)}
    assert [batch["offset"] for batch in batches if batch["count"] == 0] == [12]


def test_dump_starts_inside_a_rewritten_segment(data: Path) -> None:
    assert [line["offset"] for line in dump(data, "--records", "--from", 11, "--until", 18)] == [
        11,
        16,
        17,
    ]


def test_dump_leaves_out_records_that_were_deleted_by_key(tmp_path: Path) -> None:
    """The records are still in the files until these are rewritten."""
    rules = (
        DeletionRule(KeyMatch(b"key 3", is_prefix=True), 32),
        DeletionRule(KeyMatch(b"key 7", is_prefix=False), 40),
        DeletionRule(KeyMatch(b"key 7", is_prefix=False), 5),
    )
    data = on_disk(tmp_path / "data", A, B, C, D, partition=PartitionMetadata(deletions=rules))
    left = {line["offset"] for line in dump(data, "--records")}
    assert set(OLD) - left == {3, 7, 30, 31}
    assert len(dump(data)) == 20, "the batches are there"


def test_verify_tells_what_is_unfinished_and_ends_well(data: Path) -> None:
    result = run("segments", "verify", "--data", data)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) == len(INPUTS)
    assert all(line.startswith("unfinished: ") for line in lines)
    assert f"was rewritten into {file_of(data, X, 'log')}" in result.stdout


def test_verify_finds_damage_in_a_rewritten_segment(data: Path) -> None:
    path = file_of(data, X, "log")
    path.write_bytes(path.read_bytes()[:-1])
    result = run("segments", "verify", "--data", data, "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert {f["path"] for f in report["findings"] if f["is_damage"]} == {str(path)}


def test_reindex_writes_the_index_of_the_generation_that_counts(data: Path) -> None:
    for segment in (B, X):
        file_of(data, segment, "index").unlink()
    result = run("segments", "reindex", "--data", data)
    assert (result.exit_code, result.stdout) == (0, f"written: {file_of(data, X, 'index')}\n")


# Concurrent with a running node.


def switch(disk: SimulatedFilesystem) -> None:
    put_log(make_log_directory(disk), X)
    put_seal(make_log_directory(disk), X)
    remove(disk, *files_of(*INPUTS))


@pytest.mark.parametrize("segment", [A, B, C, D])
def test_a_walk_goes_on_in_what_was_rewritten_meanwhile(segment: SegmentId) -> None:
    """Every live record is returned once."""
    disk = make_disk(A, B, C, D)
    files = survey_partition(disk, DIRECTORY)
    busy = Busy(disk, path_of(segment, "log"), switch)
    seen: list[int] = []
    for _, found in walk_batches(busy, files, 0):
        assert found.is_sound
        seen += range(found.header.base_offset, found.header.next_offset)
    assert seen == list(range(40))


def test_a_walk_from_the_middle_goes_on_in_what_was_rewritten_meanwhile() -> None:
    disk = make_disk(A, B, C, D)
    busy = Busy(disk, path_of(B, "log"), switch)
    seen = [
        found.header.base_offset
        for _, found in walk_batches(busy, survey_partition(disk, DIRECTORY), 15)
    ]
    assert seen[:2] == [12, 16]


def test_a_walk_passes_over_a_log_that_is_gone_for_good() -> None:
    disk = make_disk(A, B, C, D)
    files = survey_partition(disk, DIRECTORY)
    remove(disk, path_of(B, "log"))
    seen = [found.header.base_offset for _, found in walk_batches(disk, files, 0)]
    assert seen == [*range(0, 10, 2), *range(20, 40, 2)]


def test_list_looks_again_where_segments_were_rewritten_meanwhile(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node removes the inputs after they are listed and before their seals are read."""
    for suffix in ("seal", "index", "log"):
        file_of(data, X, suffix).rename(file_of(data, X, suffix + ".away"))
    listed = OsFilesystem.list

    def list_and_switch(self: OsFilesystem, path: str) -> Any:
        names = listed(self, path)
        if path.endswith("/t/0"):
            for away in Path(path).glob("*.away"):
                away.rename(away.with_suffix(""))
            for segment in INPUTS:
                for suffix in ("seal", "index", "log"):
                    file_of(data, segment, suffix).unlink(missing_ok=True)
        return names

    monkeypatch.setattr(OsFilesystem, "list", list_and_switch)
    rows = json.loads(run("segments", "list", "--data", data, "--json").stdout)
    assert [(row["base_offset"], row["generation"]) for row in rows] == [(0, 1), (30, 0)]
    assert sum(row["bytes"] for row in rows) == len(log_of(X)) + len(log_of(D))
