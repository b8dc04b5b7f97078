"""The retention clock runs with the monotonic clock, and cannot be set."""

from __future__ import annotations

import errno
import logging

import pytest

from millstream.clock import Clock, SystemClock
from millstream.errors import UnknownFormat
from millstream.storage.disk.filesystem import Filesystem
from millstream.storage.files.document import encode_document, read_document
from millstream.storage.files.seal import Seal, encode_seal
from millstream.storage.retention.retention_clock import (
    RETENTION_CLOCK_MS_MAX,
    RetentionClock,
    SavedRetentionClock,
    latest_date,
    load_retention_clock,
    save_retention_clock,
)
from millstream.testing import Fault, FaultyFilesystem, ManualClock, SimulatedFilesystem

YEAR_MS = 365 * 24 * 60 * 60 * 1000
WALL_MS = 1_700_000_000_000
FILE = "/data/clock.json"


def disk_with(files: dict[str, bytes] | None = None) -> SimulatedFilesystem:
    content: dict[str, bytes | None] = {"/data": None, "/data/topics": None}
    for path in files or {}:
        parts = path.split("/")
        for depth in range(3, len(parts)):
            content["/".join(parts[:depth])] = None
    return SimulatedFilesystem(content | (files or {}))


def seal_of(*, created_ms: int, sealed_ms: int) -> bytes:
    seal = Seal(
        base_offset=0,
        next_offset=1,
        size=61,
        batch_count=1,
        record_count=1,
        timestamp_min=0,
        timestamp_max=0,
        created_ms=created_ms,
        sealed_ms=sealed_ms,
        digest=bytes(16),
        leader_epoch=0,
    )
    return encode_seal(seal)


def sealed_disk(*dates: tuple[int, int]) -> SimulatedFilesystem:
    return disk_with(
        {
            f"/data/topics/t{number}/0/{0:020d}.seal": seal_of(created_ms=made, sealed_ms=sealed)
            for number, (made, sealed) in enumerate(dates)
        }
    )


def load(disk: Filesystem, clock: Clock) -> RetentionClock:
    return load_retention_clock(disk, "/data", clock)


def document(**changes: object) -> bytes:
    content = {"steady_ms": WALL_MS, "since_ms": WALL_MS, "boot_id": "boot-1", "monotonic_ms": 0}
    return encode_document("millstream-clock", 1, content | changes)


# While it runs.


def test_it_begins_with_the_wall_clock_where_there_is_nothing_yet():
    assert load(disk_with(), ManualClock(wall_ms=WALL_MS)).now_ms() == WALL_MS


def test_a_wall_clock_before_1970_is_no_reason_to_count_below_nothing():
    assert load(disk_with(), ManualClock(wall_ms=-YEAR_MS)).now_ms() == 0


@pytest.mark.parametrize("jump_ms", [YEAR_MS, -YEAR_MS, 7000 * YEAR_MS, -53 * YEAR_MS])
def test_no_jump_of_the_wall_clock_moves_it(jump_ms):
    clock = ManualClock(wall_ms=WALL_MS)
    retention_clock = load(disk_with(), clock)
    clock.jump_wall(jump_ms)
    assert retention_clock.now_ms() == WALL_MS
    clock.advance(1.5)
    assert retention_clock.now_ms() == WALL_MS + 1500


def test_it_never_goes_back_however_small_the_steps():
    clock = ManualClock()
    retention_clock = load(disk_with(), clock)
    told = []
    for _ in range(5000):
        clock.advance(0.0003)
        told.append(retention_clock.now_ms())
    assert told == sorted(told)
    assert told[-1] == WALL_MS + 1500


# From one process to the next.


def test_the_same_boot_counts_what_passed_while_nothing_was_open():
    disk, clock = disk_with(), ManualClock(wall_ms=WALL_MS)
    load(disk, clock)
    clock.advance(3600)
    clock.jump_wall(-YEAR_MS)
    assert load(disk, clock).now_ms() == WALL_MS + 3_600_000


