"""`verify` finds all damage, and nothing else."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace as changed
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from millstream.config.schema import Durability
from millstream.errors import StorageFailed
from millstream.storage.disk.filesystem import Filesystem, OsFilesystem
from millstream.storage.files.checkpoint import SyncPoint, encode_slot
from millstream.storage.files.document import encode_document
from millstream.storage.files.index import IndexEntry, SegmentIndex, encode_index
from millstream.storage.files.names import segment_file
from millstream.storage.files.partition_metadata import (
    LeaderEpoch,
    PartitionMetadata,
    read_partition_metadata,
    write_partition_metadata,
)
from millstream.storage.files.seal import decode_seal, encode_seal
from millstream.storage.inspect.catalog import Finding, FindingKind
from millstream.storage.inspect.verify_store import verify_partition, verify_store
from millstream.storage.store import Store
from millstream.testing import Fault, FaultyFilesystem, SimulatedFilesystem, sample_crash_states
from tests.cli.stores import append, clean_store, killed_store, put_on_disk, run_store

Disk = SimulatedFilesystem
Harm = Callable[[Disk], str]

NODE = "/data/node.json"
ORDERS = "/data/topics/orders/0"
PARTITION = f"{ORDERS}/partition.json"
CHECKPOINT = f"{ORDERS}/checkpoint"
FIRST, MIDDLE, LAST, GROWING = 0, 10, 34, 44
BATCH = 186


def file_of(base: int, suffix: str) -> str:
    return f"{ORDERS}/{segment_file(base, suffix)}"


def damaged(filesystem: Filesystem, path: str = "/data") -> list[Finding]:
    return [found for found in verify_store(filesystem, path) if found.is_damage]


def notes(filesystem: Filesystem) -> list[Finding]:
    return [found for found in verify_store(filesystem, "/data") if not found.is_damage]


@cache
def clean() -> Disk:
    return clean_store()


@cache
def killed() -> Disk:
    return killed_store()


@cache
def closed_again() -> Disk:
    """Return the killed store, recovered and closed: later versions of the clean files."""
    disk = killed().copy()

    async def nothing(_: Store) -> None: ...

    run_store(disk, "/data", nothing)
    return disk.copy()


# Undamaged.


@pytest.mark.parametrize("make", [clean, killed, closed_again])
def test_an_undamaged_store_gives_no_finding(make: Callable[[], Disk]) -> None:
    assert list(verify_store(make(), "/data")) == []


def test_an_empty_store_gives_no_finding() -> None:
    disk = SimulatedFilesystem()

    async def nothing(_: Store) -> None: ...

    run_store(disk, "/data", nothing)
    assert list(verify_store(disk, "/data")) == []


def test_no_state_that_a_power_cut_leaves_is_taken_for_damage() -> None:
    disk = SimulatedFilesystem()

    async def work(store: Store) -> None:
        log = await store.log("orders")
        await append(log, 12)
        await log.begin_epoch(1)
        await append(log, 4)

    run_store(disk, "/data", work)
    run_store(disk, "/data", work_again)
    for state in sample_crash_states(disk.trace, 300, seed=30):
        survivor = state.filesystem()
        if "data" in survivor.list("/") and survivor.list("/data"):
            assert damaged(survivor) == [], state


async def work_again(store: Store) -> None:
    """Reopen the last segment, and continue to others."""
    await append(await store.log("orders"), 6)


# Damaged, after a clean shutdown.


def flip_bit_in_first_header(disk: Disk) -> str:
    return flip(disk, file_of(FIRST, "log"), 3)


def flip_bit_in_leader_epoch(disk: Disk) -> str:
    return flip(disk, file_of(FIRST, "log"), 15)


def flip_bit_in_last_record(disk: Disk) -> str:
    return flip(disk, file_of(LAST, "log"), -1)


def flip_bit_in_index_header(disk: Disk) -> str:
    return flip(disk, file_of(MIDDLE, "index"), 9)


def flip_bit_in_index_entry(disk: Disk) -> str:
    return flip(disk, file_of(MIDDLE, "index"), -1)


def flip_bit_in_seal(disk: Disk) -> str:
    return flip(disk, file_of(MIDDLE, "seal"), 30)


def flip_bit_in_last_seal(disk: Disk) -> str:
    return flip(disk, file_of(LAST, "seal"), 70)


def flip_bit_in_partition(disk: Disk) -> str:
    return flip(disk, PARTITION, 20)


def flip_bit_in_node(disk: Disk) -> str:
    return flip(disk, NODE, 20)


def cut_last_byte_of_log(disk: Disk) -> str:
    return cut(disk, file_of(LAST, "log"), -1)


def cut_last_batch_of_log(disk: Disk) -> str:
    return cut(disk, file_of(MIDDLE, "log"), -BATCH)


def cut_log_to_nothing(disk: Disk) -> str:
    return cut(disk, file_of(LAST, "log"), 0)


def cut_index(disk: Disk) -> str:
    return cut(disk, file_of(MIDDLE, "index"), -24)


def cut_seal(disk: Disk) -> str:
    return cut(disk, file_of(LAST, "seal"), -1)


def cut_partition_to_nothing(disk: Disk) -> str:
    return cut(disk, PARTITION, 0)


def cut_node_to_nothing(disk: Disk) -> str:
    return cut(disk, NODE, 0)


def delete_first_log(disk: Disk) -> str:
    return delete(disk, file_of(FIRST, "log"))


def delete_last_log(disk: Disk) -> str:
    return delete(disk, file_of(LAST, "log"))


def delete_index(disk: Disk) -> str:
    return delete(disk, file_of(LAST, "index"))


def delete_seal(disk: Disk) -> str:
    return delete(disk, file_of(MIDDLE, "seal"))


def delete_partition(disk: Disk) -> str:
    return delete(disk, PARTITION)


def delete_node(disk: Disk) -> str:
    return delete(disk, NODE)


def delete_middle_segment(disk: Disk) -> str:
    for suffix in ("seal", "index"):
        delete(disk, file_of(MIDDLE, suffix))
    return delete(disk, file_of(MIDDLE, "log"))


def delete_first_segment(disk: Disk) -> str:
    for suffix in ("seal", "index"):
        delete(disk, file_of(FIRST, suffix))
    return delete(disk, file_of(FIRST, "log"))


def zero_range_of_log(disk: Disk) -> str:
    path = file_of(MIDDLE, "log")
    content = disk.content(path)
    disk.replace_content(path, content[:200] + bytes(300) + content[500:])
    return path


def zero_index(disk: Disk) -> str:
    path = file_of(MIDDLE, "index")
    disk.replace_content(path, bytes(len(disk.content(path))))
    return path


def append_noise_to_log(disk: Disk) -> str:
    path = file_of(MIDDLE, "log")
    disk.replace_content(path, disk.content(path) + b"noise")
    return path


def index_of_another_segment(disk: Disk) -> str:
    return replace(disk, file_of(MIDDLE, "index"), disk.content(file_of(FIRST, "index")))


def seal_of_another_segment(disk: Disk) -> str:
    return replace(disk, file_of(MIDDLE, "seal"), disk.content(file_of(FIRST, "seal")))


def log_of_another_segment(disk: Disk) -> str:
    return replace(disk, file_of(MIDDLE, "log"), disk.content(file_of(FIRST, "log")))


def epochs_that_fall(disk: Disk) -> str:
    epochs = (LeaderEpoch(0, 0), LeaderEpoch(3, 24), LeaderEpoch(2, 100))
    write_partition_metadata(disk, ORDERS, PartitionMetadata(Durability.FSYNC, epochs=epochs))
    return PARTITION


def partition_from_before_the_epoch(disk: Disk) -> str:
    write_partition_metadata(disk, ORDERS, PartitionMetadata(Durability.FSYNC))
    return PARTITION


def node_of_another_version(disk: Disk) -> str:
    return replace(disk, NODE, encode_document("millstream-store", 2, {}))


def partition_of_another_version(disk: Disk) -> str:
    return replace(disk, PARTITION, encode_document("millstream-partition", 7, {}))


def seal_of_another_version(disk: Disk) -> str:
    path = file_of(MIDDLE, "seal")
    body = b"MSSL\x02" + disk.content(path)[5:-4]
    return replace(disk, path, body + crc32c(body).to_bytes(4, "little"))


def index_of_another_version(disk: Disk) -> str:
    path = file_of(MIDDLE, "index")
    content = disk.content(path)
    blank = b"MSIX\x02" + content[5:32] + bytes(8) + content[40:]
    return replace(disk, path, blank[:32] + crc32c(blank).to_bytes(4, "little") + blank[36:])


def index_entry_inside_a_batch(disk: Disk) -> str:
    return rewrite_index(disk, lambda entries: [*entries[:-1], entries[-1]._replace(position=373)])


def index_entry_with_another_offset(disk: Disk) -> str:
    return rewrite_index(disk, lambda entries: [*entries[:-1], entries[-1]._replace(offset=19)])


def index_entry_with_another_time(disk: Disk) -> str:
    return rewrite_index(
        disk, lambda entries: [*entries[:-1], entries[-1]._replace(timestamp_before=0)]
    )


def index_entry_behind_the_log(disk: Disk) -> str:
    return rewrite_index(disk, lambda entries: [*entries, IndexEntry(99, 930, 0)])


def index_without_first_batch(disk: Disk) -> str:
    return rewrite_index(disk, lambda entries: entries[1:])


def index_that_does_not_rise(disk: Disk) -> str:
    return rewrite_index(disk, lambda entries: [*entries, entries[-1]])


def flip(disk: Disk, path: str, position: int) -> str:
    disk.flip_bit(path, position % len(disk.content(path)) * 8)
    return path


def cut(disk: Disk, path: str, size: int) -> str:
    return replace(disk, path, disk.content(path)[:size])


def delete(disk: Disk, path: str) -> str:
    disk.remove(path)
    return path


def replace(disk: Disk, path: str, content: bytes) -> str:
    disk.replace_content(path, content)
    return path


def rewrite_index(disk: Disk, change: Callable[[list[IndexEntry]], list[IndexEntry]]) -> str:
    """Write an index with a correct checksum and wrong entries."""
    found = [
        IndexEntry(10, 0, -(2**63)),
        IndexEntry(14, 372, 1700000000190),
        IndexEntry(18, 744, 1700000000866),
    ]
    index = SegmentIndex()
    for entry in change(found):
        index.add(*entry)
    data = encode_index(index, base_offset=MIDDLE, log_size=5 * BATCH)
    return replace(disk, file_of(MIDDLE, "index"), data)


DAMAGE_AT_REST = [
    flip_bit_in_first_header,
    flip_bit_in_leader_epoch,
    flip_bit_in_last_record,
    flip_bit_in_index_header,
    flip_bit_in_index_entry,
    flip_bit_in_seal,
    flip_bit_in_last_seal,
    flip_bit_in_partition,
    flip_bit_in_node,
    cut_last_byte_of_log,
    cut_last_batch_of_log,
    cut_log_to_nothing,
    cut_index,
    cut_seal,
    cut_partition_to_nothing,
    cut_node_to_nothing,
    delete_first_log,
    delete_last_log,
    delete_index,
    delete_seal,
    delete_partition,
    delete_node,
    delete_first_segment,
    delete_middle_segment,
    zero_range_of_log,
    zero_index,
    append_noise_to_log,
    index_of_another_segment,
    seal_of_another_segment,
    log_of_another_segment,
    epochs_that_fall,
    partition_from_before_the_epoch,
    node_of_another_version,
    partition_of_another_version,
    seal_of_another_version,
    index_of_another_version,
    index_entry_inside_a_batch,
    index_entry_with_another_offset,
    index_entry_with_another_time,
    index_entry_behind_the_log,
    index_without_first_batch,
    index_that_does_not_rise,
]


@pytest.mark.parametrize("harm", DAMAGE_AT_REST)
def test_damage_is_found_in_the_file_that_has_it(harm: Harm) -> None:
    disk = clean().copy()
    path = harm(disk)
    assert {found.path for found in damaged(disk)} == {path}


@pytest.mark.parametrize("suffix", ["log", "index", "seal"])
def test_an_old_version_of_one_file_is_found(suffix: str) -> None:
    disk = closed_again().copy()
    path = replace(disk, file_of(LAST, suffix), clean().content(file_of(LAST, suffix)))
    assert {found.path for found in damaged(disk)} == {path}


def test_a_log_that_was_exchanged_for_a_sound_one_contradicts_its_seal() -> None:
    """Both are intact and have the same size, so either may be the wrong one."""
    other = SimulatedFilesystem()

    async def work(store: Store) -> None:
        await append(await store.log("orders"), 12, value=b"other")

    run_store(other, "/data", work)
    disk = clean().copy()
    replace(disk, file_of(FIRST, "log"), other.content(file_of(FIRST, "log")))
    (found,) = damaged(disk)
    assert found.path == file_of(FIRST, "seal")
    assert "digest" in found.message


@pytest.mark.parametrize(
    "field",
    [
        "next_offset",
        "batch_count",
        "record_count",
        "timestamp_min",
        "timestamp_max",
        "digest",
        "leader_epoch",
    ],
)
def test_a_seal_whose_sum_is_right_is_compared_with_its_log_in_every_field(field: str) -> None:
    disk = clean().copy()
    path = file_of(LAST, "seal")
    seal = decode_seal(disk.content(path))
    wrong = bytes(16) if field == "digest" else getattr(seal, field) + 1
    replace(disk, path, encode_seal(changed(seal, **{field: wrong})))
    assert [(found.path, found.message.partition(" ")[0]) for found in damaged(disk)] == [
        (path, field)
    ]


def test_the_rewritten_index_is_right_before_it_is_harmed() -> None:
    disk = clean().copy()
    rewrite_index(disk, lambda entries: entries)
    assert disk.content(file_of(MIDDLE, "index")) == clean().content(file_of(MIDDLE, "index"))


@pytest.mark.parametrize(
    "harm",
    [
        node_of_another_version,
        partition_of_another_version,
        seal_of_another_version,
        index_of_another_version,
    ],
)
def test_an_unknown_version_is_told_from_damage(harm: Harm) -> None:
    disk = clean().copy()
    harm(disk)
    assert {found.kind for found in damaged(disk)} == {FindingKind.UNKNOWN}


def test_behind_an_unknown_version_of_the_store_nothing_is_judged() -> None:
    disk = clean().copy()
    path = node_of_another_version(disk)
    flip_bit_in_seal(disk)
    assert [found.path for found in verify_store(disk, "/data")] == [path]


def test_a_finding_tells_the_byte_where_the_bad_batch_starts() -> None:
    disk = clean().copy()
    path = flip(disk, file_of(FIRST, "log"), 3 * BATCH + 100)
    assert [(found.path, found.position) for found in damaged(disk)] == [(path, 3 * BATCH)]


# Every byte of a small store.


@cache
def small() -> Disk:
    disk = SimulatedFilesystem()

    async def work(store: Store) -> None:
        log = await store.log("t")
        await append(log, 2, size=1)
        await log.begin_epoch(1)
        await append(log, 2, size=1)

    run_store(disk, "/data", work)
    return disk.copy()


def test_a_flip_in_any_byte_of_a_clean_store_is_found() -> None:
    """One bit of every byte; with MILLSTREAM_LONG set, every bit."""
    disk = small().copy()
    missed = []
    for path in disk.paths():
        content = disk.content(path)
        for position in range(len(content)):
            for bit in range(8) if "MILLSTREAM_LONG" in os.environ else [position % 8]:
                disk.flip_bit(path, position * 8 + bit)
                if path not in {found.path for found in damaged(disk)}:
                    missed.append((path, position, bit))
                disk.replace_content(path, content)
    assert missed == []


# After a kill: damaged or unfinished.


def flip_bit_in_synced_bytes(disk: Disk) -> str:
    return flip(disk, file_of(GROWING, "log"), 100)


def cut_into_synced_bytes(disk: Disk) -> str:
    return cut(disk, file_of(GROWING, "log"), 100)


def cut_synced_bytes_to_nothing(disk: Disk) -> str:
    return cut(disk, file_of(GROWING, "log"), 0)


def delete_synced_log(disk: Disk) -> str:
    return delete(disk, file_of(GROWING, "log"))


def delete_sealed_log_before_it(disk: Disk) -> str:
    return delete(disk, file_of(LAST, "log"))


def spoil_both_records_of_checkpoint(disk: Disk) -> str:
    flip(disk, CHECKPOINT, 10)
    return flip(disk, CHECKPOINT, 42)


def checkpoint_of_another_version(disk: Disk) -> str:
    body = b"MSCP" + (2).to_bytes(2, "little") + bytes(18)
    return replace(disk, CHECKPOINT, body + crc32c(body).to_bytes(4, "little") + bytes(36))


def epoch_that_partition_does_not_know(disk: Disk) -> str:
    """Without a checkpoint nothing attests the batch, but no torn write looks like this."""
    delete(disk, CHECKPOINT)
    path = file_of(GROWING, "log")
    content = disk.content(path)
    return replace(disk, path, content[:12] + (9).to_bytes(4, "big") + content[16:])


@pytest.mark.parametrize(
    "harm",
    [
        flip_bit_in_synced_bytes,
        cut_into_synced_bytes,
        cut_synced_bytes_to_nothing,
        delete_synced_log,
        delete_sealed_log_before_it,
        checkpoint_of_another_version,
        epoch_that_partition_does_not_know,
    ],
)
def test_after_a_kill_damage_to_what_was_synced_is_found(harm: Harm) -> None:
    disk = killed().copy()
    path = harm(disk)
    assert {found.path for found in damaged(disk)} == {path}


def half_a_batch_at_the_end(disk: Disk) -> str:
    path = file_of(GROWING, "log")
    return replace(disk, path, disk.content(path) + disk.content(file_of(LAST, "log"))[:100])


def zeros_at_the_end(disk: Disk) -> str:
    path = file_of(GROWING, "log")
    return replace(disk, path, disk.content(path) + bytes(4096))


def segment_behind_an_unfinished_write(disk: Disk) -> str:
    half_a_batch_at_the_end(disk)
    disk.create(file_of(60, "log")).close()
    return file_of(60, "log")


def leftover_temporary_file(disk: Disk) -> str:
    path = file_of(GROWING, "index.tmp")
    disk.create(path).close()
    return path


def spoilt_index_of_growing_segment(disk: Disk) -> str:
    return flip(disk, "/data/topics/orders/1/00000000000000000000.index", 50)


def index_without_log(disk: Disk) -> str:
    path = file_of(70, "index")
    disk.create(path).close()
    return path


def checkpoint_that_was_cut_short(disk: Disk) -> str:
    return replace(disk, CHECKPOINT, bytes(32) + encode_slot(SyncPoint(GROWING, BATCH), 1)[:10])


@pytest.mark.parametrize(
    "leave",
    [
        half_a_batch_at_the_end,
        zeros_at_the_end,
        segment_behind_an_unfinished_write,
        leftover_temporary_file,
        spoilt_index_of_growing_segment,
        index_without_log,
        checkpoint_that_was_cut_short,
        spoil_both_records_of_checkpoint,
    ],
)
def test_after_a_kill_what_is_unfinished_is_noted_and_is_no_damage(leave: Harm) -> None:
    disk = killed().copy()
    path = leave(disk)
    assert damaged(disk) == []
    assert path in {found.path for found in notes(disk)}


def test_a_note_says_how_much_will_be_cut_off() -> None:
    disk = killed().copy()
    half_a_batch_at_the_end(disk)
    assert [found.message for found in notes(disk)] == [
        f"100 bytes after {BATCH} will be cut off at the next start"
    ]


@pytest.mark.parametrize("position", [10, 42])
def test_one_bad_record_of_a_checkpoint_is_nothing(position: int) -> None:
    disk = killed().copy()
    flip(disk, CHECKPOINT, position)
    assert list(verify_store(disk, "/data")) == []


def test_an_empty_checkpoint_is_nothing() -> None:
    disk = killed().copy()
    cut(disk, CHECKPOINT, 0)
    assert list(verify_store(disk, "/data")) == []


def flip_bit_before_the_segment_of_the_checkpoint(disk: Disk) -> str:
    return flip(disk, file_of(LAST, "log"), 100)


def cut_batch_before_the_segment_of_the_checkpoint(disk: Disk) -> str:
    return cut(disk, file_of(LAST, "log"), -BATCH)


def delete_log_before_the_segment_of_the_checkpoint(disk: Disk) -> str:
    return delete(disk, file_of(LAST, "log"))


@pytest.mark.parametrize(
    "harm",
    [
        flip_bit_before_the_segment_of_the_checkpoint,
        cut_batch_before_the_segment_of_the_checkpoint,
        delete_log_before_the_segment_of_the_checkpoint,
    ],
)
def test_of_two_segments_without_a_seal_the_checkpoint_tells_what_must_be_there(harm: Harm) -> None:
    disk = killed().copy()
    delete(disk, file_of(LAST, "seal"))
    path = harm(disk)
    assert {found.path for found in damaged(disk)} == {path}
    delete(disk, CHECKPOINT)
    assert damaged(disk) == []
    assert notes(disk)


def test_a_third_segment_without_a_seal_has_lost_it() -> None:
    disk = killed().copy()
    path = delete(disk, file_of(24, "seal"))
    delete(disk, file_of(LAST, "seal"))
    assert {found.path for found in damaged(disk)} == {path}


# Beside a running node.


class Busy:
    """A disk on which a node acts the first time that a certain file is opened."""

    def __init__(self, disk: Disk, path: str, act: Callable[[Disk], None]) -> None:
        self._disk = disk
        self._path = path
        self._act: Callable[[Disk], None] | None = act

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open_readonly(self, path: str) -> Any:
        if path == self._path and self._act:
            act, self._act = self._act, None
            act(self._disk)
        return self._disk.open_readonly(path)


def remove_oldest_segment(disk: Disk) -> None:
    partition = changed(read_partition_metadata(disk, ORDERS), start_offset=MIDDLE)
    write_partition_metadata(disk, ORDERS, partition)
    for suffix in ("seal", "index", "log"):
        disk.remove(file_of(FIRST, suffix))


def write_on(disk: Disk) -> None:
    """Remove the seal, continue to another segment, write a checkpoint: as the killed store did."""
    for path in killed().paths():
        if path not in disk.paths():
            disk.create(path).close()
        disk.replace_content(path, killed().content(path))
    disk.remove("/data/topics/orders/1/00000000000000000000.seal")


def seal_all(disk: Disk) -> None:
    for path in closed_again().paths():
        if path not in disk.paths():
            disk.create(path).close()
        disk.replace_content(path, closed_again().content(path))
    for name in ("orders/0", "orders/1", "events/0"):
        disk.remove(f"/data/topics/{name}/checkpoint")


@pytest.mark.parametrize(
    ("make", "act", "path"),
    [
        (clean, remove_oldest_segment, file_of(FIRST, "seal")),
        (clean, remove_oldest_segment, file_of(FIRST, "log")),
        (clean, remove_oldest_segment, file_of(FIRST, "index")),
        (clean, write_on, file_of(LAST, "log")),
        (clean, write_on, file_of(LAST, "index")),
        (clean, write_on, CHECKPOINT),
        (clean, write_on, "/data/topics/orders/1/00000000000000000000.seal"),
        (clean, write_on, "/data/topics/orders/1/00000000000000000000.log"),
        (killed, seal_all, file_of(GROWING, "log")),
        (killed, seal_all, CHECKPOINT),
        (killed, seal_all, "/data/topics/orders/1/00000000000000000000.log"),
        (killed, seal_all, "/data/topics/orders/1/00000000000000000000.index"),
    ],
)
def test_what_a_running_node_does_meanwhile_is_not_taken_for_damage(
    make: Callable[[], Disk], act: Callable[[Disk], None], path: str
) -> None:
    busy = Busy(make().copy(), path, act)
    assert damaged(busy) == []
    assert busy._act is None


def test_an_error_that_passes_is_no_damage_and_one_that_stays_is() -> None:
    path = file_of(MIDDLE, "log")
    once = FaultyFilesystem(clean().copy(), Fault(call=1, only={"read_at"}, path=path))
    assert damaged(once) == []
    ever = FaultyFilesystem(
        clean().copy(), Fault(call=1, only={"read_at"}, path=path, forever=True)
    )
    assert damaged(ever) == [Finding(path, 0, "cannot be read: Input/output error")]


# The directory is not changed.


class Untouchable:
    """A disk that can only be read."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.open_readonly = disk.open_readonly
        self.list = disk.list
        self.size = disk.size

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is not for verify")


