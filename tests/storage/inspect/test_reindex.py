"""`reindex` derives what can be derived, and changes nothing else."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace as changed

import pytest

from millstream.errors import StorageFailed, StoreLocked, UnknownFormat
from millstream.storage.files.seal import decode_seal, encode_seal
from millstream.storage.inspect.reindex import reindex_store
from millstream.storage.inspect.verify_store import verify_store
from millstream.testing import Fault, FaultyFilesystem, ManualClock, SimulatedFilesystem
from tests.cli.stores import CONFIG

from . import test_verify_store as harm
from .test_verify_store import (
    FIRST,
    LAST,
    MIDDLE,
    clean,
    closed_again,
    file_of,
    flip,
    killed,
    replace,
)

Disk = SimulatedFilesystem


def reindex(disk: Disk, *, is_all: bool = False) -> tuple[list[str], list[str]]:
    done = reindex_store(
        disk,
        "/data",
        is_all=is_all,
        clock=ManualClock(),
        index_interval_bytes=CONFIG.index_interval_bytes,
    )
    return done.written, [found.path for found in done.findings]


@pytest.mark.parametrize("make", [clean, killed, closed_again])
def test_an_undamaged_store_stays_as_it_is(make: Callable[[], Disk]) -> None:
    disk = make().copy()
    assert reindex(disk) == ([], [])
    assert disk.contents() == make().contents()


@pytest.mark.parametrize(
    "damage",
    [
        harm.delete_index,
        harm.cut_index,
        harm.zero_index,
        harm.flip_bit_in_index_header,
        harm.flip_bit_in_index_entry,
        harm.index_of_another_segment,
        harm.index_entry_inside_a_batch,
        harm.index_entry_with_another_time,
        harm.index_without_first_batch,
    ],
)
def test_an_index_is_derived_as_it_was(damage: harm.Harm) -> None:
    disk = clean().copy()
    path = damage(disk)
    assert reindex(disk) == ([path], [])
    assert disk.contents() == clean().contents()


@pytest.mark.parametrize(
    "damage", [harm.delete_seal, harm.flip_bit_in_seal, harm.seal_of_another_segment]
)
def test_a_seal_is_derived_where_a_later_segment_proves_the_log_whole(damage: harm.Harm) -> None:
    disk = clean().copy()
    path = damage(disk)
    assert reindex(disk) == ([file_of(MIDDLE, "index"), path], [])
    assert list(verify_store(disk, "/data")) == []


def test_an_old_seal_is_replaced_where_a_later_segment_follows() -> None:
    disk = closed_again().copy()
    path = replace(disk, file_of(LAST, "seal"), clean().content(file_of(LAST, "seal")))
    assert reindex(disk) == ([file_of(LAST, "index"), path], [])
    assert list(verify_store(disk, "/data")) == []


def test_the_seal_of_the_last_segment_is_left_to_the_next_start() -> None:
    disk = clean().copy()
    path = harm.flip_bit_in_last_seal(disk)
    before = disk.contents()
    assert reindex(disk) == ([], [path])
    assert disk.contents() == before


@pytest.mark.parametrize(
    "damage",
    [
        harm.flip_bit_in_first_header,
        harm.flip_bit_in_last_record,
        harm.cut_last_batch_of_log,
        harm.zero_range_of_log,
        harm.append_noise_to_log,
        harm.log_of_another_segment,
        harm.delete_first_log,
    ],
)
def test_a_damaged_log_is_reported_and_never_touched(damage: harm.Harm) -> None:
    disk = clean().copy()
    path = damage(disk)
    before = disk.contents()
    written, left = reindex(disk, is_all=True)
    assert left == [path]
    assert path.replace(".log", ".index") not in written
    assert disk.contents() == before


def test_a_log_that_the_next_segment_does_not_go_on_from_is_not_sealed() -> None:
    disk = clean().copy()
    path = harm.delete_seal(disk)
    harm.cut_last_batch_of_log(disk)
    before = disk.contents()
    assert path in reindex(disk)[1]
    assert disk.contents() == before


def test_of_a_damaged_log_neither_index_nor_seal_is_derived() -> None:
    disk = clean().copy()
    harm.zero_range_of_log(disk)
    harm.delete_seal(disk)
    harm.zero_index(disk)
    before = disk.contents()
    written, left = reindex(disk, is_all=True)
    assert not any(f"{MIDDLE:020d}" in path for path in written)
    assert set(left) == {file_of(MIDDLE, suffix) for suffix in ("log", "index", "seal")}
    assert disk.contents() == before


def test_a_sound_log_that_contradicts_its_seal_is_left_to_people() -> None:
    disk = clean().copy()
    replace(disk, file_of(FIRST, "seal"), other_seal(disk))
    assert reindex(disk) == ([], [file_of(FIRST, "seal")])


def other_seal(disk: Disk) -> bytes:

    return encode_seal(changed(decode_seal(disk.content(file_of(FIRST, "seal"))), digest=bytes(16)))


def test_all_derives_every_index_of_a_sealed_segment() -> None:
    disk = killed().copy()
    written, left = reindex(disk, is_all=True)
    sealed = [path for path in disk.paths() if path.endswith(".seal")]
    assert written == [path.replace(".seal", ".index") for path in sealed]
    assert left == []
    assert disk.contents() == killed().contents()


def test_what_was_written_survives_a_power_cut() -> None:
    disk = clean().copy()
    harm.delete_index(disk)
    harm.delete_seal(disk)
    reindex(disk)
    assert list(verify_store(disk.crash(), "/data")) == []


def test_a_running_node_is_respected() -> None:
    disk = clean().copy()
    harm.delete_index(disk)
    lock = disk.lock("/data/lock")
    before = disk.contents()
    with pytest.raises(StoreLocked):
        reindex(disk)
    assert disk.contents() == before
    lock.release()
    assert reindex(disk)[0] == [file_of(LAST, "index")]


def test_the_lock_is_given_back_after_a_failure() -> None:
    disk = clean().copy()
    harm.delete_index(disk)
    full = FaultyFilesystem(disk, Fault(call=1, error=errno.ENOSPC, only={"create"}))
    with pytest.raises(OSError, match="No space"):
        reindex_store(full, "/data")
    disk.lock("/data/lock").release()


def test_another_version_is_refused_untouched() -> None:
    disk = clean().copy()
    harm.node_of_another_version(disk)
    harm.delete_index(disk)
    disk.remove("/data/lock")
    before = disk.contents()
    with pytest.raises(UnknownFormat):
        reindex(disk)
    assert disk.contents() == before


def test_a_partition_of_another_version_is_left_alone() -> None:
    disk = clean().copy()
    path = harm.partition_of_another_version(disk)
    harm.delete_index(disk)
    before = disk.contents()
    assert reindex(disk) == ([], [path])
    assert disk.contents() == before


@pytest.mark.parametrize("damage", [harm.seal_of_another_version, harm.index_of_another_version])
def test_a_file_of_another_version_is_left_alone(damage: harm.Harm) -> None:
    disk = clean().copy()
    path = damage(disk)
    before = disk.contents()
    assert reindex(disk) == ([], [path])
    assert disk.contents() == before


def test_without_partition_json_indexes_are_derived_all_the_same() -> None:
    disk = clean().copy()
    partition = harm.delete_partition(disk)
    path = flip(disk, file_of(24, "index"), 50)
    assert reindex(disk) == ([path], [partition])


def test_what_is_no_data_directory_is_refused() -> None:
    with pytest.raises(StorageFailed):
        reindex_store(SimulatedFilesystem(), "/nowhere")


def test_progress_rises_to_all_bytes_of_all_logs() -> None:
    seen: list[tuple[int, int]] = []
    disk = clean().copy()
    reindex_store(disk, "/data", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] > 0
    assert seen == sorted(seen)
