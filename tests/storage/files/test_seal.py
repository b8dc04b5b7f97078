"""The seal of a segment describes its log correctly, or is refused."""

from __future__ import annotations

import struct
from array import array
from dataclasses import replace

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128_digest

from millstream.errors import CorruptFile, UnknownFormat
from millstream.records.batch import HEADER_SIZE, decode_header, stamp
from millstream.records.build import build_batch
from millstream.records.filter.batch_filter import filler_batches, remove_offsets
from millstream.records.record import Record
from millstream.storage.files.index import NO_TIME
from millstream.storage.files.seal import (
    EMPTY_DIGEST,
    SEAL_SIZE,
    Seal,
    SegmentStats,
    decode_seal,
    encode_seal,
    stats_from_seal,
)

SEAL = Seal(
    base_offset=1,
    next_offset=2,
    size=3,
    batch_count=4,
    record_count=5,
    timestamp_min=-6,
    timestamp_max=7,
    created_ms=8,
    sealed_ms=9,
    digest=bytes(range(16)),
    leader_epoch=10,
)

GOLDEN = bytes.fromhex(
    "4d53534c 0100 0000 0100000000000000 0200000000000000 0300000000000000 0400000000000000"
    "0500000000000000 faffffffffffffff 0700000000000000 0800000000000000 0900000000000000"
    "000102030405060708090a0b0c0d0e0f 0a000000"
)
"""Written by hand from the picture in `seal.py`, without the checksum at its end."""

INT64 = st.integers(-(2**63), 2**63 - 1)


def summed(body: bytes) -> bytes:
    return body + struct.pack("<I", crc32c(body))


# The file.


def test_a_seal_lies_as_it_is_drawn():
    assert encode_seal(SEAL) == summed(GOLDEN)
    assert len(encode_seal(SEAL)) == SEAL_SIZE == 104


@given(
    numbers=st.tuples(*[INT64] * 9),
    digest=st.binary(min_size=16, max_size=16),
    epoch=st.integers(-(2**31), 2**31 - 1),
)
def test_a_seal_reads_back_as_it_was_written(numbers, digest, epoch):
    names = [name for name in Seal.__dataclass_fields__ if name not in ("digest", "leader_epoch")]
    values = dict(zip(names, numbers, strict=True))
    seal = Seal(**values, digest=digest, leader_epoch=epoch)
    assert decode_seal(encode_seal(seal)) == seal


def test_every_cut_of_a_seal_is_refused():
    data = encode_seal(SEAL)
    for size in range(len(data)):
        with pytest.raises(CorruptFile, match=f"must have 104 bytes, got {size}"):
            decode_seal(data[:size])


def test_bytes_behind_a_seal_are_refused():
    with pytest.raises(CorruptFile, match="must have 104 bytes, got 105"):
        decode_seal(encode_seal(SEAL) + b"!")


def test_every_flipped_bit_of_a_seal_is_refused():
    data = encode_seal(SEAL)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFile):
            decode_seal(bytes(damaged))


def test_a_seal_of_a_newer_version_is_unknown_and_not_corrupt():
    with pytest.raises(UnknownFormat, match="has version 2, expected 1"):
        decode_seal(summed(GOLDEN[:4] + b"\x02\x00" + GOLDEN[6:]))


def test_another_file_with_a_right_sum_is_no_seal():
    with pytest.raises(CorruptFile, match="starts with b'MSIX'"):
        decode_seal(summed(b"MSIX" + GOLDEN[4:]))


def test_bytes_that_must_be_zero_are_checked():
    with pytest.raises(CorruptFile):
        decode_seal(summed(GOLDEN[:6] + b"\x01\x00" + GOLDEN[8:]))


@given(st.binary(min_size=SEAL_SIZE, max_size=SEAL_SIZE))
def test_noise_is_refused(noise):
    with pytest.raises(CorruptFile):
        decode_seal(noise)


# The tally, which becomes a seal.


def batch(offset: int, *timestamps: int, value: bytes = b"v") -> bytes:
    records = [Record(value, timestamp_ms=timestamp) for timestamp in timestamps]
    return stamp(build_batch(records, now_ms=0), base_offset=offset, leader_epoch=3)


def add(counted: SegmentStats, data: bytes) -> None:
    counted.add(decode_header(data), len(data), data[:HEADER_SIZE])


def tally(*batches: bytes, base_offset: int = 10) -> SegmentStats:
    counted = SegmentStats(base_offset, leader_epoch=3, created_ms=100)
    for data in batches:
        add(counted, data)
    return counted


FIRST = batch(10, 500, 90, 700)
SECOND = batch(13, 300, 600)
THIRD = batch(15, 400)


