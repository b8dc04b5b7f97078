"""`verify` and `reindex` with rewritten segments: they decide as recovery would."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from crc32c import crc32c

from millstream.storage.files.checkpoint import SyncPoint
from millstream.storage.files.document import encode_document, replace_file
from millstream.storage.files.names import STORE_KIND, STORE_VERSION, SegmentId, segment_file
from millstream.storage.files.partition_metadata import PartitionMetadata, write_partition_metadata
from millstream.storage.files.seal import decode_seal, encode_seal
from millstream.storage.inspect.catalog import Finding, FindingKind, SegmentFate, survey_partition
from millstream.storage.inspect.reindex import reindex_store
from millstream.storage.inspect.verify_store import verify_partition, verify_store
from millstream.storage.segment.keys.builder import build_key_index
from millstream.testing import ManualClock, SimulatedFilesystem
from tests.storage.rewritten import (
    DIRECTORY,
    INPUTS,
    A,
    B,
    C,
    D,
    X,
    Y,
    appended,
    cut,
    files_of,
    flip,
    log_of,
    make_disk,
    make_log_directory,
    path_of,
    put_checkpoint,
    put_log,
    put_seal,
    remove,
)

from .test_verify_store import Busy, Untouchable

Disk = SimulatedFilesystem


def put_keys(disk: Disk, segment: SegmentId, data: bytes | None = None) -> str:
    """Write the key index of a segment, or other bytes in its place."""
    if data is None:
        log = memoryview(disk.content(path_of(segment, "log")))
        data = build_key_index(log, base_offset=segment.base_offset)
    name = segment_file(segment.base_offset, "keys", segment.generation)
    replace_file(disk, DIRECTORY, name, [data])
    return path_of(segment, "keys")


def clean() -> Disk:
    """Return a log with a rewritten segment, without leftovers."""
    disk = make_disk(X, D)
    put_keys(disk, X)
    put_keys(disk, D)
    return disk


def found_in(disk: Disk) -> list[Finding]:
    return verify_partition(disk, DIRECTORY)


def damaged(disk: Disk) -> set[str]:
    return {found.path for found in found_in(disk) if found.is_damage}


def fates(disk: Disk) -> dict[SegmentId, SegmentFate]:
    return {files.id: files.fate for files in survey_partition(disk, DIRECTORY).segments}


# At rest.


def test_a_rewritten_log_at_rest_gives_no_finding() -> None:
    assert found_in(clean()) == []


def test_a_flip_in_any_byte_of_a_rewritten_log_is_found() -> None:
    disk = clean()
    missed = []
    for path in [*files_of(X, D), path_of(X, "keys")]:
        content = disk.content(path)
        for position in range(len(content)):
            disk.flip_bit(path, position * 8 + position % 8)
            if path not in damaged(disk):
                missed.append((path, position))
            disk.replace_content(path, content)
    assert missed == []


@pytest.mark.parametrize("suffix", ["log", "index", "seal"])
def test_a_lost_file_of_a_rewritten_segment_is_found(suffix: str) -> None:
    disk = clean()
    remove(disk, path_of(X, suffix))
    assert damaged(disk) == {path_of(X, suffix)}


@pytest.mark.parametrize("suffix", ["log", "index", "seal"])
def test_a_file_of_another_generation_is_found(suffix: str) -> None:
    """Someone put the file from before the rewrite back, under the name of the new one."""
    disk = clean()
    disk.replace_content(path_of(X, suffix), make_disk(A).content(path_of(A, suffix)))
    assert path_of(X, suffix) in damaged(disk)


def test_a_seal_is_compared_with_a_log_of_stripped_batches_and_fillers() -> None:
    disk = clean()
    seal = decode_seal(disk.content(path_of(X, "seal")))
    assert (seal.next_offset, seal.record_count, seal.batch_count) == (30, 25, 14)
    for wrong in (replace(seal, record_count=30), replace(seal, timestamp_max=99)):
        disk.replace_content(path_of(X, "seal"), encode_seal(wrong))
        assert damaged(disk) == {path_of(X, "seal")}


# Left over.


def test_what_was_rewritten_is_unfinished_and_says_what_becomes_of_it() -> None:
    disk = make_disk(A, B, C, D, X)
    assert fates(disk) == {
        **dict.fromkeys(INPUTS, SegmentFate.SUPERSEDED),
        X: SegmentFate.LIVE,
        D: SegmentFate.LIVE,
    }
    found = found_in(disk)
    assert {f.path for f in found} == {path_of(segment, "index") for segment in INPUTS}
    assert {f.kind for f in found} == {FindingKind.UNFINISHED}
    message = f"was rewritten into {path_of(X, 'log')}; will be removed at the next start"
    assert {f.message for f in found} == {message}


def test_what_was_rewritten_into_something_damaged_is_said_to_stay() -> None:
    disk = make_disk(A, B, C, D, X)
    flip(disk, path_of(X, "log"))
    notes = [f for f in found_in(disk) if not f.is_damage]
    assert len(notes) == 3
    assert all(f.message.endswith("; is kept, because some are damaged") for f in notes)
    assert damaged(disk) == {path_of(X, "log")}


def test_an_unfinished_rewrite_says_what_becomes_of_it() -> None:
    disk = make_disk(A, B, C, D, X)
    remove(disk, path_of(X, "seal"))
    assert fates(disk)[X] is SegmentFate.UNFINISHED
    (note,) = found_in(disk)
    assert (note.path, note.kind) == (path_of(X, "index"), FindingKind.UNFINISHED)
    names = ", ".join(path_of(segment, "log") for segment in INPUTS)
    assert note.message == (
        f"was to replace {names}, and has no seal; will be removed at the next start"
    )


def test_a_bad_byte_in_an_unfinished_rewrite_is_damage() -> None:
    """It was complete when it was renamed."""
    disk = make_disk(A, B, C, D, X)
    remove(disk, path_of(X, "seal"))
    flip(disk, path_of(X, "log"))
    assert damaged(disk) == {path_of(X, "log")}


def test_the_log_of_a_rewrite_that_was_being_written_is_a_leftover() -> None:
    disk = make_disk(A, B, C, D)
    path = path_of(X, "log") + ".tmp"
    disk.create(path).close()
    assert [(f.path, f.kind) for f in found_in(disk)] == [(path, FindingKind.UNFINISHED)]


def test_what_overlaps_a_rewritten_segment_is_damage() -> None:
    disk = make_disk(A, B, X)
    place = make_log_directory(disk)
    put_log(place, C, appended(20, 32))
    put_seal(place, C)
    assert fates(disk)[C] is SegmentFate.OVERLAPPING
    (found,) = [f for f in found_in(disk) if f.is_damage]
    assert (found.path, found.kind) == (path_of(C, "index"), FindingKind.DAMAGED)
    assert f"shares offsets with {path_of(X, 'log')}" in found.message


def test_the_fate_of_each_of_three_generations_is_known() -> None:
    disk = make_disk(A, C, X, Y)
    assert fates(disk) == {**dict.fromkeys((A, C, X), SegmentFate.SUPERSEDED), Y: SegmentFate.LIVE}


def test_a_deleted_segment_is_deleted_in_all_generations() -> None:
    disk = make_disk(B, X, D, partition=PartitionMetadata(start_offset=35, is_rewritten=True))
    assert fates(disk) == {B: SegmentFate.DELETED, X: SegmentFate.DELETED, D: SegmentFate.LIVE}
    assert {f.kind for f in found_in(disk)} == {FindingKind.UNFINISHED}


def test_without_partition_json_generations_are_told_apart_all_the_same() -> None:
    disk = make_disk(A, B, C, D, X)
    path = f"{DIRECTORY}/partition.json"
    remove(disk, path)
    assert fates(disk) == {
        **dict.fromkeys(INPUTS, SegmentFate.SUPERSEDED),
        X: SegmentFate.LIVE,
        D: SegmentFate.LIVE,
    }
    assert damaged(disk) == {path}


def test_verify_uses_only_calls_that_read() -> None:
    disk = make_disk(A, B, C, D, X)
    remove(disk, path_of(X, "seal"))
    assert len(verify_partition(Untouchable(disk), DIRECTORY)) == 1


# Keys.


def test_keys_may_be_missing() -> None:
    disk = clean()
    remove(disk, path_of(X, "keys"), path_of(D, "keys"))
    assert found_in(disk) == []


def test_keys_of_an_earlier_state_of_the_log_are_no_damage() -> None:
    """They are built again on demand."""
    disk = clean()
    log = memoryview(log_of(A))
    put_keys(disk, X, build_key_index(log, base_offset=0))
    assert found_in(disk) == []


def test_keys_of_another_version_are_no_damage() -> None:
    disk = clean()
    data = disk.content(path_of(X, "keys"))
    blank = data[:4] + b"\x02" + data[5:44] + bytes(4) + data[48:]
    put_keys(disk, X, blank[:44] + crc32c(blank).to_bytes(4, "little") + blank[48:])
    assert found_in(disk) == []


@pytest.mark.parametrize("size", [0, 10, -1])
def test_keys_that_were_cut_are_damaged(size: int) -> None:
    disk = clean()
    cut(disk, path_of(X, "keys"), size)
    assert damaged(disk) == {path_of(X, "keys")}


def test_bad_keys_of_a_segment_that_grows_are_no_damage() -> None:
    disk = make_disk(X)
    put_log(make_log_directory(disk), D)
    path = put_keys(disk, D, b"noise")
    (note,) = found_in(disk)
    assert (note.path, note.kind) == (path, FindingKind.UNFINISHED)
    assert note.message.endswith("; will be written again")


# Beside a running node.


def switch(disk: Disk) -> None:
    """Do what a node does from the seal of a rewritten segment on."""
    place = make_log_directory(disk)
    put_seal(place, X)
    remove(disk, *files_of(*INPUTS))


def rewrite_and_switch(disk: Disk) -> None:
    put_log(make_log_directory(disk), X)
    switch(disk)


def switch_and_delete(disk: Disk) -> None:
    """Delete everything that was rewritten, too."""
    switch(disk)
    write_partition_metadata(disk, DIRECTORY, PartitionMetadata(start_offset=35, is_rewritten=True))
    remove(disk, *files_of(X))


@pytest.mark.parametrize(
    "path",
    [
        *(path_of(segment, suffix) for segment in (*INPUTS, D) for suffix in ("log", "seal")),
        path_of(B, "index"),
        path_of(X, "log"),
        f"{DIRECTORY}/partition.json",
    ],
)
@pytest.mark.parametrize("act", [switch, switch_and_delete])
def test_a_switch_while_verify_looks_is_no_damage(path: str, act: Callable[[Disk], None]) -> None:
    disk = make_disk(A, B, C, D, X)
    remove(disk, path_of(X, "seal"), path_of(X, "index"))
    busy = Busy(disk, path, act)
    assert [f for f in verify_partition(busy, DIRECTORY) if f.is_damage] == []
    assert busy._act is None


@pytest.mark.parametrize("path", [path_of(A, "log"), path_of(C, "seal"), path_of(D, "log")])
def test_a_rewrite_while_verify_looks_is_no_damage(path: str) -> None:
    busy = Busy(make_disk(A, B, C, D), path, rewrite_and_switch)
    assert [f for f in verify_partition(busy, DIRECTORY) if f.is_damage] == []
    assert busy._act is None


# Reindex.


def store(*segments: SegmentId) -> Disk:
    disk = make_disk(*segments)
    replace_file(disk, "/data", "node.json", [encode_document(STORE_KIND, STORE_VERSION, {})])
    return disk


def reindex(disk: Disk, *, is_all: bool = False) -> tuple[list[str], list[str]]:
    done = reindex_store(disk, "/data", is_all=is_all, clock=ManualClock(), index_interval_bytes=64)
    return done.written, [found.path for found in done.findings]


def test_an_index_of_a_rewritten_segment_is_derived_as_it_was() -> None:
    disk = store(X, D)
    before = disk.content(path_of(X, "index"))
    remove(disk, path_of(X, "index"))
    assert reindex(disk) == ([path_of(X, "index")], [])
    assert disk.content(path_of(X, "index")) == before


def test_a_seal_of_a_rewritten_segment_is_derived_where_a_later_one_follows() -> None:
    disk = store(X, D)
    remove(disk, path_of(X, "seal"))
    assert reindex(disk) == ([path_of(X, "index"), path_of(X, "seal")], [])
    assert list(verify_store(disk, "/data")) == []


def test_damaged_keys_are_derived() -> None:
    disk = store(X, D)
    path = put_keys(disk, X)
    before = disk.content(path)
    flip(disk, path)
    assert reindex(disk) == ([path], [])
    assert disk.content(path) == before


def test_reindex_leaves_what_was_rewritten_to_recovery() -> None:
    disk = store(A, B, C, D, X)
    flip(disk, path_of(B, "index"))
    before = disk.contents()
    assert reindex(disk, is_all=True) == ([path_of(X, "index"), path_of(D, "index")], [])
    assert disk.contents() == {**before, "/data/lock": b""}


def test_reindex_leaves_an_unfinished_rewrite_to_recovery() -> None:
    disk = store(A, B, C, D, X)
    remove(disk, path_of(X, "seal"))
    before = disk.contents()
    written = [path_of(segment, "index") for segment in (A, B, C, D)]
    assert reindex(disk, is_all=True) == (written, [])
    assert disk.contents() == {**before, "/data/lock": b""}


def test_progress_of_reindex_rises_to_all_bytes_of_the_log() -> None:
    seen: list[tuple[int, int]] = []
    disk = store(A, B, C, D, X)
    reindex_store(disk, "/data", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (len(log_of(X)) + len(log_of(D)),) * 2


def test_a_checkpoint_of_a_rewritten_segment_is_looked_at_as_recovery_does() -> None:
    disk = store(X)
    put_checkpoint(disk, SyncPoint(20, 100))
    assert list(verify_store(disk, "/data")) == []
    put_checkpoint(disk, SyncPoint(30, 100))
    assert [f.path for f in verify_store(disk, "/data")] == [f"{DIRECTORY}/{30:020d}.log"]