def test_what_one_process_told_the_next_does_not_fall_behind():
    """Nothing has to be written in between: both processes know the time of the boot."""
    disk, clock = disk_with(), ManualClock()
    clock.advance(0.0005)
    told = load(disk, clock)
    for _ in range(300):
        clock.advance(0.00037)
        assert load(disk, clock).now_ms() >= told.now_ms()


def test_a_store_that_is_opened_again_in_the_same_boot_writes_nothing():
    disk, clock = disk_with(), ManualClock()
    load(disk, clock)
    before = disk.content(FILE)
    clock.advance(10)
    load(disk, clock)
    assert disk.content(FILE) == before


def test_another_boot_goes_on_from_what_was_written_last():
    disk, clock = disk_with(), ManualClock(wall_ms=WALL_MS)
    retention_clock = load(disk, clock)
    clock.advance(90)
    save_retention_clock(disk, "/data", retention_clock)
    clock.advance(30)  # Lost: not saved before the power cut.
    clock.reboot("boot-2")
    clock.advance(500)  # Of another boot: says nothing about how long the machine was off.
    clock.jump_wall(YEAR_MS)
    again = load(disk, clock)
    assert again.now_ms() == WALL_MS + 90_000
    clock.advance(1)
    assert again.now_ms() == WALL_MS + 91_000


def test_another_boot_is_written_down_at_once():
    disk, clock = disk_with(), ManualClock(wall_ms=WALL_MS)
    load(disk, clock)
    clock.reboot("boot-2")
    clock.advance(5)
    load(disk, clock)
    clock.advance(7)
    assert load(disk, clock).now_ms() == WALL_MS + 7000


def test_a_boot_that_nobody_can_name_is_never_the_same():
    disk, clock = disk_with(), ManualClock(wall_ms=WALL_MS, boot_id="")
    load(disk, clock)
    clock.advance(3600)
    assert load(disk, clock).now_ms() == WALL_MS


def test_a_monotonic_clock_that_stands_before_what_was_written_counts_nothing():
    clock = ManualClock()
    clock.advance(10)
    disk = disk_with({FILE: document(monotonic_ms=50_000)})
    assert load(disk, clock).now_ms() == WALL_MS


def test_what_is_saved_can_be_resumed():
    clock = ManualClock(wall_ms=WALL_MS)
    retention_clock = RetentionClock(clock, start_ms=5000, since_ms=4000)
    clock.advance(2)
    assert retention_clock.saved() == SavedRetentionClock(
        steady_ms=7000, since_ms=4000, boot_id="boot-1", monotonic_ms=2000
    )
    clock.advance(3)
    resumed = RetentionClock.resume(clock, retention_clock.saved())
    assert (resumed.now_ms(), resumed.since_ms) == (10_000, 4000)


def test_the_file_is_written_as_it_always_was():
    """Other releases read it: change this only together with the version."""
    disk, clock = disk_with(), ManualClock(wall_ms=WALL_MS)
    retention_clock = load(disk, clock)
    clock.advance(1.5)
    save_retention_clock(disk, "/data", retention_clock)
    assert disk.content(FILE) == (
        b'{"content":{"boot_id":"boot-1","monotonic_ms":1500,"since_ms":1700000000000,'
        b'"steady_ms":1700000001500},"crc32c":"a65d3a90","format":"millstream-clock","version":1}\n'
    )


# Lost, damaged, unknown.


@pytest.mark.parametrize("wall_ms", [0, WALL_MS, WALL_MS + 7000 * YEAR_MS])
def test_a_store_without_a_clock_goes_on_from_the_latest_date_of_a_seal(wall_ms):
    disk = sealed_disk((5000, 6000), (9000, 8000), (1, 2))
    retention_clock = load(disk, ManualClock(wall_ms=wall_ms))
    assert retention_clock.now_ms() == 9000
    assert retention_clock.since_ms == 9000, "data of unknown age counts as created now"


def test_since_when_dates_count_is_remembered():
    disk, clock = sealed_disk((5000, 6000)), ManualClock()
    load(disk, clock)
    clock.advance(60)
    clock.reboot("boot-2")
    assert load(disk, clock).since_ms == 6000