def test_a_tally_counts_bytes_batches_records_and_offsets():
    assert tally(FIRST, SECOND, THIRD).seal(sealed_ms=200) == Seal(
        base_offset=10,
        next_offset=16,
        size=len(FIRST) + len(SECOND) + len(THIRD),
        batch_count=3,
        record_count=6,
        timestamp_min=300,
        timestamp_max=700,
        created_ms=100,
        sealed_ms=200,
        digest=tally(FIRST, SECOND, THIRD).digest,
        leader_epoch=3,
    )


def test_an_empty_tally_ends_where_it_starts():
    empty = tally()
    assert (empty.next_offset, empty.size, empty.batch_count) == (10, 0, 0)
    assert (empty.record_count, empty.digest) == (0, EMPTY_DIGEST)
    assert empty.timestamp_max == NO_TIME


@pytest.mark.parametrize("timestamps", [(5,), (-5,), (0,), (-(2**63),), (2**63 - 1,)])
def test_the_first_batch_alone_sets_both_timestamps(timestamps):
    counted = tally(batch(10, *timestamps))
    assert (counted.timestamp_min, counted.timestamp_max) == (timestamps[0], timestamps[0])


@given(st.permutations([500, 300, 400, 100, 900]))
def test_timestamps_may_jump_in_both_directions(timestamps):
    batches = [batch(10 + number, at) for number, at in enumerate(timestamps)]
    counted = tally(*batches)
    assert (counted.timestamp_min, counted.timestamp_max) == (100, 900)


EMPTY = remove_offsets(batch(13, 9), array("q", [13]))
"""A batch without records, as a rewrite leaves it: its header, with its old timestamps."""


@pytest.mark.parametrize(
    "empty", [EMPTY, filler_batches(13, 14, leader_epoch=3)], ids=["batch", "filler"]
)
@pytest.mark.parametrize("place", range(3))
def test_a_batch_without_records_dates_nothing_and_is_counted_all_the_same(empty, place):
    batches = [batch(10 + number, at) for number, at in enumerate((300, 100))]
    batches.insert(place, empty)
    counted = tally(*batches)
    assert (counted.timestamp_min, counted.timestamp_max) == (100, 300)
    assert (counted.batch_count, counted.record_count, counted.next_offset) == (3, 2, 13)
    assert counted.digest != tally(*(data for data in batches if data is not empty)).digest


def test_a_tally_of_empty_batches_alone_has_no_time():
    counted = tally(filler_batches(10, 20, leader_epoch=3))
    assert (counted.timestamp_min, counted.timestamp_max) == (tally().timestamp_min, NO_TIME)
    assert (counted.next_offset, counted.record_count) == (20, 0)


@pytest.mark.parametrize("at", [-5, 5])
def test_the_first_record_after_empty_batches_alone_sets_both_timestamps(at):
    resumed = stats_from_seal(tally(filler_batches(10, 20, leader_epoch=3)).seal(sealed_ms=150))
    add(resumed, batch(20, at))
    assert (resumed.timestamp_min, resumed.timestamp_max) == (at, at)


def test_offsets_are_counted_on_whatever_a_batch_that_is_not_stamped_yet_says():
    counted = tally()
    add(counted, build_batch([Record(b"a"), Record(b"b")], now_ms=0))
    assert (counted.base_offset, counted.next_offset) == (10, 12)


def test_the_digest_chains_the_headers_of_all_batches():
    one = xxh3_128_digest(bytes(16) + FIRST[:HEADER_SIZE])
    assert tally(FIRST, SECOND).digest == xxh3_128_digest(one + SECOND[:HEADER_SIZE])


@pytest.mark.parametrize(
    "other",
    [
        pytest.param([SECOND, FIRST], id="another order"),
        pytest.param([FIRST], id="one less"),
        pytest.param([FIRST, SECOND, THIRD], id="one more"),
        pytest.param([FIRST, FIRST], id="one twice"),
        pytest.param([FIRST, batch(13, 300, 600, value=b"w")], id="another record"),
        pytest.param([FIRST, batch(14, 300, 600)], id="another offset"),
        pytest.param([], id="nothing"),
    ],
)
def test_other_batches_have_another_digest(other):
    assert tally(*other).digest != tally(FIRST, SECOND).digest


@pytest.mark.parametrize("cut", range(4))
def test_a_tally_goes_on_from_where_a_seal_stands(cut):
    batches = [FIRST, SECOND, THIRD]
    resumed = stats_from_seal(decode_seal(encode_seal(tally(*batches[:cut]).seal(sealed_ms=150))))
    for data in batches[cut:]:
        add(resumed, data)
    assert resumed.seal(sealed_ms=200) == tally(*batches).seal(sealed_ms=200)


def test_sealing_again_changes_only_the_time_of_sealing():
    counted = tally(FIRST)
    seal = counted.seal(sealed_ms=150)
    assert stats_from_seal(seal).seal(sealed_ms=999) == replace(seal, sealed_ms=999)
