"""Damaged, missing and old files: a read returns the exact bytes or fails."""

from __future__ import annotations

import asyncio
import random
from typing import NamedTuple

import pytest

from millstream.config.schema import LogConfig
from millstream.errors import MillstreamError
from millstream.records.record import Record
from millstream.storage.files.names import CHECKPOINT_FILE, LOCK_FILE
from millstream.testing import SimulatedFilesystem
from tests.crash.workload import damage_found, make_store

FLIPS = 5_000
"""On each of the two disks."""

TINY = LogConfig(segment_bytes_max=1024, index_interval_bytes=128)


def make_disk(*, is_closed: bool) -> SimulatedFilesystem:
    """A store of three segments, closed cleanly or left behind by a killed process."""
    disk = SimulatedFilesystem()
    asyncio.run(_fill(disk, is_closed=is_closed))
    return disk.copy()


async def _fill(disk: SimulatedFilesystem, *, is_closed: bool) -> None:
    store = make_store(disk, config=TINY)
    store.open()
    log = await store.log("a")
    for number in range(7):
        await log.append_records([Record(b"%d" % number + b"x" * 250, key=b"k")])
    if is_closed:
        await store.close()


CLEAN = make_disk(is_closed=True)
KILLED = make_disk(is_closed=False)


class ReadResult(NamedTuple):
    """What a reader got, offset by offset."""

    found: dict[int, bytes | None]
    errors: dict[int, MillstreamError]
    """By offset. An error at the end, or instead of the whole log, is at the offset there."""

    @property
    def error(self) -> MillstreamError | None:
        return next(iter(self.errors.values()), None)


def read(disk: SimulatedFilesystem) -> ReadResult:
    """Read record after record up to the end, and go on behind errors."""
    return asyncio.run(_read(disk))


async def _read(disk: SimulatedFilesystem) -> ReadResult:
    result = ReadResult({}, {})
    try:
        store = make_store(disk, config=TINY)
        store.open()
        log = await store.log("a")
    except MillstreamError as error:
        result.errors[0] = error
        return result
    for offset in range(log.start_offset, log.end_offset):
        try:
            record = next(log.records(offset))
        except MillstreamError as error:
            result.errors[offset] = error
        else:
            assert record.offset == offset
            result.found[offset] = record.value
    try:
        log.read(log.end_offset)
    except MillstreamError as error:
        result.errors[log.end_offset] = error
    return result


INTACT = read(CLEAN.copy()).found
assert len(INTACT) == 7


def damaged_paths(disk: SimulatedFilesystem) -> list[str]:
    return [path for path in disk.paths() if not path.endswith(LOCK_FILE)]


def check_read(disk: SimulatedFilesystem, what: str) -> None:
    """Check that every returned record is exact, and that a missing one comes with an error.

    The error is at the record, unless all that follows is lost with the knowledge of the end.
    """
    found, errors = result = read(disk)
    error = result.error
    wrong = {offset: value for offset, value in found.items() if INTACT.get(offset) != value}
    assert not wrong, f"{what}: other bytes came back: {wrong}"
    assert error is not None or found == INTACT, f"{what}: a shorter log taken for whole"
    last_error = max(errors, default=-1)
    silent = {offset for offset in INTACT if offset not in found and offset not in errors}
    assert all(offset > last_error for offset in silent), f"{what}: {silent} are missing"
    assert not silent or last_error >= 0, f"{what}: {silent} are missing"
    assert error is None or str(error)


@pytest.mark.parametrize("disk", [CLEAN, KILLED], ids=["closed", "killed"])
def test_a_flipped_bit_never_changes_what_is_read_and_verify_finds_it(
    disk: SimulatedFilesystem,
) -> None:
    bits = [
        (path, bit) for path in damaged_paths(disk) for bit in range(len(disk.content(path)) * 8)
    ]
    for path, bit in random.Random(1).sample(bits, FLIPS):
        what = f"bit {bit} of {path}"
        broken = disk.copy()
        broken.flip_bit(path, bit)
        damage = damage_found(broken)
        if path.endswith(CHECKPOINT_FILE):
            assert not damage, f"{what}: one slot of two may be cut short"
        else:
            assert damage, f"{what}: not found"
            assert any(finding.path == path for finding in damage), f"{what}: not named"
        check_read(broken, what)


@pytest.mark.parametrize("disk", [CLEAN, KILLED], ids=["closed", "killed"])
def test_a_file_cut_at_any_byte_is_read_exactly_or_reported(disk: SimulatedFilesystem) -> None:
    for path in damaged_paths(disk):
        size = len(disk.content(path))
        for cut in {*range(0, size, 7), size - 1}:
            broken = disk.copy()
            broken.cut(path, cut)
            check_read(broken, f"{path} cut to {cut} of {size} bytes")


@pytest.mark.parametrize("disk", [CLEAN, KILLED], ids=["closed", "killed"])
def test_a_file_that_vanished_is_made_anew_or_reported(disk: SimulatedFilesystem) -> None:
    for path in damaged_paths(disk):
        broken = disk.copy()
        broken.remove(path)
        check_read(broken, f"{path} removed")


def test_an_old_version_of_a_file_is_noticed_or_does_no_harm() -> None:
    """A backup put back by hand: each file of the killed store into the closed one, and back."""
    for disk, other in ((CLEAN, KILLED), (KILLED, CLEAN)):
        for path in set(damaged_paths(disk)) & set(other.paths()):
            broken = disk.copy()
            broken.replace_content(path, other.content(path))
            check_read(broken, f"{path} of another time")


def test_a_log_that_lost_synced_bytes_is_read_around_them_and_takes_no_appends() -> None:
    disk = KILLED.copy()
    last = max(path for path in disk.paths() if path.endswith(".log"))
    disk.flip_bit(last, 8 * 100)
    found, errors = read(disk)
    [(lost, error)] = errors.items()
    assert f"{last}: byte 0: batch checksum is" in str(error)
    assert found == {offset: INTACT[offset] for offset in INTACT if offset != lost}
    assert disk.content(last) != KILLED.content(last), "nothing was cut or mended"
    assert len(disk.content(last)) == len(KILLED.content(last))
