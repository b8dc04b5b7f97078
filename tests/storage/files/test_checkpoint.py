"""The checkpoint tells how far a log is on the disk, or that nothing is known."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import UnknownFormat
from millstream.storage.files.checkpoint import (
    CHECKPOINT_SIZE,
    NOTHING_SYNCED,
    SLOT_SIZE,
    UNKNOWN_END,
    Checkpoint,
    SyncPoint,
    decode_checkpoint,
    encode_slot,
)
from millstream.testing import SimulatedFilesystem
from millstream.testing.disk.crash_states import crash_states

EARLY = SyncPoint(0, 700)
LATE = SyncPoint(0, 900)
NEXT_SEGMENT = SyncPoint(40, 100)
WITH_END = SyncPoint(40, 100, 47)
BLANK = bytes(SLOT_SIZE)


def slot(synced: SyncPoint, *, turn: int = 0, magic: bytes = b"MSCP", version: int = 1) -> bytes:
    body = struct.pack("<4sHHqq", magic, version, turn, *synced[:2])
    return body + struct.pack("<II", crc32c(body), 0)


# Kinds of damage to one slot.


def blank(data: bytes) -> bytes:
    """Never written."""
    return bytes(len(data))


def second_half_missing(data: bytes) -> bytes:
    return data[:16] + bytes(16)


def first_half_missing(data: bytes) -> bytes:
    return bytes(16) + data[16:]


def torn_over_an_older_one(data: bytes) -> bytes:
    return data[:20] + slot(EARLY)[20:]


def flipped_bit_in_its_number(data: bytes) -> bytes:
    return data[:16] + bytes([data[16] ^ 1]) + data[17:]


def flipped_bit_in_its_padding(data: bytes) -> bytes:
    return data[:-1] + b"\x01"


DAMAGE = [
    blank,
    second_half_missing,
    first_half_missing,
    torn_over_an_older_one,
    flipped_bit_in_its_number,
    flipped_bit_in_its_padding,
]


def test_a_slot_lies_as_it_is_drawn():
    drawn = bytes.fromhex("4d534350 0200 0100 2800000000000000 6400000000000000 07000000")
    assert encode_slot(WITH_END, 1) == drawn + struct.pack("<I", crc32c(drawn))


def test_a_slot_of_version_1_says_nothing_about_the_end():
    drawn = bytes.fromhex("4d534350 0100 0100 2800000000000000 6400000000000000")
    assert encode_slot(NEXT_SEGMENT, 1) == drawn + struct.pack("<II", crc32c(drawn), 0)
    assert (SLOT_SIZE, CHECKPOINT_SIZE) == (32, 64)


@pytest.mark.parametrize(
    ("first", "second", "found"),
    [
        (EARLY, LATE, LATE),
        (LATE, EARLY, LATE),
        (LATE, NEXT_SEGMENT, NEXT_SEGMENT),
        (NEXT_SEGMENT, LATE, NEXT_SEGMENT),
        (LATE, LATE, LATE),
    ],
)
def test_the_later_of_two_slots_wins(first, second, found):
    assert decode_checkpoint(slot(first) + slot(second, turn=1)) == found


POINTS = st.builds(
    SyncPoint,
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.just(UNKNOWN_END),
)


@given(POINTS, POINTS)
def test_a_checkpoint_reads_back_as_it_was_written(first, second):
    data = encode_slot(first, 0) + encode_slot(second, 1)
    assert decode_checkpoint(data) == max(first, second)


@given(st.integers(0, 2**62), st.integers(0, 2**63 - 1), st.integers(0, 2**33))
def test_the_end_reads_back_unless_the_segment_has_too_many_offsets(base, size, offsets):
    read_back = decode_checkpoint(encode_slot(SyncPoint(base, size, base + offsets), 0) + BLANK)
    end = base + offsets if offsets < 2**32 else UNKNOWN_END
    assert read_back == SyncPoint(base, size, end)


@pytest.mark.parametrize("damage", DAMAGE)
def test_one_torn_slot_leaves_the_other(damage: Callable[[bytes], bytes]):
    assert decode_checkpoint(damage(slot(LATE)) + slot(EARLY)) == EARLY
    assert decode_checkpoint(slot(EARLY) + damage(slot(LATE))) == EARLY


@pytest.mark.parametrize("damage", DAMAGE)
def test_two_torn_slots_say_nothing(damage: Callable[[bytes], bytes]):
    assert decode_checkpoint(damage(slot(LATE)) * 2) == NOTHING_SYNCED


def test_every_flipped_bit_silences_its_slot():
    data = slot(LATE) + BLANK
    for bit in range(8 * SLOT_SIZE):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_checkpoint(bytes(damaged)) == NOTHING_SYNCED
    data = encode_slot(WITH_END, 1) + BLANK
    for bit in range(8 * SLOT_SIZE):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_checkpoint(bytes(damaged)) == NOTHING_SYNCED


def test_every_cut_leaves_the_slots_that_are_whole():
    data = slot(EARLY) + slot(LATE, turn=1)
    for size in range(CHECKPOINT_SIZE):
        found = EARLY if size >= SLOT_SIZE else NOTHING_SYNCED
        assert decode_checkpoint(data[:size]) == found
    assert decode_checkpoint(data) == LATE


def test_nothing_synced_is_less_than_anything_that_is():
    assert SyncPoint(0, 0) > NOTHING_SYNCED


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("change", [{"version": 2}, {"magic": b"MSXX"}], ids=str)
def test_a_sound_slot_of_another_format_is_refused(place, change):
    slots = [slot(EARLY), slot(LATE)]
    slots[place] = slot(LATE, **change)
    with pytest.raises(UnknownFormat, match="expected 1"):
        decode_checkpoint(b"".join(slots))


@given(st.binary(max_size=80))
def test_noise_says_nothing(noise):
    assert decode_checkpoint(noise) == NOTHING_SYNCED


# The open file.


def test_the_slots_take_turns():
    filesystem = SimulatedFilesystem()
    checkpoint = Checkpoint(filesystem.create("/checkpoint"))
    contents = []
    for size in (100, 200, 300):
        checkpoint.write(SyncPoint(0, size))
        contents.append(filesystem.content("/checkpoint").ljust(CHECKPOINT_SIZE, b"\0"))
    checkpoint.close()
    first, second, third = contents
    assert first == BLANK + slot(SyncPoint(0, 100), turn=1)
    assert second == slot(SyncPoint(0, 200), turn=0) + slot(SyncPoint(0, 100), turn=1)
    assert third == slot(SyncPoint(0, 200), turn=0) + slot(SyncPoint(0, 300), turn=1)


def test_whatever_a_power_cut_leaves_is_true_and_never_older_than_what_was_synced():
    """True: a point that was written. Synced ones are kept by the slot that is not torn."""
    filesystem = SimulatedFilesystem()
    filesystem.note(NOTHING_SYNCED)
    checkpoint = Checkpoint(filesystem.create("/checkpoint"))
    filesystem.sync_directory("/")
    points = [SyncPoint(segment, size) for segment in (0, 5) for size in (100, 200, 300)]
    for point in points:
        checkpoint.write(point)
        checkpoint.sync()
        filesystem.note(point)
    for state in crash_states(filesystem.trace, seed=1):
        after = state.filesystem()
        data = after.content("/checkpoint") if "/checkpoint" in after.paths() else b""
        found = decode_checkpoint(data)
        assert found in (NOTHING_SYNCED, *points), str(state)
        assert found >= max((NOTHING_SYNCED, *state.notes)), str(state)