@pytest.mark.parametrize("make", [clean, killed])
def test_verify_uses_only_calls_that_read(make: Callable[[], Disk]) -> None:
    disk = make().copy()
    flip_bit_in_seal(disk)
    assert damaged(Untouchable(disk))


def fingerprint(root: Path) -> dict[str, tuple[int, str]]:
    return {
        str(path): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes() if path.is_file() else b"").hexdigest(),
        )
        for path in sorted(root.rglob("*"))
    }


@pytest.mark.parametrize("make", [clean, killed])
def test_verify_leaves_every_file_as_it_was(make: Callable[[], Disk], tmp_path: Path) -> None:
    disk = make().copy()
    flip_bit_in_seal(disk)
    leftover_temporary_file(disk)
    disk.remove("/data/lock")
    put_on_disk(disk, str(tmp_path))
    before = fingerprint(tmp_path)
    assert damaged(OsFilesystem(), str(tmp_path))
    assert fingerprint(tmp_path) == before


# Progress and processes.


def test_several_processes_find_the_same_in_the_same_order(tmp_path: Path) -> None:
    disk = killed().copy()
    flip_bit_in_first_header(disk)
    flip_bit_in_index_entry(disk)
    half_a_batch_at_the_end(disk)
    put_on_disk(disk, str(tmp_path))
    alone = list(verify_store(OsFilesystem(), str(tmp_path), processes=1))
    assert list(verify_store(OsFilesystem(), str(tmp_path), processes=2)) == alone
    assert len(alone) == 3


def test_progress_rises_to_all_bytes_of_all_logs() -> None:
    seen: list[tuple[int, int]] = []
    disk = killed()
    list(verify_store(disk, "/data", progress=lambda done, total: seen.append((done, total))))
    size = sum(len(disk.content(path)) for path in disk.paths() if path.endswith(".log"))
    assert seen[0] == (0, size)
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)


def test_one_partition_can_be_verified_alone() -> None:
    disk = clean().copy()
    path = flip_bit_in_seal(disk)
    assert [found.path for found in verify_partition(disk, ORDERS)] == [path]
    assert verify_partition(disk, "/data/topics/orders/1") == []


@pytest.mark.parametrize("path", ["/nowhere", "/data/topics/orders"])
def test_what_is_no_data_directory_is_refused(path: str) -> None:
    with pytest.raises(StorageFailed, match="not a data directory"):
        list(verify_store(clean(), path))


def test_a_file_is_no_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageFailed, match="is not a directory"):
        list(verify_store(OsFilesystem(), os.fspath(tmp_path / "file")))
