"""Opening a log after a crash: what is kept, what is cut off, and what is reported."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millstream.config.schema import Durability, LogConfig
from millstream.errors import DamagedRecords, LogOffline, UnknownFormat
from millstream.records.batch import BatchHeader, split
from millstream.storage.files.document import encode_document
from millstream.storage.segment.segment import GrowingSegment, SealedSegment
from millstream.testing import SimulatedFilesystem
from tests.in_loop import in_loop
from tests.storage.logs import HeldExecutor, batch_of, make_store, turns

DIRECTORY = "/data/topics/a/0/"
FIRST = DIRECTORY + "00000000000000000000.log"
SMALL = LogConfig(segment_bytes_max=1024, index_interval_bytes=64)


async def killed(
    count: int = 3, config: LogConfig | None = None, *, unsynced: int = 0
) -> SimulatedFilesystem:
    """The disk of a process that dies after `count` commits, with more written and not synced."""
    disk, background = SimulatedFilesystem(), HeldExecutor()
    log = await make_store(disk, config=config, background=background).log("a")
    for number in range(count):
        await log.append(batch_of(b"%d" % number * 100))
    await turns()
    background.is_held = True
    for number in range(unsynced):
        log.try_append(batch_of(b"unsynced %d" % number * 10))
        await turns()
    return disk.copy()


async def opened(disk: SimulatedFilesystem, config: LogConfig | None = None):
    store = make_store(disk, config=config)
    return store, await store.log("a")


def headers(disk: SimulatedFilesystem, path: str = FIRST) -> list[BatchHeader]:
    return [header for header, _ in split(disk.content(path))]


# Torn: past what was synced.


def intact(data: bytearray, last: int) -> None:
    """The process died, and all that it wrote is there."""


def cut_last_byte(data: bytearray, last: int) -> None:
    del data[-1:]


def cut_inside_last_header(data: bytearray, last: int) -> None:
    del data[last + 10 :]


def zero_last_batch(data: bytearray, last: int) -> None:
    """The file grew but its last block never reached the disk."""
    data[last:] = bytes(len(data) - last)


def flip_bit_in_last_record(data: bytearray, last: int) -> None:
    data[-1] ^= 1


def flip_bit_in_last_offset(data: bytearray, last: int) -> None:
    data[last + 7] ^= 1


def flip_bit_in_last_epoch(data: bytearray, last: int) -> None:
    data[last + 15] ^= 1


def claim_huge_length(data: bytearray, last: int) -> None:
    data[last + 8 : last + 12] = b"\x7f\xff\xff\xff"


def claim_negative_length(data: bytearray, last: int) -> None:
    data[last + 8 : last + 12] = b"\xff\xff\xff\xff"


def zeros_after_the_end(data: bytearray, last: int) -> None:
    data.extend(bytes(5000))


def old_batch_after_the_end(data: bytearray, last: int) -> None:
    """A valid batch in the wrong place: it has another offset."""
    data.extend(data[:last])


DAMAGE = [
    (intact, 4),
    (cut_last_byte, 3),
    (cut_inside_last_header, 3),
    (zero_last_batch, 3),
    (flip_bit_in_last_record, 3),
    (flip_bit_in_last_offset, 3),
    (flip_bit_in_last_epoch, 3),
    (claim_huge_length, 3),
    (claim_negative_length, 3),
    (zeros_after_the_end, 4),
    (old_batch_after_the_end, 4),
]


@pytest.mark.parametrize(("damage", "kept"), DAMAGE)
@in_loop
async def test_an_unfinished_end_is_cut_off_at_the_first_bad_batch(
    damage: Callable[[bytearray, int], None], kept: int
) -> None:
    disk = await killed(3, unsynced=1)
    sound = headers(disk)
    data = bytearray(disk.content(FIRST))
    damage(data, len(data) - sound[-1].size)
    disk.replace_content(FIRST, bytes(data))
    store, log = await opened(disk)
    assert store.damage() == {}
    assert log.end_offset == kept
    assert disk.size(FIRST) == sum(header.size for header in sound[:kept])
    assert (await log.append(batch_of(b"on"))).offset == kept
    assert len(list(log.records())) == kept + 1


@in_loop
async def test_what_was_cut_off_is_told() -> None:
    disk = await killed(3)
    disk.replace_content(FIRST, disk.content(FIRST) + b"torn")
    store, _ = await opened(disk)
    size = len(disk.content(FIRST))
    [action] = [a for a in next(iter(store.recovered().values())) if "cut off" in a]
    assert action.startswith(
        f"cut off: {FIRST}: 4 bytes after {size}: batch header must have 61 bytes"
    )


# Corrupt: before what was synced.


@pytest.mark.parametrize(("damage", "_"), [d for d in DAMAGE if d[1] == 3])
@in_loop
async def test_damage_before_the_checkpoint_is_reported_and_not_cut_off(
    damage: Callable[[bytearray, int], None], _: int
) -> None:
    disk = await killed(3)
    sound = headers(disk)
    data = bytearray(disk.content(FIRST))
    size = len(data)
    last = size - sound[-1].size
    damage(data, last)
    disk.replace_content(FIRST, bytes(data))
    before = disk.contents()
    store, log = await opened(disk)
    assert f"{FIRST}: valid up to byte {last}, synced up to byte {size}" in str(store.damage())
    with pytest.raises(LogOffline):
        await log.append(batch_of(b"on"))
    assert [r.offset for r in log.records(until=2)] == [0, 1]
    with pytest.raises(DamagedRecords, match=f"{FIRST}: byte {last}: .*offset 2 is lost"):
        list(log.records())
    assert log.end_offset == 3, "the log is damaged, not shorter"
    assert not log.read(3).data
    await store.close()
    assert disk.contents() == before, "nothing is touched"


@in_loop
async def test_without_a_checkpoint_the_end_counts_as_unfinished() -> None:
    disk = await killed(3)
    disk.remove(DIRECTORY + "checkpoint")
    disk.cut(FIRST, len(disk.content(FIRST)) - 1)
    store, log = await opened(disk)
    assert store.damage() == {}
    assert log.end_offset == 2


@in_loop
async def test_a_growing_segment_that_vanished_is_reported() -> None:
    disk = await killed(3)
    disk.remove(FIRST)
    store = make_store(disk)
    assert f"{FIRST}: is missing, but was synced" in str(store.damage())
    log = await store.log("a")
    with pytest.raises(LogOffline):
        await log.append(batch_of(b"on"))


# Seals.


async def closed(count: int = 6) -> SimulatedFilesystem:
    disk = SimulatedFilesystem()
    store = make_store(disk, config=SMALL)
    log = await store.log("a")
    for number in range(count):
        await log.append(batch_of(b"%d" % number * 400))
    await store.close()
    return disk.copy()


@in_loop
async def test_a_clean_start_scans_nothing_and_repairs_nothing() -> None:
    disk = await closed()
    store, log = await opened(disk, SMALL)
    assert log.recovered.scanned_bytes == 0
    assert store.recovered() == {}
    assert all(isinstance(segment, SealedSegment) for segment in log.segments)
    assert log.end_offset == 6


@in_loop
async def test_the_last_segment_goes_on_growing_after_a_clean_start() -> None:
    disk = await closed(1)
    for number in range(1, 3):
        store, log = await opened(disk)
        assert (await log.append(batch_of(b"more"))).offset == number
        assert len(log.segments) == 1
        assert isinstance(log.segments[0], GrowingSegment)
        assert not disk.list(DIRECTORY).count("00000000000000000000.seal")
        await store.close()


@pytest.mark.parametrize("victim", ["first", "middle", "last"])
@pytest.mark.parametrize("damage", ["removed", "flipped"])
@in_loop
async def test_a_lost_seal_is_derived_from_its_log(victim: str, damage: str) -> None:
    disk = await closed()
    seals = [name for name in disk.list(DIRECTORY) if name.endswith(".seal")]
    name = seals[{"first": 0, "middle": 1, "last": -1}[victim]]
    before = disk.content(DIRECTORY + name)
    if damage == "removed":
        disk.remove(DIRECTORY + name)
    else:
        disk.flip_bit(DIRECTORY + name, 300)
    store, log = await opened(disk, SMALL)
    assert store.damage() == {}
    assert len(list(log.records())) == 6
    await store.close()
    again = disk.content(DIRECTORY + name)
    # All but the two dates in it, which are those of the derivation.
    assert (again[:64], again[80:100]) == (before[:64], before[80:100])


@in_loop
async def test_a_segment_before_a_sealed_one_is_never_cut() -> None:
    disk = await closed()
    disk.remove(FIRST.replace(".log", ".seal"))
    disk.cut(FIRST, len(disk.content(FIRST)) - 1)
    before = disk.content(FIRST)
    store, _ = await opened(disk, SMALL)
    assert "batch ends at byte" in str(store.damage())
    assert disk.content(FIRST) == before


@in_loop
async def test_a_log_longer_than_its_seal_is_scanned_and_kept() -> None:
    """An old seal was put back."""

    disk = await closed(1)
    old = disk.content(FIRST.replace(".log", ".seal"))
    store, log = await opened(disk)
    await log.append(batch_of(b"more"))
    await store.close()
    disk = disk.copy()
    disk.replace_content(FIRST.replace(".log", ".seal"), old)
    store, log = await opened(disk)
    assert store.damage() == {}
    assert log.end_offset == 2


@in_loop
async def test_a_damaged_segment_without_a_seal_does_not_hide_what_follows() -> None:
    disk = await closed()
    disk.remove(FIRST.replace(".log", ".seal"))
    disk.flip_bit(FIRST, 8 * 100)
    store, log = await opened(disk, SMALL)
    assert f"{FIRST}: byte 0: batch checksum is" in str(store.damage())
    with pytest.raises(DamagedRecords):
        log.read(0)
    following = log.segments[1].base_offset
    assert [r.offset for r in log.records(following)] == list(range(following, 6))
    assert (await log.append(batch_of(b"on"))).offset == 6


@in_loop
async def test_a_seal_without_its_log_in_the_middle_is_a_hole() -> None:
    disk = await closed()
    second = sorted(n for n in disk.list(DIRECTORY) if n.endswith(".log"))[1]
    disk.remove(DIRECTORY + second)
    store, log = await opened(disk, SMALL)
    assert "the log that it seals is missing" in str(store.damage())
    with pytest.raises(DamagedRecords, match="a segment is missing"):
        log.read(int(second[:20]))
    assert (await log.append(batch_of(b"on"))).offset == 6


@in_loop
async def test_a_log_that_goes_on_after_a_crash_is_attested_again() -> None:
    """The checkpoint follows each commit, also those after an unclean start."""

    disk = await killed(2)
    _, log = await opened(disk)
    for _ in range(3):
        await log.append(batch_of(b"more"))
    disk = disk.copy()
    disk.cut(FIRST, len(disk.content(FIRST)) - 1)
    store = make_store(disk)
    assert "synced up to byte" in str(store.damage())


@in_loop
async def test_a_seal_without_its_log_is_reported() -> None:
    disk = await closed(1)
    disk.remove(FIRST)
    store = make_store(disk)
    assert "the log that it seals is missing" in str(store.damage())


@in_loop
async def test_a_segment_left_without_a_seal_is_sealed() -> None:
    """The process died between beginning the next segment and sealing the one before."""

    disk, background = SimulatedFilesystem(), HeldExecutor()
    config = LogConfig(segment_bytes_max=1024, durability=Durability.DISK)
    log = await make_store(disk, config=config, background=background).log("a")
    background.is_held = True
    for _ in range(2):
        await log.append(batch_of(b"x" * 800))
    store, log = await opened(disk.copy(), config)
    assert [type(segment) for segment in log.segments] == [SealedSegment, GrowingSegment]
    assert "sealed: " + FIRST in str(store.recovered())


# Leftovers and formats.


@in_loop
async def test_leftovers_are_removed() -> None:
    disk = await killed(2)
    for name in ("00000000000000000000.seal.tmp", "00000000000000000077.index"):
        disk.create(DIRECTORY + name)
    disk.create(DIRECTORY + "00000000000000000002.log")
    store, log = await opened(disk)
    assert store.damage() == {}
    assert log.end_offset == 2
    assert disk.list(DIRECTORY) == [
        "00000000000000000000.log",
        "checkpoint",
        "partition.json",
    ]


@in_loop
async def test_files_that_are_not_ours_are_left_alone() -> None:
    disk = await killed(2)
    disk.create(DIRECTORY + "notes.txt")
    disk.make_directory("/data/topics/a/backup")
    disk.create("/data/topics/notes.txt")
    store, log = await opened(disk)
    assert log.end_offset == 2
    assert "notes.txt" in disk.list(DIRECTORY)
    assert [str(name) for name in store.names()] == ["a/0"]


@pytest.mark.parametrize("damage", ["removed", "flipped", "emptied"])
@in_loop
async def test_a_lost_partition_file_is_derived_from_the_segments(damage: str) -> None:
    disk = SimulatedFilesystem()
    store, log = await opened(disk)
    await log.append(batch_of(b"epoch 0"))
    await log.begin_epoch(3)
    await log.append(batch_of(b"epoch 3"))
    await store.close()
    disk = disk.copy()
    path = DIRECTORY + "partition.json"
    before = disk.content(path)
    if damage == "removed":
        disk.remove(path)
    elif damage == "flipped":
        disk.flip_bit(path, 100)
    else:
        disk.cut(path, 0)
    store, log = await opened(disk)
    assert "partition.json" in str(store.damage()), "it is told"
    assert disk.content(path) == before
    assert (await log.append(batch_of(b"on"))).offset == 2


@in_loop
async def test_an_unknown_version_is_refused_and_nothing_is_touched() -> None:
    disk = await closed()
    path = DIRECTORY + "partition.json"
    disk.replace_content(path, encode_document("millstream-partition", 7, {"new": 1}))
    disk.create(DIRECTORY + "leftover.tmp")
    before = disk.contents()
    store = make_store(disk)
    with pytest.raises(
        UnknownFormat, match=r"expected millstream-partition version 1-6, got .* version 7"
    ):
        await store.log("a")
    await store.close()
    assert disk.contents() == before


@in_loop
async def test_class_disk_makes_durable_what_a_crash_left_unsynced() -> None:
    disk = await killed(3, LogConfig(durability=Durability.DISK))
    _, log = await opened(disk)
    assert log.end_offset == 3
    _, log = await opened(disk.crash())
    assert log.end_offset == 3