def test_dates_that_cannot_be_read_are_passed_over():
    disk = disk_with(
        {
            "/data/topics/a/0/00000000000000000000.seal": seal_of(created_ms=10, sealed_ms=20),
            "/data/topics/a/0/00000000000000000001.seal": b"torn",
            "/data/topics/a/0/partition.json": b"{}",
            "/data/topics/a/file": b"someone's own",
            "/data/topics/file": b"someone's own",
        }
    )
    assert latest_date(disk, "/data") == 20


def test_rewritten_segments_have_dates_too():
    disk = disk_with({f"/data/topics/a/0/{0:020d}.3.seal": seal_of(created_ms=10, sealed_ms=20)})
    assert latest_date(disk, "/data") == 20


def test_a_date_at_the_end_of_time_leaves_room_to_go_on():
    disk = sealed_disk((0, 2**63 - 1))
    clock = ManualClock()
    load(disk, clock)
    clock.advance(10**9)
    assert load(disk, clock).now_ms() < RETENTION_CLOCK_MS_MAX


DAMAGED = {
    "empty": b"",
    "cut short": document()[:-10],
    "another byte": document().replace(b"boot-1", b"boot-7"),
    "negative": document(steady_ms=-1),
    "no number": document(steady_ms="1700000000000"),
    "a switch": document(since_ms=True),
    "a broken number": document(monotonic_ms=1.5),
    "beyond all time": document(steady_ms=RETENTION_CLOCK_MS_MAX + 1),
    "began later than it stands": document(since_ms=WALL_MS + 1),
    "no boot": document(boot_id=None),
    "nothing in it": encode_document("millstream-clock", 1, {}),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_clock_is_reported_and_replaced(damage, caplog):
    seal = seal_of(created_ms=5000, sealed_ms=6000)
    disk = disk_with({"/data/topics/a/0/00000000000000000000.seal": seal, FILE: DAMAGED[damage]})
    with caplog.at_level(logging.ERROR):
        retention_clock = load(disk, ManualClock())
    assert (retention_clock.now_ms(), retention_clock.since_ms) == (6000, 6000)
    [record] = caplog.records
    assert FILE in record.getMessage()
    assert read_document(disk, FILE, "millstream-clock", 1)["steady_ms"] == 6000


def test_the_clock_of_a_newer_release_is_refused_and_left_alone():
    newer = encode_document("millstream-clock", 2, {"steady_ms": 1})
    disk = disk_with({FILE: newer})
    with pytest.raises(UnknownFormat, match="got millstream-clock version 2"):
        load(disk, ManualClock())
    assert disk.content(FILE) == newer


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS])
def test_a_disk_that_takes_no_clock_is_no_reason_to_stop(error, caplog):
    fault = Fault(call=1, error=error, forever=True, only={"create"})
    retention_clock = load(FaultyFilesystem(disk_with(), fault), ManualClock(wall_ms=WALL_MS))
    assert retention_clock.now_ms() == WALL_MS
    assert "clock.json could not be written" in caplog.text


# The clock of the machine.


def test_the_machine_names_its_boot_the_same_each_time():
    assert SystemClock().boot_id() == SystemClock().boot_id()


def test_a_machine_that_does_not_name_its_boot_has_no_name_for_it(monkeypatch, tmp_path):
    monkeypatch.setattr("millstream.clock._BOOT_FILE", str(tmp_path / "absent"))
    assert SystemClock().boot_id() == ""


def test_the_age_of_a_date_is_never_more_than_what_has_passed_for_sure() -> None:
    clock = ManualClock()
    retention_clock = RetentionClock(clock, start_ms=5_000, since_ms=4_000)
    clock.advance(10)
    assert retention_clock.age_ms(7_000) == 8_000
    assert retention_clock.age_ms(4_000) == 11_000
    assert retention_clock.age_ms(0) == 11_000, "it is from another time, and counts as made then"
    assert retention_clock.age_ms(99_000) == 0, "it is from another time, too"
